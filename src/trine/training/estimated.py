"""Estimates for machines whose few slow or dead links leave too many distinct ranks: two exact runs near the result.

One run has no slow or dead links; the other makes all links of their places as slow, or dead. Both machines are even,
so both runs fold. The lower time is at least a slow link's time for its traffic. If each transfer keeps its route and
no two share a link, the result lies between both runs, because ends are maxima of sums. Otherwise it may lie outside:
transfers that take turns on an even machine collide if one node is late, and late transfers leave links to others.
tests/property/test_estimated.py measures how often and how far small machines lie outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.uniform import Evened, evened
from trine.common.arrays import Int64
from trine.common.observer import ignore, observing
from trine.common.units import PS_PER_S, format_time
from trine.errors import SpecError, TooManyTasksError
from trine.training.options import SimulateOptions
from trine.training.setup import Setup

if TYPE_CHECKING:
    from trine.results import Result
    from trine.results.run import Scope


#: Maximum number of slow links named in a message.
NAMED = 3
#: Share of a few hundred adversarial random jobs on 4 nodes, with one slow or dead link, that took longer than on both
#: even machines, and the largest excess (docs/design/folding.md).
LONGER_SLOW, LONGER_DEAD = "1 in 15 took longer, by up to 15 %", "1 in 5 took longer, by up to 31 %"


def has_estimate(setup: Setup) -> bool:
    """Return whether an estimate is close: a few links are slower than others of their place, but no link is dead."""
    even = _even_machines(setup)
    return even is not None and not len(even.dead)


def estimated(setup: Setup, error: TooManyTasksError, run: Callable[[SimulateOptions], Result]) -> Result:
    """Return the result of the slower of two even machines, with the time of the faster; ``error``: why no exact run.

    Raises ``error`` if the machine is not even except for a few slow or dead links, if the even machines do not fold
    either, or if one of them is disconnected.
    """
    even = _even_machines(setup)
    if even is None:
        raise error
    options = replace(setup.options, trace_gpu=None, network=setup.network)
    try:
        with observing(on_job=ignore):
            low = run(replace(options, cluster=even.fast, compare=False, warnings=()))
            high = run(replace(options, cluster=even.slow))
    except (TooManyTasksError, SpecError):
        raise error from None
    if low.scope is None or high.scope is None:
        raise error
    ends = max(low.step_time_ps, _busy_ps(setup, even, low.scope, high.scope)), high.step_time_ps
    sentence = _sentence(even, error, *ends)
    scope = replace(high.scope, notes=(*high.scope.notes, sentence), estimate_ps=ends)
    return replace(high, scope=scope, warnings=(sentence, *high.warnings))


def _busy_ps(setup: Setup, even: Evened, low: Scope, high: Scope) -> int:
    """Return the longest time of a slow link for its traffic in either run: a lower bound on the time of one step."""
    if len(high.step_ends_ps) > 1 or setup.machine is None or len(even.dead):
        return 0
    rates: list[int] = setup.machine.link_bytes_per_s[even.links].tolist()
    carried: list[int] = np.minimum(low.link_bytes, high.link_bytes)[even.links].tolist()
    return max(-(-size * PS_PER_S // rate) for size, rate in zip(carried, rates, strict=True))


def _even_machines(setup: Setup) -> Evened | None:
    costs = setup.options.collective_costs
    return None if setup.machine is None or not isinstance(costs, str) else evened(setup.machine)


def _sentence(even: Evened, error: TooManyTasksError, low_ps: int, high_ps: int) -> str:
    spread = f"{100 * (high_ps - low_ps) / high_ps:.2g} %" if high_ps else "0 %"
    all_kinds = (("slow", "as slow", even.links, even.num_slowed), ("dead", "dead", even.dead, even.num_dead))
    kinds = [kind for kind in all_kinds if len(kind[2])]
    low_case = f"no link {' or '.join(word for word, *_ in kinds)}"
    low_case += "" if len(even.dead) else ", except for such links' own traffic"
    every = ", ".join(f"all {number} links of their places {word}" for _, word, _, number in kinds)
    longer = LONGER_DEAD if len(even.dead) else LONGER_SLOW
    names = " and ".join(f"{_names(even, links)} {word}" for word, _, links, _ in kinds)
    return (
        f"an estimate: the step takes about {format_time(low_ps)} ({low_case}) to {format_time(high_ps)} (this answer: "
        f"{every}), {spread} apart; of small adversarial machines {longer}. The exact run, with {names} alone, "
        f"has {error.num_classes} classes of {error.num_ranks} ranks, so {error.num_tasks:,} tasks"
    )


def _names(even: Evened, links: Int64) -> str:
    names = ", ".join(even.fast.link_names[link] for link in links[:NAMED].tolist())
    return names + (f" and {len(links) - NAMED} more" if len(links) > NAMED else "")
