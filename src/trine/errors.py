"""Exceptions that trine raises on purpose.

::

    TrineError
    ├── InputError            invalid user input                     (exit code 2)
    │   ├── UnitError         a quantity without, or with a wrong, unit
    │   ├── TraceError        a trace file that cannot be read
    │   ├── SpecError         a cluster, graph or preset file that cannot be read
    │   ├── PlanError         a parallel layout that cannot run
    │   │   └── TooManyTasksError a layout with more tasks than fit into memory
    │   ├── StorageError      a disk or folder that refuses a write
    │   └── MissingExtraError a feature whose optional dependency is absent
    └── SimulationError       a run that cannot finish on valid input (exit code 1)
        └── DeadlockError     tasks wait for each other

Library code raises these and never prints or exits; the CLI turns them into one line and an exit code.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

#: Maximum characters of an error's line on the terminal, and of the text in it.
MAX_LINE = 400
_MAX_TEXT = MAX_LINE - len("error: ")
_MAX_FILE, _MAX_FIELD = 160, 80
_LEFT_OUT = " ... "
#: Limits of the search for the nearest name: characters compared, names compared (about 10 us each), names shown.
_MAX_COMPARED, _MAX_KNOWN, _MAX_SHOWN = 200, 10_000, 12
#: Longest name that one letter more turns into another word: such names are near to words of their length only.
_SHORT = 2


class TrineError(Exception):
    """Base of every error that trine raises on purpose."""


class InputError(TrineError, ValueError):
    """Invalid user input: the message names the place, the problem and the nearest valid value.

    With the prefix ``error: ``, the text is always one line of at most MAX_LINE characters: the middle of a longer
    text is omitted, and unprintable characters are escaped.

    Parameters
    ----------
    message: the problem and its fix.
    file: path of the file at fault, with ``:line`` if known.
    field: dotted path of the field at fault.
    """

    def __init__(self, message: str, *, file: object = None, field: str | None = None) -> None:
        self.file = None if file is None else str(file)
        self.field, self._message = field, message
        super().__init__(self._text())

    @property
    def problem(self) -> str:
        """The problem and its fix, without file and field."""
        return self._message

    def _text(self) -> str:
        message, field = self._message, self.field
        prefix = "".join(f"{part}: " for part in (self.file, field) if part)
        if len(prefix) + len(message) > _MAX_TEXT:
            file = self.file and (self.file if len(self.file) <= _MAX_FILE else f"...{self.file[3 - _MAX_FILE :]}")
            prefix = "".join(f"{part}: " for part in (file, field and one_line(field, _MAX_FIELD)) if part)
            message = one_line(message, _MAX_TEXT - len(prefix))
        return one_line(prefix + message)

    def at(self, file: object) -> None:
        """Set the file of the error unless it already names one."""
        if self.file is None:
            self.file = str(file)
            self.args = (self._text(),)

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename fields by ``names``, for instance to command-line options; fields of a file keep their names."""
        if self.file is not None:
            return
        if self.field is not None:
            self.field = names.get(self.field, self.field)
        fields = [name for name in names if "_" in name]
        if fields:
            words = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, fields))})(?![\w=(-])")
            self._message = words.sub(lambda match: names[match[1]], self._message)
        self.args = (self._text(),)


class UnitError(InputError):
    """A quantity without a unit, or with a unit of another dimension."""


class TraceError(InputError):
    """A trace that cannot be read; names the file and the line or event."""


class SpecError(InputError):
    """A cluster, graph or preset that cannot be read."""


class PlanError(InputError):
    """A parallel layout, batch or schedule that cannot run, with the reason."""


class StorageError(InputError):
    """A disk or folder that refuses a write: no space, a limit of the file size, no permission."""


class TooManyTasksError(PlanError):
    """A job with too many distinct ranks: the simulated tasks would not fit into memory.

    num_classes: classes of identical ranks. num_ranks: ranks of the job. num_tasks: tasks of one rank of each class.
    """

    num_classes, num_ranks, num_tasks = 0, 0, 0

    @classmethod
    def of(cls, num_classes: int, num_ranks: int, num_tasks: int, limit: int) -> TooManyTasksError:
        """Return the error of a job with more than ``limit`` tasks."""
        error = cls(
            f"{num_classes} of {num_ranks} ranks behave differently, which makes {num_tasks:,} tasks, more than the "
            f"{limit:,} that fit into memory: take fewer GPUs, larger buckets "
            '(--bucket "1 GiB"), or reductions behind the backward pass (--no-dp-overlap)'
        )
        error.num_classes, error.num_ranks, error.num_tasks = num_classes, num_ranks, num_tasks
        return error


class MissingExtraError(InputError):
    """A feature with a missing optional dependency; names the extra."""

    def __init__(self, feature: str, extra: str, module: str) -> None:
        super().__init__(f"{feature} needs {module}: pip install 'trine[{extra}]'")


class SimulationError(TrineError, RuntimeError):
    """A simulation of valid input that cannot finish."""


class DeadlockError(SimulationError):
    """Tasks that wait for each other; the message names the first cycle, or each waiting task and its dependency."""


@contextmanager
def about(file: object) -> Iterator[None]:
    """Set ``file`` on each InputError raised inside the block that names no file."""
    try:
        yield
    except InputError as error:
        error.at(file)
        raise


def one_line(text: str, limit: int = _MAX_TEXT) -> str:
    """Return ``text`` as one line of at most ``limit`` characters: middle left out, unprintable characters escaped."""
    text = _shortened(text, limit)
    return text if text.isprintable() else _shortened(safe(text, ""), limit)


def several_lines(text: str, limit: int = MAX_LINE) -> str:
    """Return a text of several lines, of at most ``limit`` characters: lines before the last one are left out."""
    first, *lines = text.split("\n")
    first = one_line(first, limit if not lines else limit // 3)
    if not lines:
        return first
    last = one_line(lines.pop(), limit // 2)
    kept: list[str] = []
    left = limit - len(first) - len(last) - len(f"\n  ... ({len(lines)} lines left out) ...\n")
    while lines and len(lines[0]) < left:
        left -= len(lines[0]) + 1
        kept.append(lines.pop(0))
    if lines:
        kept.append(f"  ... ({len(lines)} lines left out) ...")
    return "\n".join([first, *kept, last])


def safe(text: str, allowed: str = "\n\t") -> str:
    """Escape characters that could control a terminal: control and bidirectional characters in names from files.

    allowed: characters to leave unescaped.
    """
    if text.isprintable():
        return text
    return "".join(char if char in allowed or char.isprintable() else ascii(char)[1:-1] for char in text)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    end = (limit - len(_LEFT_OUT)) * 2 // 5
    return f"{text[: limit - len(_LEFT_OUT) - end]}{_LEFT_OUT}{text[len(text) - end :]}"


def nearest(name: object, known: Iterable[str], *, is_listed: bool = False, command: str = "") -> str:
    """Return a hint for an unknown ``name``: "; did you mean 'x'?", or else the list of known names.

    A name that is not near is not named: it would mislead.

    is_listed: the message already has the list. command: prints the list, if it is long.
    """
    names = sorted(known)
    text = str(name)[:_MAX_COMPARED].lower().lstrip("-")
    by_lower = {word.lower().lstrip("-"): word for word in reversed(names[:_MAX_KNOWN])}
    longer = [word for word in by_lower if len(text) > 2 and word.startswith(text)]
    candidates = longer or (by_lower if len(text) > _SHORT else [word for word in by_lower if len(word) == len(text)])
    close = [word for word in difflib.get_close_matches(text, candidates, n=3, cutoff=0.6) if _is_near(text, word)]
    if close:
        return f"; did you mean {by_lower[close[0]]!r}?"
    if is_listed or not names:
        return ""
    if command and len(names) > _MAX_SHOWN:
        return f"; '{command}' lists all {len(names)}"
    return f"; known: {', '.join(names[:_MAX_SHOWN])}{', ...' if len(names) > _MAX_SHOWN else ''}"


def _is_near(text: str, word: str) -> bool:
    """Return whether a similar word may be meant: of three letters, one may be another, missing or superfluous."""
    if len(text) != 3 or len(word) != 3:
        return True
    return sum(a != b for a, b in zip(text, word, strict=True)) == 1 or sorted(text) == sorted(word)


def nearest_numbers(valid: Sequence[int], number: int) -> list[int]:
    """Return the largest of ``valid`` (ascending) below ``number`` and the smallest above it, if they exist."""
    below = [each for each in valid if each < number]
    above = [each for each in valid if each > number]
    return [*below[-1:], *above[:1]]


def as_known(name: str, known: Collection[str]) -> str:
    """Return the known name that equals ``name`` except for case; otherwise ``name``."""
    return name if name in known else next((word for word in known if word.lower() == str(name).lower()), name)
