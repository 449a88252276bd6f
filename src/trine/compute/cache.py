"""Memory traffic of operators whose inputs may still lie in the L2.

An operator that reads what an earlier one has just written finds a part of it in the L2. At a smaller batch the working
set shrinks and this part grows, so time per byte depends on the batch. trine walks through the step in its order and
assumes random replacement (Hennessy and Patterson, Computer Architecture, appendix B): after ``d`` new bytes, a byte is
still in a cache of capacity ``C`` with probability exp(-d / C). A byte from the L2 counts as HBM bandwidth / L2
bandwidth of a byte from memory. All writes reach memory.

The kernels of one operator pass results on in the same way: trine assumes one tensor of its largest output's size
between two kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trine.cluster.presets import GpuSpec
from trine.compute.cost import Sizing, Work
from trine.compute.kinds import is_compute_bound, kind_of
from trine.compute.resize import Split
from trine.graph.workload import Operator, Tensor, Workload


class CachedTraffic:
    """The work of a workload's memory-bound operators with fewer bytes for reads from the L2 of ``gpu``."""

    def __init__(self, workload: Workload, sizing: Sizing, gpu: GpuSpec | None) -> None:
        self._workload, self._sizing = workload, sizing
        self._capacity = 0 if gpu is None else gpu.l2_bytes or 0
        self._hit_cost = 1.0
        if gpu is not None and gpu.l2_bytes_per_s:
            self._hit_cost = min(1.0, gpu.memory_bytes_per_s / gpu.l2_bytes_per_s)
        self._known: dict[int, dict[int, float]] = {}

    def work(self, operator: Operator, batch: int, work: Work) -> Work:
        """Return ``work``, the operator's at ``batch``, with its bytes weighted by their source.

        Work of compute-bound operators, and of GPUs without L2 data, is unchanged.
        """
        if not self._capacity or self._hit_cost == 1.0 or is_compute_bound(kind_of(operator)) or not work.bytes:
            return work
        if batch not in self._known:
            self._known[batch] = self._walk(batch)
        weighted = work.bytes + self._known[batch].get(operator.id, 0.0)
        return Work(work.flops, max(1, round(max(weighted, self._hit_cost * work.bytes))))

    def _walk(self, batch: int) -> dict[int, float]:
        """Return each operator's further bytes (negative: fewer) relative to a count without a cache."""
        split, further = Split(batch), {}
        inserted = 0.0  # bytes that entered the L2 so far
        touched: dict[int, tuple[float, int]] = {}  # storage -> ``inserted`` when last used, bytes used
        for operator in self._workload.operators:
            sizes = self._sizing.sizes(operator, split)
            reads, writes = _storages(sizes.inputs), _storages(sizes.outputs)
            moved = sum(reads.values()) + sum(size for storage, size in writes.items() if storage not in reads)
            hits = 0.0
            for storage, size in reads.items():
                if storage in touched:
                    then, known = touched[storage]
                    # On average half of this operator's bytes pass before it reads a given one.
                    hits += min(size, known) * math.exp(-(inserted - then + moved / 2) / self._capacity)
            new = moved - hits
            for storage, size in (*reads.items(), *writes.items()):
                touched[storage] = inserted + new / 2, size
            inserted += new
            between = self._between_kernels(operator, max(writes.values(), default=0))
            inserted += between
            further[operator.id] = between - hits * (1 - self._hit_cost)
        return further

    def _between_kernels(self, operator: Operator, size: int) -> float:
        """Return the bytes that an operator's kernels exchange: each of ``size`` is written and read once."""
        if is_compute_bound(kind_of(operator)):
            return 0.0
        hit = math.exp(-size / self._capacity)
        return max(0, len(operator.kernel_times_ps) - 1) * size * (2 - hit * (1 - self._hit_cost))


def _storages(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Return the bytes that an operator touches in each storage."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), tensor.size_bytes)
    return sizes
