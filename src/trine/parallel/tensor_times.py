"""Times of tensor parallelism's collectives, and whether a GEMM in pieces beside them ends earlier than a whole one.

A GEMM is cut into pieces only if that pays, as tuned configurations do: small pieces run slower, and each transfer has
its latency.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_OUT
from trine.common.arrays import Int64
from trine.graph.grid import RankGrid
from trine.graph.workload import Operator
from trine.parallel.contention import CommunicationKernels, extra_wave
from trine.parallel.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorTimes:
    """Collectives of the tensor-parallel groups of a job.

    kernels: on the GPU of all ranks. groups: int64[groups, ranks]. is_contended: whether the kernels slow GEMMs down.
    """

    kernels: CommunicationKernels
    groups: Int64
    is_contended: bool

    def collective_ps(self, kind: str, size_bytes: int) -> int:
        """Return the time of a collective alone, on the slowest group."""
        return max((use.time_ps for use in self.kernels.of_groups(kind, size_bytes, self.groups)), default=0)

    def channels(self, kind: str, size_bytes: int) -> int:
        """Return the SMs that the library's kernel takes."""
        return max((use.channels for use in self.kernels.of_groups(kind, size_bytes, self.groups)), default=0)

    def beside_ps(self, op: Operator, product_ps: int, channels: int, has_margin: bool = False) -> int:
        """Return the time of a GEMM beside a kernel that lasts as long and takes ``channels`` SMs.

        has_margin: the GEMM leaves these SMs free, so that no block waits for them.
        """
        if not self.is_contended:
            return product_ps
        sms = min(channels / self.kernels.gpu.num_compute_units, 0.9)
        if self.kernels.persistent[op.id] and not has_margin:
            return round(product_ps * max(1 + extra_wave(sms), 1 / (1 - sms)))
        return round(product_ps / (1 - sms))


def tensor_times(plan: Plan, kernels: CommunicationKernels) -> TensorTimes:
    """Return the times of the collectives on the ``tp`` axis."""
    return TensorTimes(kernels=kernels, groups=_tensor_groups(plan), is_contended=plan.overlap == "modelled")


def is_within_domains(plan: Plan, cluster: Cluster, places: Int64) -> bool:
    """Return whether each tensor-parallel group lies within one scale-up domain, as userbuffers need.

    places: int64[ranks], index of each rank in ``cluster.gpus``.
    """
    if cluster.circuits is not None:
        return False
    groups = np.asarray(cluster.gpus, np.int64)[places][_tensor_groups(plan)]
    _, links = cluster.routes(groups.ravel(), np.roll(groups, -1, axis=1).ravel())
    return not any(cluster.links[link].link_class == SCALE_OUT for link in np.unique(links).tolist())


def _tensor_groups(plan: Plan) -> Int64:
    grid, axis = RankGrid(plan.axes), plan.groups.tensor
    firsts = np.unique(grid.firsts(np.arange(grid.num_ranks, dtype=np.int64), axis))
    groups: Int64 = firsts[:, None] + grid.offsets(axis)[None, :]
    return groups


def gathered_end_ps(piece_ps: int, arrivals_ps: list[int]) -> int:
    """Return the end of GEMM pieces of ``piece_ps`` each, which start when their inputs have arrived."""
    end_ps = 0
    for arrival_ps in arrivals_ps:
        end_ps = max(end_ps, arrival_ps) + piece_ps
    return end_ps


def scattered_end_ps(piece_ps: int, transfer_ps: int, pieces: int, late_ps: int = 0) -> int:
    """Return the end of the last transfer, each of which follows a GEMM piece; transfers run one after the other.

    late_ps: when the first transfer can start at the earliest.
    """
    end_ps = late_ps
    for piece in range(1, pieces + 1):
        end_ps = max(end_ps, piece * piece_ps) + transfer_ps
    return end_ps
