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
    from trine.workload import compare, describe, load

    workload = load(path)
    other = None if against is None else load(against)  # before anything is said: it may be what is wrong
    description = describe(workload)
    show(description_text(description), json)
    answer = asdict(description)
    if other is not None:
        differences = compare(workload, other)
        show(f"\ncompared with {against}: {len(differences)} differences", json)
        for difference in differences:
            show(f"  {difference_text(difference)}", json)
        answer["differences"] = [asdict(difference) for difference in differences]
    write_json(answer, json, "trace inspect")


@app.command()
@reports_errors
def convert(
    path: Annotated[str, typer.Argument(help="Trace folder or file, or a bundled trace.")],
    output: Annotated[
        str, typer.Argument(metavar="TARGET", help="File to write: NAME.trine.json or NAME.trine.json.gz.")
    ],
    json: Json = None,
) -> None:
    """Write a trace in trine's own format, which keeps everything (docs/formats/trace.md)."""
    from trine.workload import load, save

    workload = load(path)
    save(workload, output)
    show(f"{len(workload.operators)} operators and {len(workload.tensors)} tensors written to {output}", json)
    write_json(
        {"target": output, "operators": len(workload.operators), "tensors": len(workload.tensors)},
        json,
        "trace convert",
    )


@app.command()
@reports_errors
def capture(
    function: Annotated[str, typer.Argument(help="package.module:function or path/to/file.py:function.")],
    into: Annotated[
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
    from trine.workload import capture_function, describe, load, load_function

    target = load_function(function)
    folder = into if into is not None else f"trace-{function.rpartition(':')[2]}"
    say(f"capturing {function}: {warmup} warm-up, {steps} timed and 2 recorded steps ...")
    capture_function(target, folder, device=device, warmup=warmup, timed=steps, overwrite=overwrite)
    description = describe(load(folder))
    say(f"trace written to {folder}")
    show(description_text(description), json)
    write_json(asdict(description), json, "trace capture")


@app.command()
@reports_errors
def models(json: Json = None) -> None:
    """List the models that trine can write a trace of from their published shapes."""
    from trine.cli.trace_text import models_text
    from trine.workload import known_models
    from trine.workload.synthesis.spec import load_model, summary

    rows = [summary(load_model(name)) for name in known_models()]
    show(models_text(rows), json)
    write_json({"models": rows}, json, "trace models")


@app.command()
@reports_errors
def synthesize(
    model: Annotated[str, typer.Argument(help="A model that comes with trine (trine trace models), or a model file.")],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write: NAME.trine.json or .trine.json.gz.")],
    gpu: Annotated[str, typer.Option(help="The GPU that times are predicted for.")] = "h100-sxm",
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sample; the model's own if not given.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples [1, or 128 images].")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="bf16|fp16|fp32", help="Of weights and activations.")] = None,
    layers: Annotated[int | None, typer.Option(help="So many of a transformer's layers in place of all.")] = None,
    image: Annotated[int | None, typer.Option(help="Pixels of an image's side, in place of 224.")] = None,
    times: Annotated[
        str | None, typer.Option(metavar="roofline|fitted", help="Where operator times come from.")
    ] = None,
    share: Annotated[
        list[str] | None, typer.Option(help="Share of a data sheet's peak, e.g. matmul=0.6; may be repeated.")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help="File of trine calibrate that fitted times rest on.")] = None,
    json: Json = None,
) -> None:
    """Write a training step of MODEL from its published shapes, with predicted times."""
    from dataclasses import asdict

    from trine.cli.trace_text import description_text
    from trine.compute import Calibration
    from trine.workload import describe, save
    from trine.workload import synthesize as write

    workload = write(
        model, gpu=gpu, sequence=sequence, batch=batch, dtype=dtype, layers=layers, image=image, times=times,
        shares=_shares(share or []), calibration=None if calibration is None else Calibration.load(calibration),
    )  # fmt: skip
    save(workload, output)
    say(f"trace written to {output}")
    description = describe(workload)
    show(description_text(description), json)
    write_json(asdict(description), json, "trace synthesize")


def _shares(texts: list[str]) -> dict[str, float]:
    """``matmul=0.6`` as a name and a number, each name once."""
    from trine.errors import InputError

    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"must be NAME=SHARE such as matmul=0.6, got {text[:80]!r}", field="--share") from None
        if name in found:
            raise InputError(f"{name} is given twice", field="--share")
        found[name] = number
    return found
