"""``trine plan``: search the parallel layouts of a model for the fastest that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import workloads
from trine.cli.machine import MachineOptions, group_machine
from trine.cli.options import OUTPUT, SERVING, Brief, Details, Json, Option, argument
from trine.cli.output import drawn, show, show_answer, write_json, written
from trine.cli.parameters import Fields, Given
from trine.cli.progress import RowsLine
from trine.cli.serving import AnswerFiles, plan_served, refuse_serving
from trine.common.arguments import check_needed
from trine.common.observer import observing
from trine.errors import InputError
from trine.inference.serving_goal import ServingGoal
from trine.search.plan import ASSUMED_MACHINE, USUAL_CLUSTER, PlanOptions

if TYPE_CHECKING:
    from trine.search.report import PlanSearch


def plan(
    model: Annotated[str, argument("Model such as llama-3-70b, or a trace.", "MODEL", values=workloads)],
    search: Given[PlanOptions],
    machine: Annotated[MachineOptions, Fields(only=("cluster", "nodes", "fabric"))],
    goal: Annotated[Given[ServingGoal], Fields(without=("precision",))],
    serve: Annotated[bool, Option("Plan a served model: most tokens/s per GPU under limits.", panel=SERVING)] = False,
    from_file: Annotated[
        str | None, Option("Compare with the layout of this configuration.", "FILE", names=("--from",))
    ] = None,
    emit: Annotated[
        str | None,
        Option("Print the best layout as flags.", "megatron|torchtitan|deepspeed|nanotron|vllm|sglang|trtllm", OUTPUT),
    ] = None,
    brief: Brief = False,
    details: Details = False,
    plot: Annotated[str | None, Option("Draw time against memory, or with --serve the front.", "FILE", OUTPUT)] = None,
    json: Json = None,
    parquet: Annotated[str | None, Option("Write the tables to this folder.", "DIR", OUTPUT)] = None,
) -> None:
    """Find the fastest parallel layouts of MODEL that fit in memory, and explain the difference of the best.

    Example: trine plan llama-3-70b --gpus 256 --cluster dgx-h100 --global-batch 1024
    """
    if serve:
        files = AnswerFiles(json=json, brief=brief, details=details, plot=plot, parquet=parquet, emit=emit)
        given_options = search.values if from_file is None else {**search.values, "from_file": from_file}
        plan_served(model, goal, given_options, machine, files)
        return

    from trine.search.flags import emit_flags, read_flags
    from trine.search.plan import plan as search_plan

    refuse_serving(goal.values, emit)
    check_needed(search.kind, search.values, "plan")
    given: dict[str, Any] | None = None if from_file is None else read_flags(from_file)
    cluster, text = _machine(machine, search["gpus"])
    for name in ("gpu", "software", "loss", "gradient_dtype", "precision", "trainable"):
        text += f" --{name.replace('_', '-')} {search[name]}" if search[name] is not None else ""
    with RowsLine("layouts simulated") as line, observing(progress=line, on_compile=line.compiling):
        answer: PlanSearch = search_plan(model, options=search.make(cluster=cluster, given=given, emit=emit))
    assumptions = (() if machine.cluster else (ASSUMED_MACHINE,)) + answer.assumptions
    answer = replace(answer, command=f"{answer.command} {text}", assumptions=assumptions)
    show_answer(answer, json, brief, details)
    if emit is not None:
        show("\n" + emit_flags(emit, answer), json)
    write_json(answer, json, "plan")
    written(parquet, answer.to_parquet, "tables written to {}")
    drawn(plot, answer)


def _machine(machine: MachineOptions, gpus: int | None) -> tuple[Any, str]:
    """Return the cluster of a search, and its options for ``trine train``."""
    if machine.cluster is None and gpus is None:
        raise InputError("a search needs a machine: --cluster NAME or FILE, such as --cluster dgx-h100, or --gpus N")
    if machine.cluster is None:
        machine = replace(machine, cluster=USUAL_CLUSTER)
    cluster, _ = group_machine(replace(machine, gpus=gpus))
    nodes = len(set(cluster.node_of[list(cluster.gpus)].tolist()))
    text = f"--cluster {machine.cluster}"
    text += f" --nodes {nodes}" if nodes > 1 or machine.nodes else ""
    return cluster, text + (f" --fabric {machine.fabric}" if machine.fabric else "")
