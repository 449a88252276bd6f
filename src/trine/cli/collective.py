"""``trine collective``: how long one collective takes on a cluster, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.circuits import BufferOption, CircuitOptions, DelayOption, PortsOption, RateOption, SetupOption
from trine.cli.loadstore import (
    ArbitrationOption,
    CompareOption,
    FidelityOption,
    GpuModelOption,
    LoadStoreGiven,
    NoFoldOption,
    OutstandingOption,
    PerfettoOption,
    PlotNocOption,
    UnrollOption,
    VerifyFoldOption,
    WavefrontsOption,
    WorkgroupsOption,
)
from trine.cli.machine import (
    BandwidthOption,
    ClusterOption,
    FabricOption,
    GpusOption,
    LatencyOption,
    LinkDownOption,
    NodesOption,
    RoutingOption,
    SlowLinkOption,
    TopologyOption,
)
from trine.cli.output import reports_errors, say, show, write_json, writes
from trine.cli.progress import ProgressLine
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cli.machine import MachineOptions
    from trine.cluster import Cluster
    from trine.collectives.options import CollectiveOptions
    from trine.collectives.result import CollectiveResult
    from trine.collectives.schedules.direct import Matrix

Text = str | None
Number = int | None
_MACHINE = "Machine"
_HOW = "How it is run"


@reports_errors
def collective(
    op: Annotated[str, typer.Argument(metavar="OP", help="all_reduce, all_gather, reduce_scatter, broadcast, ...")],
    size: Annotated[Text, typer.Option(help="64M, or 1K,1M,1G, or 1K:1G (doubling), 1K:1G:x4; powers of 1024.")] = None,
    cluster: ClusterOption = None,
    gpus: GpusOption = None,
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
    algorithm: Annotated[
        str,
        typer.Option(
            help="auto, ring, tree, ... (inside: get, put, ...), or a plan (JSON, XML).", rich_help_panel=_HOW
        ),
    ] = "auto",
    protocol: Annotated[
        str, typer.Option(metavar="auto|ll|ll128|simple|none", help="none: the bare links.", rich_help_panel=_HOW)
    ] = "auto",
    library: Annotated[str, typer.Option(metavar="auto|nccl|rccl", rich_help_panel=_HOW)] = "auto",
    launch: Annotated[
        Text,
        typer.Option(metavar="process-per-gpu|single-process|graph", help="[process-per-gpu]", rich_help_panel=_HOW),
    ] = None,
    nvls: Annotated[
        bool | None, typer.Option("--nvls/--no-nvls", help="Demand or forbid it.", rich_help_panel=_HOW)
    ] = None,
    min_channels: Annotated[Number, typer.Option(help="As NCCL_MIN_NCHANNELS.", rich_help_panel=_HOW)] = None,
    max_channels: Annotated[Number, typer.Option(help="As NCCL_MAX_NCHANNELS.", rich_help_panel=_HOW)] = None,
    network: Annotated[
        Text,
        typer.Option(metavar="fair|equal|fifo|circuit", help="Simulate every message.", rich_help_panel=_HOW),
    ] = None,
    matrix: Annotated[
        Text,
        typer.Option(metavar="FILE.csv", help="all_to_all_v: bytes from rank (row) to rank.", rich_help_panel=_HOW),
    ] = None,
    fidelity: FidelityOption = None,
    compare_fidelity: CompareOption = False,
    workgroups: WorkgroupsOption = None,
    wavefronts: WavefrontsOption = None,
    unroll: UnrollOption = None,
    max_outstanding: OutstandingOption = None,
    arbitration: ArbitrationOption = None,
    gpu_model: GpuModelOption = None,
    no_fold: NoFoldOption = False,
    verify_fold: VerifyFoldOption = False,
    plot_noc: PlotNocOption = None,
    perfetto: PerfettoOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Where each microsecond goes; alternatives.")] = False,
    plot: Annotated[Text, typer.Option(help="Draw the table (PNG, SVG); needs trine[plot].")] = None,
    json: Annotated[Text, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
) -> None:
    """Say how long the collective OP takes for each size, what the library would choose, and why."""
    from trine.cli.loadstore import answer_loadstore
    from trine.cli.machine import MachineOptions
    from trine.collectives.options import CollectiveOptions
    from trine.collectives.plot import check_plot

    inside = LoadStoreGiven(
        fidelity=fidelity, compare_fidelity=compare_fidelity, workgroups=workgroups, wavefronts=wavefronts,
        unroll=unroll, max_outstanding=max_outstanding, arbitration=arbitration, gpu_model=gpu_model,
        no_fold=no_fold, verify_fold=verify_fold, plot_noc=plot_noc, perfetto=perfetto,
    )  # fmt: skip
    wanted = inside.is_wanted()
    kind = alias(op)
    sizes, table = _sizes(kind, size, matrix)
    if plot is not None:
        check_plot(plot, sizes)
    machine = MachineOptions(
        cluster=cluster, gpus=gpus, nodes=nodes, fabric=fabric, slow_links=tuple(slow_link or ()),
        links_down=tuple(link_down or ()), routing=routing, topology=topology, bandwidth=bandwidth, latency=latency,
        circuits=CircuitOptions(
            setup=circuit_setup, ports=circuit_ports, bandwidth=circuit_bandwidth, latency=circuit_latency,
            buffer=circuit_buffer,
        ),
    )  # fmt: skip
    options = CollectiveOptions(
        library=library.lower(), algorithm=_plain(algorithm), protocol=protocol.lower(),
        min_channels=min_channels, max_channels=max_channels,
        nvls=nvls, **({} if launch is None else {"launch": launch}),
    )  # fmt: skip
    if wanted:
        others = {
            "library": library.lower(), "launch": launch, "nvls": nvls, "min_channels": min_channels,
            "max_channels": max_channels, "network": network, "matrix": matrix, "explain": explain,
        }  # fmt: skip
        answer_loadstore(kind, sizes, machine, options, inside, others, json, plot)
        return
    answer, warnings = _answer(kind, sizes, machine, options, launch, network, table, explain)
    show(answer.table(), json)
    for warning in warnings:
        say(f"note: {warning}")
    if explain:
        show(answer.explain(), json)
    write_json(answer, json, "collective")
    if plot is not None:
        with writes():
            answer.plot(path=plot)
            say(f"drawn in {plot}")


def _plain(algorithm: str) -> str:
    """NCCL_ALGO's spelling as ours; the path of a plan as it is."""
    return algorithm.lower() if algorithm.isalpha() else algorithm


def _sizes(op: str, size: Text, matrix: Text) -> tuple[list[int], Matrix | None]:
    """The sizes asked for, and the bytes of an all_to_all_v, whose size is the most that a rank has to send."""
    from trine.collectives.sizes import parse_sizes, read_matrix

    if matrix is not None:
        if size is not None:
            raise InputError("--size and --matrix both say how much is sent: give one")
        table = read_matrix(matrix)
        return [max(sum(row) for row in table)], table
    if size is None and op != "barrier":
        raise InputError("--size is needed, such as --size 64M or --size 1K:1G")
    return parse_sizes(size or "0"), None


def _answer(
    op: str, sizes: list[int], described: MachineOptions, options: CollectiveOptions, launch: Text, network: Text,
    table: Matrix | None, explain: bool,
) -> tuple[CollectiveResult, list[str]]:  # fmt: skip
    """The answer, and what was assumed about the machine."""
    from trine.cli.machine import group_machine
    from trine.collectives.message_level import is_bare
    from trine.collectives.query import collective as ask

    machine, warnings = group_machine(described)
    if launch is not None and is_bare(options, machine):
        raise InputError("--launch: the bare links know no launches: give --protocol simple, ll or ll128")
    with ProgressLine() as progress:

        def asked(cluster: Cluster, explained: bool) -> CollectiveResult:
            return ask(
                op, sizes, cluster, options=options, network=network, explain=explained, matrix=table,
                progress=progress, on_compile=progress.compiling,
            )  # fmt: skip

        answer = asked(machine, explain)
        _refuse_links_that_do_not_matter(described, lambda other: asked(group_machine(other)[0], False))
    return answer, warnings


def _refuse_links_that_do_not_matter(
    machine: MachineOptions, ask: Callable[[MachineOptions], CollectiveResult]
) -> None:
    """Options about links and routes without which the answer is the same, and with which alone it is that of none."""
    from trine.cli.machine import options_of_links

    none = replace(machine, routing=None, slow_links=(), links_down=())

    def same(one: MachineOptions, other: MachineOptions) -> bool:
        first, second = ask(one), ask(other)
        return first.load == second.load and first.times_ps == second.times_ps

    for option, without in options_of_links(machine):
        if same(machine, without) and same(_alone(machine, without, none), none):
            raise InputError(f"{option} changes nothing: it is not what bounds this group, or carries none of it")


def _alone(machine: MachineOptions, without: MachineOptions, none: MachineOptions) -> MachineOptions:
    """The machine with that option alone which ``without`` lacks."""
    return replace(
        none,
        routing=machine.routing if without.routing is None else None,
        slow_links=tuple(text for text in machine.slow_links if text not in without.slow_links),
        links_down=tuple(text for text in machine.links_down if text not in without.links_down),
    )


def alias(op: str) -> str:
    """nccl-tests' names of a collective as ours: ``alltoall``, ``all_reduce_perf``, ``allreduce``."""
    plain = op.lower().replace("-", "_").removesuffix("_perf")
    names = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather", "sendrecv": "send_recv",
             "reducescatter": "reduce_scatter", "alltoallv": "all_to_all_v"}  # fmt: skip
    return names.get(plain, plain)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(collective)
