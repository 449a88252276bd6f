"""The band of a step on a fabric that others use, from the bandwidths that collectives were measured to have there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.parts import SCALE_OUT
from trine.cluster.presets import load_links
from trine.collectives.sizes import bus_factor
from trine.graph.grid import RankGrid
from trine.results.headline import WidenedBand
from trine.units import PS_PER_S, format_bandwidth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trine.arrays import Int64
    from trine.cluster import Cluster
    from trine.cluster.schema import Sharing
    from trine.results import Result
    from trine.simulation.setup import Setup


def with_shared_fabric(result: Result, setup: Setup) -> Result:
    """Widen the band by the measured spread of a shared fabric, and name the fabric as what decides.

    The long end: collectives between nodes at the 5th percentile of the measured bandwidth, none of it hidden.
    """
    machine = setup.machine
    if machine is None:
        return result
    sharing = _sharing(machine)
    on = machine.node_of[np.asarray(machine.gpus, np.int64)].astype(np.int64)
    node = on[setup.places]
    if sharing is None or len(np.unique(node)) <= sharing.beyond_nodes:
        return result
    ports, per_node = _port_bytes_per_s(machine), len(on) / len(np.unique(on))
    grid, longer_ps = RankGrid(setup.plan.axes), 0.0
    for use in result.collectives:
        members = _members_on_a_node(grid, use.axes, node)
        if members:
            rate = sharing.of(use.kind)[0] * ports * members / per_node
            slow_ps = use.count * use.size_bytes * bus_factor(use.kind, use.group_size) / rate * PS_PER_S
            longer_ps += max(0.0, slow_ps - use.time_ps)
    step_ps, (low, high) = result.step_time_ps, (part * ports for part in sharing.of("all_reduce"))
    low_text, high_text, peak = (format_bandwidth(round(rate)) for rate in (low, high, ports))
    left = f"{low_text} to {high_text} of {peak} a node"
    reason = f"the fabric decides: traffic of others left all-reduces {left} ({sharing.source})"
    band = WidenedBand(inner=result.band, low_ps=step_ps, high_ps=step_ps + round(longer_ps), reason=reason)
    return replace(result, band=band)


def _sharing(machine: Cluster) -> Sharing | None:
    """Return what was measured of the kind of link that joins the nodes; None where others do not use the fabric."""
    kinds = {link.medium for link in machine.link_table.numbers if link.link_class == SCALE_OUT and link.medium}
    return next((kind.sharing for name in sorted(kinds) if (kind := load_links().get(name)) and kind.sharing), None)


def _port_bytes_per_s(machine: Cluster) -> float:
    """Return the peak bandwidth of a node's ports together."""
    table = machine.link_table
    peak = np.array([(x.peak_bytes_per_s or x.bytes_per_s) * (x.link_class == SCALE_OUT) for x in table.numbers], float)
    node = machine.node_of[np.asarray(table.source)]
    return float(peak[table.number][node >= 0].sum() / max(1, len(np.unique(node[node >= 0]))))


def _members_on_a_node(grid: RankGrid, axes: Sequence[str], node: Int64) -> int:
    """Return how many ranks of a group along ``axes`` share the node of its first; 0 where one node has them all."""
    named = [part for axis in axes for part in axis.split("+")]
    if any(name not in grid.sizes for name in named):
        named = list(grid.sizes)
    ranks = np.arange(grid.num_ranks, dtype=np.int64)
    group = ranks[ranks == sum(grid.coordinates(ranks, name) * grid.strides[name] for name in dict.fromkeys(named))]
    here = int((node[group] == node[group[0]]).sum())
    return 0 if here == len(group) else here
