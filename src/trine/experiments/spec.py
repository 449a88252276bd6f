"""Specification of an experiment: the question, its fixed settings and its varied fields; its points by number."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from trine.common._version import __version__
from trine.common.arguments import named_arguments
from trine.common.inputs import is_file, read_bytes
from trine.common.schema import Field, Spec
from trine.common.spec import check, load_mapping
from trine.errors import InputError, about
from trine.experiments.values import RandomValues, Value, is_number, parse_values

#: Function that answers a point: (command, settings) -> flat record.
CLI_QUESTION = "trine.cli.record:answer_point"
#: Identifies results: equal inputs and equal result versions give equal results.
RESULT_VERSION = f"{__version__}/2"
MAX_POINTS = 10**9
SPEC_FILE = "experiment.json"

Settings = dict[str, Any]


class SearchSpec(Spec):
    """Search by optuna: it draws the random fields of each trial after the results of earlier trials.

    minimise, maximise: the result to optimise; one of the two.
    """

    trials: int = Field(ge=1, le=1_000_000)
    minimise: str | None = None
    maximise: str | None = None


class ExperimentFile(Spec):
    """An experiment file. vary: field -> list, or text as of :mod:`trine.experiments.values`."""

    command: str
    settings: dict[str, Any] = Field(default_factory=dict)
    vary: dict[str, Any] = Field(default_factory=dict)
    samples: int | None = Field(None, ge=1, le=MAX_POINTS)
    seed: int = Field(0, ge=0)
    search: SearchSpec | None = None


class StoredFile(ExperimentFile):
    """The resolved specification in an experiment's directory."""

    question: str = CLI_QUESTION
    inputs: dict[str, str] = Field(default_factory=dict)


class Shard(NamedTuple):
    """Part ``number`` of ``of`` of an experiment: every ``of``-th point, starting with ``number``."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of ``i/n``, i from 0 to n - 1. Raises InputError for another text."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and len(text) <= 20 and int(number) < int(count)):
            raise InputError(f"must be i/n, 0/8 to 7/8 for 8 shards, got {text!r:.80}", field="shard")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def shared(self, other: Shard, size: int) -> range:
        """Return the points of an experiment of ``size`` points that both shards have."""
        common = math.gcd(self.of, other.of)
        turns, remainder = divmod(other.number - self.number, common)
        if remainder:
            return range(0)
        step = other.of // common
        first = self.number + self.of * (turns * pow(self.of // common, -1, step) % step)
        return range(first, size, self.of * step)


@named_arguments
@dataclass(frozen=True, kw_only=True)
class ExperimentSpec:
    """One command at the points of a grid, of a random sample, or of a search.

    command: words of a trine command such as ``train``. settings: its options by name. vary: field -> values, the last
    field varies fastest; fields are options, or dotted names inside cluster, GPU-model and software files. samples:
    draws of the random fields at each point of the grid. question: name of the function that answers a point; for
    another one than trine's, :func:`trine.sweep` needs the function itself.
    inputs: file -> SHA-256 of the files that settings name; trine fills it in for its commands.

    Raises InputError for empty or contradictory fields.
    """

    command: str
    settings: Settings = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    seed: int = 0
    search: SearchSpec | None = None
    question: str = CLI_QUESTION
    inputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        axes = {name: parse_values(name, values) for name, values in self.vary.items()}
        object.__setattr__(self, "vary", axes)
        for name, value in self.settings.items():
            for item in value if isinstance(value, list | tuple) else (value,):
                if not isinstance(item, str) and item is not None and not is_number(item):
                    raise InputError(f"takes numbers, texts and lists of them, got {item!r:.80}", field=name)
        for name in axes.keys() & self.settings.keys():
            raise InputError("is both set and varied: keep one", field=name)
        drawn = "search" if self.samples is None else "samples"
        has_draws = self.samples is not None or self.search is not None
        if self.random and not has_draws:
            raise InputError(
                "is random: add samples (how many), or search (with optuna)", field=next(iter(self.random))
            )
        if has_draws and not self.random:
            raise InputError(f"{drawn} needs a random field such as uniform(0.1..0.9)", field=drawn)
        if self.search is not None and self.samples is not None:
            raise InputError("samples and search both draw the random fields: keep one", field="search")
        if self.search is not None and (self.search.minimise is None) == (self.search.maximise is None):
            raise InputError("needs minimise or maximise: the name of a result", field="search")
        if self.size > MAX_POINTS:
            raise InputError(f"{self.size:,} points: an experiment has at most {MAX_POINTS:,}")

    @cached_property
    def grid(self) -> dict[str, tuple[Value, ...]]:
        """The fields with listed values."""
        return {name: axis for name, axis in self.vary.items() if isinstance(axis, tuple)}

    @cached_property
    def random(self) -> dict[str, RandomValues]:
        """The fields with a distribution."""
        return {name: axis for name, axis in self.vary.items() if isinstance(axis, RandomValues)}

    @cached_property
    def size(self) -> int:
        """The number of points."""
        if self.search is not None:
            return self.search.trials
        return math.prod(map(len, self.grid.values())) * (self.samples or 1)

    def fields_of(self, point: int) -> Settings:
        """Return the varied fields of a point by its number; a search's points are drawn as it goes."""
        cell, sample = divmod(point, self.samples or 1)
        values: Settings = {name: axis.draw(self.seed, name, sample) for name, axis in self.random.items()}
        for name, choices in reversed(self.grid.items()):
            cell, position = divmod(cell, len(choices))
            values[name] = choices[position]
        return {name: values[name] for name in self.vary}

    def points(self, shard: Shard) -> range:
        """Return the numbers of the points of a shard."""
        return range(shard.number, self.size, shard.of)

    def document(self) -> dict[str, Any]:
        """Return the resolved specification as plain data."""
        values = {}
        for name, axis in self.vary.items():
            values[name] = list(axis) if isinstance(axis, tuple) else str(axis)
        search = None if self.search is None else self.search.model_dump()
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**own, "vary": values, "search": search, "inputs": dict(self.inputs)}

    @cached_property
    def text(self) -> str:
        """The resolved specification as one line of JSON; equal texts are equal experiments."""
        return canonical(self.document())

    @cached_property
    def id(self) -> str:
        """Fingerprint of the resolved specification."""
        return digest(self.text)

    def with_inputs(self) -> ExperimentSpec:
        """Return the specification with absolute paths, and the SHA-256 of every file that a setting or value names."""
        files: dict[str, str] = {}
        settings = {name: _located(value, files) for name, value in self.settings.items()}
        vary = {name: _located(axis, files) for name, axis in self.vary.items()}
        inputs = {path: hashlib.sha256(read_bytes(path, 2**40)).hexdigest() for path in sorted(files)}
        return replace(self, settings=settings, vary=vary, inputs=inputs)


def _located(value: Any, files: dict[str, str]) -> Any:
    """Return a value with absolute paths of files, and add them to ``files``."""
    if isinstance(value, list | tuple):
        return type(value)(_located(item, files) for item in value)
    if isinstance(value, str) and (os.sep in value or Path(value).suffix) and is_file(value):
        return files.setdefault(os.path.abspath(value), os.path.abspath(value))
    return value


def spec_of(data: object, file: object, kind: type[ExperimentFile] = ExperimentFile) -> ExperimentSpec:
    """Return the specification of plain data. Raises InputError with file and field."""
    with about(file):
        content = check(kind, data, file)
        return ExperimentSpec(**{name: getattr(content, name) for name in kind.model_fields})


def read_experiment(path: str | os.PathLike[str]) -> ExperimentSpec:
    """Read an experiment file (YAML or JSON). Raises InputError with file and field."""
    return spec_of(load_mapping(path), os.fspath(path))


def stored_spec(directory: Path) -> ExperimentSpec:
    """Return the specification of an experiment's directory. Raises InputError if the folder holds none."""
    return spec_of(load_mapping(directory / SPEC_FILE), directory / SPEC_FILE, StoredFile)


def canonical(data: object) -> str:
    """Return plain data as JSON with one spelling."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """Return the fingerprint of a text: 24 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]
