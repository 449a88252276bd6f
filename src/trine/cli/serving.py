"""``--serve`` of ``trine plan`` and ``trine size``: a served model in place of a training job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trine.cli.machine import MachineOptions, group_machine
from trine.cli.output import drawn, show, show_answer, write_json, written
from trine.cli.parameters import Given
from trine.common.arguments import check_needed
from trine.errors import InputError
from trine.inference.serving_goal import ServingGoal

#: Options of a training search that also hold for serving.
_SHARED = ("gpus", "precision", "top")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFiles:
    """Where an answer goes: output options of a command."""

    json: str | None
    brief: bool
    details: bool
    plot: str | None = None
    parquet: str | None = None
    emit: str | None = None


def plan_served(
    model: str, goal: Given[ServingGoal], search: Mapping[str, Any], machine: MachineOptions, files: AnswerFiles
) -> None:
    """Print the best layouts of a served model. search: given options of ``trine plan`` besides those of serving."""
    from trine.inference.plan_serving import plan_serving

    refuse_training(set(search) - set(_SHARED))
    options = _goal(goal, search.get("precision"), files.emit)
    if machine.cluster is None:
        raise InputError("a search needs a machine: --cluster NAME or FILE, such as --cluster hgx-h200")
    cluster, _ = group_machine(replace(machine, gpus=search.get("gpus")))
    answer = plan_serving(model, cluster, top=search.get("top", 5), options=options)
    answer = replace(answer, model_name=model, cluster_name=machine.cluster)
    show_answer(answer, files.json, files.brief, files.details)
    if files.emit is not None:
        from trine.inference.launch_commands import launch_command

        show("\n" + launch_command(answer.best), files.json)
    write_json(answer, files.json, "plan")
    written(files.parquet, answer.to_parquet, "tables written to {}")
    drawn(files.plot, answer)


def size_served(
    model: str, goal: Given[ServingGoal], options: Mapping[str, Any], rate: float | None, files: AnswerFiles
) -> None:
    """Print the fewest GPUs that serve ``rate`` requests per second. options: given ones of ``trine size``."""
    from trine.inference.sizing import DEFAULT_MAX_GPUS, UTILISATION, size_serving

    refuse_training(set(options) - {"cluster", "max_gpus", "precision", "price", "utilisation"})
    if rate is None:
        raise InputError("serving needs the rate of requests: --requests-per-second N")
    if "cluster" not in options:
        raise InputError("add a machine: --cluster NAME or FILE, such as --cluster hgx-h200")
    answer = size_serving(
        model, options["cluster"], rate, options.get("utilisation", UTILISATION),
        options.get("max_gpus", DEFAULT_MAX_GPUS), _prices(options.get("price")),
        options=_goal(goal, options.get("precision"), None),
    )  # fmt: skip
    show_answer(answer, files.json, files.brief, files.details)
    write_json(answer, files.json, "size")
    drawn(files.plot, answer)


def _prices(price: str | None) -> float | Mapping[str, float] | None:
    """Return dollars per GPU-hour of all GPUs, or by GPU from a file of prices; None without a price."""
    from trine.decide.cost import read_price

    if price is None:
        return None
    known = read_price(price)
    return known.usd if known.by_gpu is None else known.by_gpu


def _goal(goal: Given[ServingGoal], precision: str | None, emit: str | None) -> ServingGoal:
    """Return the goal; the engine that ``--emit`` names is the default. Raises InputError for two engines."""
    from trine.inference.launch_commands import launch_rules

    check_needed(ServingGoal, goal.values, "serving")
    changes: dict[str, Any] = {} if precision is None else {"precision": precision}
    if emit is not None:
        launch_rules(emit)
        engine = goal["engine"] or emit
        if engine.partition(":")[0] != emit:
            raise InputError(f"the plan is for {engine}: use --emit {engine.partition(':')[0]}", field="emit")
        changes["engine"] = engine
    return goal.make(**changes)


def refuse_training(names: Collection[str]) -> None:
    """Raise InputError for options that are about training."""
    for name in sorted(names):
        raise InputError("is an option of training: leave it out with --serve", field=name)


def refuse_serving(names: Collection[str], emit: str | None = None) -> None:
    """Raise InputError for options of serving without ``--serve``. emit: the launch configuration to print."""
    if emit is not None:
        from trine.inference.launch_commands import known_launchers

        if emit in known_launchers():
            raise InputError(f"{emit} serves models: add --serve", field="emit")
    for name in sorted(names):
        raise InputError("is an option of serving: add --serve", field=name)
