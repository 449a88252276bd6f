"""Runs one GPU with its peers replayed: from options to a result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trine.eidolon.incoming import counts_from_wait, make_incoming
from trine.eidolon.options import EidolonOptions
from trine.eidolon.result import EidolonResult
from trine.eidolon.workload import Workload, make_workload
from trine.errors import InputError
from trine.gpu.replayed import run_target, when_waiting
from trine.gpu.run import Progress
from trine.model.outside import Arrivals

__all__ = ["EidolonOptions", "EidolonResult", "Prepared", "run_eidolon"]


@dataclass(slots=True)
class Prepared:
    """A workload for runs that differ in when flags land: what does not depend on that is done once."""

    options: EidolonOptions
    work: Workload = field(init=False)
    _waiting_ps: int | None = None

    def __post_init__(self) -> None:
        self.work = make_workload(self.options)

    @property
    def waiting_ps(self) -> int:
        """When the target's last workgroup begins to wait, if no flag ever lands."""
        return self.waiting_since()

    def waiting_since(self, on_compile: Callable[[], None] | None = None) -> int:
        """As :attr:`waiting_ps`."""
        if self._waiting_ps is None:
            work = self.work
            self._waiting_ps = when_waiting(
                work.program, work.cluster, work.group, work.model, target=work.target, graph=work.graph,
                task_kernel=work.task_kernel, engine=self.options.engine, on_compile=on_compile,
            )  # fmt: skip
        return self._waiting_ps

    def run(
        self,
        *,
        wakeup: str | int | None = None,
        progress: Progress | None = None,
        on_compile: Callable[[], None] | None = None,
    ) -> EidolonResult:
        """Run it; ``wakeup`` in place of that of the options. Raises as :func:`run_eidolon`."""
        began = time.perf_counter()
        options = self.options if wakeup is None else replace(self.options, wakeup=wakeup)
        work = self.work
        waiting_ps = self.waiting_since(on_compile) if counts_from_wait(options) else 0
        incoming = make_incoming(options, work, waiting_ps, progress, on_compile)
        if isinstance(incoming.outside, Arrivals):
            work = _turned(work, incoming.outside.target)
        simulated = time.perf_counter()
        run = run_target(
            work.program, work.cluster, work.group, work.model, target=work.target, outside=incoming.outside,
            graph=work.graph, task_kernel=work.task_kernel, engine=options.engine, progress=progress,
            on_compile=on_compile,
        )  # fmt: skip
        now = time.perf_counter()
        return EidolonResult.of(options, work, incoming, run, wall_s=now - began, engine_s=now - simulated)


def run_eidolon(
    options: EidolonOptions,
    *,
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
) -> EidolonResult:
    """Simulate one GPU in detail, its peers replayed (docs/design/replay.md).

    Raises
    ------
    InputError, SpecError, PlanError: options, files and writes that cannot be or do not go together.
    DeadlockError: wavefronts wait for what never comes.
    """
    return Prepared(options).run(progress=progress, on_compile=on_compile)


def _turned(work: Workload, target: int) -> Workload:
    """A folded run is recorded at the rank that was simulated for the target."""
    if target != work.target and not (work.program.kernel_rank == target).any():
        raise InputError(f"the record is of rank {target}, and the program has no kernel of it", field="arrivals")
    return replace(work, target=target)
