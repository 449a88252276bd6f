"""Every exception that trine raises on purpose.

::

    TrineError
    ├── InputError            what the user gave is wrong            (exit code 2)
    │   ├── UnitError         a quantity without, or with a wrong, unit
    │   ├── TraceError        a trace file that cannot be read
    │   ├── SpecError         a cluster, graph or preset file that cannot be read
    │   ├── PlanError         a parallel layout that cannot run
    │   │   └── TooManyTasksError one that makes more tasks than fit into memory
    │   └── MissingExtraError a feature whose optional dependency is absent
    └── SimulationError       the input is well formed, but the run cannot finish (exit code 1)
        └── DeadlockError     tasks wait for each other

Library code raises these and never prints or exits; the command line turns them into one line and an exit code.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

#: Most characters of an error's line on the terminal, and of the text in it.
MAX_LINE = 400
_MAX_TEXT = MAX_LINE - len("error: ")
_MAX_FILE, _MAX_FIELD = 160, 80
_LEFT_OUT = " ... "
#: Characters of a name, and names, that are compared to find the nearest: a comparison takes some 10 us.
_MAX_COMPARED, _MOST_COMPARED, _MOST_SHOWN = 200, 10_000, 12


class TrineError(Exception):
    """Base of every error that trine raises on purpose."""


class InputError(TrineError, ValueError):
    """What the user gave is wrong: the message names where, what, and the nearest valid value.

    With ``error: `` before it, it is one line of at most MAX_LINE characters, whatever the user gave: what is longer
    lacks its middle, and what cannot be printed is escaped.

    Parameters
    ----------
    message: what is wrong and what to do about it.
    file: path of the file at fault, with ``:line`` where it is known.
    field: dotted path of the field at fault.
    """

    def __init__(self, message: str, *, file: object = None, field: str | None = None) -> None:
        self.file = None if file is None else str(file)
        self.field, self._message = field, message
        super().__init__(self._text())

    def _text(self) -> str:
        message, field = self._message, self.field
        where = "".join(f"{part}: " for part in (self.file, field) if part)
        if len(where) + len(message) > _MAX_TEXT:
            file = self.file and (self.file if len(self.file) <= _MAX_FILE else f"...{self.file[3 - _MAX_FILE :]}")
            where = "".join(f"{part}: " for part in (file, field and one_line(field, _MAX_FIELD)) if part)
            message = one_line(message, _MAX_TEXT - len(where))
        return one_line(where + message)

    def at(self, file: object) -> None:
        """Say of which file this is, where it does not yet."""
        if self.file is None:
            self.file = str(file)
            self.args = (self._text(),)

    def rename(self, names: Mapping[str, str]) -> None:
        """Call fields as ``names`` does, such as options of the command line; fields of a file keep their names."""
        if self.file is not None:
            return
        if self.field is not None:
            self.field = names.get(self.field, self.field)
        known = [name for name in names if "_" in name]
        if known:
            words = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, known))})(?![\w=(-])")
            self._message = words.sub(lambda found: names[found[1]], self._message)
        self.args = (self._text(),)


class UnitError(InputError):
    """A quantity without a unit, or with one of another dimension."""


class TraceError(InputError):
    """A trace that cannot be read; names the file and the line or event."""


class SpecError(InputError):
    """A cluster, graph or preset that cannot be read."""


class PlanError(InputError):
    """A parallel layout, batch or schedule that cannot run; says why."""


class TooManyTasksError(PlanError):
    """A job of ranks that behave so differently that more tasks would be simulated than fit into memory.

    num_classes: in how many ways; num_ranks, num_tasks: of these, the tasks of one rank of each.
    """

    num_classes, num_ranks, num_tasks = 0, 0, 0

    @classmethod
    def of(cls, num_classes: int, num_ranks: int, num_tasks: int, most: int) -> TooManyTasksError:
        """More than ``most`` tasks."""
        error = cls(
            f"{num_classes} of {num_ranks} ranks behave differently, which makes {num_tasks:,} tasks, more than the "
            f"{most:,} that fit into memory: take fewer GPUs, larger buckets "
            '(--bucket "1 GiB"), or reductions behind the backward pass (--no-dp-overlap)'
        )
        error.num_classes, error.num_ranks, error.num_tasks = num_classes, num_ranks, num_tasks
        return error


class MissingExtraError(InputError):
    """A feature whose optional dependency is not installed; names the extra."""

    def __init__(self, feature: str, extra: str, module: str) -> None:
        super().__init__(f"{feature} needs {module}: pip install 'trine[{extra}]'")


class SimulationError(TrineError, RuntimeError):
    """The input is well formed, but the simulation cannot finish."""


class DeadlockError(SimulationError):
    """Tasks wait for each other: the message names the first cycle, or who waits for whom."""


@contextmanager
def about(file: object) -> Iterator[None]:
    """Let errors of input that arise here, and name no file, name this one: what was read from it is what is wrong."""
    try:
        yield
    except InputError as error:
        error.at(file)
        raise


def one_line(text: str, most: int = _MAX_TEXT) -> str:
    """``text`` on one line of at most ``most`` characters: its middle left out, what cannot be printed escaped."""
    text = _shortened(text, most)
    return text if text.isprintable() else _shortened(safe(text, ""), most)


def safe(text: str, kept: str = "\n\t") -> str:
    """Escape what could steer a terminal: control and bidirectional characters, which names in files may hold.

    kept: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(each if each in kept or each.isprintable() else ascii(each)[1:-1] for each in text)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = (most - len(_LEFT_OUT)) * 2 // 5
    return f"{text[: most - len(_LEFT_OUT) - end]}{_LEFT_OUT}{text[len(text) - end :]}"


def nearest(name: object, known: Iterable[str], *, is_listed: bool = False) -> str:
    """Say which known name ``name`` may have meant: "; did you mean 'x'?" or the list of known names.

    is_listed: the message has the list already.
    """
    names = sorted(known)
    text, by_lower = (
        str(name)[:_MAX_COMPARED].lower(),
        {each.lower(): each for each in reversed(names[:_MOST_COMPARED])},
    )
    longer = [each for each in by_lower if len(text) > 2 and each.startswith(text)]
    close = difflib.get_close_matches(text, longer or by_lower, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {by_lower[close[0]]!r}?"
    if is_listed or not names:
        return ""
    near = difflib.get_close_matches(text, by_lower, n=_MOST_SHOWN, cutoff=0.3) if len(names) > _MOST_SHOWN else []
    if near:
        return f"; nearest of {len(names)} known: {', '.join(by_lower[each] for each in near)}"
    return f"; known: {', '.join(names[:_MOST_SHOWN])}{', ...' if len(names) > _MOST_SHOWN else ''}"


def as_known(name: str, known: Collection[str]) -> str:
    """Return the known name that equals ``name`` but for case; ``name`` itself if there is none."""
    return name if name in known else next((each for each in known if each.lower() == str(name).lower()), name)
