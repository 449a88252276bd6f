"""Communication within a step: all-reduces by the engine's kernel or NCCL, and the exchange of tokens with experts.

The engine's own kernel (one-shot for small messages, two-shot for large ones) runs up to the engine's limit if the
group is in one node; NCCL takes over above, and where it is faster. All run in CUDA graphs.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated

import numpy as np

from trine.cluster import Cluster, link_named, load_gpu
from trine.cluster.presets import GpuSpec
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.inference.engines import EngineProfile
from trine.inference.precision import SERVING

_US_PER_PS = 1e6 / PS_PER_S
Points = Annotated[dict[int, float], Field(min_length=2)]


class AllReduceKernel(Spec):
    """Measured times of one all-reduce kernel: GPUs -> bytes -> microseconds; launch_us: hidden by CUDA graphs."""

    launch_us: Annotated[float, Field(ge=0, le=100)]
    times: dict[int, Points]


class AllReduceKernels(Spec):
    """All measured kernels, on ``gpu``."""

    gpu: str
    kernels: dict[str, AllReduceKernel]
    source: str


@cache
def all_reduce_kernels() -> AllReduceKernels:
    """Return the measured kernels."""
    return read_spec(SERVING / "all_reduce.yaml", AllReduceKernels)


class Communication:
    """Times of collectives among the GPUs of one pipeline stage, in microseconds."""

    def __init__(self, cluster: Cluster, engine: EngineProfile) -> None:
        self._cluster, self._engine = cluster, engine
        self._collectives: dict[int, Collectives] = {}
        self._pairs: dict[tuple[int, int], Collectives] = {}
        self._known_us: dict[tuple[str, int, int], float] = {}

    def all_reduce_us(self, num_bytes: float, ways: int) -> float:
        """Return the time to sum ``num_bytes`` on ``ways`` GPUs; 0 for one GPU."""
        if ways == 1 or num_bytes <= 0:
            return 0.0
        library = self._library_us("all_reduce", num_bytes, ways)
        limit = self._engine.custom_all_reduce_bytes.get(ways, 0)
        if num_bytes > limit or not self._is_one_node(ways):
            return library
        return min(library, self._kernel_us(num_bytes, ways))

    def gather_us(self, num_bytes: float, ways: int) -> float:
        """Return the time to gather ``num_bytes`` in all from ``ways`` GPUs."""
        return 0.0 if ways == 1 else self._library_us("all_gather", num_bytes, ways)

    def scatter_us(self, num_bytes: float, ways: int) -> float:
        """Return the time to sum ``num_bytes`` and leave each of ``ways`` GPUs its part."""
        return 0.0 if ways == 1 else self._library_us("reduce_scatter", num_bytes, ways)

    def message_us(self, num_bytes: float, source: int, target: int) -> float:
        """Return the time of one message between two GPUs."""
        ends = source, target
        if ends not in self._pairs:
            self._pairs[ends] = Collectives(self._cluster, ends, CollectiveOptions(launch="graph"))
        return self._pairs[ends].predict("send_recv", max(1, int(num_bytes))).time_ps * _US_PER_PS

    def _library_us(self, op: str, num_bytes: float, ways: int) -> float:
        if ways not in self._collectives:
            self._collectives[ways] = Collectives(self._cluster, range(ways), CollectiveOptions(launch="graph"))
        key = op, max(ways, int(num_bytes)), ways
        if key not in self._known_us:
            self._known_us[key] = self._collectives[ways].predict(*key[:2]).time_ps * _US_PER_PS
        return self._known_us[key]

    def _kernel_us(self, num_bytes: float, ways: int) -> float:
        """Return the time of the engine's kernel, scaled from the measured GPU by the bandwidth of its links."""
        kernel = all_reduce_kernels().kernels[self._engine.all_reduce]
        if ways not in kernel.times:
            return math.inf
        points = kernel.times[ways]
        sizes, times = list(points), list(points.values())
        at = float(np.interp(num_bytes, sizes, times))
        if num_bytes > sizes[-1]:
            at += (num_bytes - sizes[-1]) * (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return times[0] - kernel.launch_us + (at - times[0]) * self._link_ratio()

    def _link_ratio(self) -> float:
        """Return the link bandwidth of the measured GPU over this cluster's."""
        measured, here = load_gpu(all_reduce_kernels().gpu).nvlink, gpu_of(self._cluster).nvlink
        if measured is None or here is None:
            return math.inf
        return _link_bytes_per_s(measured) / _link_bytes_per_s(here)

    def _is_one_node(self, ways: int) -> bool:
        return len({self._cluster.devices[gpu].node for gpu in self._cluster.gpus[:ways]}) == 1


def gpu_of(cluster: Cluster) -> GpuSpec:
    """Return the GPU model of a cluster. Raises InputError if it names none, or several."""
    names = {cluster.devices[gpu].gpu for gpu in cluster.gpus}
    if len(names) != 1 or None in names:
        raise InputError("all GPUs must be of one model that the cluster names", field="cluster")
    return load_gpu(str(names.pop()))


def _link_bytes_per_s(name: str) -> int:
    """Return the bandwidth of all lanes of a kind of NVLink, in one direction."""
    link = link_named(name)
    return link.bytes_per_s * link.lanes
