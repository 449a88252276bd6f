"""Table of all commands (``commands.txt``): words, module and function, and a one-line help text.

Group help pages are printed from this table without importing a command; tests compare it with the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

ABOUT = "Predict the time of a training step, a collective or a kernel on N GPUs, and explain it."
QUESTIONS, MEASURED, INSIDE, PREPARE = "Ask", "Compare with measurements", "One GPU in detail", "Prepare"


class Command(NamedTuple):
    """words: as typed after ``trine``. target: ``module:function`` below ``trine``. panel: on the help page.

    common: options that the help page lists, if it cannot list all.
    """

    words: str
    target: str
    panel: str
    about: str
    common: tuple[str, ...] = ()

    def function(self) -> Callable[..., None]:
        """Import the command's module and return its function."""
        module, _, name = self.target.partition(":")
        function: Callable[..., None] = getattr(import_module(f"trine.{module}"), name)
        return function


#: Groups by name: panel and help text, in order of use, like the commands.
GROUPS = {
    "cluster": (PREPARE, "Show, convert and draw clusters."),
    "software": (PREPARE, "Show profiles of training software."),
    "trace": (PREPARE, "Inspect, convert and capture traces."),
    "gpu": (INSIDE, "Show the GPU models of the load-store level."),
    "kernel": (INSIDE, "Simulate and print GPU programs, load by load and store by store."),
    "eidolon": (INSIDE, "Simulate one GPU in detail with its peers replayed: waiting, flags, mwait."),
    "chakra": (QUESTIONS, "Inspect and simulate Chakra execution traces."),
    "validate": (MEASURED, "Compare predictions with measurements."),
}


def _commands() -> Iterator[Command]:
    with open(__file__.removesuffix("py") + "txt", encoding="utf-8") as file:
        for line in file.read().splitlines()[1:]:
            words, target, panel, about, *options = line.split(" | ")
            yield Command(words, target, panel, about, tuple(" ".join(options).split()))


COMMANDS = tuple(_commands())

#: Maximum number of options that ``--help`` lists in full, and the selection for commands with more.
MAX_LISTED = 20
COMMON = {command.words: command.common for command in COMMANDS if command.common}


def below(group: str) -> Iterator[tuple[str, str, str]]:
    """Yield names, panels and one-line help texts in a group (``""``: trine itself), each subgroup once."""
    groups = set()
    for command in COMMANDS:
        first, _, second = command.words.partition(" ")
        if group:
            if first == group:
                yield second, "Commands", command.about
        elif not second:
            yield first, command.panel, command.about
        elif first not in groups:
            groups.add(first)
            yield first, *GROUPS[first]


def find(words: str) -> Command | None:
    """Return the command of these words, or None."""
    return next((each for each in COMMANDS if each.words == words), None)
