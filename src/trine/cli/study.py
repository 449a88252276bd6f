"""``trine study``: published case studies, done again."""

from __future__ import annotations

from typing import Annotated

import typer

from trine.cli.output import reports_errors, say, show, write_json, writes
from trine.cli.progress import ProgressLine


@reports_errors
def study(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which one; without it, a list.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw its curves (PNG, SVG, PDF); needs trine[plot].")] = None,
    json: Annotated[str | None, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
) -> None:
    """Run a case study of ASTRA-sim 3.0 (arXiv 2606.10440) on the load-store level, and compare with the paper."""
    from trine.errors import InputError
    from trine.studies.loadstore_cases import CASES, run_case

    if name is None:
        if plot is not None or json is not None:
            raise InputError(f"which study? {', '.join(CASES)}")
        show("\n".join(f"{key:15} {question}" for key, (_, question) in CASES.items()), None)
        return
    with ProgressLine() as progress:
        found = run_case(name, on_run=progress.told)
    show(found.summary(), json)
    write_json(found, json, "study")
    if plot is not None:
        with writes():
            found.plot(plot)
            say(f"drawn in {plot}")


def register(parent: typer.Typer) -> None:
    """Add the command to ``parent``."""
    parent.command()(study)
