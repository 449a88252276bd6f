"""Load-store simulation of one collective on one group, at each size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trine.cluster.cluster import Cluster
from trine.collectives.options import CollectiveTime
from trine.collectives.sizes import bus_factor, format_size
from trine.common.observer import announce_stage
from trine.errors import InputError
from trine.gpu.collective.options import LoadStoreOptions, model_for, plain_model, refuse_wide, usual_wavefronts
from trine.gpu.collective.programs import ONESHOT, Programs
from trine.gpu.fabric import GpuFabric
from trine.gpu.kernels.moe.options import MOE
from trine.gpu.model import GpuModel
from trine.gpu.program import GpuProgram
from trine.gpu.results.bottleneck import Bottleneck
from trine.gpu.results.result import GpuResult
from trine.gpu.run import GpuRun, GpuRunOptions, run_gpus

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
        self,
        op: str,
        cluster: Cluster,
        group: Sequence[int] | None = None,
        options: LoadStoreOptions | None = None,
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

    def row(self, size_bytes: int) -> LoadStoreRow:
        """Return the fastest algorithm's result for this size."""
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
            row = self._row(name, size_bytes, unfolded)
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
        return run_gpus(
            program,
            self.cluster if cluster is None else cluster,
            self.group,
            self.model if model is None else model,
            options=GpuRunOptions(fold=self.options.fold, verify=verify),
        )

    def is_hopeless(self, name: str, size_bytes: int, best_ps: int) -> bool:
        """Return whether the bytes of a program alone take at least ``best_ps``."""
        lower_bound_ps = self.programs.oneshot_lower_bound_ps
        return name == ONESHOT and lower_bound_ps(size_bytes, self.cluster, self.group) >= best_ps

    def _row(self, name: str, size_bytes: int, unfolded: list[InputError] | None) -> LoadStoreRow:
        began = time.perf_counter()
        done = self._verified(self.programs.program(name, size_bytes), unfolded)
        factor = bus_factor(self.op, len(self.ranks))
        notes = ("folded and unfolded runs gave the same times, waits and counts",) if done.fold.verified else ()
        result = GpuResult(
            program=done.program,
            model=self.model,
            cluster=self.cluster,
            group=self.group,
            records=done.gpu,
            bus_factor=factor,
            fold=done.fold,
            finished=done.finished,
            wall_s=time.perf_counter() - began,
            notes=notes,
        )
        if self.op in MOE:  # tokens and experts determine the bytes sent
            size_bytes = done.program.payload_bytes
        answer = self._time(name, size_bytes, done, factor, result.bottleneck)
        return LoadStoreRow(
            time=answer,
            bottleneck=result.bottleneck,
            finished=done.finished,
            simulated=done.fold.classes,
            notes=(*done.program.notes, *notes),
            result=result,
        )

    def _verified(self, program: GpuProgram, unfolded: list[InputError] | None) -> GpuRun:
        """Run both ways if ``verify``. With ``unfolded``, a program that cannot fold runs once and adds its reason."""
        try:
            return self.run(program, verify=self.options.verify)
        except InputError as problem:
            if problem.field != "verify" or unfolded is None:
                raise
            unfolded.append(InputError(f"{program.name}: {problem}"))
            return self.run(program)

    def _time(self, name: str, size: int, done: GpuRun, factor: float, bottleneck: Bottleneck) -> CollectiveTime:
        return CollectiveTime(
            op=self.op,
            size_bytes=size,
            sent_bytes=size,
            num_ranks=len(self.ranks),
            time_ps=done.end_ps,
            low_ps=done.end_ps,
            high_ps=done.end_ps,
            algorithm=name,
            protocol=self.programs.protocol,
            channels=self.programs.workgroups,
            bus_factor=factor,
            evidence=EVIDENCE,
            limit=bottleneck.name or bottleneck.what,
        )


#: For each path of each pair of GPUs: ports, and name, lane, rate and latency of each link
PathTable = tuple[tuple[object, ...], ...]


def all_paths(cluster: Cluster, options: LoadStoreOptions) -> PathTable:
    """Return the paths between any two GPUs of ``cluster``.

    Raises InputError: two GPUs are joined only by NICs or hosts. SpecError: two GPUs are not connected.
    """
    gpus = list(cluster.gpus)
    fabric = GpuFabric(cluster, gpus, model_for(options, cluster, gpus))
    names = cluster.link_names
    return tuple(
        (path.port_out, path.port_in, *((names[hop.link], *hop[1:]) for hop in path.hops))
        for here in range(len(gpus))
        for there in range(len(gpus))
        if here != there
        for path in fabric.paths(here, there)
    )
