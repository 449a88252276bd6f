"""``trine trace``: inspect, convert and capture traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import clusters, gpus, software_profiles, traces
from trine.cli.completions import models as known
from trine.cli.options import COMPUTE, JOB, OUTPUT, Json, Option, argument
from trine.cli.output import say, show, show_table, write_json
from trine.common.units import finite_number, format_bytes, format_time
from trine.graph.workload import GPU_KERNELS

if TYPE_CHECKING:
    from trine.graph.workload import Workload
    from trine.workload import Difference, TraceDescription
    from trine.workload.inspect import Total


def inspect(
    path: Annotated[str, argument("Trace folder or file, or a bundled trace.", values=traces)],
    against: Annotated[str | None, Option("Compare with another trace of the same model.", values=traces)] = None,
    cluster: Annotated[
        str | None, Option("Predict the step of an inference engine on this cluster.", "NAME|FILE", values=clusters)
    ] = None,
    model: Annotated[str | None, Option("Name the model of that step [by its shapes].", "MODEL", values=known)] = None,
    json: Json = None,
) -> None:
    """Summarise a trace: its content, missing parts and assumptions.

    Example: trine trace inspect vgg13-h100-b128
    """
    from dataclasses import asdict

    from trine.workload import compare, describe, load

    workload = load(path)
    second = None if against is None else load(against)  # load before printing: it may raise
    serving = _serving(workload, cluster, model)  # before printing, too
    description = describe(workload)
    show(description_text(description), json)
    answer = asdict(description)
    if serving is not None:
        show(serving.text, json)
        answer["serving"] = serving.row
    if second is not None:
        differences = compare(workload, second)
        show(f"\ncompared with {against}: {len(differences)} differences", json)
        for difference in differences:
            show(f"  {difference_text(difference)}", json)
        answer["differences"] = [asdict(difference) for difference in differences]
    write_json(answer, json, "trace inspect")


@dataclass(frozen=True)
class _EngineStep:
    """A recorded step of an inference engine, as text and as JSON."""

    text: str
    row: dict[str, Any]


def _serving(workload: Workload, cluster: str | None, model: str | None) -> _EngineStep | None:
    """Return the step of an inference engine, with its prediction if there is a cluster; None for other traces.

    Raises InputError if a prediction is asked for that has no such step, or no cluster.
    """
    if workload.is_training and cluster is None and model is None:
        return None
    from dataclasses import asdict

    from trine.errors import InputError
    from trine.inference.recorded_step import comparison_text, predicted_us, recorded_step

    step = recorded_step(workload)
    if step is None:
        if cluster is not None or model is not None:
            raise InputError("the trace has no step of an inference engine to predict", field="--cluster")
        return None
    if cluster is None and model is not None:
        raise InputError("names the model of a prediction: add --cluster NAME", field="--model")
    predicted = None if cluster is None else predicted_us(step, cluster, model)
    text = f"\n{step.text()}"
    if predicted is not None:
        text += f"\n\n{comparison_text(step, predicted)}"
    return _EngineStep(text, {**asdict(step), "predicted_us": predicted})


def convert(
    path: Annotated[str, argument("Trace folder or file, or a bundled trace.", values=traces)],
    output: Annotated[str, argument("File to write: NAME.trine.json or NAME.trine.json.gz.", "TARGET")],
    json: Json = None,
) -> None:
    """Convert a trace to trine's own format, which keeps everything (trine help trace).

    Example: trine trace convert vgg13-h100-b128 vgg13.trine.json
    """
    from trine.workload import load, save

    workload = load(path)
    save(workload, output)
    show(f"{len(workload.operators)} operators and {len(workload.tensors)} tensors written to {output}", json)
    counts = {"operators": len(workload.operators), "tensors": len(workload.tensors)}
    write_json({"target": output, **counts}, json, "trace convert")


def capture(
    function: Annotated[str, argument(help="package.module:function or path/to/file.py:function.")],
    into: Annotated[
        str | None, Option("Write the trace to this folder [trace-FUNCTION].", "DIR", OUTPUT, ("--output", "-o"))
    ] = None,
    device: Annotated[
        str,
        Option(
            "Choose the device of the step; meta: shapes only, no GPU or memory needed [auto].", "auto|cuda|cpu|meta"
        ),
    ] = "auto",
    warmup: Annotated[int | None, Option("Run N warm-up steps [3].")] = None,
    steps: Annotated[int | None, Option("Time N steps without the profiler [5].")] = None,
    batch: Annotated[int | None, Option("Set the samples, if your function returns a model [1].", panel=JOB)] = None,
    sequence: Annotated[
        int | None, Option("Set the tokens of a sample [2048, or the model's positions].", panel=JOB)
    ] = None,
    optimizer: Annotated[str | None, Option("Choose the form of AdamW's step [fused].", "fused|foreach", JOB)] = None,
    overwrite: Annotated[
        bool, Option("Replace an existing trace.", None, OUTPUT, ("--overwrite/--no-overwrite",))
    ] = False,
    json: Json = None,
) -> None:
    """Record one training step of your PyTorch function or model, on a GPU or without one (needs trine[capture]).

    Example: trine trace capture train.py:step --device meta --output my-trace
    """
    from dataclasses import asdict

    from trine.workload import capture_function, describe, load, load_function
    from trine.workload.tracing.model_step import model_inputs

    inputs = model_inputs(batch, sequence, optimizer)
    target = load_function(function)
    folder = into if into is not None else f"trace-{function.rpartition(':')[2]}"
    steps_text = "one step" if device == "meta" else f"{warmup or 3} warm-up, {steps or 5} timed and 2 recorded steps"
    say(f"capturing {function}: {steps_text} ...")
    capture_function(target, folder, device=device, warmup=warmup, timed=steps, overwrite=overwrite, inputs=inputs)
    description = describe(load(folder))
    say(f"trace written to {folder}")
    show(description_text(description), json)
    write_json(asdict(description), json, "trace capture")


def models(json: Json = None) -> None:
    """List the models for trace synthesize and model:NAME.

    Example: trine trace models
    """
    from trine.workload import known_models
    from trine.workload.synthesis.model_files import load_model
    from trine.workload.synthesis.spec import summary

    rows = [summary(load_model(name)) for name in known_models()]
    cells = []
    for row in rows:
        cells.append(
            (row["name"], f"{row['parameters']:,}", "" if row["sequence"] is None else row["sequence"], row["shapes"])
        )
    show_table("{:19} {:>15} {:>9}  {}", ("model", "parameters", "sequence", "shapes"), cells, json)
    write_json({"models": rows}, json, "trace models")


def synthesize(
    model: Annotated[
        str, argument("A model that comes with trine (trine trace models), or a model file.", values=known)
    ],
    output: Annotated[
        str, Option("File to write: NAME.trine.json or .trine.json.gz.", "FILE", OUTPUT, ("--output", "-o"))
    ],
    gpu: Annotated[str, Option("Predict times for this GPU [h100-sxm].", panel=COMPUTE, values=gpus)] = "h100-sxm",
    sequence: Annotated[int | None, Option("Set the tokens of a sample [the model's].", panel=JOB)] = None,
    target: Annotated[int | None, Option("Set the tokens of a sample that the decoder reads.", panel=JOB)] = None,
    batch: Annotated[int | None, Option("Set the samples [1, or 128 images].", panel=JOB)] = None,
    dtype: Annotated[
        str | None, Option("Choose the type of weights and activations.", "bf16|fp16|fp32|tf32|amp", JOB)
    ] = None,
    layers: Annotated[int | None, Option("Use N of a transformer's layers.", panel=JOB)] = None,
    image: Annotated[int | None, Option("Set the pixels of an image's side [224].", panel=JOB)] = None,
    times: Annotated[
        str | None, Option("Choose the source of operator times.", "roofline|tables|fitted", COMPUTE)
    ] = None,
    software: Annotated[
        str | None, Option("Choose the software profile [pytorch-eager].", "NAME|FILE", values=software_profiles)
    ] = None,
    share: Annotated[
        list[str] | None, Option("Set the share of a data sheet's peak; may be repeated.", "matmul=0.6", COMPUTE)
    ] = None,
    calibration: Annotated[str | None, Option("Use a file written by trine calibrate.", "FILE", COMPUTE)] = None,
    json: Json = None,
) -> None:
    """Write a training step of MODEL from its published shapes, with predicted times.

    Example: trine trace synthesize llama-3-8b --output llama.trine.json
    """
    from dataclasses import asdict

    from trine.compute import Calibration
    from trine.workload import describe, save
    from trine.workload import synthesize as write

    workload = write(
        model, gpu=gpu, sequence=sequence, target=target, batch=batch, dtype=dtype, layers=layers, image=image,
        times=times, shares=_shares(share or []), software=software,
        calibration=None if calibration is None else Calibration.load(calibration),
    )  # fmt: skip
    save(workload, output)
    say(f"trace written to {output}")
    description = describe(workload)
    show(description_text(description), json)
    write_json(asdict(description), json, "trace synthesize")


def _shares(texts: list[str]) -> dict[str, float]:
    """Parse texts such as ``matmul=0.6`` to name -> number; each name may occur once."""
    from trine.errors import InputError

    shares: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        number = finite_number(value)
        if number is None:
            raise InputError(f"must be NAME=SHARE such as matmul=0.6, got {text[:80]!r}", field="--share")
        if name in shares:
            raise InputError(f"{name} is given twice", field="--share")
        shares[name] = number
    return shares


# Text output.


def description_text(trace: TraceDescription, top: int = 12) -> str:
    """Return a trace's description as text: its content, the missing parts and the assumptions for them."""
    on_cpu = GPU_KERNELS in trace.missing
    clock = "CPU time" if on_cpu else "GPU time"
    kind = "a training" if trace.is_training else "an inference"
    times = f"{format_time(trace.gpu_time_ps)} of {clock}, {trace.kernels} kernels, {trace.launches} CPU launches"
    lines = [
        f"{trace.name}: {kind} step at batch {trace.batch} on {trace.recorded_on}",
        f"read from {trace.source} ({trace.format})",
        f"{trace.num_operators} operators, {times if trace.gpu_time_ps else 'without times'}",
    ]
    if trace.shard is not None:
        lines.append(f"only a part of a model: {trace.shard}")
    if trace.unprofiled_step_ps is not None:
        lines.append(f"a step without the profiler took {format_time(trace.unprofiled_step_ps)}")
    lines += ["", f"{'phase':34} {'operators':>9} {clock:>11} {'share':>7}"]
    lines += [_row(total.name, total) for total in trace.phases]
    lines += ["", f"{'operator':34} {'count':>9} {clock:>11} {'share':>7}"]
    prefix = "autograd::engine::evaluate_function: "
    lines += [_row(total.name.removeprefix(prefix), total) for total in trace.operators[:top]]
    if len(trace.operators) > top:
        remaining = trace.operators[top:]
        time = sum(total.gpu_time_ps for total in remaining)
        lines.append(f"and {len(remaining)} more names, {format_time(time)}")
    if trace.collectives:
        lines += ["", f"{'recorded collective, no compute':34} {'count':>9} {clock:>11} {'bytes':>11}"]
        collective_lines = []
        for row in trace.collectives:
            collective_lines.append(
                f"{row.operation[:34]:34} {row.count:9} {format_time(row.time_ps):>11} "
                f"{'not known' if row.size_bytes is None else format_bytes(row.size_bytes):>11}"
            )
        lines += collective_lines
    lines += ["", f"{'tensors':18} {'tensors':>8} {'storages':>9} {'bytes':>11} {'with the batch':>15}"]
    lines += [
        f"{role.role:18} {role.tensors:8} {role.storages:9} {format_bytes(role.size_bytes):>11} {role.scaling:15}"
        for role in trace.roles
    ]
    sizes = f"{trace.parameter_bytes} bytes; gradients {trace.gradient_bytes} bytes"
    lines += ["", f"{trace.num_parameters} parameters, {sizes}"]
    if trace.without_gradient:
        lines.append(f"{trace.without_gradient} parameters get no gradient")
    patterns = ", ".join(f"{pattern} ({count})" for pattern, count in trace.scaling[:8])
    lines.append(f"dimensions that scale with the batch B: {patterns or 'none'}")
    missing_lines = [f"missing: {text}" for text in trace.missing]
    assumed_lines = [f"assumed: {text}" for text in trace.assumptions]
    lines += missing_lines + assumed_lines
    return "\n".join(lines)


def difference_text(difference: Difference) -> str:
    """Return one difference between two traces as text."""
    place = difference.name if difference.operator is None else f"operator {difference.operator} ({difference.name})"
    return f"{place}: {difference.what}: {difference.first} against {difference.second}"


def _row(name: str, total: Total) -> str:
    share = f"{100 * total.share:5.1f} %"
    return f"{name[:34]:34} {total.count:9} {format_time(total.gpu_time_ps):>11} {share:>7}"
