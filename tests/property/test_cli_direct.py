"""Does a plain command line mean to trine's own reader what it means to Typer? And is what is not plain left to it?"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cli import application
from trine.cli.commands import COMMANDS
from trine.cli.direct import read_plain
from trine.cli.parameters import CommandParameter, all_parameters

TEXTS = ("x", "dgx-h100", "8 MiB", "a=b", "-", "8", "all_reduce=ring,broadcast=tree", "ü", "[", "  ", "a,b")
NUMBERS = ("0", "8", "007", "131072", "123456789012345678")


def by_typer(words: list[str], command: Any) -> dict[str, Any] | None:
    """What Typer hands to the command; None where it refuses the line."""
    found: list[dict[str, Any]] = []

    def takes_all(run: Any, options: Any) -> Any:
        return lambda **typed: found.append(typed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "reports_errors", takes_all)
        made = application.build(command)
        try:
            made.main(words, standalone_mode=False)
        except Exception:
            return None
    return found[0] if found else None


def without_empty(typed: dict[str, Any] | None) -> dict[str, Any] | None:
    """No list and an empty one are the same to commands."""
    return None if typed is None else {name: None if value in ([], ()) else value for name, value in typed.items()}


def value_of(parameter: CommandParameter, rng: Random) -> str:
    if parameter.kind is int:
        return rng.choice(NUMBERS)
    if parameter.kind is float:
        return rng.choice((*NUMBERS, "0.25", "1e-3", "12.5e2"))
    return rng.choice(TEXTS)


def random_line(parameters: list[CommandParameter], rng: Random) -> list[str]:
    """Options and arguments in any order, often all that are required."""
    chosen = [each for each in parameters if each.is_required and rng.random() < 0.95]
    chosen += [each for each in parameters if not each.is_required and rng.random() < 0.15]
    words: list[list[str]] = []
    for each in chosen:
        for _ in range(rng.choice((1, 2)) if each.is_many or rng.random() < 0.1 else 1):
            if each.option.is_argument:
                words.append([value_of(each, rng)])
            elif each.kind is bool:
                on, slash, off = rng.choice(each.names).partition("/")
                words.append([rng.choice((on, off)) if slash else on])
            else:
                name, value = rng.choice(each.names), value_of(each, rng)
                words.append([f"{name}={value}"] if name.startswith("--") and rng.random() < 0.4 else [name, value])
    rng.shuffle(words)
    return [word for part in words for word in part]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_plain_lines_mean_the_same(seed: int) -> None:
    rng = Random(seed)
    command = rng.choice(COMMANDS)
    parameters = all_parameters(command.function())
    words = random_line(parameters, rng)
    mine = read_plain(parameters, words)
    other = by_typer(words, command)
    if mine is not None:
        assert without_empty(mine) == without_empty(other)
    elif all(each and each != "-" for each in words):
        assert other is None


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_what_typer_refuses_is_left_to_it(seed: int) -> None:
    """A word is dropped, doubled, or spoilt: whatever is still plain is something that Typer takes."""
    rng = Random(seed)
    command = rng.choice(COMMANDS)
    parameters = all_parameters(command.function())
    words = random_line(parameters, rng) or ["x"]
    at = rng.randrange(len(words))
    spoilt = rng.choice(([], [words[at]] * 2, [words[at] + "x"], ["--no-such"], ["--"], ["-x"], [""], ["-3"], ["1.5"]))
    words[at : at + 1] = spoilt
    mine = read_plain(parameters, words)
    if mine is not None:
        assert without_empty(mine) == without_empty(by_typer(words, command))
