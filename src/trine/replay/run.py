"""Runs one GPU with its peers replayed: from options to a result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trine.arguments import named_arguments
from trine.collectives.kernels.fused.options import FLAG_SPACING
from trine.errors import InputError
from trine.gpu.peers import Arrivals, PeerWrites
from trine.gpu.replayed import Waiting, run_target, until_waiting
from trine.gpu.run import GpuRun, GpuRunControl
from trine.graph.taskgraph import Progress
from trine.replay.case import ReplayCase, make_case
from trine.replay.options import EidolonOptions
from trine.replay.result import EidolonResult
from trine.replay.traffic import PeerTraffic, counts_from_wait, make_traffic
from trine.units import format_time

__all__ = ["EidolonOptions", "EidolonResult", "Prepared", "run_eidolon"]


@dataclass(slots=True)
class Prepared:
    """A workload for runs that differ in when flags land: what does not depend on that is done once."""

    options: EidolonOptions
    work: ReplayCase = field(init=False)
    _waiting: Waiting | None = None
    _until_s: float = 0.0

    def __post_init__(self) -> None:
        self.work = make_case(self.options)

    @property
    def waiting_ps(self) -> int:
        """When the target's last workgroup begins to wait, if no flag ever lands."""
        return self.waiting().since_ps

    def waiting(self, progress: Progress | None = None, on_compile: Callable[[], None] | None = None) -> Waiting:
        """The target when its last workgroup begins to wait: runs go on from there. Raises as :func:`run_eidolon`."""
        if self._waiting is None:
            began, work = time.perf_counter(), self.work
            announced = make_traffic(self.options, work, 0, progress, on_compile).outside
            if not isinstance(announced, PeerWrites):
                raise InputError("a record's arrivals do not count from the target's wait")
            control = GpuRunControl(engine=self.options.engine, progress=progress, on_compile=on_compile)
            self._waiting = until_waiting(
                work.program, work.cluster, work.group, work.model, target=work.target, outside=announced,
                tasks=work.tasks, control=control,
            )  # fmt: skip
            self._until_s = time.perf_counter() - began
        return self._waiting

    def run(
        self,
        *,
        wakeup: str | int | None = None,
        progress: Progress | None = None,
        on_compile: Callable[[], None] | None = None,
    ) -> EidolonResult:
        """Run it; ``wakeup`` in place of that of the options. Raises as :func:`run_eidolon`."""
        options = self.options if wakeup is None else replace(self.options, wakeup=wakeup)
        from_wait = counts_from_wait(options)
        began = time.perf_counter() - (self._until_s if from_wait else 0.0)  # what runs share counts for each
        work = self.work
        waiting = self.waiting(progress, on_compile) if from_wait else None
        incoming = make_traffic(options, work, 0 if waiting is None else waiting.since_ps, progress, on_compile)
        if isinstance(incoming.outside, Arrivals):
            work = _turned(work, incoming.outside.target)
        simulated = time.perf_counter() - (self._until_s if from_wait else 0.0)
        if waiting is not None and isinstance(incoming.outside, PeerWrites):
            run = waiting.run(incoming.outside, progress=progress, on_compile=on_compile)
        else:
            run = _run_from_the_start(options, work, incoming, progress, on_compile)
        now = time.perf_counter()
        return EidolonResult.of(options, work, incoming, run, wall_s=now - began, engine_s=now - simulated)


def _run_from_the_start(
    options: EidolonOptions,
    work: ReplayCase,
    incoming: PeerTraffic,
    progress: Progress | None,
    on_compile: Callable[[], None] | None,
) -> GpuRun:
    return run_target(
        work.program, work.cluster, work.group, work.model, target=work.target, outside=incoming.outside,
        tasks=work.tasks, control=GpuRunControl(engine=options.engine, progress=progress, on_compile=on_compile),
    )  # fmt: skip


@named_arguments
def run_eidolon(
    options: EidolonOptions | str,
    *,
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
) -> EidolonResult:
    """Simulate one GPU in detail, its peers replayed (docs/design/replay.md).

    options: what to run, or the name of a built-in kernel such as ``gemv-allreduce``.

    Raises
    ------
    InputError, SpecError, PlanError: options, files and writes that cannot be or do not go together.
    DeadlockError: wavefronts wait for what never comes.
    """
    if isinstance(options, str):
        options = EidolonOptions(kernel=options)
    result = Prepared(options).run(progress=progress, on_compile=on_compile)
    if options.flag_spacing in (None, FLAG_SPACING) or options.arrivals is not None or options.writes is not None:
        return result
    usual = Prepared(replace(options, flag_spacing=None)).run(progress=progress, on_compile=on_compile)
    moved = format_time(abs(result.end_ps - usual.end_ps))
    words = (
        f"flag_spacing {options.flag_spacing}: the time differs by {moved} from {FLAG_SPACING} bytes; flags are not "
        "cached, so their spacing only decides which memory channel serves them"
    )
    return replace(result, work=replace(result.work, warnings=(*result.work.warnings, words)))


def _turned(work: ReplayCase, target: int) -> ReplayCase:
    """A folded run is recorded at the rank that was simulated for the target."""
    if target != work.target and not (work.program.kernel_rank == target).any():
        raise InputError(f"the record is of rank {target}, and the program has no kernel of it", field="arrivals")
    return replace(work, target=target)
