"""``trine train``: one training step (or several) of a traced job on N GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from trine.cli.layout import LayoutOptions, plan_from, refuse_without_machine
from trine.cli.machine import MachineOptions, job_machine
from trine.cli.options import (
    OUTPUT,
    RANKS,
    Brief,
    Details,
    Json,
    Option,
    Parquet,
    Perfetto,
    Timeline,
    argument,
    workloads,
)
from trine.cli.output import end, show, to_terminal, write_files, write_json, written
from trine.cli.parameters import Fields, Given
from trine.cli.progress import watched
from trine.cli.ranks import RANGE, RankOptions, TrainAnswer
from trine.common.observer import observing
from trine.common.plugins import load_target
from trine.errors import InputError
from trine.parallel.plan import Plan
from trine.training.options import SimulateOptions

if TYPE_CHECKING:
    pass

#: Parts of the answer that other packages give: the class of ``--detail``, and of ``--chakra``.
_DETAIL, _CHAKRA = "trine.gpu.cli.detail:DetailAnswer", "trine.formats.chakra.export:ChakraExport"


def train(
    workload: Annotated[
        str, argument("Trace, bundled trace such as vgg13-h100-b128, or a model such as model:llama-3-8b.",
                      values=workloads)
    ],
    layout: LayoutOptions,
    plan: Given[Plan],
    how: Given[SimulateOptions],
    machine: Annotated[MachineOptions, Fields(without=("gpus",))],
    ranks: RankOptions,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
    perfetto: Perfetto = None,
    parquet: Parquet = None,
    timeline: Timeline = None,
    explain_memory: Annotated[
        bool, Option("Explain the memory's peak, and the effect of other options.", panel=OUTPUT)
    ] = False,
    memory_snapshot: Annotated[
        str | None, Option("Write a rank's allocations for PyTorch's memory_viz.", "FILE", OUTPUT)
    ] = None,
    detail: Annotated[
        str | None, Option("Simulate one kernel of one rank load by load.", "rank=R,layer=L,...", RANKS)
    ] = None,
    detail_perfetto: Annotated[
        str | None, Option("Write the timeline of that kernel.", "FILE", OUTPUT)
    ] = None,
    chakra: Annotated[
        str | None, Option("Write the job as Chakra traces PREFIX.<rank>.et.", "PREFIX", OUTPUT)
    ] = None,
    chakra_target: Annotated[
        str | None, Option("Choose the reader of --chakra's traces [astra-sim].", "astra-sim|chakra", OUTPUT)
    ] = None,
) -> None:  # fmt: skip
    """Predict the time of a training step of WORKLOAD on N GPUs, and explain it.

    Example: trine train vgg13-h100-b128 --gpus 8 --parallel ddp --cluster dgx-h100
    """
    from trine.engine.models import is_compiled

    answer = TrainAnswer(plan["overlap"], ranks)
    if plan["overlap"] == RANGE:
        plan.values["overlap"] = "modelled"
    inside = load_target(_DETAIL)(detail, detail_perfetto)
    if detail is not None and ranks.repeat is not None:
        raise InputError("--detail is about one run: it does not go with --repeat")
    job = plan_from(layout, plan)
    cluster, warnings = job_machine(job.num_ranks, replace(machine, gpu=how["gpu"]))
    asked = ("network", "collective_costs", "placement")
    options = {"inputs": plan["inputs"], "algorithm": plan["algorithm"]}
    refuse_without_machine(cluster, **options, **{name: how[name] for name in asked})
    fold = ranks.checked(job.num_ranks)
    exported = load_target(_CHAKRA)(chakra, chakra_target)
    if exported.leaves_launches_out and how["cpu"] is None and how["launch_cost_ps"] is None:
        how.values["cpu"] = False
        warnings = [
            *warnings,
            "leaves out CPU launches, which ASTRA-sim cannot read (--chakra-target chakra keeps them)",
        ]
    with watched(), observing(on_job=None if chakra is None else exported.write):
        asked_how = how.make(
            cluster=cluster,
            engine="compiled" if how["network"] is None or is_compiled(how["network"]) else "reference",
            fold=fold,
            stragglers=ranks.stragglers(),
            warnings=tuple(warnings),
        )
        result = answer.simulate(workload, job, asked_how)
    memory = MemoryAnswer(workload, job, asked_how, explain_memory, memory_snapshot)
    inside.check(job, answer.whole)
    with to_terminal(json):
        show(answer.headline(result) if brief else answer.text(result, details), json)
    memory.show(json)
    inside.run(workload, job, asked_how, answer.whole)
    inside.show(json, brief)
    content = {**answer.document(result), **memory.document(), **inside.document()}
    write_json(content, json, "train", result.SCHEMA)
    write_files(result, perfetto, parquet, timeline)
    memory.write()
    inside.write()
    exported.report()
    end(answer.finished and inside.finished)


class MemoryAnswer:
    """Output of ``--explain-memory`` and ``--memory-snapshot``."""

    def __init__(
        self, workload: str, plan: Plan, options: SimulateOptions, explains: bool, path: str | None
    ) -> None:  # fmt: skip
        self._asked = workload, plan, options
        self._path, self._found = path, None
        if explains:
            from trine.training.explained import explain_memory

            self._found = explain_memory(*self._asked)

    def show(self, json: str | None) -> None:
        """Print the explanation, if requested."""
        if self._found is not None:
            show("\n".join(["", *self._found.text()]), json)

    def document(self) -> dict[str, object]:
        """Return ``memory_explained``, if requested."""
        return {} if self._found is None else {"memory_explained": self._found.document()}

    def write(self) -> None:
        """Write the snapshot, if requested."""
        if self._path is None:
            return
        from trine.results.snapshot import write_snapshot
        from trine.training.explained import memory_snapshot

        found = memory_snapshot(*self._asked)
        written(
            self._path,
            partial(write_snapshot, found),
            "snapshot written to {}: open it at https://pytorch.org/memory_viz",
        )
