"""Does any file or command line end in a traceback, a hang, a gigabyte or a message that is not one short line?

``make test`` asks for all that is known to have broken once (``corpus/``) and for 60 cases of a search, ``make
test-slow`` for 3600: the same ones on every machine, however fast it is. ``make fuzz SECONDS=3600`` searches among new
ones for as long as you like. A fault is kept in ``fuzz-found/``, and
``PYTHONPATH=tests python tests/fuzz/fuzz_search.py --again FILE`` asks for it again.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import yaml
from fuzz_commands import LEFT_OUT, commands, files
from fuzz_run import LINE, Case, Worker, fault
from fuzz_samples import samples
from fuzz_search import Search

CORPUS = Path(__file__).with_name("corpus")
CASES = yaml.safe_load((CORPUS / "cases.yaml").read_text(encoding="utf-8"))
#: What a search asks for, and its first seed: some 3 seconds, and some 3 minutes.
SHORT, LONG = (60, 1), (3600, 1000)


def content(given):
    """The bytes of a file of the corpus; None: a FIFO."""
    if isinstance(given, str):
        return given.encode()
    if "from" in given:
        return (CORPUS / given["from"]).read_bytes()
    return (given["repeat"] * given["times"]).encode() if "repeat" in given else None


@pytest.fixture(scope="module")
def worker():
    made = Worker()
    yield made
    made.end()


def test_what_broke_once_is_refused_in_one_line(worker):
    wrong = []
    for entry in CASES:
        argv = tuple(shlex.split(entry["argv"]))
        own = {name: content(given) for name, given in entry.get("files", {}).items()}
        case = Case(argv, files() | own)
        answer = worker.ask(case)
        found = fault(case, answer)
        if found is None and answer["code"] != entry.get("code", 2):
            found = f"ends with {answer['code']}: {answer['stderr'][:200]}"
        if found is None and entry["says"] not in answer["stderr"]:
            found = f"says {answer['stderr'][:LINE]!r}"
        if found is not None:
            wrong.append(f"{entry['argv']}: {found}")
    assert not wrong, "\n".join(wrong)


def test_samples_are_read(worker):
    """What is damaged was valid before, else the damage tests nothing."""
    refused = {}
    for sample in samples():
        answer = worker.ask(Case(sample.argv, sample.files))
        if answer.get("code") != 0:
            refused[sample.name] = answer.get("stderr", "") + answer.get("traceback", "")
    assert not refused


def test_every_command_is_searched():
    """A new command needs a valid command line to start from."""
    from fuzz_commands import BASES

    left = [name for name in commands() if not any(base.startswith(name) for base in BASES)]
    assert sorted(left) == sorted(LEFT_OUT)


def search(cases, first_seed, tmp_path):
    found = Search(Path(os.environ.get("TRINE_FUZZ_FOUND", tmp_path)))
    found.run(first_seed, cases=cases)
    assert found.tried.total() == cases
    assert not found.found, "\n".join(found.found.values())


def test_a_short_search_finds_nothing(tmp_path):
    search(*SHORT, tmp_path)


@pytest.mark.slow
def test_a_long_search_finds_nothing(tmp_path):
    search(*LONG, tmp_path)
