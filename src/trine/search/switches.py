"""Switches of experts: ways to hide or shorten their exchanges, which a search tries on its best layouts.

An expert turns them on last, when the ranks are chosen. So a search first orders layouts without them. Then it
simulates its best layout with each combination, and the best combination on the next one and on layouts whose exchanges
were too long. The numbers are small, so that a search takes little longer than without switches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from trine.errors import PlanError

if TYPE_CHECKING:
    from trine.cluster.gpu_spec import GpuSpec
    from trine.graph.workload import Workload
    from trine.search.probe import LayerCosts
    from trine.search.space import Layout, Space
    from trine.software.profile import Software

#: Layouts with switches from the search: the first gets each combination, the others the best one.
NUM_BASES = 2
#: Layouts that the best combination may make the fastest, in rounds; a round without a gain is the last one.
NUM_LATER, LATER_PER_ROUND = 4, 2
#: Most of the likely fastest layouts that are looked at for those, and of them that small simulations examine.
MAX_LOOKED_AT, MAX_EXAMINED = 64, 4
#: Experts of those layouts lie on at most this many times the ranks of the best layout. The messages of an exchange
#: share links at the same time, so the time of a simulation grows with about the square of the ranks.
MAX_EP_RATIO = 4


def switch_settings(
    software: Software | None, workload: Workload, fixed: Mapping[str, Any], gpu: GpuSpec | None
) -> list[dict[str, Any]]:
    """Return the combinations of switches that the software offers for a model, each as changes of a layout.

    The list is empty for a model without experts. fixed: fields that every layout has; a fixed switch takes part in no
    combination. gpu: without NVLink, DeepEP's kernels do not run (deepseek-ai/DeepEP, README, requirements).
    """
    if software is None or not any(op.attributes.get("moe") for op in workload.operators):
        return []
    offered = {name: values for name, values in software.switches.items() if name not in fixed}
    if gpu is None or gpu.nvlink is None:
        offered.pop("dispatch", None)
    choices = [[(name, None), *((name, value) for value in values)] for name, values in offered.items()]
    settings: list[dict[str, Any]] = []
    for pairs in product(*choices):
        setting = {name: value for name, value in pairs if value is not None}
        if setting and not (setting.get("expert_overlap") and setting.get("shared_expert_overlap")):
            settings.append(setting)
    return settings


def has_switches(layout: Layout) -> bool:
    """Return whether a layout hides or shortens the exchanges of its experts."""
    return layout.expert_overlap or layout.shared_expert_overlap or layout.dispatch is not None


def switched(layout: Layout, setting: Mapping[str, Any], space: Space) -> Layout | None:
    """Return a layout with switches, or None if no job can have them."""
    if layout.ep == 1:
        return None
    changed = layout._replace(**setting)
    try:
        space.plan(changed)
    except PlanError:
        return None
    return None if space.reason(changed) else changed


def all_switched(layout: Layout, space: Space) -> list[Layout]:
    """Return a layout with each combination of switches that it can have."""
    found = []
    for setting in space.switches:
        changed = switched(layout, setting, space)
        if changed is not None:
            found.append(changed)
    return found


def without_exchanges(costs: LayerCosts) -> LayerCosts:
    """Return a layer's costs for a lower bound: compute alone, as if all communication were hidden."""
    return replace(
        costs, forward=costs.forward_alone, forward_within=costs.forward_alone, backward=costs.backward_alone,
        backward_within=costs.backward_alone,
    )  # fmt: skip
