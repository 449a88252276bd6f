"""Communication within a step: all-reduces by the engine's kernel or NCCL, and the exchange of tokens with experts.

The engine's own kernel (one-shot for small messages, two-shot for large ones) runs up to the engine's limit if
scale-up links join the group; NCCL takes over above, and where it is faster. All run in CUDA graphs.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated

import numpy as np

from trine.cluster import Cluster, link_named, load_gpu
from trine.cluster.parts import SCALE_UP
from trine.cluster.presets import GpuSpec
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.inference.engines import EngineProfile
from trine.inference.precision import SERVING
from trine.inference.simulated_all_reduce import SimulatedAllReduce

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


class ExchangeKernel(Spec):
    """Measured dispatch and combine on ``gpu`` at ``hidden`` features: GPUs -> tokens of each -> microseconds."""

    gpu: str
    hidden: int
    times: Annotated[dict[int, Points], Field(min_length=2)]
    source: str


@cache
def exchange_kernel() -> ExchangeKernel:
    """Return the measured exchange."""
    return read_spec(SERVING / "exchange.yaml", ExchangeKernel)


class Communication:
    """Times of collectives among the GPUs of one pipeline stage, in microseconds.

    simulated: times of the engine's all-reduce kernel up to a size, in place of its table; None: the table.
    """

    def __init__(self, cluster: Cluster, engine: EngineProfile, simulated: SimulatedAllReduce | None = None) -> None:
        self.simulated = simulated
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
        if num_bytes > limit or not self.has_all_reduce_kernel(ways):
            return library
        if self.simulated is not None and num_bytes <= self.simulated.most_bytes:
            return min(library, self.simulated.time_us(num_bytes, ways))
        return min(library, self._kernel_us(num_bytes, ways))

    def has_all_reduce_kernel(self, ways: int) -> bool:
        """Return whether the engine sums small tensors of ``ways`` GPUs with its own kernel."""
        return self._engine.custom_all_reduce_bytes.get(ways, 0) > 0 and self._has_scale_up(ways)

    def has_exchange_kernel(self, ways: int) -> bool:
        """Return whether one-sided kernels bring tokens to the experts on ``ways`` GPUs."""
        return self._engine.exchange == "one-sided" and self._has_scale_up(ways)

    def gather_us(self, num_bytes: float, ways: int) -> float:
        """Return the time to gather ``num_bytes`` in all from ``ways`` GPUs."""
        return 0.0 if ways == 1 else self._library_us("all_gather", num_bytes, ways)

    def scatter_us(self, num_bytes: float, ways: int) -> float:
        """Return the time to sum ``num_bytes`` and leave each of ``ways`` GPUs its part."""
        return 0.0 if ways == 1 else self._library_us("reduce_scatter", num_bytes, ways)

    def exchange_us(self, tokens: float, row_bytes: float, ways: int) -> float:
        """Return the time to bring the tokens of each of ``ways`` attention replicas to their experts, and back.

        One-sided kernels send a token to its experts. Otherwise all tokens are gathered before the experts, and summed
        and scattered after.
        """
        if self.has_exchange_kernel(ways):
            return self._one_sided_us(tokens, row_bytes, ways)
        num_bytes = tokens * ways * row_bytes
        return self.gather_us(num_bytes, ways) + self.scatter_us(num_bytes, ways)

    def _one_sided_us(self, tokens: float, row_bytes: float, ways: int) -> float:
        """Return the measured exchange, between its numbers of GPUs; more tokens and features in proportion."""
        kernel = exchange_kernel()
        alike = tokens * row_bytes / (2 * kernel.hidden)
        found = []
        for points in kernel.times.values():
            sizes, times = list(points), list(points.values())
            slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
            beyond = max(0.0, alike - sizes[-1]) * slope
            found.append((times[0], float(np.interp(alike, sizes, times)) + beyond - times[0]))
        share = float(np.interp(math.log2(ways), np.log2(list(kernel.times)), np.arange(len(found))))
        low, high = found[int(share)], found[min(int(share) + 1, len(found) - 1)]
        rest = share - int(share)
        start, moved = ((1 - rest) * a + rest * b for a, b in zip(low, high, strict=True))
        return start + moved * self._link_ratio(ways, kernel.gpu)

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
        return times[0] - kernel.launch_us + (at - times[0]) * self._link_ratio(ways, all_reduce_kernels().gpu)

    def _link_ratio(self, ways: int, measured_gpu: str) -> float:
        """Return the ratio of scale-up bandwidths, measured GPU over a GPU of the group."""
        measured = load_gpu(measured_gpu).nvlink
        assert measured is not None
        reference = link_named(measured)
        return reference.bytes_per_s * reference.lanes / self._scale_up_bytes_per_s(ways)

    def _scale_up_bytes_per_s(self, ways: int) -> int:
        """Return the bandwidth of a GPU's scale-up links to switches and to the first ``ways`` GPUs."""
        gpus = self._cluster.gpus
        others = set(gpus[ways:])
        links = self._cluster.links_from(gpus[0])
        return sum(link.bytes_per_s for link in links if link.link_class == SCALE_UP and link.target not in others)

    def _has_scale_up(self, ways: int) -> bool:
        """Return whether scale-up links join the first ``ways`` GPUs."""
        components = self._cluster.scale_up_components
        is_joined = len({int(components[gpu]) for gpu in self._cluster.gpus[:ways]}) == 1
        return is_joined and self._scale_up_bytes_per_s(ways) > 0


def gpu_of(cluster: Cluster) -> GpuSpec:
    """Return the GPU model of a cluster. Raises InputError if it names none, or several."""
    names = {cluster.devices[gpu].gpu for gpu in cluster.gpus}
    if len(names) != 1 or None in names:
        raise InputError("all GPUs must be of one model that the cluster names", field="cluster")
    return load_gpu(str(names.pop()))
