"""Conversion of the options of ``trine train`` into a plan, or an error that names contradictions.

Every given option must have an effect. An option without effect is refused with the reason, even at its default value.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from trine.cli.imbalance import imbalance_fields
from trine.cli.parameters import Given
from trine.common.arguments import option
from trine.errors import InputError, PlanError, nearest
from trine.parallel.plan import TIME, Plan

PARALLEL = ("dp", "ddp", "fsdp", "tp", "pp")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutOptions:
    """Command-line options besides the fields of a plan; None if not given."""

    gpus: int | None = option(None, "Use N GPUs.")
    parallel: str | None = option(None, "Use all GPUs for one form of parallelism.")
    global_batch: int | None = option(None, "Set the samples per step of all replicas together.")


def plan_from(layout: LayoutOptions, options: Given[Plan]) -> Plan:
    """Return the plan that the options describe. Raises PlanError for contradictions and options without effect."""
    ways = _ways(layout, options)
    _refuse_unused(options, ways)
    fields: dict[str, Any] = {**ways, "batch": _replica_batch(layout, options, ways.get("dp", 1))}
    if "bucket_bytes" in options:
        fields["first_bucket_bytes"] = options["bucket_bytes"]
    if "expert_imbalance" in options:
        fields |= imbalance_fields(options["expert_imbalance"])
    return options.make(**fields)


def _ways(layout: LayoutOptions, options: Given[Plan]) -> dict[str, Any]:
    """Return the degree of each axis, and the kind of data parallelism."""
    axes = {name: options[name] for name in ("dp", "cp", "tp", "pp") if name in options}
    for name, number in (("gpus", layout.gpus), *axes.items()):
        if number is not None and number < 1:
            raise PlanError(f"--{name} must be at least 1, got {number}")
    if layout.parallel is not None:
        return _on_one_axis(layout, axes, options["sharding"])
    product = prod(axes.values())
    if not axes and layout.gpus not in (None, 1) and not {"sharding", "ep"} & options.values.keys():
        raise PlanError(f"{layout.gpus} GPUs need a parallelism: --parallel dp|ddp|fsdp|tp|pp, or --dp, --tp and --pp")
    if layout.gpus is not None and "dp" not in axes and layout.gpus > product and layout.gpus % product == 0:
        return {"dp": layout.gpus // product, **axes}  # replicas fill the remaining GPUs
    if layout.gpus is not None and layout.gpus != product:
        if "dp" not in axes and layout.gpus > product:
            raise PlanError(f"{layout.gpus} GPUs do not divide into replicas of {product}")
        factors = " x ".join(f"--{name} {ways}" for name, ways in axes.items())
        raise PlanError(f"{factors} = {product} GPUs contradicts --gpus {layout.gpus}")
    return axes


def _on_one_axis(layout: LayoutOptions, axes: dict[str, int], sharding: str | None) -> dict[str, Any]:
    parallel = (layout.parallel or "").lower()
    if parallel not in PARALLEL:
        hint = nearest(parallel, PARALLEL, is_listed=True)
        raise PlanError(f"--parallel must be one of {', '.join(PARALLEL)}; got {parallel!r}{hint}")
    if axes:
        raise PlanError(f"--parallel {parallel} puts all GPUs on one axis, so --{next(iter(axes))} contradicts it")
    if layout.gpus is None:
        raise PlanError(f"--parallel {parallel} needs --gpus N")
    if parallel in ("dp", "ddp"):
        return {"dp": layout.gpus, "data": parallel}
    if parallel == "fsdp":
        if sharding not in (None, "fsdp"):
            raise PlanError(f"--parallel fsdp contradicts --sharding {sharding}")
        return {"dp": layout.gpus, "sharding": "fsdp"}
    return {parallel: layout.gpus}


def _refuse_unused(options: Given[Plan], ways: dict[str, Any]) -> None:
    """Raise PlanError for options that need an axis, replicas or sharding that the layout lacks."""
    is_ddp = "cp" in options or ("dp" in ways and ways.get("data") != "dp")
    cp, tp, dp = (ways.get(axis, 1) > 1 for axis in ("cp", "tp", "dp"))
    for names, is_there, remedy in (
        (("bucket_bytes",), is_ddp, "DDP: add --parallel ddp or --dp N"),
        (("tp_style",), "tp" in ways, "tensor parallelism: add --tp N"),
        (
            (
                "schedule",
                "cuts",
                "virtual_stages",
                "balance",
                "stage_layers",
                "first_stage_layers",
                "last_stage_layers",
                "defer_head_gradient",
            ),
            "pp" in ways,
            "a pipeline: add --pp N",
        ),
        (("cp_style",), cp, "context parallelism: add --cp N"),
        (
            ("expert_imbalance", "capacity_factor", "expert_overlap", "shared_expert_overlap"),
            (options["ep"] or 1) > 1,
            "expert parallelism: add --ep N",
        ),
        (("tp_overlap",), tp, "tensor parallelism: add --tp N"),
        (("buffers", "dp_overlap", "sync_every", "replica_batches"), dp or cp, "replicas: add --dp N"),
    ):
        for name in names:
            if name in options and not is_there:
                raise PlanError(f"--{name.removesuffix('_bytes').replace('_', '-')} needs {remedy}")
    if "reshard" in options and ways.get("sharding", options["sharding"]) != "fsdp":
        raise PlanError("--reshard is about parameters that are gathered: --sharding fsdp")
    if "tp_overlap" in options and options["tp_overlap"] < 2:
        raise PlanError(f"--tp-overlap cuts products into pieces, at least 2; got {options['tp_overlap']}")


def _replica_batch(layout: LayoutOptions, options: Given[Plan], replicas: int) -> int | None:
    batch: int | None = options["batch"]
    if layout.global_batch is None:
        return batch
    if "replica_batches" in options and options["replica_batches"] != TIME:
        raise PlanError("--global-batch and --replica-batches contradict each other: give one")
    if batch is not None:
        raise PlanError("--batch (one replica) and --global-batch (all replicas) contradict each other: give one")
    if layout.global_batch < 1 or layout.global_batch % replicas:
        raise PlanError(f"--global-batch {layout.global_batch} does not divide into {replicas} equal replicas")
    return layout.global_batch // replicas


def refuse_without_machine(machine: object, **options: object) -> None:
    """Raise InputError for options about links if no machine is described."""
    for name, value in options.items():
        if machine is None and value is not None:
            option_name = f"--{name.replace('_', '-')}"
            raise InputError(f"{option_name} is about the machine, and none was described: --cluster or --topology")
