"""From the options of ``trine train`` to a plan, or what contradicts what.

Every option that is given must matter: one that cannot is refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from trine.cli.forms import FormOptions, form_fields
from trine.errors import InputError, PlanError, nearest

if TYPE_CHECKING:
    from trine.parallel.plan import Plan

PARALLEL = ("dp", "ddp", "tp", "pp")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutOptions:
    """The options that make a plan, as given: None where one was not."""

    gpus: int | None = None
    parallel: str | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    batch: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    schedule: str | None = None
    cuts: str | None = None
    bucket: str | None = None
    tp_style: str | None = None
    inputs: str | None = None
    algorithm: str | None = None
    virtual_stages: int | None = None
    balance: str | None = None
    recompute: str | None = None
    recompute_layers: int | None = None
    sync: str | None = None
    overlap: str | None = None
    offload: str | None = None
    steps: int = 1
    forms: FormOptions = field(default_factory=FormOptions)


def plan_from(options: LayoutOptions) -> Plan:
    """The plan that the options describe. Raises PlanError for what contradicts itself or cannot matter."""
    from trine.parallel.plan import Plan
    from trine.units import parse_bytes

    ways = _ways(options)
    _refuse_unused(options)
    fields: dict[str, Any] = {
        "batch": _replica_batch(options, ways.get("dp", 1)),
        "micro_batch": options.micro_batch,
        "num_steps": options.steps,
    }
    if options.schedule is not None:
        fields["schedule"] = options.schedule.lower()
    if options.tp_style is not None:
        fields["tp_style"] = options.tp_style.lower()
    if options.inputs is not None:
        fields["input_copy"] = options.inputs.lower()
    if options.cuts is not None:
        fields["cuts"] = tuple(_names(options.cuts, "--cuts"))
    if options.bucket is not None:
        cap = parse_bytes(options.bucket, "--bucket")
        if cap < 1:
            raise PlanError(f"--bucket must be positive, got {options.bucket!r}")
        fields["first_bucket_bytes"] = fields["bucket_bytes"] = cap
    for name in ("virtual_stages", "recompute_layers"):
        if getattr(options, name) is not None:
            fields[name] = getattr(options, name)
    for name in ("balance", "recompute", "sync", "overlap", "offload"):
        if getattr(options, name) is not None:
            fields[name] = getattr(options, name).lower()
    if options.algorithm is not None:
        fields["algorithms"] = algorithm_pairs(options.algorithm)
    return Plan(**ways, **fields, **form_fields(options.forms, ways))


def _ways(options: LayoutOptions) -> dict[str, Any]:
    """Ways on each axis, and the kind of data parallelism."""
    given = {name: ways for name in ("dp", "cp", "tp", "pp") if (ways := getattr(options, name)) is not None}
    for name, number in (("gpus", options.gpus), *given.items()):
        if number is not None and number < 1:
            raise PlanError(f"--{name} must be at least 1, got {number}")
    if options.parallel is not None:
        return _on_one_axis(options, given)
    product = prod(given.values())
    if not given and options.gpus not in (None, 1):
        raise PlanError(f"{options.gpus} GPUs need a parallelism: --parallel dp|ddp|tp|pp, or --dp, --tp and --pp")
    if options.gpus is not None and options.gpus != product:
        shown = " x ".join(f"--{name} {ways}" for name, ways in given.items())
        raise PlanError(f"{shown} = {product} GPUs contradicts --gpus {options.gpus}")
    return dict(given)


def _on_one_axis(options: LayoutOptions, given: dict[str, int]) -> dict[str, Any]:
    parallel = (options.parallel or "").lower()
    if parallel not in PARALLEL:
        raise PlanError(
            f"--parallel must be one of {', '.join(PARALLEL)}; got {parallel!r}{nearest(parallel, PARALLEL)}"
        )
    if given:
        raise PlanError(f"--parallel {parallel} puts all GPUs on one axis, so --{next(iter(given))} contradicts it")
    if options.gpus is None:
        raise PlanError(f"--parallel {parallel} needs --gpus N")
    if parallel in ("dp", "ddp"):
        return {"dp": options.gpus, "data": parallel}
    return {parallel: options.gpus}


def _refuse_unused(options: LayoutOptions) -> None:
    """Refuse options of an axis that the layout does not name."""
    parallel = (options.parallel or "").lower()
    if options.bucket is not None and options.dp is None and options.cp is None and parallel != "ddp":
        raise PlanError("--bucket is about DDP's gradients, and the layout has none: --parallel ddp or --dp N")
    axis_of = {"tp_style": "tp"} | dict.fromkeys(("schedule", "cuts", "virtual_stages", "balance"), "pp")
    for name, axis in axis_of.items():
        if getattr(options, name) is not None and getattr(options, axis) is None and parallel != axis:
            option = "--" + name.replace("_", "-")
            raise PlanError(
                f"{option} is about {axis}, which the layout does not name: --parallel {axis} or --{axis} N"
            )


def _replica_batch(options: LayoutOptions, replicas: int) -> int | None:
    if options.global_batch is None:
        return options.batch
    if options.batch is not None:
        raise PlanError("--batch (one replica) and --global-batch (all replicas) contradict each other: give one")
    if options.global_batch < 1 or options.global_batch % replicas:
        raise PlanError(f"--global-batch {options.global_batch} does not divide into {replicas} equal replicas")
    return options.global_batch // replicas


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise PlanError(f"{option} holds an empty name: {text!r}")
    return names


def algorithm_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """``all_reduce=ring,broadcast=ring`` as pairs."""
    pairs = []
    for item in _names(text, "--algorithm"):
        kind, _, name = item.partition("=")
        if not kind or not name:
            raise PlanError(f"--algorithm takes COLLECTIVE=NAME, such as all_reduce=ring; got {item!r}")
        pairs.append((kind.strip(), name.strip()))
    return tuple(pairs)


def refuse_without_machine(machine: object, **options: str | None) -> None:
    """Refuse options about links when there is no machine that has any."""
    for name, value in options.items():
        if machine is None and value is not None:
            raise InputError(
                f"--{name.replace('_', '-')} is about the machine, and none was described: --cluster or --topology"
            )
