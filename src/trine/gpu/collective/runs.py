"""Load-store simulation of one collective on one group, at each size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_UP
from trine.collectives.bus_bandwidth import bus_factor
from trine.collectives.options import AUTO, CollectiveTime
from trine.collectives.sizes import format_size
from trine.common.observer import announce_stage
from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.gpu.collective.options import LoadStoreOptions, model_for, plain_model, refuse_wide, usual_wavefronts
from trine.gpu.fabric import GpuFabric
from trine.gpu.kernels.build import ACROSS, FAMILIES, automatic, kernel_name, kernel_of
from trine.gpu.kernels.moe.options import MOE, NORMAL_SMS, MoeOptions, is_low_latency, low_latency_sms
from trine.gpu.kernels.nccl_nvls import CHANNELS as NVLS_CHANNELS
from trine.gpu.kernels.nccl_nvls import round_bytes as nvls_round_bytes
from trine.gpu.kernels.nics import through_nics
from trine.gpu.kernels.options import WORKGROUPS, KernelOptions
from trine.gpu.model import GpuModel
from trine.gpu.program import DATA_OPS, GpuProgram
from trine.gpu.results.bottleneck import Bottleneck
from trine.gpu.results.result import GpuResult
from trine.gpu.run import GpuRun, GpuRunOptions, run_gpus

if TYPE_CHECKING:
    from trine.gpu.plans.plan import KernelPlan

# GPU programs that a collective may run as, and the program for each size.

ONESHOT = "oneshot"

#: ``auto`` between nodes of unequal numbers of ranks: algorithms that put, and need no grid.
_UNEVEN = {
    "all_gather": "ring", "reduce_scatter": "ring", "all_reduce": "ring", "all_to_all": "put", "all_to_all_v": "put",
    "broadcast": "ring", "reduce": "ring", "gather": "put", "scatter": "put",
}  # fmt: skip
#: Candidates of ``auto`` within a node; trine uses the fastest.
_FASTEST = {"broadcast": ("ring", "put"), "reduce": ("ring", "get")}


class Programs:
    """Programs of one collective on ``num_ranks`` ranks.

    domains: for each rank, the number of the domain that it reaches without NICs; None: all the same. line_bytes: of
    the GPU model. usual_wavefronts: per workgroup if the options do not set it. bookkeeping: whether kernels do a
    library's other work besides moving data.
    """

    def __init__(
        self,
        op: str,
        num_ranks: int,
        options: LoadStoreOptions,
        line_bytes: int,
        usual_wavefronts: int,
        bookkeeping: bool = False,
        domains: Sequence[int] | None = None,
    ) -> None:
        self.op, self.num_ranks, self.options, self.line_bytes = op, num_ranks, options, line_bytes
        self.usual_wavefronts, self.bookkeeping = usual_wavefronts, bookkeeping
        self.domains = (0,) * num_ranks if domains is None else tuple(domains)
        self.num_nodes = max(self.domains) + 1
        nodes = np.repeat(np.arange(self.num_nodes), num_ranks // self.num_nodes)
        self.is_even = self.domains == tuple(nodes.tolist())
        self.plan: KernelPlan | None = None
        self._check_exchange()
        if options.is_plan:
            self.plan = self._load_plan()
        else:
            kernel_name(op, self.names(1)[0])

    def names(self, size_bytes: int) -> tuple[str, ...]:
        """Return the candidates for this size; trine uses the fastest. The first one is never hopeless."""
        if self.plan is not None:
            return (Path(self.options.algorithm).name,)
        if self.options.algorithm != AUTO:
            return FAMILIES.get((self.op, self.options.algorithm), (self.options.algorithm,))
        if not self.is_even:
            return (_UNEVEN.get(self.op) or automatic(self._kernel_options(size_bytes)),)
        if self.op == "all_reduce" and self.num_nodes == 1:
            return ("twoshot" if self.options.wire_protocol == "simple" else "twoshot-put", ONESHOT)
        if self.op in _FASTEST and self.num_nodes == 1:
            return _FASTEST[self.op]
        return (automatic(self._kernel_options(size_bytes)),)

    @property
    def moe(self) -> MoeOptions | None:
        """Tokens and experts of a dispatch or combine."""
        return (self.options.moe or MoeOptions()) if self.op in MOE else None

    @property
    def is_low_latency(self) -> bool:
        """Whether a dispatch or combine uses the low-latency kernels, which suit few tokens."""
        algorithm = self.options.algorithm
        has_few_tokens = self.moe is not None and is_low_latency(self.moe)
        return has_few_tokens if algorithm == AUTO else algorithm == "low-latency"

    def model(self, model: GpuModel) -> GpuModel:
        """Return the GPU model for the programs: a dispatch or combine's normal kernels run on only some CUs."""
        moe = self.moe
        if moe is None:
            return model
        if self.is_low_latency:
            if moe.sms is not None:
                raise InputError("cannot matter: low-latency kernels take all that they need", field="sms")
            return model
        sms = moe.sms or NORMAL_SMS
        if sms > model.num_cus:
            raise InputError(f"{model.name} has {model.num_cus}, got {sms}", field="sms")
        source = {"cus.count": f"those that the kernels have, of {model.num_cus}"}
        return replace(model, num_cus=sms, sources={**model.sources, **source})

    @property
    def protocol(self) -> str:
        """Protocol as the output shows it; for a plan, the one in its file."""
        return self.options.wire_protocol if self.plan is None else self.plan.protocol.lower()

    @property
    def workgroups(self) -> int:
        """Workgroups of each rank: a plan's largest number, or the SMs of a dispatch or combine."""
        if self.moe is not None:
            return low_latency_sms(self.moe) if self.is_low_latency else self.moe.sms or NORMAL_SMS
        if self.plan is not None:
            return max(len(gpu.blocks) for gpu in self.plan.gpus)
        default = NVLS_CHANNELS if self.options.algorithm == "nvls" and self.bookkeeping else WORKGROUPS
        return default if self.options.workgroups is None else self.options.workgroups

    @property
    def wavefronts(self) -> int | None:
        """Wavefronts of a workgroup; None: the plan sets them."""
        if self.plan is not None:
            return self.options.wavefronts
        return self.usual_wavefronts if self.options.wavefronts is None else self.options.wavefronts

    def program(self, name: str, size_bytes: int, part_of_bytes: int | None = None) -> GpuProgram:
        """Build the program ``name``, one of :meth:`names`, for this size, or for this part of a longer message.

        Raises InputError for invalid options or plans, and for an ``unroll`` without effect.
        """
        program = self._build(name, size_bytes, part_of_bytes)
        if self.options.unroll is not None and program.op_unroll[np.isin(program.op_kind, DATA_OPS)].all():
            raise InputError(f"has no effect: each operation of {name} sets its own, or none has lines", field="unroll")
        return program

    def smallest_bytes(self, name: str, size_bytes: int) -> int:
        """Return a size, at most ``size_bytes``, that gives every workgroup one cache line per peer and chunk."""
        if self.plan is not None:
            return min(size_bytes, self.plan_bytes())
        parts = 1 if name.startswith(ONESHOT) else self.num_ranks
        return min(size_bytes, parts * self.workgroups * self._kernel_options(size_bytes).step_bytes)

    def round_bytes(self, name: str, size_bytes: int) -> int | None:
        """Return the bytes of a message that a program in rounds moves at a time; None for other programs."""
        if name != "nvls" or not self.bookkeeping:
            return None
        return nvls_round_bytes(size_bytes, self.workgroups, self.num_ranks)

    def plan_bytes(self) -> int:
        """Return the smallest size that the plan supports; 0 without a plan."""
        if self.plan is None:
            return 0
        unit = max(1, self.plan.chunks_of_size * self.plan.alignment)
        return max(1, -(-self.plan.min_bytes // unit)) * unit

    def oneshot_lower_bound_ps(self, size_bytes: int, cluster: Cluster, group: Sequence[int]) -> int:
        """Return a lower bound of one-shot's time: a GPU sends the whole payload to every other rank."""
        links = [i for i, link in enumerate(cluster.links) if link.source == group[0] and link.link_class == SCALE_UP]
        rate = sum(cluster.seen_by_messages(link)[0] for link in links)
        options = self._kernel_options(size_bytes)
        sent_bytes = options.lines() * options.line_bytes * (self.num_ranks - 1)
        return sent_bytes * PS_PER_S // rate if rate else 0

    def _build(self, name: str, size_bytes: int, part_of_bytes: int | None) -> GpuProgram:
        if self.plan is not None:
            from trine.gpu.kernels.lower.plan import lower_plan

            return lower_plan(self.plan, size_bytes, line_bytes=self.line_bytes, wavefronts=self.wavefronts)
        options = self._kernel_options(size_bytes, part_of_bytes)
        if not self.is_even and f"{self.op}/{name}" in ACROSS:
            sizes = ", ".join(str(self.domains.count(node)) for node in range(self.num_nodes))
            hint = f": take {_UNEVEN[self.op]!r}" if self.op in _UNEVEN else ""
            raise InputError(
                f"{name} needs nodes of equally many ranks, one after the other; these have {sizes}{hint}",
                field="algorithm",
            )
        program = kernel_of(options, name)
        if self.num_nodes == 1 or f"{self.op}/{name}" in ACROSS:
            return program
        return through_nics(program, lambda source, target: self.domains[source] != self.domains[target])

    def _kernel_options(self, size_bytes: int, part_of_bytes: int | None = None) -> KernelOptions:
        options = self.options
        return KernelOptions(
            op=self.op, num_ranks=self.num_ranks, size_bytes=size_bytes, workgroups=self.workgroups,
            wavefronts=self.wavefronts or self.usual_wavefronts, protocol=options.wire_protocol,
            line_bytes=self.line_bytes, bookkeeping=self.bookkeeping, num_nodes=self.num_nodes if self.is_even else 1,
            matrix=self._matrix(size_bytes), moe=self.moe, part_of_bytes=part_of_bytes,
        )  # fmt: skip

    def _matrix(self, size_bytes: int) -> Sequence[Sequence[int]] | None:
        """Return the matrix of all_to_all_v, by default with equal blocks."""
        if self.op != "all_to_all_v" or self.options.matrix is not None:
            return self.options.matrix
        return ((-(-size_bytes // self.num_ranks),) * self.num_ranks,) * self.num_ranks

    def _check_exchange(self) -> None:
        """Check that matrix and tokens suit the collective, and that no option overrides a kernel's own numbers."""
        options = self.options
        if options.matrix is not None and self.op != "all_to_all_v":
            raise InputError(f"a matrix of bytes belongs to all_to_all_v, not to {self.op}", field="matrix")
        if options.moe is not None and self.op not in MOE:
            raise InputError(f"tokens and experts belong to {' and '.join(MOE)}, not to {self.op}", field="moe")
        for field in ("workgroups", "wavefronts", "bookkeeping") if self.op in MOE else ():
            if getattr(options, field) is not None:
                raise InputError(f"cannot matter: kernels of {self.op} say it themselves", field=field)

    def _load_plan(self) -> KernelPlan:
        from trine.gpu.plans import load_checked, load_plan

        path = self.options.algorithm
        plan = load_plan(path)
        if plan.collective != self.op:
            raise InputError(f"is a plan for {plan.collective}, not for {self.op}", file=path)
        if plan.num_ranks != self.num_ranks:
            raise InputError(f"is a plan for {plan.num_ranks} ranks, the group has {self.num_ranks}", file=path)
        return load_checked(path, self.options.no_proof)


#: No likely range: too few machines have been compared with programs of this level.
EVIDENCE = "modelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadStoreRow:
    """Result for one size. ``time``: low and high equal the time; channels are workgroups.

    finished: False if the run was stopped; ``time`` is then the time of the stop. tried: (algorithm, ps) of each
    algorithm that ran to its end, and (algorithm, None) if it was skipped because its bytes alone take longer.
    simulated: number of GPUs. notes: from the program. result: full result; None if only the last size's was kept.
    """

    time: CollectiveTime
    bottleneck: Bottleneck
    finished: bool
    simulated: int
    notes: tuple[str, ...]
    result: GpuResult | None
    tried: tuple[tuple[str, int | None], ...] = ()


class LoadStoreRuns:
    """Runs of the collective ``op`` on one group. ``group``: ranks (positions in ``cluster.gpus``); None: all GPUs.

    Raises InputError, SpecError, PlanError: an unknown or unsuitable op, algorithm, plan or option.
    """

    def __init__(
        self, op: str, cluster: Cluster, group: Sequence[int] | None = None, options: LoadStoreOptions | None = None
    ) -> None:
        self.op, self.cluster, self.options = op, cluster, options or LoadStoreOptions()
        self.ranks = tuple(range(len(cluster.gpus)) if group is None else group)
        if len(self.ranks) < 2:
            raise InputError(f"a collective needs at least 2 ranks, got {len(self.ranks)}: take more GPUs, or nodes")
        self.group = tuple(cluster.gpus[rank] for rank in self.ranks)
        self.model = model_for(self.options, cluster, self.group)
        refuse_wide(self.options.wavefronts, self.model)
        # Options that change the model change the requests in flight, but not the kernel that issues them.
        plain = plain_model(self.options.gpu_model, cluster, self.group, is_plan=self.options.is_plan)
        bookkeeping = self.options.keeps_books(cluster)
        domains = GpuFabric(cluster, self.group, self.model).domains
        if self.options.initiator is not None and max(domains) == 0:
            raise InputError("cannot matter: no NICs are between these ranks", field="initiator")
        shape = self.model.line_bytes, usual_wavefronts(plain)
        self.programs = Programs(op, len(self.ranks), self.options, *shape, bookkeeping, domains)
        self.model = self.programs.model(self.model)

    def row(self, size_bytes: int, part_of_bytes: int | None = None) -> LoadStoreRow:
        """Return the fastest algorithm's result for this size, or for this part of a longer message."""
        if size_bytes < 1:
            raise InputError(f"the load-store level moves at least 1 byte, got {size_bytes}", field="size")
        best: LoadStoreRow | None = None
        tried: list[tuple[str, int | None]] = []
        names = self.programs.names(size_bytes)
        unfolded: list[InputError] | None = [] if len(names) > 1 else None
        for name in names:
            if best is not None and self.is_hopeless(name, size_bytes, best.time.time_ps):
                tried.append((name, None))
                continue
            row = self._row(name, size_bytes, unfolded, part_of_bytes)
            if not row.finished:
                best = row
                break
            tried.append((name, row.time.time_ps))
            if best is None or row.time.time_ps < best.time.time_ps:
                best = row
        assert best is not None
        if unfolded and best.finished and len(unfolded) == sum(ps is not None for _, ps in tried):
            raise unfolded[0]
        stated = tuple(map(str, unfolded or ()))
        return replace(best, tried=tuple(tried), notes=(*best.notes, *stated))

    def run(
        self,
        program: GpuProgram,
        model: GpuModel | None = None,
        cluster: Cluster | None = None,
        what: str = "",
        verify: bool = False,
    ) -> GpuRun:
        """Run a program on the group; ``what``: difference from the requested run, for the observer."""
        announce_stage(f"{program.name} of {format_size(program.payload_bytes)}{what}")
        machine = self.cluster if cluster is None else cluster
        gpu_model = self.model if model is None else model
        return run_gpus(
            program, machine, self.group, gpu_model, options=GpuRunOptions(fold=self.options.fold, verify=verify),
        )  # fmt: skip

    def is_hopeless(self, name: str, size_bytes: int, best_ps: int) -> bool:
        """Return whether the bytes of a program alone take at least ``best_ps``."""
        lower_bound_ps = self.programs.oneshot_lower_bound_ps
        return name == ONESHOT and lower_bound_ps(size_bytes, self.cluster, self.group) >= best_ps

    def _row(
        self, name: str, size_bytes: int, unfolded: list[InputError] | None, part_of_bytes: int | None
    ) -> LoadStoreRow:
        began = time.perf_counter()
        run = self._verified(self.programs.program(name, size_bytes, part_of_bytes), unfolded)
        factor = bus_factor(self.op, len(self.ranks))
        notes = ("folded and unfolded runs gave the same times, waits and counts",) if run.fold.verified else ()
        result = GpuResult(
            program=run.program, model=self.model, cluster=self.cluster, group=self.group, records=run.gpu,
            bus_factor=factor, fold=run.fold, finished=run.finished, wall_s=time.perf_counter() - began, notes=notes,
        )  # fmt: skip
        if self.op in MOE:  # tokens and experts determine the bytes sent
            size_bytes = run.program.payload_bytes
        answer = self._time(name, size_bytes, run, factor, result.bottleneck)
        return LoadStoreRow(
            time=answer, bottleneck=result.bottleneck, finished=run.finished, simulated=run.fold.classes,
            notes=(*run.program.notes, *notes), result=result,
        )  # fmt: skip

    def _verified(self, program: GpuProgram, unfolded: list[InputError] | None) -> GpuRun:
        """Run both ways if ``verify``. With ``unfolded``, a program that cannot fold runs once and adds its reason."""
        try:
            return self.run(program, verify=self.options.verify)
        except InputError as problem:
            if problem.field != "verify" or unfolded is None:
                raise
            unfolded.append(InputError(f"{program.name}: {problem}"))
            return self.run(program)

    def _time(self, name: str, size: int, run: GpuRun, factor: float, bottleneck: Bottleneck) -> CollectiveTime:
        return CollectiveTime(
            op=self.op, size_bytes=size, sent_bytes=size, num_ranks=len(self.ranks), time_ps=run.end_ps,
            low_ps=run.end_ps, high_ps=run.end_ps, algorithm=name, protocol=self.programs.protocol,
            channels=self.programs.workgroups, bus_factor=factor, evidence=EVIDENCE,
            limit=bottleneck.name or bottleneck.what,
        )  # fmt: skip


#: For each path of each pair of GPUs: ports, and name, lane, rate and latency of each link
PathTable = tuple[tuple[object, ...], ...]


def all_paths(cluster: Cluster, options: LoadStoreOptions) -> PathTable:
    """Return the paths between any two GPUs of ``cluster``.

    Raises InputError: two GPUs are joined only by NICs or hosts. SpecError: two GPUs are not connected.
    """
    gpus = list(cluster.gpus)
    fabric = GpuFabric(cluster, gpus, model_for(options, cluster, gpus))
    names = cluster.link_names
    rows = []
    for source in range(len(gpus)):
        for target in range(len(gpus)):
            if source != target:
                for path in fabric.paths(source, target):
                    rows.append((path.port_out, path.port_in, *((names[hop.link], *hop[1:]) for hop in path.hops)))
    return tuple(rows)
