"""``trine study``: published case studies, done again."""

from __future__ import annotations

from typing import Annotated

from trine.cli.completions import studies
from trine.cli.options import OUTPUT, Brief, Details, Json, Option, argument
from trine.cli.output import drawn, show_answer, show_table, write_json
from trine.cli.progress import ProgressLine


def study(
    name: Annotated[str | None, argument("Study; lists them if missing.", "[NAME]", studies)] = None,
    plot: Annotated[str | None, Option("Draw the curves (PNG, SVG, PDF); needs trine[plot].", "FILE", OUTPUT)] = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Run a case study of ASTRA-sim 3.0 (arXiv 2606.10440) on the load-store level, and compare with the paper.

    Example: trine study all-gather
    """
    from trine.errors import InputError
    from trine.gpu.cases import CASES, run_case

    if name is None:
        if plot is not None or json is not None:
            raise InputError(f"which study? {', '.join(CASES)}")
        cells = [(key, question) for key, (_, question) in CASES.items()]
        show_table("{:15} {}", ("name", "question"), cells, None, has_head=False)
        return
    with ProgressLine() as progress:
        result = run_case(name, on_run=progress.queue)
    show_answer(result, json, brief, details)
    write_json(result, json, "study")
    drawn(plot, result)
