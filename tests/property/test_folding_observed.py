"""Does a folded result report the same for every rank as the unfolded result?"""

from __future__ import annotations

import os
from dataclasses import asdict
from random import Random
from typing import Any

import numpy as np
import pytest
from folded_cases import Case, random_case, reckless
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.folding import run
from trine.results import Result

EXAMPLES = int(os.environ.get("TRINE_FOLD_EXAMPLES", "10"))
#: Keys about the machine, the run or all ranks, not about the shown ranks.
NOT_OF_RANKS = {"simulator", "folding", "links", "collectives", "energy", "critical_path", "warnings"}
OF_RANKS = ("compute", "communication", "exposed", "bubble", "idle", "input_copy", "offload", "waits")
COLUMNS = ("kind", "rank", "peer", "size_bytes", "ready_ps", "start_ps", "end_ps", "stage", "microbatch", "step")


def both(case: Case, seed: int) -> tuple[Result, Result]:
    """Return the folded result (too many ranks to show, stops at every possible point) and the unfolded result."""
    with pytest.MonkeyPatch.context() as patch:
        reckless(Random(seed), patch)
        patch.setattr(run, "SHOW_ALL", 0)
        return case.run(fold="on"), case.run(fold="off")


def rows(result: Result) -> list[tuple[Any, ...]]:
    """Return the shown ranks' records in an order independent of task numbers."""
    table = result.record_table
    texts = [table.text(name) for name in ("phase", "operator", "layer", "wait_reason")]
    return sorted(zip(*(table.columns[name].tolist() for name in COLUMNS), *texts, strict=True))


def of_ranks(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a result's JSON about the shown ranks."""
    kept = {name: value for name, value in document.items() if name not in NOT_OF_RANKS}
    kept["ranks"] = [
        {name: value for name, value in row.items() if name not in ("class", "ranks_alike")} for row in kept["ranks"]
    ]
    return kept


@given(seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES, deadline=None, derandomize="TRINE_FOLD_EXAMPLES" not in os.environ)
def test_any_ranks(seed: int) -> None:
    case = random_case(seed, most=16)
    folded, unfolded = both(case, seed)
    rng = Random(seed)
    for ranks in (folded.shown_ranks, rng.sample(range(case.plan.num_ranks), rng.randint(1, case.plan.num_ranks))):
        seen, expected = folded.of_ranks(ranks), unfolded.of_ranks(ranks)
        assert rows(seen) == rows(expected)
        for name in OF_RANKS:
            np.testing.assert_array_equal(getattr(seen.rank_times, name), getattr(expected.rank_times, name), name)
        assert seen.memory_peaks == expected.memory_peaks
        assert of_ranks(seen.to_json()) == of_ranks(expected.to_json())


@given(seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES, deadline=None, derandomize="TRINE_FOLD_EXAMPLES" not in os.environ)
def test_all_that_is_said_of_the_whole_system(seed: int) -> None:
    case = random_case(seed, most=24)
    folded, unfolded = both(case, seed)
    assert folded.step_ends_ps.tolist() == unfolded.step_ends_ps.tolist()
    assert set(folded.to_json()) == set(unfolded.to_json())
    assert folded.memory_peak_bytes == unfolded.memory_peak_bytes
    alike = {(use.kind, use.size_bytes, use.group_size): use for use in folded.collectives}
    for use in unfolded.collectives:
        seen = alike.pop((use.kind, use.size_bytes, use.group_size))
        assert (seen.count, seen.total) == (use.count, use.total)
        assert set(seen.algorithms) == set(use.algorithms)
        assert seen.time_ps <= use.time_ps  # covers only the shown ranks' transfers
    assert not alike
    carried = [asdict(use) for use in folded.of_ranks([0]).links]
    numbers = sorted((use["size_bytes"], use["bytes_per_s"]) for use in carried for _ in range(use["count"]))
    assert numbers == sorted((use.size_bytes, use.bytes_per_s) for use in unfolded.links if use.size_bytes)
