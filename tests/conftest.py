"""Puts this folder on the path, so that every suite can import the builders of small cases (synthetic.py).

And says what ``make test`` leaves to ``make test-slow``: most cases of the tests in ``slow.yaml``, and seven
eighths of the examples of every property test. ``TRINE_TESTS=full`` asks for all of both.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

TESTS = Path(__file__).parent
#: File -> test -> one in how many of its cases ``make test`` asks; 0: none. A file's number is that of all its tests.
THINNED = yaml.safe_load((TESTS / "slow.yaml").read_text(encoding="utf-8"))
#: Of a property test's examples ``make test`` tries one in so many, and at least so many.
ONE_IN, AT_LEAST = 8, 5
IS_FULL = os.environ.get("TRINE_TESTS") == "full"

# A job in the background ignores Ctrl-C, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests ask the compiled loop: what answers small runs in its place is compared with it by oracle/test_small_runs.py.
import_module("trine.engine.run").MOST_TASKS = 0

# Property tests try the same examples until they are edited, so that what fails is due to what was changed;
# --hypothesis-profile=default tries new ones.
settings.register_profile("trine", deadline=None, derandomize=True, database=None)
settings.load_profile("trine")


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
    """A test that is renamed is thinned no more: say so."""
    files = {file for file, _ in cases}
    named = [(file, test) for file, tests in THINNED.items() if not isinstance(tests, int) for test in tests]
    if gone := [name for name in named if name not in cases and name[0] in files]:
        raise pytest.UsageError(f"tests/slow.yaml names tests that are not there: {gone}")
    if gone := [file for file in THINNED if not (TESTS / file).exists()]:
        raise pytest.UsageError(f"tests/slow.yaml names files that are not there: {gone}")


def fewer_examples(items):
    """One in ``ONE_IN`` of what each property test asks for by itself."""
    done = set()
    for item in items:
        function = getattr(item, "obj", None)
        asked = getattr(function, "_hypothesis_internal_use_settings", None)
        inner = getattr(function, "__func__", function)
        if asked is not None and id(inner) not in done:
            done.add(id(inner))
            count = max(asked.max_examples // ONE_IN, min(asked.max_examples, AT_LEAST))
            inner._hypothesis_internal_use_settings = settings(asked, max_examples=count)
