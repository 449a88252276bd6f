"""What a file of a GPU's inside holds, made from the table of fields."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from trine.gpu.model import (
    BY_GPU,
    FIELDS,
    FIFO,
    INTERLEAVED,
    L2,
    OPTIONAL,
    GpuModel,
    MemorySystem,
    ModelField,
    Monitor,
    Nic,
    Noc,
    Ports,
)
from trine.gpu.model.check import MAX_COUNT, MAX_SLEEPERS, WORDS
from trine.schema import BeforeValidator, Field, Spec, make_spec
from trine.spec import Bandwidth, Duration, Size
from trine.units import parse_cycle, parse_time

_Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
_UNITS: dict[str, Any] = {
    "": _Count,
    "time": Duration,
    "bytes": Size,
    "rate": Bandwidth,
    "clock": Annotated[int, BeforeValidator(lambda value: parse_cycle(value))],
}
#: Fields that are no plain counts or quantities.
_KINDS: dict[str, Any] = {
    **{path: Literal[words] for path, words in WORDS.items()},
    "noc.rows": _Count | None,  # of a mesh only
    "noc.cols": _Count | None,
    "cus.posted_stores": bool,
    "cus.issue_seed": Annotated[int, Field(ge=0, le=MAX_COUNT)] | None,
    "kernels.poll": Annotated[int | None, BeforeValidator(lambda value: _poll(value))],
    "monitor.capacity": Annotated[int, Field(ge=0, le=MAX_SLEEPERS)],
}
_DEFAULTS = {
    "noc.rows": None, "noc.cols": None, "kernels.poll": None, "kernels.fence": 0,
    "kernels.poll_turn": 0, "cus.issue_seed": None, "l2.far": 0,
    "ports.choice": INTERLEAVED, "ports.arbitration": FIFO, "nic.initiator": BY_GPU,
}  # fmt: skip


class GpuModelFile(Spec):
    """A whole file, after what it inherits from its ``base`` has been filled in, but for its fields."""

    name: str | None = None
    base: str | None = None
    notes: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    evidence: dict[str, Literal["measured", "modelled", "assumed"]] = Field(default_factory=dict)


def _poll(value: Any) -> int | None:
    return None if value in (None, "none") else parse_time(value)


@cache
def file_schema() -> type[GpuModelFile]:
    """:class:`GpuModelFile` with all fields, in their groups."""
    groups: dict[str, dict[str, Any]] = {}
    for field in FIELDS:
        group, _, name = field.path.rpartition(".")
        groups.setdefault(group, {})[name] = (_kind(field), _DEFAULTS.get(field.path, ...))
    entries = groups.pop("")
    for group, fields in groups.items():
        section: Any = make_spec(f"{group.title()}Spec", Spec, fields)
        if group in OPTIONAL:  # ``none`` in a file takes away what its base has
            absent = BeforeValidator(lambda value: None if value == "none" else value)
            entries[group] = (Annotated[section | None, absent], None)
        else:
            entries[group] = (section, ...)
    return make_spec("GpuModelFile", GpuModelFile, entries)


def _kind(field: ModelField) -> Any:
    return _KINDS.get(field.path, _UNITS[field.unit])


def to_model(spec: GpuModelFile, name: str, evidence: dict[str, str], sources: dict[str, str]) -> GpuModel:
    """The model that a file describes; ``evidence`` and ``sources`` by path, worked out by the caller."""
    groups: dict[str, dict[str, Any]] = {
        "": {},
        "noc": {},
        "memory": {},
        "ports": {},
        "l2": {},
        "monitor": {},
        "nic": {},
    }
    for field in FIELDS:
        section, _, key = field.path.rpartition(".")
        holder = getattr(spec, section) if section else spec
        value = None if holder is None else getattr(holder, key)
        if value is not None:
            group, _, attribute = field.attribute.rpartition(".")
            groups[group][attribute] = value
    return GpuModel(
        name=name,
        noc=Noc(**groups["noc"]),
        memory=MemorySystem(**groups["memory"]),
        ports=Ports(**groups["ports"]),
        l2=L2(**groups["l2"]) if groups["l2"] else None,
        monitor=Monitor(**groups["monitor"]) if groups["monitor"] else None,
        nic=Nic(**groups["nic"]) if groups["nic"] else None,
        evidence=evidence,
        sources=sources,
        notes=spec.notes,
        **groups[""],
    )
