"""One kernel of one rank of a training step, load by load and store by store.

The operator level says when each rank of a collective comes to it: late ones make the others wait. From those times on
all ranks of the group run the kernel at the load-store level; what comes to one of them is recorded, and that one is
replayed (with sums in switches it is shown as it was in that run), and asked what its wavefronts did.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from trine.arguments import takes
from trine.collectives.loadstore.options import LoadStoreOptions
from trine.collectives.loadstore.runs import LoadStoreRuns
from trine.errors import InputError
from trine.gpu.model import GpuModel
from trine.gpu.model.options import MWAIT, ModelOptions
from trine.graph.grid import RankGrid
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.replay.result import EidolonResult
from trine.replay.run import BegunKernel
from trine.results import Result
from trine.simulation.detail_choice import BOTH, ChosenCollective, DetailOptions, choose
from trine.simulation.detail_result import KernelDetail
from trine.simulation.options import SimulateOptions
from trine.simulation.run import simulate
from trine.simulation.setup import setup_of


@takes(SimulateOptions)
def kernel_detail(
    workload: Workload | str | os.PathLike[str],
    plan: Plan,
    detail: DetailOptions,
    result: Result | None = None,
    *,
    options: SimulateOptions,
) -> KernelDetail:
    """Simulate one kernel of a step load by load and store by store.

    Parameters
    ----------
    workload, plan, options: of the step, as of :func:`trine.simulate`. detail: which kernel, and how it waits. result:
        the step's answer, where it is known.

    The cost is that of the load-store level on all ranks of the collective's group, once for each way to wait.

    Raises
    ------
    InputError, SpecError, PlanError: a step without machine; a rank, layer, ... that it does not have; what the
        load-store level or a record of it refuses. KeyboardInterrupt: Ctrl-C came before the end.
    """
    setup = setup_of(workload, plan, options)
    if setup.machine is None:
        raise InputError("a kernel in detail is a collective of several GPUs of a cluster")
    if result is None:
        result = simulate(setup.workload, setup.plan, options=replace(options, compare=False))
    if result.scope is not None and result.scope.estimate_ps is not None:
        raise InputError("the step is an estimate, so that when ranks come to a kernel is not known")
    chosen = choose(result, RankGrid(setup.plan.axes), detail)
    asked = LoadStoreOptions(
        algorithm=detail.algorithm, protocol=detail.protocol, workgroups=detail.workgroups, gpu_model=detail.gpu_model
    )
    places = [int(setup.places[rank]) for rank in chosen.group]
    return _Detailed(options, detail, chosen, LoadStoreRuns(chosen.what.kind, setup.machine, places, asked)).answer()


@dataclass(frozen=True, slots=True)
class _Detailed:
    """What a detail is made of."""

    options: SimulateOptions
    detail: DetailOptions
    chosen: ChosenCollective
    runs: LoadStoreRuns

    def answer(self) -> KernelDetail:
        """The fastest of the kernels that may run, waiting as asked for; then with a monitor."""
        poll, sync = self.detail.poll, None if self.detail.sync == BOTH else self.detail.sync
        model = ModelOptions(sync=sync, poll=poll).of(self.runs.model)
        name, first = self._fastest(model, sync)
        ways, why = [first], []
        if self.detail.sync == BOTH and model.poll_ps is not None and model.monitor is None:
            try:
                ways.append(self._run(name, ModelOptions(sync=MWAIT, poll=poll).of(self.runs.model), MWAIT))
            except InputError as problem:
                why.append(f"mwait is not compared: {problem}")
        return KernelDetail(
            chosen=self.chosen, algorithm=name, protocol=self.runs.programs.protocol, ways=tuple(ways),
            why_fewer=tuple(why),
        )  # fmt: skip

    def _fastest(self, model: GpuModel, sync: str | None) -> tuple[str, EidolonResult]:
        size, best = self.chosen.what.size_bytes, None
        last_start_ps = int(self.chosen.start_ps.max() - self.chosen.start_ps.min())
        for name in self.runs.programs.names(size):
            if best is not None and self.runs.is_hopeless(name, size, best[1].end_ps - last_start_ps):
                continue
            found = self._run(name, model, sync)
            if best is None or found.end_ps < best[1].end_ps:
                best = (name, found)
        assert best is not None
        return best

    def _run(self, name: str, model: GpuModel, sync: str | None) -> EidolonResult:
        chosen, runs = self.chosen, self.runs
        if self.options.on_stage is not None:
            way = "" if sync is None else f", {sync}"
            self.options.on_stage(f"{len(chosen.group)} GPUs load by load: {name}{way}")
        kernel = BegunKernel(
            program=runs.programs.program(name, chosen.what.size_bytes), cluster=runs.cluster, group=runs.group,
            model=model, starts_ps=chosen.start_ps - chosen.start_ps.min(), sync=sync,
            origin="peers that begin when they do in the step, recorded in a run of all GPUs of the group",
        )  # fmt: skip
        return kernel.replayed(chosen.position, progress=self.options.progress, on_compile=self.options.on_compile)
