"""Launch configurations of other software: a layout as flags, and flags as a layout, both from one table of names.

``presets/launch_flags.yaml`` has the names of each dialect, the words of their values, and the source versions.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trine.common.inputs import read_text
from trine.common.schema import Field, Spec
from trine.common.spec import dump_yaml, parse_json, parse_yaml, read_spec
from trine.common.units import whole_number
from trine.errors import InputError, nearest
from trine.search.space import Layout
from trine.search.stage_layout import placement_fields, placement_of

if TYPE_CHECKING:
    from trine.parallel.constraints import LayoutFacts
    from trine.parallel.plan import Plan
    from trine.search.report import PlanSearch

_FILE = Path(__file__).parent.parent / "presets" / "launch_flags.yaml"
#: Largest configuration file.
MAX_BYTES = 2**20
#: torchtitan's degree of sharding that takes all remaining ranks.
_THE_REST = -1
#: Values of a field that need no flag.
_DEFAULTS: dict[str, Any] = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": None, "virtual_stages": 1, "sequence_parallel": None, "offload": "none",
    "recompute": "none", "sharding": "none", "shard_ways": None, "schedule": None, "cp_style": "ring",
    "accounts_embedding": None, "accounts_loss": None, "first_stage_layers": None, "last_stage_layers": None,
    "pipeline_layout": None, "defer_head_gradient": None, "expert_overlap": False, "shared_expert_overlap": False,
    "dispatch": None,
}  # fmt: skip


class FlagRow(Spec):
    """A name of a dialect. See the head of the file for all keys."""

    field: str
    name: str
    values: dict[str, str | int | bool | None] = Field(default_factory=dict)
    follows: bool = False
    code: bool = False


class Dialect(Spec):
    """Names of one software. implied: fields without a name, and their possible values. profile: of the software."""

    software: str
    profile: str
    format: Literal["flags", "toml", "json", "yaml"]
    rows: list[FlagRow]
    implied: dict[str, list[str]] = Field(default_factory=dict)
    shardings: list[str] = Field(default_factory=list)


class Dialects(Spec):
    """All dialects by name."""

    dialects: dict[str, Dialect]


@cache
def dialects() -> Mapping[str, Dialect]:
    """Return the table of dialects."""
    return read_spec(_FILE, Dialects).dialects


def check_dialect(name: str) -> Dialect:
    """Return a dialect by name. Raises InputError for an unknown one."""
    if name not in dialects():
        raise InputError(f"unknown dialect {name[:40]!r}{nearest(name[:80], dialects(), is_listed=True)}", field="emit")
    return dialects()[name]


def emit_flags(name: str, answer: PlanSearch) -> str:
    """Return the best layout of a search as flags of a dialect.

    Raises InputError if the dialect cannot express the layout.
    """
    values = _all_fields(answer.best.layout, answer.global_batch, answer.sequence, answer.layers)
    if answer.plan is not None:
        values |= placement_fields(answer.plan)
        values |= _dispatch_fields(name, answer.plan)
    return _flags(name, f"{answer.model} on {answer.gpus} GPUs", values)


def emit_plan(name: str, model: str, plan: Plan, global_batch: int, facts: LayoutFacts) -> str:
    """Return a plan as flags of a dialect. plan: filled in by the software (:func:`resolve_layout`).

    Raises InputError if the dialect cannot express the plan, or for a plan with named cuts.
    """
    if plan.cuts:
        raise InputError("launch configurations have no names for cuts at layers: use stage_layers", field="cuts")
    values = {each: getattr(plan, each) for each in Layout._fields}
    values["micro_batch"] = plan.micro_batch or global_batch // plan.dp
    values = _all_fields(Layout(**values), global_batch, facts.sequence, facts.layers)
    values |= {"cp_style": plan.cp_style if plan.cp > 1 else None, **placement_fields(plan)}
    values |= _dispatch_fields(name, plan)
    return _flags(name, f"{model} on {plan.num_ranks} GPUs", values)


def _dispatch_fields(name: str, plan: Plan) -> dict[str, Any]:
    """Return the dispatch of a plan with experts, if the dialect has a name for it.

    The default of a dialect may be neither of trine's: Megatron-core's gathers the tokens of all ranks.
    """
    has_name_for_it = any(row.field == "dispatch" for row in check_dialect(name).rows)
    return {"dispatch": plan.dispatch} if has_name_for_it and plan.ep > 1 else {}


def _flags(name: str, title: str, values: Mapping[str, Any]) -> str:
    """Return the fields as flags of a dialect, under a title. Raises InputError for one that it cannot express."""
    dialect = check_dialect(name)
    _check_expressible(name, dialect, values)
    written: dict[str, Any] = {}
    code = []
    for row in dialect.rows:
        value = _written(row, values.get(row.field))
        if row.field == "virtual_stages" and values.get("pipeline_layout"):
            continue  # the layout has them
        if value is None or (value == 1 and row.field in ("ep", "cp") and dialect.format == "flags"):
            continue
        if row.code:
            code += [f"{row.name} {value}"] if values[row.field] != _DEFAULTS.get(row.field) else []
        else:
            written[row.name] = value
    head = [f"# {title}; names of {dialect.software}"]
    notes = [f"# in the training script: {text}" for text in code]
    return "\n".join([*(head + notes if dialect.format != "json" else notes), _text(dialect, written)])


def _all_fields(layout: Layout, global_batch: int, sequence: int | None, layers: int | None) -> dict[str, Any]:
    """Return the fields of a layout, and those that configurations derive from them."""
    values: dict[str, Any] = layout._asdict()
    ways = 1 if layout.sharding == "none" else layout.shard_ways or layout.dp
    batch = global_batch // layout.dp
    values |= {
        "global_batch": global_batch, "accumulation": batch // layout.micro_batch, "sequence": sequence,
        "replicate": layout.dp // ways, "shard": ways, "cp_style": "ring" if layout.cp > 1 else None,
        "schedule": layout.schedule if layout.pp > 1 else None,
    }  # fmt: skip
    if sequence is not None:
        values |= {"micro_tokens": layout.micro_batch * sequence, "step_tokens": global_batch * sequence}
    if layers is not None and layout.pp > 1:
        values["layers_per_stage"] = layers // (layout.pp * layout.virtual_stages)
    return values


def _check_expressible(name: str, dialect: Dialect, values: Mapping[str, Any]) -> None:
    """Raise InputError for a field that is not the default and that no name of the dialect expresses."""
    for field in _DEFAULTS:
        if not has_name(dialect, field, values.get(field)):
            value = values.get(field)
            raise InputError(f"{name} has no name for {field} {value}: fix another value, such as --fix {field}=...")


def has_name(dialect: Dialect, field: str, value: Any) -> bool:
    """Return whether a dialect can express a field's value; it need not express a default."""
    if value in (_DEFAULTS.get(field), None) or value is False or field not in _DEFAULTS:
        return True
    rows = [row for row in dialect.rows if row.field == field and not row.follows]
    derived = {"shard_ways": "shard", "sharding": "shard", "virtual_stages": "layers_per_stage"}
    if not rows and derived.get(field) in {row.field for row in dialect.rows}:
        return field != "sharding" or value in dialect.shardings
    is_implied = value in dialect.implied.get(field, ())
    return is_implied or any(_written(row, value) is not None for row in rows)


def _written(row: FlagRow, value: Any) -> Any:
    """Return the configuration's value of a field, or None if it is not written."""
    if value is None:
        return None
    if row.values and (str(value) in row.values or not str(value).isdecimal()):
        return row.values.get(str(value))
    return value


def _text(dialect: Dialect, values: Mapping[str, Any]) -> str:
    if dialect.format == "flags":
        flags = (name if value is True else f"{name} {shlex.quote(str(value))}" for name, value in values.items())
        return " \\\n".join(flags)
    nested = _nested(values)
    if dialect.format == "json":
        return json.dumps(nested, indent=2)
    if dialect.format == "yaml":
        return dump_yaml(nested).rstrip()
    lines = []
    for table, entries in nested.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in entries.items()), ""]
    return "\n".join(lines).rstrip()


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys with dots as nested mappings."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *folders, last = name.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return nested


def read_flags(path: str) -> dict[str, Any]:
    """Return the layout in a configuration file: fields of :class:`trine.Plan`, and ``global_batch`` if it has one.

    The dialect follows from the names in the file. Other names are ignored, because a configuration holds far more than
    its layout. Raises InputError, with the file, for a file without such names or with a value trine does not know.
    """
    text = read_text(path, MAX_BYTES, InputError)
    name, found = max(
        ((name, _found(dialect, text, path)) for name, dialect in dialects().items()), key=lambda pair: len(pair[1])
    )
    if not found:
        raise InputError(f"holds no name of a layout in {', '.join(dialects())}", file=path)
    values: dict[str, Any] = {}
    for row in dialects()[name].rows:
        if row.name in found and not row.follows and not row.code:
            value = _read(row, found[row.name], path)
            if value is not None:
                values[row.field] = value
    return _from_derived(values, path)


def _found(dialect: Dialect, text: str, path: str) -> dict[str, Any]:
    """Return the dialect's names in a file, with their values; empty if the file has another format."""
    names = {row.name for row in dialect.rows}
    if dialect.format == "flags":
        return {name: value for name, value in _flag_pairs(text, path) if name in names}
    try:
        if dialect.format == "json":
            data = parse_json(text, path)
        else:
            data = tomllib.loads(text) if dialect.format == "toml" else parse_yaml(text, path)
    except (InputError, tomllib.TOMLDecodeError, RecursionError):
        return {}
    return {name: value for name, value in _flat(data) if name in names}


def _flag_pairs(text: str, path: str) -> Iterator[tuple[str, Any]]:
    """Yield flags with their values, or True without one; ``--name=value`` and ``--name value``."""
    lines = (line.partition("#")[0] for line in text.replace("\\\n", " ").splitlines())
    try:
        parts = shlex.split(" ".join(lines))
    except ValueError:
        return
    for place, part in enumerate(parts):
        if part.startswith("--"):
            name, equals, value = part.partition("=")
            following = parts[place + 1] if place + 1 < len(parts) else "--"
            yield name, value if equals else True if following.startswith("--") else following


def _flat(data: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, data


def _read(row: FlagRow, value: Any, path: str) -> Any:
    """Return the field's value of a configuration's value, None for one without effect."""
    for ours, theirs in row.values.items():
        if theirs is not None and str(theirs).lower() == str(value).lower():
            return {"True": True, "False": False}.get(ours, ours)
    if row.field == "shard" and value == _THE_REST:
        return value
    if (number := whole_number(str(value))) is not None and (not row.values or row.values == {"1": None}):
        return number
    if value is False and True in row.values.values():
        return None
    if row.field == "pipeline_layout":
        return value
    raise InputError(f"trine does not know the value {str(value)[:40]!r}", file=path, field=row.name)


def _from_derived(values: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the fields of a plan from those that configurations derive from them."""
    derived = {"accounts_embedding", "accounts_loss", "pipeline_layout", "defers_head", "defer_head_gradient"}
    placement = placement_of(values)
    values = {name: value for name, value in values.items() if name not in derived} | placement
    if values.get("shard") == _THE_REST:
        values |= {"sharding": "fsdp"}
        del values["shard"]
        values.pop("replicate", None)
    elif "shard" in values or "replicate" in values:
        shard, replicate = values.pop("shard", 1), values.pop("replicate", 1)
        values["dp"] = shard * replicate
        values |= {"sharding": "fsdp"} if shard > 1 else {}
        values |= {"shard_ways": shard} if shard > 1 and replicate > 1 else {}
    sequence = values.pop("sequence", None)
    for name, field in (("micro_tokens", "micro_batch"), ("step_tokens", "global_batch")):
        tokens = values.pop(name, None)
        if tokens is not None:
            if not sequence or tokens % sequence:
                raise InputError("tokens need training.seq_len, which divides them", file=path, field=name)
            values[field] = tokens // sequence
    accumulation = values.pop("accumulation", None)
    if accumulation and "global_batch" not in values and "dp" in values:
        values["global_batch"] = accumulation * values.get("micro_batch", 1) * values["dp"]
    return values
