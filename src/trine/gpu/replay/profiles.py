"""Peer writes from profiles of real runs: files of profilers, and a mapping that adds missing data.

No profiler records the stores inside a kernel or the addresses of copies. The addresses come from the mapping, or from
ranges in the program itself: ``write peer=1 address=flags+0x40 bytes=8 value=1`` (roctx, NVTX).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from trine.common.schema import BeforeValidator, Field, Size, Spec
from trine.common.spec import check, load_mapping
from trine.common.units import MAX_INT64, parse_bytes, whole_number
from trine.errors import InputError, UnitError, nearest
from trine.gpu.replay.profile_events import read_events
from trine.gpu.replay.profile_rows import COPY, KERNEL, KINDS, RANGE, ProfileRow, check_columns, device_of, matches
from trine.gpu.replay.writes import MAX_ADDRESS, MAX_RANK, MAX_VALUE, MEMORY, SEMAPHORE, WriteTable, parse_address

#: Ends of a row at which its write may land.
ENDS = ("start", "end")


def _device(value: object) -> str:
    """Return a device as named in the profile: a number, or a text that contains a number."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"must be a device as the profile calls it, 2 or 'Agent 2', got {str(value)[:80]!r}")
    return device_of(str(value))


Device = Annotated[str, BeforeValidator(_device)]
Rank = Annotated[int, Field(ge=0, le=MAX_RANK)]


class MappingRule(Spec):
    """Rule that turns rows into writes: their kind, name (``*`` matches anything), peer and address.

    step: address increment for each further matching row of a peer. bytes: size, if the profile has none.
    """

    name: str = "*"
    rows: str | None = None
    peer: Rank | None = None
    address: str | Annotated[int, Field(ge=0, le=MAX_ADDRESS)] | None = None
    step: Size = 0
    bytes: Size | None = None
    value: int = Field(default=0, ge=0, le=MAX_VALUE)
    at: str = "end"
    ignore: bool = False

    def _check(self) -> None:
        if self.rows is not None and self.rows not in KINDS:
            raise InputError(f"unknown rows {self.rows!r}{nearest(self.rows, KINDS)}")
        if self.at not in ENDS:
            raise InputError(f"unknown at {self.at!r}{nearest(self.at, ENDS)}")
        if self.ignore == (self.address is not None):
            raise InputError("needs an address, or 'ignore: true', and not both")
        if isinstance(self.address, str):
            parse_address(self.address, "rule")


class MappingFile(Spec):
    """A mapping file. kernel, launch: the target's kernel (``*`` matches anything) and the launch number, from 0.

    start_ns: alternative to kernel: start of the run in the profile's time.
    """

    target: Device
    peers: dict[str | int, Rank]
    kernel: str | None = None
    launch: int = Field(default=0, ge=0)
    start_ns: int | None = Field(default=None, ge=0, le=MAX_INT64)
    writes: list[MappingRule] = Field(default_factory=list)
    columns: dict[str, str] | None = None

    def _check(self) -> None:
        if (self.kernel is None) == (self.start_ns is None):
            raise InputError("needs the kernel of the target whose start is time 0, or start_ns, and not both")
        if self.start_ns is not None and self.launch:
            raise InputError("launch counts launches of a kernel: name the kernel")


class ProfileMapping(NamedTuple):
    """A checked mapping. peers: device, as returned by :func:`trine.gpu.replay.profile_rows.device_of` -> rank."""

    spec: MappingFile
    peers: dict[str, int]
    file: str

    @property
    def names_ranks(self) -> bool:
        """Whether its devices are named after ranks, ``rank 3``."""
        return any(name.startswith("rank ") for name in (self.spec.target, *self.peers))


def read_mapping(path: str | os.PathLike[str]) -> ProfileMapping:
    """Read a mapping (YAML or JSON). Raises SpecError, InputError with field, value and nearest valid name."""
    file = os.fspath(path)
    spec = check(MappingFile, load_mapping(path), file)
    peers: dict[str, int] = {}
    for device, rank in spec.peers.items():
        name = _device(device)
        if name in peers or rank in peers.values():
            raise InputError(f"device {device!r} or rank {rank} is there twice", file=file, field="peers")
        peers[name] = rank
    if spec.target in peers:
        raise InputError(f"device {spec.target!r} is the target", file=file, field="peers")
    if spec.columns is not None:
        check_columns(spec.columns, file)
    return ProfileMapping(spec, peers, file)


_KEYS = ("peer", "address", "bytes", "value")


class ProfileWrites(NamedTuple):
    """Writes, with times from the start of the target's kernel; notes: omissions and assumptions, as text."""

    table: WriteTable
    notes: tuple[str, ...]


def read_profile(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], mapping: str | os.PathLike[str]
) -> ProfileWrites:
    """Read the files of one profile, and the mapping (columns: docs/formats/peer-writes.md).

    Raises SpecError, InputError: a file of unknown kind, a missing kernel, or a copy into the target without an address
    in the mapping. The error names file, line and field.
    """
    rules = read_mapping(mapping)
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    rows: list[ProfileRow] = []
    formats = []
    for path in files:
        name, events = read_events(path, rules.spec.columns, rules.names_ranks)
        formats.append(f"{os.fspath(path)}: {name}, {len(events)} rows")
        rows.extend(events)
    run = _window(rows, rules)
    reader = _ProfileReader(rules, run)
    for row in sorted(rows, key=lambda row: (row.end_ps, row.start_ps, row.device, row.file, row.line)):
        reader.take(row)
    if not len(reader.table):
        raise InputError(f"no row is a write of a peer into device {rules.spec.target!r}", file=os.fspath(files[0]))
    return ProfileWrites(reader.table, (*formats, *reader.notes()))


class _Window(NamedTuple):
    """The run, from start to end of the target's kernel, in ps of the profile; end -1: unknown."""

    start_ps: int
    end_ps: int


def _window(rows: Sequence[ProfileRow], rules: ProfileMapping) -> _Window:
    spec = rules.spec
    if spec.kernel is None:
        return _Window((spec.start_ns or 0) * 1000, -1)
    kernels = [row for row in rows if row.kind == KERNEL and row.device == spec.target]
    launches = sorted((row.start_ps, row.end_ps) for row in kernels if matches(spec.kernel, row.name))
    if not launches:
        names = {row.name for row in kernels}
        hint = nearest(spec.kernel, names) if names else "; the profile has no kernel of it"
        raise InputError(f"device {spec.target!r} has no kernel {spec.kernel!r}{hint}", file=rules.file, field="kernel")
    if spec.launch >= len(launches):
        raise InputError(f"must be below {len(launches)}, the launches in the profile", file=rules.file, field="launch")
    return _Window(*launches[spec.launch])


@dataclass
class _ProfileReader:
    """Reader that takes rows in the order of their ends."""

    rules: ProfileMapping
    run: _Window
    table: WriteTable = field(default_factory=WriteTable)
    early: int = 0
    late: int = 0
    assumed: int = 0
    ignored: int = 0
    counts: dict[tuple[int, int], int] = field(default_factory=dict)

    def take(self, row: ProfileRow) -> None:
        if row.kind == COPY and row.other and (row.other != self.rules.spec.target or row.device == row.other):
            return
        if row.kind != RANGE and row.device == self.rules.spec.target:
            return
        if row.kind == RANGE and row.name.removeprefix(":").startswith("write "):
            annotated = _annotation(row)
            if self._within(row.end_ps):
                self._add(row, *annotated, row.end_ps)
            return
        for number, rule in enumerate(self.rules.spec.writes):
            if rule.rows in (None, row.kind) and matches(rule.name, row.name) and self._is_of_peer(rule, row):
                self._apply(row, rule, number)
                return
        if row.kind == COPY:
            where = "the target" if row.other else "another GPU"
            raise InputError(
                f"a copy of device {row.device!r} to {where}, but no rule of {self.rules.file} sets its address "
                "(or 'ignore: true')",
                file=row.where,
                field="writes",
            )

    def notes(self) -> list[str]:
        """Return notes on omitted and assumed writes."""
        counts = {
            "writes before the start of the target's kernel ignored": self.early,
            "writes after the end of the target's kernel ignored": self.late,
            "copies without a destination in the profile assumed to go to the target": self.assumed,
            "rows ignored by the mapping": self.ignored,
        }
        return [f"{number} {text}" for text, number in counts.items() if number]

    def _is_of_peer(self, rule: MappingRule, row: ProfileRow) -> bool:
        return rule.peer is None or row.kind == RANGE or self.rules.peers.get(row.device) == rule.peer

    def _apply(self, row: ProfileRow, rule: MappingRule, number: int) -> None:
        if rule.ignore:
            self.ignored += 1
            return
        peer = self._peer(row, rule)
        size = row.size_bytes if row.size_bytes is not None else rule.bytes
        if size is None:
            raise InputError(
                "the profile has no exact byte count: add 'bytes' to the rule", file=row.where, field="bytes"
            )
        if row.size_bytes is not None and rule.bytes not in (None, row.size_bytes):
            raise InputError(
                f"the profile says {row.size_bytes} bytes, the rule {rule.bytes}", file=row.where, field="bytes"
            )
        time_ps = row.end_ps if rule.at == "end" else row.start_ps
        if not self._within(time_ps):
            return
        self.assumed += row.kind == COPY and not row.other
        index = self.counts.get((number, peer), 0)
        self.counts[number, peer] = index + 1
        address = _further(rule.address if rule.address is not None else 0, index * rule.step)
        self._add(row, peer, address, size, rule.value, time_ps)

    def _peer(self, row: ProfileRow, rule: MappingRule) -> int:
        if row.kind == RANGE:
            if rule.peer is None:
                raise InputError(
                    "ranges are of no device: say 'peer' in the rule", file=self.rules.file, field="writes"
                )
            return rule.peer
        if row.device not in self.rules.peers:
            raise InputError(
                f"device {row.device!r} is no peer{nearest(row.device, self.rules.peers)}",
                file=row.where,
                field="peers",
            )
        return self.rules.peers[row.device]

    def _within(self, time_ps: int) -> bool:
        self.early += time_ps < self.run.start_ps
        self.late += 0 <= self.run.end_ps < time_ps
        return self.run.start_ps <= time_ps and (self.run.end_ps < 0 or time_ps <= self.run.end_ps)

    def _add(self, row: ProfileRow, peer: int, address: str | int, size: int, value: int, time_ps: int) -> None:
        self.table.register_writes(
            peer=[peer], address=[address], size_bytes=[size], value=[value], time_ps=[time_ps - self.run.start_ps],
            file=row.file, lines=[row.line],
        )  # fmt: skip


class _Annotation(NamedTuple):
    """A write that a range of a profile describes."""

    peer: int
    address: str
    num_bytes: int
    value: int


def _annotation(row: ProfileRow) -> _Annotation:
    """Read a range ``write peer=1 address=flags+0x40 bytes=8 value=1``."""
    where = row.where
    values: dict[str, str] = {}
    for part in row.name.removeprefix(":").split()[1:]:
        key, equals, text = part.partition("=")
        if key not in _KEYS or not equals or key in values:
            raise InputError(f"{part[:80]!r} is not KEY=VALUE, or is there twice{nearest(key, _KEYS)}", file=where)
        values[key] = text
    for key in ("peer", "address", "bytes"):
        if key not in values:
            raise InputError(f"the range has no {key}=", file=where, field=key)
    numbers = {key: whole_number(values.get(key, "0")) for key in ("peer", "value")}
    for key, number in numbers.items():
        if number is None:
            raise InputError(f"must be a whole number, got {values[key][:80]!r}", file=where, field=key)
    try:
        text = values["bytes"]
        plain_bytes = whole_number(text)
        size = parse_bytes(text, "its size") if plain_bytes is None else plain_bytes
    except UnitError as error:
        raise InputError(str(error), file=where, field="bytes") from None
    return _Annotation(numbers["peer"] or 0, values["address"], size, numbers["value"] or 0)


def _further(address: str | int, offset: int) -> str | int:
    if not offset:
        return address
    if isinstance(address, int):
        return address + offset
    base, place = parse_address(address, "rule")
    if base == SEMAPHORE:
        raise InputError("has a step, but a semaphore's number is no address", field="step")
    return place + offset if base == MEMORY else f"{base}+0x{place + offset:x}"
