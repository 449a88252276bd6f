"""Search for inputs that break trine: ``make fuzz SECONDS=3600``.

Each case is a command line with its files, made from a valid one by a few mutations. Workers run it
(:mod:`fuzz_worker`), and :func:`fuzz_run.fault` judges the outcome. Hypothesis draws the mutations.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_commands import BASES, edited
from fuzz_mutations import mutated
from fuzz_run import Case, Worker, fault, judge, load, save, signature
from fuzz_samples import samples
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_NUMBER = st.integers(0, 2**32)
_CHANGES = st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER), min_size=1, max_size=4)
CASES = st.tuples(st.sampled_from(("file", "command")), st.integers(0, 2**16), _CHANGES)
FOUND = Path("fuzz-found")
#: Cases per seed.
ROUND = 200


Drawn = tuple[str, int, list[tuple[int, int, int]]]


def cases_of(part: str) -> st.SearchStrategy[Drawn]:
    """Return a strategy like :data:`CASES` for the samples and command lines with ``part`` in their names."""
    named = [("file", number) for number, sample in enumerate(samples()) if part in sample.name]
    named += [("command", number) for number, base in enumerate(BASES) if part in base]
    return CASES if not part else st.tuples(st.sampled_from(named), _CHANGES).map(lambda drawn: (*drawn[0], drawn[1]))


def case_of(drawn: Drawn) -> Case:
    """Return the case for a draw of :data:`CASES`."""
    what, number, changes = drawn
    if what == "command":
        return edited(number, changes)
    sample = samples()[number % len(samples())]
    damaged = mutated(sample.files[sample.target], sample.kind, changes)
    at_fault = sample.target if sample.reads_alone else None
    return Case(sample.argv, {**sample.files, sample.target: damaged}, at_fault)


@dataclass
class Search:
    """Search and its results: ``found`` holds one fault per kind, ``tried`` counts the cases of each sort.

    says: print progress. only: search only samples and command lines with this text in their names.
    """

    folder: Path
    found: dict[str, str] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    says: bool = False
    only: str = ""
    worker: Worker = field(default_factory=Worker)

    def run(self, first_seed: int, *, cases: float = math.inf, seconds: float = math.inf) -> None:
        """Search one seed after another, for a number of cases (the same on every machine) or of seconds."""
        ends, number = time.monotonic() + seconds, first_seed
        try:
            while (left := cases - self.tried.total()) > 0 and time.monotonic() < ends:
                self._round(number, int(min(left, ROUND)), ends)
                number += 1
        finally:
            self.worker.end()

    def _round(self, number: int, cases: int, ends: float) -> None:
        @seed(number)
        @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck),
                  phases=(Phase.generate,))  # fmt: skip
        @given(cases_of(self.only))
        def attempt(drawn: Drawn) -> None:
            if time.monotonic() > ends:
                return
            began = time.monotonic()
            wrong = judge(case_of(drawn), self.worker)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.tried[f"{drawn[0]} {_name(drawn)}"] += 1
            if self.says and self.tried.total() % 500 == 0:
                print(f"{self.tried.total()} cases, the slowest {self.slowest_s:.1f} s", flush=True)
            if wrong is not None and signature(wrong) not in self.found:
                self._keep(drawn, wrong)

        attempt()

    def _keep(self, drawn: Drawn, wrong: str) -> None:
        """Save a fault of a new kind, without the changes that it does not need."""
        what, number, changes = drawn
        for change in changes if len(changes) > 1 else ():
            fewer = [each for each in changes if each is not change]
            found = judge(case_of((what, number, fewer)), self.worker) if fewer else None
            if found is not None and signature(found) == signature(wrong):
                changes, wrong = fewer, found
        case = case_of((what, number, changes))
        path = save(case, wrong, self.folder)
        self.found[signature(wrong)] = f"{wrong} [{path}]"
        print(ascii(wrong)[1:-1], f"    {path}: {ascii(' '.join(case.argv))[1:200]}", sep="\n", flush=True)


def _name(drawn: tuple[str, int, object]) -> str:
    return samples()[drawn[1] % len(samples())].name if drawn[0] == "file" else BASES[drawn[1] % len(BASES)][:24]


def _again(case: Case) -> str | None:
    worker = Worker()
    try:
        answer = worker.ask(case)
    finally:
        worker.end()
    print(json.dumps(answer, indent=1).replace("\\n", "\n"))
    return fault(case, answer)


def main() -> None:
    """Run a search from the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--cases", type=float, default=math.inf, help="at most so many")
    options.add_argument("--only", default="", help="part of the names of samples and command lines")
    options.add_argument("--found", type=Path, default=FOUND, help="folder of what fails")
    options.add_argument("--again", type=Path, help="one such case, instead of a search")
    given_ = options.parse_args()
    if given_.again is not None:
        sys.exit(_again(load(given_.again)))
    search = Search(given_.found, says=True, only=given_.only)
    search.run(given_.seed, cases=given_.cases, seconds=given_.seconds)
    print(f"{search.tried.total()} cases from seed {given_.seed}, the slowest {search.slowest_s:.1f} s, "
          f"{len(search.found)} faults")  # fmt: skip
    sys.exit(bool(search.found))


if __name__ == "__main__":
    main()
