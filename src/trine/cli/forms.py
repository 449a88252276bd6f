"""Options of ``trine train`` about sharded data, sequence, context and expert parallelism, and what overlaps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from trine.errors import InputError, PlanError
from trine.inputs import exists, read_text

_PANEL = "Forms of parallelism"
#: A file of shares is a line an expert.
MAX_SHARES_BYTES = 4 * 2**20

CpOption = Annotated[
    int | None, typer.Option(help="Ways of context parallelism: each sample's tokens.", rich_help_panel="Layout")
]
EpOption = Annotated[
    int | None, typer.Option(help="Ways of expert parallelism; divides --dp.", rich_help_panel="Layout")
]
OrderOption = Annotated[
    str | None, typer.Option(help="Axes of the rank grid, fastest first [tp-cp-ep-dp-pp].", rich_help_panel="Layout")
]
ShardingOption = Annotated[
    str | None,
    typer.Option(
        metavar="none|zero1|zero2|zero3|fsdp", help="What replicas hold a part of only [none].", rich_help_panel=_PANEL
    ),
]
ShardWaysOption = Annotated[
    int | None, typer.Option(help="Hybrid sharding: groups of so many replicas.", rich_help_panel=_PANEL)
]
PrefetchOption = Annotated[
    int | None, typer.Option(help="Units of parameters gathered ahead [1].", rich_help_panel=_PANEL)
]
ReshardOption = Annotated[
    bool | None,
    typer.Option(
        "--reshard/--no-reshard", help="fsdp: give up parameters between forward and backward.", rich_help_panel=_PANEL
    ),
]
ShardUnitOption = Annotated[
    str | None, typer.Option(help="Size of a gathered unit, e.g. 100MiB [a layer].", rich_help_panel=_PANEL)
]
DpOverlapOption = Annotated[
    bool | None,
    typer.Option(
        "--dp-overlap/--no-dp-overlap", help="Reduce gradients during the backward pass.", rich_help_panel=_PANEL
    ),
]
BuffersOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|broadcast|none",
        help="DDP's broadcast of buffers: as one operation, by messages, or none [auto].",
        rich_help_panel=_PANEL,
    ),
]
SyncEveryOption = Annotated[
    int | None, typer.Option(help="Local SGD: average parameters every so many steps.", rich_help_panel=_PANEL)
]
SequenceOption = Annotated[
    bool,
    typer.Option("--sequence-parallel", help="With --tp-style megatron: divide tokens, too.", rich_help_panel=_PANEL),
]
TpOverlapOption = Annotated[
    int | None,
    typer.Option(help="Pieces in which sequence parallelism overlaps with products.", rich_help_panel=_PANEL),
]
CpStyleOption = Annotated[
    str | None,
    typer.Option(
        metavar="ring|all-gather|ulysses", help="How attention sees all tokens [ring].", rich_help_panel=_PANEL
    ),
]
ImbalanceOption = Annotated[
    str | None,
    typer.Option(
        metavar="balanced|zipf:S|FILE", help="Tokens of experts; a file has one share a line.", rich_help_panel=_PANEL
    ),
]
CapacityOption = Annotated[
    float | None,
    typer.Option(help="Most tokens of an expert, in even shares; others are dropped.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormOptions:
    """As given: None (or False) where one was not."""

    ep: int | None = None
    order: str | None = None
    sharding: str | None = None
    shard_ways: int | None = None
    prefetch: int | None = None
    reshard: bool | None = None
    shard_unit: str | None = None
    dp_overlap: bool | None = None
    buffers: str | None = None
    sync_every: int | None = None
    sequence_parallel: bool = False
    tp_overlap: int | None = None
    cp_style: str | None = None
    expert_imbalance: str | None = None
    capacity_factor: float | None = None


_AXIS_OF = {
    "cp_style": "cp",
    "expert_imbalance": "ep",
    "capacity_factor": "ep",
    "tp_overlap": "tp",
    "sequence_parallel": "tp",
}


def form_fields(options: FormOptions, ways: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan. ``ways``: those on each axis. Raises PlanError for an option that cannot matter."""
    from trine.units import parse_bytes

    given = {field.name: value for field in fields(options) if (value := getattr(options, field.name)) is not None}
    if not options.sequence_parallel:
        del given["sequence_parallel"]
    has = {"ep": (options.ep or 1) > 1} | {axis: ways.get(axis, 1) > 1 for axis in ("cp", "tp", "dp")}
    for name in given:
        axis = _AXIS_OF.get(name)
        if axis is not None and not has[axis]:
            raise PlanError(f"{_option(name)} is about {axis}, which the layout does not name: --{axis} N")
    replicas = has["dp"] or has["cp"]
    for name in ("buffers", "dp_overlap", "sync_every"):
        if name in given and not replicas:
            raise PlanError(f"{_option(name)} is about replicas, and the layout has none: --dp N")
    if "reshard" in given and given.get("sharding", "").lower() != "fsdp":
        raise PlanError("--reshard is about parameters that are gathered: --sharding fsdp")
    if given.get("tp_overlap", 2) < 2:
        raise PlanError(f"--tp-overlap cuts products into pieces, at least 2; got {given['tp_overlap']}")
    for name in ("sharding", "cp_style", "order", "buffers"):
        if name in given:
            given[name] = given[name].lower()
    if "shard_unit" in given:
        given["shard_unit_bytes"] = parse_bytes(given.pop("shard_unit"), "--shard-unit")
    if "expert_imbalance" in given:
        given |= _imbalance(given.pop("expert_imbalance"))
    return given


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _imbalance(text: str) -> dict[str, Any]:
    """A word, or a file with the share (or the number of tokens) of one expert a line."""
    if text.lower() == "balanced" or text.lower().startswith("zipf:"):
        return {"expert_imbalance": text.lower()}
    if not exists(text):
        return {"expert_imbalance": text}  # which the plan refuses, with the words that it knows
    shares = []
    for number, line in enumerate(read_text(text, MAX_SHARES_BYTES, InputError).splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                shares.append(float(line))
            except ValueError:
                raise InputError(f"line {number}: a share is a number, got {line[:40]!r}", file=text) from None
    if not shares:
        raise InputError("holds no shares: one number a line", file=text)
    return {"expert_shares": tuple(shares)}
