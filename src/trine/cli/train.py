"""``trine train``: one training step (or several) of a traced job on N GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from trine.cli.output import ProgressLine, reports_errors, say, show, write_json

Text = str | None
Number = int | None


@reports_errors
def train(
    workload: Annotated[str, typer.Argument(help="Trace folder or file, or a bundled trace such as vgg13-h100-b128.")],
    gpus: Annotated[Number, typer.Option(help="How many GPUs.", rich_help_panel="Layout")] = None,
    parallel: Annotated[
        Text, typer.Option(metavar="dp|ddp|tp|pp", help="Put all GPUs on one axis.", rich_help_panel="Layout")
    ] = None,
    dp: Annotated[Number, typer.Option(help="Ways of data parallelism (DDP).", rich_help_panel="Layout")] = None,
    tp: Annotated[Number, typer.Option(help="Ways of tensor parallelism.", rich_help_panel="Layout")] = None,
    pp: Annotated[Number, typer.Option(help="Pipeline stages.", rich_help_panel="Layout")] = None,
    batch: Annotated[
        Number, typer.Option(help="Samples of one data-parallel replica; as in the trace if not given.")
    ] = None,
    global_batch: Annotated[Number, typer.Option(help="Samples of all replicas together.")] = None,
    micro_batch: Annotated[Number, typer.Option(help="Samples of one micro-batch.")] = None,
    schedule: Annotated[
        str, typer.Option(metavar="gpipe|1f1b", help="Order of micro-batches in the pipeline.")
    ] = "gpipe",
    cuts: Annotated[Text, typer.Option(help="Layers that begin later stages, e.g. conv2d.5,linear.1.")] = None,
    bucket: Annotated[Text, typer.Option(help="Cap of every DDP bucket, e.g. 25MiB.")] = None,
    tp_style: Annotated[str, typer.Option(metavar="column|megatron", help="How linears are split.")] = "column",
    cluster: Annotated[Text, typer.Option(help="Preset name or cluster file.", rich_help_panel="Machine")] = None,
    topology: Annotated[
        Text,
        typer.Option(metavar="ring|switch|full|mesh:RxC|torus:RxC|tree", help="Describe the cluster inline."),
    ] = None,
    bandwidth: Annotated[Text, typer.Option(help='Of each link and direction of --topology: "65 GB/s".')] = None,
    latency: Annotated[Text, typer.Option(help='Of each link of --topology: "1 us".')] = None,
    gpu: Annotated[Text, typer.Option(help="Predict for this GPU instead of the trace's.")] = None,
    trace_gpu: Annotated[Text, typer.Option(help="The GPU of the trace, where the trace does not say.")] = None,
    compute: Annotated[
        str, typer.Option(metavar="auto|recorded|linear", help="Where operator times come from.")
    ] = "auto",
    calibration: Annotated[Text, typer.Option(help="File written by trine calibrate.")] = None,
    network: Annotated[str, typer.Option(metavar="fair|equal", help="How flows share links.")] = "fair",
    cpu: Annotated[bool | None, typer.Option("--cpu/--no-cpu", help="Wait for the launching CPU thread.")] = None,
    launch_cost: Annotated[Text, typer.Option(help='CPU time of a launch where the trace has none: "5 us".')] = None,
    inputs: Annotated[str, typer.Option(metavar="step|prefetch|none", help="When inputs are copied.")] = "step",
    steps: Annotated[int, typer.Option(help="Training steps; the steady state is the last one's time.")] = 1,
    json: Annotated[Text, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
    perfetto: Annotated[Text, typer.Option(help="Write a timeline for https://ui.perfetto.dev.")] = None,
    parquet: Annotated[Text, typer.Option(help="Write all records to this folder.")] = None,
    timeline: Annotated[Text, typer.Option(help="Draw the timeline (PNG, SVG); needs trine[plot].")] = None,
) -> None:
    """Say how long a training step of WORKLOAD takes on N GPUs, and why."""
    from trine.cli.layout import machine_for, with_sizes, with_ways
    from trine.compute import Calibration
    from trine.parallel.plan import Plan
    from trine.simulation import simulate
    from trine.traces import load
    from trine.units import parse_time

    base = Plan(
        micro_batch=micro_batch, schedule=schedule.lower(), tp_style=tp_style, input_copy=inputs, num_steps=steps
    )
    plan = with_sizes(with_ways(base, gpus, parallel, dp, tp, pp), batch, global_batch, bucket, cuts)
    machine, warnings = machine_for(plan, cluster, topology, bandwidth, latency, gpu)
    progress = ProgressLine()
    result = simulate(
        load(workload),
        plan,
        cluster=machine,
        compute=compute,
        gpu=gpu,
        trace_gpu=trace_gpu,
        network=network,
        cpu=cpu,
        launch_cost_ps=None if launch_cost is None else parse_time(launch_cost, "--launch-cost"),
        calibration=None if calibration is None else Calibration.load(calibration),
        progress=progress,
        on_compile=progress.compiling,
        warnings=tuple(warnings),
    )
    progress.close()
    show(result.summary(), json)
    write_json(result.to_json(), json)
    if perfetto is not None:
        result.to_perfetto(perfetto)
        say(f"timeline written to {perfetto}: open it at https://ui.perfetto.dev and expand all groups")
    if parquet is not None:
        result.to_parquet(parquet)
        say(f"records written to {parquet}")
    if timeline is not None:
        from trine.results import plot_timeline

        plot_timeline(result, timeline)
        say(f"timeline drawn in {timeline}")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(train)
