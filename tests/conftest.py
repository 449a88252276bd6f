"""Put this folder on the path, so that every suite can import the builders of small cases (synthetic.py).

Also select the work that ``make test`` leaves to ``make test-slow``: most cases of the tests in ``slow.yaml``, and
fifteen sixteenths of the examples of every property test. ``TRINE_TESTS=full`` runs all of both.
``TRINE_REQUIRE=torch`` refuses to run without torch, whose tests would be skipped.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

TESTS = Path(__file__).parent
#: File -> test -> N: ``make test`` runs one in N of its cases; 0: no case. A file's number applies to all its tests.
THINNED = yaml.load((TESTS / "slow.yaml").read_bytes(), yaml.CSafeLoader)
#: ``make test`` tries one in ONE_IN of a property test's examples, and at least AT_LEAST.
ONE_IN, AT_LEAST = 16, 2
IS_FULL = os.environ.get("TRINE_TESTS") == "full"
#: Packages whose tests must not be skipped (CI: torch), separated by commas.
REQUIRED = [name for name in os.environ.get("TRINE_REQUIRE", "").split(",") if name]

# Background jobs ignore Ctrl-C, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests use the compiled loop; oracle/test_small_runs.py compares it with the reference engine, used for small runs.
import_module("trine.engine.small_runs").MAX_TASKS = 0

# Property tests try the same examples until they are edited, so that a failure is due to the change;
# --hypothesis-profile=default tries new ones.
settings.register_profile("trine", deadline=None, derandomize=True, database=None)
settings.load_profile("trine")


def pytest_configure(config):
    check_required(REQUIRED)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect 19,000 cases without the garbage collector, and never scan them later: they live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def check_required(names):
    """Raise UsageError for a required package that cannot be imported: its tests would be skipped without notice."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise pytest.UsageError(f"TRINE_REQUIRE names {name}, which is not installed: its tests would be skipped")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    cases = defaultdict(list)
    for item in items:
        file, _, test = item.nodeid.removeprefix("tests/").partition("::")
        cases[file, test.partition("[")[0]].append(item)
    for (file, test), found in cases.items():
        given = THINNED.get(file, {})
        keep = given if isinstance(given, int) else given.get(test, 1)
        for number, item in enumerate(found):
            if not keep or number % keep != number // keep % keep:  # not always the same one of two engines
                item.add_marker(pytest.mark.thinned if IS_FULL else pytest.mark.slow)
    if not IS_FULL:
        fewer_examples(items)
    if not any("::" in each for each in config.args):
        check_names(cases)


def check_names(cases):
    """Raise UsageError if slow.yaml names missing tests or files: a renamed test is no longer thinned."""
    files = {file for file, _ in cases}
    named = [(file, test) for file, tests in THINNED.items() if not isinstance(tests, int) for test in tests]
    if gone := [name for name in named if name not in cases and name[0] in files]:
        raise pytest.UsageError(f"tests/slow.yaml names tests that are not there: {gone}")
    if gone := [file for file in THINNED if not (TESTS / file).exists()]:
        raise pytest.UsageError(f"tests/slow.yaml names files that are not there: {gone}")


def fewer_examples(items):
    """Reduce the examples of each property test to one in ``ONE_IN``."""
    done = set()
    for item in items:
        function = getattr(item, "obj", None)
        asked = getattr(function, "_hypothesis_internal_use_settings", None)
        inner = getattr(function, "__func__", function)
        if asked is not None and id(inner) not in done:
            done.add(id(inner))
            count = max(asked.max_examples // ONE_IN, min(asked.max_examples, AT_LEAST))
            inner._hypothesis_internal_use_settings = settings(asked, max_examples=count)
