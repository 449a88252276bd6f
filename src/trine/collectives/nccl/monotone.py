"""More bandwidth is never slower, although NCCL may choose a slower candidate on faster links.

NCCL's cost model is not trine's. More bandwidth may therefore make NCCL change to a candidate that trine predicts to be
slower. A user who adds bandwidth does not lose, so the answer keeps the time just before the change. A broadcast of
1 MiB on eight GPUs at a switch (trine's times of ring/ll and ring/simple; ``*``: NCCL's choice):

    GB/s    ring/ll    ring/simple    answer
    170     35.7 *     48.0           35.7 us
    190     34.4 *     46.0           34.4 us
    210     33.2       44.3 *         34.2 us    the time of ring/ll at 192 GB/s, where NCCL changes to ring/simple
    290     30.3       39.6 *         34.2 us
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trine.collectives.nccl.costs import Cost

Candidate = tuple[str, str]
#: Shares of the bandwidth in the search, so dense that a choice rarely falls between two of them.
_SHARES: tuple[float, ...] = tuple(2.0 ** (-step / 32) for step in (*range(1, 65), *range(68, 260, 4)))


def monotone_in_bandwidth(
    chosen: Candidate, candidates: Iterable[Candidate], cost: Callable[[Candidate, float], Cost],
    choice: Callable[[float], Candidate],
) -> tuple[Cost, Candidate, float] | None:  # fmt: skip
    """Return the fastest candidate at a lower bandwidth as (cost, candidate, share of the bandwidth).

    ``cost(candidate, share)``: trine's cost with a share of the bandwidth; ``choice(share)``: the library's candidate
    there. Returns None if no other candidate that the library chooses at some share is faster than ``chosen``.
    """
    best: tuple[Cost, Candidate, float] | None = None
    limit_us = chosen_us = cost(chosen, 1.0).total_us
    for candidate in candidates:
        if candidate == chosen or cost(candidate, 1.0).total_us >= chosen_us:
            continue
        share = _largest_share(candidate, choice)
        if share is not None and (slower_cost := cost(candidate, share)).total_us < limit_us:
            best, limit_us = (slower_cost, candidate, share), slower_cost.total_us
    return best


def _largest_share(candidate: Candidate, choice: Callable[[float], Candidate]) -> float | None:
    """Return the largest share of the bandwidth at which the library chooses ``candidate``, or None."""
    index = next((i for i, share in enumerate(_SHARES) if choice(share) == candidate), None)
    if index is None:
        return None
    low, high = _SHARES[index], (1.0, *_SHARES)[index]
    while high - low > 1e-12 * high and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if choice(middle) == candidate else (low, middle)
    return low
