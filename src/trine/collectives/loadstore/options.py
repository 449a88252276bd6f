"""How a collective is run at the load-store level: program, workgroups, GPU model. Checked on construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.arguments import named_arguments, option
from trine.collectives.kernels.options import PROTOCOLS, SIMPLE
from trine.collectives.options import AUTO, is_plan
from trine.errors import InputError, nearest
from trine.shown import OneLine

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster
    from trine.collectives.kernels.moe.options import MoeOptions
    from trine.gpu.model import GpuModel


#: What a kernel does besides moving data.
BOOKKEEPING = ("library", "none")


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class LoadStoreOptions(OneLine):
    """None leaves a number as the GPU model, the plan or trine has it.

    algorithm: one of :func:`trine.collectives.kernels.build.known_kernels`, the path of an MSCCL++ plan or MSCCL XML,
        or ``auto``: of all_reduce the faster of one-shot and two-shot at each size, of others what is usual
        (:func:`trine.collectives.kernels.build.automatic`).
    protocol: ``simple``, ``ll``, ``ll128``; ``auto``: ``simple``, of a plan its own.
    workgroups, wavefronts: of a kernel [32, of nvls as NCCL has it 16 channels], of a workgroup
        [:func:`usual_wavefronts`, of a plan as it says].
    unroll, max_outstanding, arbitration: in place of the GPU model's (:func:`trine.gpu.model.options.ModelOptions`).
    bookkeeping: ``library``: kernels read flags and channels, compute addresses and count signals as a library's do;
        ``none``: they only move data and signal; None: ``library`` where the cluster says which one it has. Plans say
        what they do themselves.
    initiator: who posts puts to NICs, in place of the GPU model's: ``gpu``, or ``proxy``: a thread of the CPU; of a
        plan ``proxy``, as MSCCL++'s port channels have it.
    gpu_model: the inside of the GPUs, a model or the name or file of one; None: that of the cluster's GPUs.
    fold: ``auto`` or ``off``. verify: run both ways and compare everything.
    matrix: of all_to_all_v, bytes from each rank (row) to each; None: the same for all. moe: of moe_dispatch and
        moe_combine, tokens and experts; their kernels say workgroups and wavefronts.

    Raises
    ------
    InputError: a protocol or number that cannot be, or one that a plan says itself.
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
        if self.verify and self.fold == "off":
            raise InputError("runs folded and unfolded, and folding is off", field="verify")

    @property
    def is_plan(self) -> bool:
        """Whether the algorithm is the path of a plan."""
        return is_plan(self.algorithm)

    def keeps_books(self, cluster: Cluster) -> bool:
        """Whether kernels on this cluster do what a library's do besides moving data."""
        return cluster.library is not None if self.bookkeeping is None else self.bookkeeping == "library"

    @property
    def wire_protocol(self) -> str:
        """The protocol of a built program."""
        return SIMPLE if self.protocol == AUTO else self.protocol


def model_for(options: LoadStoreOptions, cluster: Cluster, group: Sequence[int]) -> GpuModel:
    """The inside of the GPUs of ``group`` (device indices), with what the options change.

    Raises PlanError, SpecError: GPUs of several kinds, or of which nothing is known. InputError: a number that cannot
    be.
    """
    from trine.gpu.model.options import ModelOptions

    return ModelOptions(
        unroll=options.unroll,
        max_outstanding=options.max_outstanding,
        arbitration=options.arbitration,
        initiator=options.initiator,
    ).of(plain_model(options.gpu_model, cluster, group, is_plan=options.is_plan))


def plain_model(given: str | GpuModel | None, cluster: Cluster, group: Sequence[int], *, is_plan: bool) -> GpuModel:
    """The inside of the GPUs as it is given, or theirs; of a plan, with puts by a proxy.

    Raises PlanError, SpecError: GPUs of several kinds, or of which nothing is known. InputError: no such model.
    """
    from trine.gpu.model import GpuModel
    from trine.gpu.model.files import gpu_model_of, load_gpu_model
    from trine.gpu.model.options import posted_by_proxy

    if given is None:
        model = gpu_model_of(cluster, group)
    else:
        model = given if isinstance(given, GpuModel) else load_gpu_model(given)
    return posted_by_proxy(model) if is_plan else model


def usual_wavefronts(model: GpuModel) -> int:
    """Of a workgroup where nobody says: whose requests in flight are as many as a compute unit has room for."""
    return max(1, min(model.max_outstanding // model.unroll, model.wavefronts_per_cu))


def refuse_wide(wavefronts: int | None, model: GpuModel) -> None:
    """Raise InputError for a workgroup of more wavefronts than a compute unit of ``model`` has room for."""
    if wavefronts is not None and wavefronts > model.wavefronts_per_cu:
        holds = f"one of GPU {model.name!r} holds no more than {model.wavefronts_per_cu}"
        raise InputError(f"a workgroup is on one CU, and {holds}, got {wavefronts}", field="wavefronts")
