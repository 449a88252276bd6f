"""``trine train``: one training step (or several) of a traced job on N GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.circuits import BufferOption, CircuitOptions, DelayOption, PortsOption, RateOption, SetupOption
from trine.cli.forms import (
    BuffersOption,
    CapacityOption,
    CpOption,
    CpStyleOption,
    DpOverlapOption,
    EpOption,
    FormOptions,
    ImbalanceOption,
    OrderOption,
    PrefetchOption,
    ReshardOption,
    SequenceOption,
    ShardingOption,
    ShardUnitOption,
    ShardWaysOption,
    SyncEveryOption,
    TpOverlapOption,
)
from trine.cli.machine import (
    BandwidthOption,
    ClusterOption,
    FabricOption,
    LatencyOption,
    LinkDownOption,
    NodesOption,
    RoutingOption,
    SlowLinkOption,
    TopologyOption,
)
from trine.cli.output import end, reports_errors, say, show, write_json, writes
from trine.cli.progress import ProgressLine
from trine.cli.ranks import (
    JitterOption,
    JitterPerOption,
    NoFoldOption,
    PlacementOption,
    RepeatOption,
    SeedOption,
    ShowRankOption,
    SlowOption,
    VerifyFoldOption,
)

if TYPE_CHECKING:
    from trine.results import Result

Text = str | None
Number = int | None


@reports_errors
def train(
    workload: Annotated[
        str, typer.Argument(help="Trace, bundled trace such as vgg13-h100-b128, or a model such as model:llama-3-8b.")
    ],
    gpus: Annotated[Number, typer.Option(help="How many GPUs.", rich_help_panel="Layout")] = None,
    parallel: Annotated[
        Text, typer.Option(metavar="dp|ddp|tp|pp", help="Put all GPUs on one axis.", rich_help_panel="Layout")
    ] = None,
    dp: Annotated[Number, typer.Option(help="Ways of data parallelism (DDP).", rich_help_panel="Layout")] = None,
    tp: Annotated[Number, typer.Option(help="Ways of tensor parallelism.", rich_help_panel="Layout")] = None,
    pp: Annotated[Number, typer.Option(help="Pipeline stages.", rich_help_panel="Layout")] = None,
    cp: CpOption = None,
    ep: EpOption = None,
    order: OrderOption = None,
    batch: Annotated[
        Number, typer.Option(help="Samples of one data-parallel replica; as in the trace if not given.")
    ] = None,
    global_batch: Annotated[Number, typer.Option(help="Samples of all replicas together.")] = None,
    micro_batch: Annotated[Number, typer.Option(help="Samples of one micro-batch.")] = None,
    schedule: Annotated[
        Text,
        typer.Option(
            metavar="gpipe|1f1b|interleaved|zb-h1|dualpipe",
            help="Order of micro-batches in the pipeline [gpipe].",
            rich_help_panel="Pipeline",
        ),
    ] = None,
    virtual_stages: Annotated[
        Number, typer.Option(help="Parts of the model on each pipeline rank [1].", rich_help_panel="Pipeline")
    ] = None,
    balance: Annotated[
        Text,
        typer.Option(metavar="time|layers", help="What stages are equal in [time].", rich_help_panel="Pipeline"),
    ] = None,
    cuts: Annotated[
        Text,
        typer.Option(help="Layers that begin later stages, e.g. conv2d.5,linear.1.", rich_help_panel="Pipeline"),
    ] = None,
    recompute: Annotated[
        Text, typer.Option(metavar="none|full|selective", help="Activations that are computed again [none].")
    ] = None,
    recompute_layers: Annotated[
        Number, typer.Option(help="With --recompute full: only the first so many layers of each part.")
    ] = None,
    sync: Annotated[
        Text, typer.Option(metavar="last|each", help="Micro-batches after which gradients are reduced [last].")
    ] = None,
    bucket: Annotated[Text, typer.Option(help="Cap of every DDP bucket, e.g. 25MiB.")] = None,
    tp_style: Annotated[
        Text,
        typer.Option(metavar="column|megatron", help="How linears are split [megatron with attention, else column]."),
    ] = None,
    sharding: ShardingOption = None,
    shard_ways: ShardWaysOption = None,
    prefetch: PrefetchOption = None,
    reshard: ReshardOption = None,
    shard_unit: ShardUnitOption = None,
    dp_overlap: DpOverlapOption = None,
    buffers: BuffersOption = None,
    sync_every: SyncEveryOption = None,
    sequence_parallel: SequenceOption = False,
    tp_overlap: TpOverlapOption = None,
    cp_style: CpStyleOption = None,
    expert_imbalance: ImbalanceOption = None,
    capacity_factor: CapacityOption = None,
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    fabric: FabricOption = None,
    slow_link: SlowLinkOption = None,
    link_down: LinkDownOption = None,
    routing: RoutingOption = None,
    topology: TopologyOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    circuit_setup: SetupOption = None,
    circuit_ports: PortsOption = None,
    circuit_bandwidth: RateOption = None,
    circuit_latency: DelayOption = None,
    circuit_buffer: BufferOption = None,
    gpu: Annotated[Text, typer.Option(help="Predict for this GPU; the trace's own keeps its times.")] = None,
    trace_gpu: Annotated[Text, typer.Option(help="The GPU of the trace, where the trace does not say.")] = None,
    compute: Annotated[
        str, typer.Option(metavar="auto|recorded|linear|roofline", help="Where operator times come from.")
    ] = "auto",
    calibration: Annotated[Text, typer.Option(help="File written by trine calibrate.")] = None,
    network: Annotated[
        Text, typer.Option(metavar="fair|equal|fifo|circuit", help="How flows share links [fair; circuit if any].")
    ] = None,
    collective_costs: Annotated[
        Text,
        typer.Option(
            metavar="links|library|loadstore", help="What messages cost besides the links [library if known]."
        ),
    ] = None,
    algorithm: Annotated[Text, typer.Option(help="Algorithms of collectives, e.g. all_reduce=ring.")] = None,
    cpu: Annotated[bool | None, typer.Option("--cpu/--no-cpu", help="Wait for the launching CPU thread.")] = None,
    launch_cost: Annotated[
        Text, typer.Option(help='CPU time of every launch, in place of the trace\'s: "5 us".')
    ] = None,
    inputs: Annotated[
        Text, typer.Option(metavar="step|prefetch|none", help="When inputs are copied from the host [step].")
    ] = None,
    overlap: Annotated[
        Text,
        typer.Option(
            metavar="ideal|modelled|none|range",
            help="How communication runs beside compute [ideal]; range: all three.",
        ),
    ] = None,
    offload: Annotated[
        Text, typer.Option(metavar="optimizer|activations", help="What is kept in host memory [nothing].")
    ] = None,
    no_fold: NoFoldOption = False,
    verify_fold: VerifyFoldOption = False,
    placement: PlacementOption = None,
    show_rank: ShowRankOption = None,
    slow: SlowOption = None,
    jitter: JitterOption = None,
    jitter_per: JitterPerOption = None,
    seed: SeedOption = None,
    repeat: RepeatOption = None,
    steps: Annotated[int, typer.Option(help="Training steps; the steady state is the last one's time.")] = 1,
    json: Annotated[Text, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
    perfetto: Annotated[Text, typer.Option(help="Write a timeline for https://ui.perfetto.dev.")] = None,
    parquet: Annotated[Text, typer.Option(help="Write all records to this folder.")] = None,
    timeline: Annotated[Text, typer.Option(help="Draw the timeline (PNG, SVG); needs trine[plot].")] = None,
    chakra: Annotated[Text, typer.Option(help="Write the job as Chakra traces CHAKRA.<rank>.et.")] = None,
    chakra_target: Annotated[
        Text, typer.Option(metavar="astra-sim|chakra", help="What --chakra writes for [astra-sim].")
    ] = None,
) -> None:
    """Say how long a training step of WORKLOAD takes on N GPUs, and why."""
    from trine.cli.chakra import ChakraExport
    from trine.cli.layout import LayoutOptions, plan_from, refuse_without_machine
    from trine.cli.machine import MachineOptions, job_machine
    from trine.cli.overlap import OverlapAnswer
    from trine.cli.ranks import RankAnswer, RankOptions
    from trine.compute import Calibration
    from trine.engine.models import is_compiled
    from trine.units import parse_time

    ranged = OverlapAnswer(overlap)
    of_ranks = RankOptions(
        no_fold=no_fold, verify_fold=verify_fold, show_ranks=tuple(show_rank or ()), slow=tuple(slow or ()),
        jitter=jitter, jitter_per=jitter_per, seed=seed, repeat=repeat,
    )  # fmt: skip
    answer = RankAnswer(ranged, of_ranks)
    plan = plan_from(
        LayoutOptions(
            gpus=gpus, parallel=parallel, dp=dp, tp=tp, pp=pp, cp=cp, batch=batch, global_batch=global_batch,
            micro_batch=micro_batch, schedule=schedule, cuts=cuts, bucket=bucket, tp_style=tp_style, inputs=inputs,
            algorithm=algorithm, steps=steps, virtual_stages=virtual_stages, balance=balance, recompute=recompute,
            recompute_layers=recompute_layers, sync=sync, overlap=ranged.option, offload=offload,
            forms=FormOptions(
                ep=ep, order=order, sharding=sharding, shard_ways=shard_ways, prefetch=prefetch, reshard=reshard,
                shard_unit=shard_unit, dp_overlap=dp_overlap, buffers=buffers, sync_every=sync_every,
                sequence_parallel=sequence_parallel, tp_overlap=tp_overlap, cp_style=cp_style,
                expert_imbalance=expert_imbalance, capacity_factor=capacity_factor,
            ),
        )
    )  # fmt: skip
    machine, warnings = job_machine(
        plan.num_ranks,
        MachineOptions(
            cluster=cluster, nodes=nodes, fabric=fabric, slow_links=tuple(slow_link or ()),
            links_down=tuple(link_down or ()), routing=routing, topology=topology, bandwidth=bandwidth,
            latency=latency, gpu=gpu,
            circuits=CircuitOptions(
                setup=circuit_setup, ports=circuit_ports, bandwidth=circuit_bandwidth, latency=circuit_latency,
                buffer=circuit_buffer,
            ),
        ),
    )  # fmt: skip
    refuse_without_machine(
        machine, network=network, collective_costs=collective_costs, inputs=inputs, algorithm=algorithm,
        placement=placement,
    )  # fmt: skip
    fold = of_ranks.checked(plan.num_ranks)
    exported = ChakraExport(chakra, chakra_target)
    with ProgressLine() as progress:
        result = answer.simulate(
            workload,
            plan,
            cluster=machine,
            compute=compute,
            gpu=gpu,
            trace_gpu=trace_gpu,
            network=network,
            collective_costs=collective_costs or "auto",
            engine="compiled" if network is None or is_compiled(network) else "reference",
            cpu=cpu,
            launch_cost_ps=None if launch_cost is None else parse_time(launch_cost, "--launch-cost"),
            calibration=None if calibration is None else Calibration.load(calibration),
            progress=progress,
            on_compile=progress.compiling,
            on_stage=progress.stage,
            fold=fold,
            placement=placement,
            on_job=exported.write,
            warnings=tuple(warnings),
        )
    show(answer.summary(result), json)
    write_json(answer.document(result), json, "train", result.SCHEMA)
    write_files(result, perfetto, parquet, timeline)
    exported.report()
    end(answer.finished)


def write_files(result: Result, perfetto: str | None, parquet: str | None, timeline: str | None) -> None:
    """Write what was asked for, and say where."""
    if perfetto is not None:
        with writes():
            result.to_perfetto(perfetto)
            say(f"timeline written to {perfetto}: open it at https://ui.perfetto.dev and expand all groups")
    if parquet is not None:
        with writes():
            result.to_parquet(parquet)
            say(f"records written to {parquet}")
    if timeline is not None:
        with writes():
            result.plot("timeline", path=timeline)
            say(f"timeline drawn in {timeline}")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(train)
