"""Options of the kernels of Chakra traces, in a separate module so that a help page imports no simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trine.collectives.options import AUTO
from trine.common.arguments import option
from trine.errors import InputError, nearest
from trine.gpu.kernels.options import SIMPLE, WAVEFRONTS, WORKGROUPS

if TYPE_CHECKING:
    from trine.gpu.chakra.compute import ComputeShape
    from trine.gpu.model import GpuModel

#: Packets of smaller dmas do not spread over all paths to a peer.
DMA_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoices:
    """Shapes and algorithms of a job's kernels.

    workgroups: per kernel of a collective or message; None: WORKGROUPS, or fewer for groups that NICs join, to keep
    each dma at DMA_BYTES or more; wavefronts: per such workgroup. protocol: of collectives.
    algorithms: collective -> one of :func:`known_kernels`; by default the traces' algorithm if a kernel has this name,
    else ``auto``. compute_workgroups, compute_wavefronts: of compute nodes; None: one workgroup for each compute unit.
    compute_traffic: whether compute nodes move their tensors.

    Raises InputError: a number below 1, a collective or an algorithm that has no kernel.
    """

    workgroups: int | None = option(None, "Set the workgroups of communication kernels [32].")
    wavefronts: int = option(WAVEFRONTS, "Set the wavefronts of each of these workgroups.")
    protocol: str = option(SIMPLE, "Choose the protocol of collectives.")
    algorithms: Mapping[str, str] = field(default_factory=dict)
    compute_workgroups: int | None = option(None, "Set the workgroups of compute nodes' kernels [one per CU].")
    compute_wavefronts: int = option(8, "Set the wavefronts of each of these workgroups.")
    compute_traffic: bool = option(True, "Leave out the memory traffic of compute nodes.")

    def __post_init__(self) -> None:
        for name in ("workgroups", "wavefronts", "compute_workgroups", "compute_wavefronts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"must be at least 1, got {value}", field=name)
        for op, algorithm in self.algorithms.items():
            from trine.gpu.kernels.build import DETAILED, ROOTED, known_kernels, known_ops

            algorithms = known_kernels(op)
            if not algorithms or op in (*ROOTED, *DETAILED):
                ops = [each for each in known_ops() if each not in (*ROOTED, *DETAILED)]
                raise InputError(f"no kernel for {op!r}{nearest(op, ops)}", field="algorithms")
            if algorithm not in (*algorithms, AUTO):
                raise InputError(
                    f"{op} has no kernel {algorithm!r}{nearest(algorithm, (*algorithms, AUTO))}", field="algorithms"
                )

    def groups(self, dma_bytes: int | None = None) -> int:
        """Return the workgroups of a communication kernel; ``dma_bytes``: their total for a copy engine."""
        if self.workgroups is not None:
            return self.workgroups
        return WORKGROUPS if dma_bytes is None else max(1, min(WORKGROUPS, dma_bytes // DMA_BYTES))

    def shape(self, model: GpuModel) -> ComputeShape:
        """Return the shape of compute kernels."""
        from trine.gpu.chakra.compute import ComputeShape

        groups = model.num_cus if self.compute_workgroups is None else self.compute_workgroups
        return ComputeShape(workgroups=groups, wavefronts=self.compute_wavefronts)
