"""``trine validate``: how far predictions are from published measurements, as stored reports say."""

from __future__ import annotations

from typing import Annotated

from trine.cli.options import Brief, Details, Json, Option
from trine.cli.output import show, show_answer, write_json

Again = Annotated[bool, Option("Print the command that computes the report again, instead of the report.")]
Blind = Annotated[bool, Option("Print the report without fitted factors.")]


def collectives(again: Again = False, brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Compare measured collectives with predictions: error by machine, collective and size, worst first.

    Example: trine validate collectives --details
    """
    _answer("collectives", again, brief, details, json)


def loadstore(again: Again = False, brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Compare published times of communication kernels with the load-store level.

    Example: trine validate loadstore
    """
    _answer("loadstore", again, brief, details, json)


def training(
    blind: Blind = False, again: Again = False, brief: Brief = False, details: Details = False, json: Json = None
) -> None:
    """Compare published training steps with predictions: error by source, GPU, software and scale.

    Example: trine validate training
    """
    _answer("training", again, brief, details, json, blind)


def layouts(
    blind: Annotated[bool, Option("Print the report without fitted factors: layouts on one node.")] = False,
    again: Again = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare layouts of the Ultra-Scale Playbook with predictions: rank correlation, and the regret of trine's choice.

    Example: trine validate layouts
    """
    _answer("layouts", again, brief, details, json, blind)


def memory(again: Again = False, brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Compare published peak memory with the model, worst first, and check which layouts fit.

    Example: trine validate memory
    """
    _answer("memory", again, brief, details, json)


def serving(again: Again = False, brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Compare published latency and throughput of inference engines with predictions.

    Example: trine validate serving
    """
    _answer("serving", again, brief, details, json)


def operators(again: Again = False, brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Compare measured operator times with predictions from other shapes, other GPUs, and data sheets.

    Example: trine validate operators
    """
    _answer("operators", again, brief, details, json)


def scaling(again: Again = False, brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Compare published scaling efficiency on 8 GPUs with predictions from the row on one.

    Example: trine validate scaling
    """
    _answer("scaling", again, brief, details, json)


def _answer(name: str, again: bool, brief: bool, details: bool, json: str | None, blind: bool = False) -> None:
    """Print a stored report and write its JSON; with ``again``, print the command that computes it."""
    from trine.errors import InputError
    from trine.results.stored import stored_report

    if again:
        if brief or details or json is not None:
            raise InputError("prints a command, not a report: leave out the other options", field="--again")
        show(f"in a clone of trine's repository: python -m validation {name}{' --blind' if blind else ''}", json)
        return
    report = stored_report(name, blind)
    if brief:
        show(f"{report.headline}; {report.stored.line}", json)
    else:
        show_answer(report, json, brief, details)
    write_json(report, json, f"validate {name}")
