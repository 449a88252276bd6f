"""One kernel of one rank of a training step, simulated load by load and store by store.

The operator level gives the start time of each rank's collective; late ranks make the others wait. From these times on,
all ranks of the group run the kernel at the load-store level. trine records the writes to one rank and replays that
rank to examine its wavefronts. With in-switch reduction, it uses the recording run itself instead of a replay.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from trine.common.arguments import takes
from trine.common.observer import announce_stage
from trine.errors import InputError
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.runs import LoadStoreRuns
from trine.gpu.detail.choice import BOTH, ChosenCollective, DetailOptions, choose
from trine.gpu.detail.result import KernelDetail
from trine.gpu.model import GpuModel
from trine.gpu.model.options import MWAIT, ModelOptions
from trine.gpu.replay.result import EidolonResult
from trine.gpu.replay.run import BegunKernel
from trine.graph.grid import RankGrid
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results import Result
from trine.training.options import SimulateOptions, observed
from trine.training.run import simulate
from trine.training.setup import setup_of


@takes(SimulateOptions)
@observed
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
    workload, plan, options: the step, as in :func:`trine.simulate`. detail: the kernel, and its wait method. result:
        the step's result, if known.

    Each wait method costs one load-store run on all ranks of the collective's group.

    Raises
    ------
    InputError, SpecError, PlanError: for a step without machine, a missing rank, layer, ..., or input that the
        load-store level or its recording does not support. KeyboardInterrupt: on Ctrl-C before the end.
    """
    setup = setup_of(workload, plan, options)
    if setup.machine is None:
        raise InputError("a kernel in detail is a collective of several GPUs of a cluster")
    if result is None:
        result = simulate(setup.workload, setup.plan, options=replace(options, compare=False))
    if result.scope is not None and result.scope.estimate_ps is not None:
        raise InputError("the step is an estimate, so that when ranks come to a kernel is not known")
    chosen = choose(result, RankGrid(setup.plan.axes), detail)
    loadstore_options = LoadStoreOptions(
        algorithm=detail.algorithm, protocol=detail.protocol, workgroups=detail.workgroups, gpu_model=detail.gpu_model
    )
    places = [int(setup.places[rank]) for rank in chosen.group]
    return _Detailed(detail, chosen, LoadStoreRuns(chosen.what.kind, setup.machine, places, loadstore_options)).answer()


@dataclass(frozen=True, slots=True)
class _Detailed:
    """Inputs of a kernel detail."""

    detail: DetailOptions
    chosen: ChosenCollective
    runs: LoadStoreRuns

    def answer(self) -> KernelDetail:
        """Run the fastest candidate kernel with the requested wait method; for BOTH, also with a monitor."""
        poll, sync = self.detail.poll, None if self.detail.sync == BOTH else self.detail.sync
        model = ModelOptions(sync=sync, poll=poll).of(self.runs.model)
        name, first = self._fastest(model, sync)
        results, why_fewer = [first], []
        if self.detail.sync == BOTH and model.poll_ps is not None and model.monitor is None:
            try:
                results.append(self._run(name, ModelOptions(sync=MWAIT, poll=poll).of(self.runs.model), MWAIT))
            except InputError as problem:
                why_fewer.append(f"mwait is not compared: {problem}")
        return KernelDetail(
            chosen=self.chosen, algorithm=name, protocol=self.runs.programs.protocol, ways=tuple(results),
            why_fewer=tuple(why_fewer),
        )  # fmt: skip

    def _fastest(self, model: GpuModel, sync: str | None) -> tuple[str, EidolonResult]:
        size, best = self.chosen.what.size_bytes, None
        last_start_ps = int(self.chosen.start_ps.max() - self.chosen.start_ps.min())
        for name in self.runs.programs.names(size):
            if best is not None and self.runs.is_hopeless(name, size, best[1].end_ps - last_start_ps):
                continue
            candidate = self._run(name, model, sync)
            if best is None or candidate.end_ps < best[1].end_ps:
                best = (name, candidate)
        assert best is not None
        return best

    def _run(self, name: str, model: GpuModel, sync: str | None) -> EidolonResult:
        chosen, runs = self.chosen, self.runs
        sync_text = "" if sync is None else f", {sync}"
        announce_stage(f"{len(chosen.group)} GPUs load by load: {name}{sync_text}")
        kernel = BegunKernel(
            program=runs.programs.program(name, chosen.what.size_bytes), cluster=runs.cluster, group=runs.group,
            model=model, starts_ps=chosen.start_ps - chosen.start_ps.min(), sync=sync,
            origin="peers that begin when they do in the step, recorded in a run of all GPUs of the group",
        )  # fmt: skip
        return kernel.replayed(chosen.position)
