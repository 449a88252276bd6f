"""Which latency of a GPU decides how long a small collective takes: each is made a little longer, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from trine.cluster import Cluster
from trine.gpu.fabric import GpuFabric
from trine.gpu.model import FIELDS, GpuModel
from trine.gpu.program import GpuProgram
from trine.studies.gpu_measured import round_times_ps

#: How much longer: little enough that no other chain of accesses becomes the longest.
STEP_PS = 2_000
#: Fields of a model file. A passage through a port stands for a link: a route of two links has two.
LINK = "ports.latency"
LATENCIES = (
    "kernels.launch", "kernels.dispatch", "kernels.barrier", "kernels.fence", "noc.hop", "l2.latency", "memory.latency",
    LINK,
)  # fmt: skip
_ATTRIBUTES = {field.path: field.attribute for field in FIELDS}


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyShare:
    """How much of a time is one latency.

    name: its field of a model file; LINK for the links from one GPU to another. latency_ps: the latency, of all links
    of a route. times: how often it lies on the longest chain of accesses: the derivative of the time by it. share: of
    the whole time.
    """

    name: str
    latency_ps: int
    times: float
    share: float


def latency_shares(
    program: GpuProgram, cluster: Cluster, group: Sequence[int], model: GpuModel
) -> tuple[int, tuple[LatencyShare, ...]]:
    """The time of a round behind another (L2 warm), ps, and the share of each latency of ``model`` in it.

    Waits are answered by the memory: how much too early a poll comes would jump with every latency. What is left over
    of the time is instructions and bytes on their way.
    """
    model = replace(model, poll_ps=None)
    whole_ps = round_times_ps(program, cluster, group, model)[-1]
    shares = []
    for name in LATENCIES:
        latency_ps = attrgetter(_ATTRIBUTES[name])(model)
        longer_ps = round_times_ps(program, cluster, group, _longer(model, _ATTRIBUTES[name]))[-1]
        times = (longer_ps - whole_ps) / STEP_PS
        if name == LINK:
            latency_ps, times = GpuFabric(cluster, group, model).latency_ps(0, 1), times / 2
        shares.append(LatencyShare(name=name, latency_ps=latency_ps, times=times, share=times * latency_ps / whole_ps))
    return whole_ps, tuple(shares)


def _longer(model: GpuModel, attribute: str) -> GpuModel:
    group, _, name = attribute.rpartition(".")
    if not group:
        return replace(model, **_step(model, name))
    part = getattr(model, group)
    changed: dict[str, Any] = {group: replace(part, **_step(part, name))}
    return replace(model, **changed)


def _step(part: object, name: str) -> dict[str, Any]:
    return {name: getattr(part, name) + STEP_PS}
