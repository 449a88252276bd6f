"""What a profile does not say: which device is which rank, when the run begins, to which addresses peers write."""

from __future__ import annotations

import os
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from trine.errors import InputError, nearest
from trine.replay.profile_rows import KINDS, check_columns, device_of
from trine.replay.writes import parse_address
from trine.spec import Size, Spec, check, load_mapping

#: Ends of a row at which its write lands.
ENDS = ("start", "end")


def _device(value: object) -> str:
    """A device as the profile calls it: a number, or a text with one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"must be a device as the profile calls it, 2 or 'Agent 2', got {str(value)[:80]!r}")
    return device_of(str(value))


Device = Annotated[str, BeforeValidator(_device)]


class Rule(Spec):
    """Rows that are writes: of what kind, with which name (``*`` stands for anything), of whom, and where they go.

    step: each further row of one peer that the rule takes goes so much further. bytes: where the profile has none.
    """

    name: str = "*"
    rows: str | None = None
    peer: int | None = Field(default=None, ge=0)
    address: str | int | None = None
    step: Size = 0
    bytes: Size | None = None
    value: int = Field(default=0, ge=0)
    at: str = "end"
    ignore: bool = False

    @model_validator(mode="after")
    def _check(self) -> Rule:
        if self.rows is not None and self.rows not in KINDS:
            raise InputError(f"unknown rows {self.rows!r}{nearest(self.rows, KINDS)}")
        if self.at not in ENDS:
            raise InputError(f"unknown at {self.at!r}{nearest(self.at, ENDS)}")
        if self.ignore == (self.address is not None):
            raise InputError("needs an address, or 'ignore: true', and not both")
        if isinstance(self.address, str):
            parse_address(self.address, "rule")
        return self


class MappingFile(Spec):
    """The file. kernel, launch: the target's kernel (``*`` in its name stands for anything) and the how manieth launch.

    start_ns: instead of that, the profile's own time at which the run begins.
    """

    target: Device
    peers: dict[str | int, int]
    kernel: str | None = None
    launch: int = Field(default=0, ge=0)
    start_ns: int | None = Field(default=None, ge=0)
    writes: list[Rule] = Field(default_factory=list)
    columns: dict[str, str] | None = None

    @model_validator(mode="after")
    def _check(self) -> MappingFile:
        if (self.kernel is None) == (self.start_ns is None):
            raise InputError("needs the kernel of the target whose start is time 0, or start_ns, and not both")
        if self.start_ns is not None and self.launch:
            raise InputError("launch counts launches of a kernel, and none is named")
        return self


class ProfileMapping(NamedTuple):
    """A mapping that was checked: peers by device, as :func:`trine.replay.profile_rows.device_of` has it."""

    spec: MappingFile
    peers: dict[str, int]
    file: str


def read_mapping(path: str | os.PathLike[str]) -> ProfileMapping:
    """Read a mapping (YAML or JSON).

    Raises
    ------
    SpecError, InputError: names field, value and the nearest valid name.
    """
    file = os.fspath(path)
    spec = check(MappingFile, load_mapping(path), file)
    peers: dict[str, int] = {}
    for device, rank in spec.peers.items():
        name = _device(device)
        if name in peers or rank in peers.values() or rank < 0:
            raise InputError(f"device {device!r} or rank {rank} is there twice, or negative", file=file, field="peers")
        peers[name] = rank
    if spec.target in peers:
        raise InputError(f"device {spec.target!r} is the target", file=file, field="peers")
    if spec.columns is not None:
        check_columns(spec.columns, file)
    return ProfileMapping(spec, peers, file)
