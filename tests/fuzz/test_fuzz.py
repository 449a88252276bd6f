"""Does any file or command line end in a traceback, a hang, a gigabyte or a message that is not one short line?

``make test`` runs all cases that once broke trine (``corpus/``) and 60 cases of a search, ``make test-slow`` 3600:
the same cases on every machine, fast or slow. ``make fuzz SECONDS=3600`` searches new cases for the time you choose.
Faults are saved in ``fuzz-found/``; ``PYTHONPATH=tests python tests/fuzz/fuzz_search.py --again FILE`` repeats one.
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
CASES = yaml.load((CORPUS / "cases.yaml").read_bytes(), yaml.CSafeLoader)
#: Cases of a search and its first seed: about 3 seconds, and about 3 minutes.
SHORT, LONG = (60, 1), (3600, 1000)


def content(given):
    """Return the bytes of a file of the corpus, or None for a FIFO."""
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
    """Samples are valid before they are damaged, else the damage tests nothing."""
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


GOOD = {"code": 2, "stderr": "error: a.yaml: is wrong\n", "stdout": "", "traceback": ""}
FAULTS = {
    "died": {"died": 11},
    "memory": {"peak": 1 << 40},
    "hang": {"cpu_seconds": 1000.0},
    "traceback": {"traceback": 'File "x"\nValueError: no'},
    "traceback: on stderr": {"stderr": "Traceback (most recent call last)\nValueError: no\n"},
    "code": {"code": -11},
    "message: 2 lines": {"stderr": "error: a.yaml: is wrong\nand more\n"},
    "message: 4": {"stderr": f"error: a.yaml: {'a' * 400}\n"},
    "message: not printable": {"stderr": "error: a.yaml: \x07\n"},
    "message: stdout before": {"stdout": "half an answer"},
    "message: does not name a.yaml": {"stderr": "error: a file is wrong\n"},
}


def test_an_answer_without_a_fault_is_good():
    assert fault(Case(("check", "a.yaml"), {"a.yaml": b""}, "a.yaml"), GOOD) is None


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_fault_is_found(name):
    found = fault(Case(("check", "a.yaml"), {"a.yaml": b""}, "a.yaml"), GOOD | FAULTS[name])
    assert found is not None
    assert found.startswith(name)


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
