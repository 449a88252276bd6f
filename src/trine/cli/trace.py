"""``trine trace``: look into, convert and capture traces."""

from __future__ import annotations

from typing import Annotated

import typer

from trine.cli.output import reports_errors, say, show, write_json

app = typer.Typer(no_args_is_help=True)

Json = Annotated[str | None, typer.Option("--json", help="Write the answer as JSON; - for stdout.")]


@app.command()
@reports_errors
def inspect(
    path: Annotated[str, typer.Argument(help="Trace folder or file, or a bundled trace.")],
    against: Annotated[str | None, typer.Option(help="Another trace of the same model to compare with.")] = None,
    json: Json = None,
) -> None:
    """Say what is in a trace, what is missing, and what was assumed in its place."""
    from dataclasses import asdict

    from trine.cli.trace_text import description_text, difference_text
    from trine.traces import compare, describe, load

    workload = load(path)
    description = describe(workload)
    show(description_text(description), json)
    answer = asdict(description)
    if against is not None:
        differences = compare(workload, load(against))
        show(f"\ncompared with {against}: {len(differences)} differences", json)
        for difference in differences:
            show(f"  {difference_text(difference)}", json)
        answer["differences"] = [asdict(difference) for difference in differences]
    write_json(answer, json)


@app.command()
@reports_errors
def convert(
    path: Annotated[str, typer.Argument(help="Trace folder or file, or a bundled trace.")],
    target: Annotated[str, typer.Argument(help="File to write: NAME.trine.json or NAME.trine.json.gz.")],
    json: Json = None,
) -> None:
    """Write a trace in trine's own format, which keeps everything (docs/formats/trace.md)."""
    from trine.traces import load, save

    workload = load(path)
    save(workload, target)
    show(f"{len(workload.operators)} operators and {len(workload.tensors)} tensors written to {target}", json)
    write_json({"target": target, "operators": len(workload.operators), "tensors": len(workload.tensors)}, json)


@app.command()
@reports_errors
def capture(
    function: Annotated[str, typer.Argument(help="package.module:function or path/to/file.py:function.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Folder to write the trace to [trace-FUNCTION].")
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cuda|cpu", help="Where the step runs.")] = "auto",
    warmup: Annotated[int, typer.Option(help="Steps before anything is measured.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps timed without the profiler.")] = 5,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing trace.")] = False,
    json: Json = None,
) -> None:
    """Record one training step of your own function with PyTorch's profiler (needs trine[capture])."""
    from dataclasses import asdict

    from trine.cli.trace_text import description_text
    from trine.traces import capture_function, describe, load, load_function

    target = load_function(function)
    folder = output if output is not None else f"trace-{function.rpartition(':')[2]}"
    say(f"capturing {function}: {warmup} warm-up, {steps} timed and 2 recorded steps ...")
    capture_function(target, folder, device=device, warmup=warmup, timed=steps, overwrite=overwrite)
    description = describe(load(folder))
    say(f"trace written to {folder}")
    show(description_text(description), json)
    write_json(asdict(description), json)
