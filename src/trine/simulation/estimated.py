"""Where a few slow or dead links make too many ranks behave differently: two exact runs that the answer lies near.

The same job on the machine without such links, and on one where all links of their places are as slow, or dead, fold
as those of even machines do; and a slow link needs its time for what it carries. Where each transfer keeps its route
and no two share a link, the answer lies between both: ends are maxima of sums. Else it need not: transfers that take
turns on an even machine meet where one node is late, and what is late leaves its links to others. How often and how far
small machines lie beyond is looked at in tests/property/test_estimated.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int64
from trine.cluster.evened import Evened, evened
from trine.errors import SpecError, TooManyTasksError
from trine.simulation.options import SimulateOptions
from trine.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from trine.results import Result
    from trine.results.run import Scope
    from trine.simulation.setup import Setup

#: Names of slow links that are said.
NAMED = 3
#: How many of some hundred random jobs on 4 nodes, made to do worse, took longer than on both even machines where one
#: link was slow, or dead, and how much longer at most (docs/design/folding.md).
LONGER_SLOW, LONGER_DEAD = "1 in 15 took longer, by up to 15 %", "1 in 5 took longer, by up to 31 %"


def has_estimate(setup: Setup) -> bool:
    """Whether a few links are slower than all others of their place, and none is dead: then an estimate is near."""
    even = _evened(setup)
    return even is not None and not len(even.dead)


def estimated(setup: Setup, error: TooManyTasksError, run: Callable[[SimulateOptions], Result]) -> Result:
    """The result of the slower of two even machines, with what the faster one takes; ``error``: why not itself.

    Raises ``error`` where the machine has no few slow or dead links, or the even machines do not fold either, or one of
    them is in pieces.
    """
    even = _evened(setup)
    if even is None:
        raise error
    options = replace(setup.options, trace_gpu=None, network=setup.network, on_job=None)
    try:
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
    """How long a slow link takes for what it carries in either run, in a run of one step: less no step takes."""
    if len(high.step_ends_ps) > 1 or setup.machine is None or len(even.dead):
        return 0
    rates: list[int] = setup.machine.link_bytes_per_s[even.links].tolist()
    carried: list[int] = np.minimum(low.link_bytes, high.link_bytes)[even.links].tolist()
    return max(-(-size * PS_PER_S // rate) for size, rate in zip(carried, rates, strict=True))


def _evened(setup: Setup) -> Evened | None:
    asked = setup.options.collective_costs
    return None if setup.machine is None or not isinstance(asked, str) else evened(setup.machine)


def _sentence(even: Evened, error: TooManyTasksError, low_ps: int, high_ps: int) -> str:
    apart = f"{100 * (high_ps - low_ps) / high_ps:.2g} %" if high_ps else "0 %"
    all_kinds = (("slow", "as slow", even.links, even.num_slowed), ("dead", "dead", even.dead, even.num_dead))
    kinds = [kind for kind in all_kinds if len(kind[2])]
    none = f"no link {' or '.join(word for word, *_ in kinds)}"
    none += "" if len(even.dead) else ", except for such links' own traffic"
    every = ", ".join(f"all {number} links of their places {word}" for _, word, _, number in kinds)
    longer = LONGER_DEAD if len(even.dead) else LONGER_SLOW
    names = " and ".join(f"{_names(even, links)} {word}" for word, _, links, _ in kinds)
    return (
        f"an estimate: the step takes about {format_time(low_ps)} ({none}) to {format_time(high_ps)} (this answer: "
        f"{every}), {apart} apart; of small adversarial machines {longer}. The exact run, with {names} alone, "
        f"has {error.num_classes} classes of {error.num_ranks} ranks, "
        f"so {error.num_tasks:,} tasks"
    )


def _names(even: Evened, links: Int64) -> str:
    names = ", ".join(even.fast.link_names[link] for link in links[:NAMED].tolist())
    return names + (f" and {len(links) - NAMED} more" if len(links) > NAMED else "")
