"""Where too many ranks behave differently because of a few slow links: two exact runs that the answer lies between.

The same job on the machine without slow links, and on one where all links of their places are as slow, fold as those of
even machines do; and a slow link needs its time for what it carries. A slower link makes no transfer faster, and where
no two transfers share a link no step shorter; what sharing makes of it is not proven, but looked at
(tests/property/test_bounded.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.evened import Evened, evened
from trine.errors import TooManyTasksError
from trine.simulation.options import SimulateOptions
from trine.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from trine.results import Result
    from trine.results.run import Scope
    from trine.simulation.setup import Setup

#: Names of slow links that are said.
NAMED = 3


def has_bound(setup: Setup) -> bool:
    """Whether a few links of the machine are slower than all others of their place, and this can be undone."""
    return _evened(setup) is not None


def bounded(setup: Setup, error: TooManyTasksError, run: Callable[[SimulateOptions], Result]) -> Result:
    """The result of the slower of two even machines, with what the faster one takes; ``error``: why not itself.

    Raises ``error`` where the machine has no few slow links, or the even machines do not fold either.
    """
    even = _evened(setup)
    if even is None:
        raise error
    options = replace(setup.options, trace_gpu=None, network=setup.network, on_job=None)
    try:
        low = run(replace(options, cluster=even.fast, compare=False, warnings=()))
        high = run(replace(options, cluster=even.slow))
    except TooManyTasksError:
        raise error from None
    if low.scope is None or high.scope is None:
        raise error
    ends = max(low.step_time_ps, _busy_ps(setup, even, low.scope, high.scope)), high.step_time_ps
    sentence = _sentence(setup, even, error, *ends)
    scope = replace(high.scope, notes=(*high.scope.notes, sentence), bound_ps=ends)
    return replace(high, scope=scope, warnings=(sentence, *high.warnings))


def _busy_ps(setup: Setup, even: Evened, low: Scope, high: Scope) -> int:
    """How long a slow link takes for what it carries in either run, in a run of one step: less no step takes."""
    if len(high.step_ends_ps) > 1 or setup.machine is None:
        return 0
    rates: list[int] = setup.machine.link_bytes_per_s[even.links].tolist()
    carried: list[int] = np.minimum(low.link_bytes, high.link_bytes)[even.links].tolist()
    return max(-(-size * PS_PER_S // rate) for size, rate in zip(carried, rates, strict=True))


def _evened(setup: Setup) -> Evened | None:
    asked = setup.options.collective_costs
    return None if setup.machine is None or not isinstance(asked, str) else evened(setup.machine)


def _sentence(setup: Setup, even: Evened, error: TooManyTasksError, low_ps: int, high_ps: int) -> str:
    assert setup.machine is not None
    names = ", ".join(setup.machine.link_names[link] for link in even.links[:NAMED].tolist())
    names += f" and {len(even.links) - NAMED} more" if len(even.links) > NAMED else ""
    apart = f"{100 * (high_ps - low_ps) / high_ps:.2g} %" if high_ps else "0 %"
    return (
        f"a bound: the step takes between {format_time(low_ps)} (no link slow, but for what such links carry) and "
        f"{format_time(high_ps)} (this answer: all {even.num_slowed} links of their places as slow), {apart} apart. "
        f"Exactly, with {names} slow alone, {error.num_classes} of {error.num_ranks} ranks behave differently, which "
        f"makes {error.num_tasks:,} tasks"
    )
