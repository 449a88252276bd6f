"""Options of a collective at the load-store level: program, workgroups, GPU model. Checked on construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.collectives.options import AUTO, is_plan, refuse_unneeded_proof
from trine.common.arguments import named_arguments, option
from trine.common.shown import OneLine
from trine.errors import InputError, nearest
from trine.gpu.kernels.options import PROTOCOLS, SIMPLE

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster
    from trine.gpu.kernels.moe.options import MoeOptions
    from trine.gpu.model import GpuModel


#: Values of ``bookkeeping``, a kernel's work besides moving data.
BOOKKEEPING = ("library", "none")


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class LoadStoreOptions(OneLine):
    """Options of a load-store run. None keeps the default of the GPU model, the plan or trine.

    algorithm: one of :func:`trine.gpu.kernels.build.known_kernels`, the path of an MSCCL++ plan or MSCCL XML,
        or ``auto``: for all_reduce the faster of one-shot and two-shot at each size, for other collectives the choice
        of :func:`trine.gpu.kernels.build.automatic`.
    protocol: ``simple``, ``ll``, ``ll128``; ``auto``: ``simple``, or the plan's protocol.
    workgroups, wavefronts: per kernel [32; nvls: 16 channels, like NCCL] and per workgroup
        [:func:`usual_wavefronts`; plans: the plan's].
    unroll, max_outstanding, arbitration: override the GPU model's (:func:`trine.gpu.model.options.ModelOptions`).
    bookkeeping: ``library``: kernels read flags and channels, compute addresses and count signals like a library's;
        ``none``: they only move data and signal; None: ``library`` if the cluster names a library. Plans define
        their own bookkeeping.
    initiator: who posts puts to NICs: ``gpu``, or ``proxy``, a CPU thread; None: the GPU model's, and ``proxy`` for
        plans, like MSCCL++'s port channels.
    gpu_model: the GPU model, or its name or file; None: the model of the cluster's GPUs.
    fold: ``auto`` or ``off``. verify: run folded and unfolded, and compare everything.
    matrix: for all_to_all_v, bytes from each rank (row) to each; None: the same for all. moe: for moe_dispatch and
        moe_combine, tokens and experts; their kernels define workgroups and wavefronts.
    no_proof: run a plan that cannot be proven correct, with a warning.

    Raises
    ------
    InputError: an invalid protocol or number, or an option that the plan defines itself.
    """

    algorithm: str = AUTO
    protocol: str = AUTO
    workgroups: int | None = option(None, "Set the workgroups of each GPU [32; nvls: 16 channels].")
    wavefronts: int | None = option(None, "Set the wavefronts of a workgroup [as many as fill a CU; plan's own].")
    unroll: int | None = option(None, "Limit the requests of a wavefront in flight [the GPU model's].")
    max_outstanding: int | None = option(None, "Limit the requests of a CU in flight [the GPU model's].")
    arbitration: str | None = option(None, "Choose the arbitration of control and data at ports [the GPU model's].")
    bookkeeping: str | None = option(None, "Simulate the library kernel's own work too [if the cluster has a library].")
    initiator: str | None = option(None, "Choose who posts puts to NICs [the GPU model's; plans: proxy].")
    gpu_model: str | GpuModel | None = option(None, "Choose the GPU model: name or file [the cluster's GPU].")
    fold: str = "auto"
    verify: bool = False
    matrix: Sequence[Sequence[int]] | None = None
    moe: MoeOptions | None = None
    no_proof: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in (AUTO, *PROTOCOLS):
            raise InputError(
                f"the load-store level has no protocol {self.protocol!r}{nearest(self.protocol, PROTOCOLS)}",
                field="protocol",
            )
        if self.bookkeeping is not None and self.bookkeeping not in BOOKKEEPING:
            raise InputError(
                f"unknown bookkeeping {self.bookkeeping!r}{nearest(self.bookkeeping, BOOKKEEPING)}", field="bookkeeping"
            )
        if self.workgroups is not None and not 1 <= self.workgroups <= 4096:
            raise InputError(f"must be from 1 to 4096, got {self.workgroups}", field="workgroups")
        if self.wavefronts is not None and self.wavefronts < 1:
            raise InputError(f"a workgroup needs at least one, got {self.wavefronts}", field="wavefronts")
        if self.is_plan and self.protocol != AUTO:
            raise InputError(f"{self.algorithm} says its protocol itself", field="protocol")
        if self.is_plan and self.bookkeeping is not None:
            raise InputError(f"{self.algorithm} sets its own bookkeeping", field="bookkeeping")
        if self.is_plan and self.workgroups is not None:
            raise InputError(f"{self.algorithm} says its thread blocks itself", field="workgroups")
        refuse_unneeded_proof(self.algorithm, self.no_proof)
        if self.verify and self.fold == "off":
            raise InputError("runs folded and unfolded, and folding is off", field="verify")

    @property
    def is_plan(self) -> bool:
        """Whether the algorithm is the path of a plan."""
        return is_plan(self.algorithm)

    def keeps_books(self, cluster: Cluster) -> bool:
        """Return whether kernels on this cluster include a library's bookkeeping."""
        return cluster.library is not None if self.bookkeeping is None else self.bookkeeping == "library"

    @property
    def wire_protocol(self) -> str:
        """Protocol of a built program."""
        return SIMPLE if self.protocol == AUTO else self.protocol


def model_for(options: LoadStoreOptions, cluster: Cluster, group: Sequence[int]) -> GpuModel:
    """Return the model of the GPUs of ``group`` (device indices), with the options applied.

    Raises PlanError or SpecError for mixed or unknown GPUs, and InputError for an invalid number.
    """
    from trine.gpu.model.options import ModelOptions

    return ModelOptions(
        unroll=options.unroll,
        max_outstanding=options.max_outstanding,
        arbitration=options.arbitration,
        initiator=options.initiator,
    ).of(plain_model(options.gpu_model, cluster, group, is_plan=options.is_plan))


def plain_model(choice: str | GpuModel | None, cluster: Cluster, group: Sequence[int], *, is_plan: bool) -> GpuModel:
    """Return the chosen GPU model, or the model of the group's GPUs. For plans, a proxy posts the puts.

    Raises PlanError or SpecError for mixed or unknown GPUs, and InputError for an unknown model.
    """
    from trine.gpu.model import GpuModel
    from trine.gpu.model.files import gpu_model_of, load_gpu_model
    from trine.gpu.model.options import posted_by_proxy

    if choice is None:
        model = gpu_model_of(cluster, group)
    else:
        model = choice if isinstance(choice, GpuModel) else load_gpu_model(choice)
    return posted_by_proxy(model) if is_plan else model


def usual_wavefronts(model: GpuModel) -> int:
    """Return the default wavefronts per workgroup: enough to fill a compute unit with requests in flight."""
    return max(1, min(model.max_outstanding // model.unroll, model.wavefronts_per_cu))


def refuse_wide(wavefronts: int | None, model: GpuModel) -> None:
    """Raise InputError if a workgroup has more wavefronts than fit on a compute unit of ``model``."""
    if wavefronts is not None and wavefronts > model.wavefronts_per_cu:
        limit = f"one of GPU {model.name!r} holds no more than {model.wavefronts_per_cu}"
        raise InputError(f"a workgroup is on one CU, and {limit}, got {wavefronts}", field="wavefronts")
