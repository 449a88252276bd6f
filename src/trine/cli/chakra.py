"""``trine chakra``: Chakra execution traces, as ASTRA-sim takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.chakra_loadstore import (
    ChakraInside,
    ComputeWavefrontsOption,
    ComputeWorkgroupsOption,
    EngineOption,
    InsideOption,
    NoTrafficOption,
    ProtocolOption,
    WavefrontsOption,
    WorkgroupsOption,
    is_loadstore,
    report_loadstore,
    run_loadstore,
)
from trine.cli.loadstore import (
    ArbitrationOption,
    FidelityOption,
    GpuModelOption,
    OutstandingOption,
    PlotNocOption,
    UnrollOption,
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
from trine.cli.output import end, reports_errors, say, show, write_json
from trine.cli.progress import ProgressLine
from trine.errors import InputError
from trine.units import format_bytes

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.formats.chakra import ChakraFiles, ChakraTrace, NodeRoofline
    from trine.graph.program import Job
    from trine.results import Result

app = typer.Typer(no_args_is_help=True)

Text = str | None
Prefix = Annotated[str, typer.Argument(help="Path of the traces up to .<rank>.et.")]
Groups = Annotated[Text, typer.Option(help='Process groups, JSON {"1": [0, 1]} [PREFIX.groups.json if there is one].')]
Json = Annotated[Text, typer.Option("--json", help="Write the answer as JSON; - for stdout.")]


@app.command()
@reports_errors
def run(
    prefix: Prefix,
    comm_groups: Groups = None,
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    fabric: FabricOption = None,
    slow_link: SlowLinkOption = None,
    link_down: LinkDownOption = None,
    routing: RoutingOption = None,
    topology: TopologyOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    peak: Annotated[Text, typer.Option(help='Time compute nodes by a roofline of this peak: "900 TFLOP/s".')] = None,
    memory: Annotated[Text, typer.Option(help='Memory bandwidth of the roofline: "3350 GB/s".')] = None,
    network: Annotated[Text, typer.Option(metavar="fair|equal|fifo|circuit", help="How flows share links.")] = None,
    collective_costs: Annotated[
        Text, typer.Option(metavar="auto|links|library", help="What messages cost besides the links [auto].")
    ] = None,
    algorithm: Annotated[Text, typer.Option(help="Algorithms of collectives, e.g. all_reduce=ring.")] = None,
    fidelity: FidelityOption = None,
    gpu_model: GpuModelOption = None,
    workgroups: WorkgroupsOption = None,
    wavefronts: WavefrontsOption = None,
    protocol: ProtocolOption = None,
    unroll: UnrollOption = None,
    max_outstanding: OutstandingOption = None,
    arbitration: ArbitrationOption = None,
    compute_workgroups: ComputeWorkgroupsOption = None,
    compute_wavefronts: ComputeWavefrontsOption = None,
    no_compute_traffic: NoTrafficOption = False,
    engine: EngineOption = None,
    json: Json = None,
    perfetto: Annotated[Text, typer.Option(help="Write a timeline for https://ui.perfetto.dev.")] = None,
    inside_perfetto: InsideOption = None,
    plot_noc: PlotNocOption = None,
    parquet: Annotated[Text, typer.Option(help="Write all records to this folder.")] = None,
    timeline: Annotated[Text, typer.Option(help="Draw the timeline (PNG, SVG); needs trine[plot].")] = None,
) -> None:
    """Simulate the Chakra traces of all ranks on a cluster, rank i on its i-th GPU."""
    from trine.cli.layout import algorithm_pairs
    from trine.cli.machine import MachineOptions, job_machine
    from trine.cli.train import write_files
    from trine.formats.chakra import read_chakra

    inside = ChakraInside(
        gpu_model=gpu_model, workgroups=workgroups, wavefronts=wavefronts, protocol=protocol, unroll=unroll,
        max_outstanding=max_outstanding, arbitration=arbitration, compute_workgroups=compute_workgroups,
        compute_wavefronts=compute_wavefronts, no_compute_traffic=no_compute_traffic, engine=engine,
        inside_perfetto=inside_perfetto, plot_noc=plot_noc,
    )  # fmt: skip
    loadstore = is_loadstore(fidelity, inside, {"--network": network, "--collective-costs": collective_costs})
    algorithms = dict(algorithm_pairs(algorithm)) if algorithm is not None else {}
    trace = read_chakra(
        prefix, comm_groups=comm_groups, roofline=_roofline(peak, memory),
        algorithms=None if loadstore else algorithms,
    )  # fmt: skip
    machine, warnings = job_machine(
        trace.num_ranks,
        MachineOptions(
            cluster=cluster, nodes=nodes, fabric=fabric, slow_links=tuple(slow_link or ()),
            links_down=tuple(link_down or ()), routing=routing, topology=topology, bandwidth=bandwidth,
            latency=latency,
        ),
    )  # fmt: skip
    if machine is None:
        raise InputError("no machine was described: --cluster NAME or FILE, or --topology with --bandwidth")
    if loadstore:
        found = run_loadstore(trace, machine, inside, algorithms, warnings)
        report_loadstore(found, inside, json)
        write_files(found, perfetto, parquet, timeline)
        end(found.gpu.finished)
        return
    result = _run_operator(trace, machine, network, collective_costs, warnings)
    show(result.summary(), json)
    write_json(result, json, "chakra run")
    write_files(result, perfetto, parquet, timeline)


def _run_operator(
    trace: ChakraTrace, machine: Cluster, network: Text, collective_costs: Text, warnings: list[str]
) -> Result:
    from trine.engine.models import is_compiled
    from trine.formats.chakra import simulate_chakra

    with ProgressLine() as progress:
        return simulate_chakra(
            trace,
            machine,
            network=network,
            collective_costs=collective_costs or "auto",
            engine="compiled" if network is None or is_compiled(network) else "reference",
            progress=progress,
            on_compile=progress.compiling,
            warnings=tuple(warnings),
        )


@app.command()
@reports_errors
def inspect(prefix: Prefix, comm_groups: Groups = None, json: Json = None) -> None:
    """Say what is in the Chakra traces, and whether all ranks' traces fit together."""
    from trine.formats.chakra import read_chakra
    from trine.formats.chakra.describe import description, description_text

    answer = description(read_chakra(prefix, comm_groups=comm_groups))
    show(description_text(answer), json)
    write_json(answer, json, "chakra inspect")


class ChakraExport:
    """What ``trine train --chakra`` writes; refuses a target for nothing."""

    def __init__(self, prefix: str | None, target: str | None) -> None:
        if prefix is None and target is not None:
            raise InputError("--chakra-target is about the traces that --chakra PREFIX writes, and it was not given")
        self._prefix, self._target = prefix, target or "astra-sim"
        self._files: ChakraFiles | None = None

    def write(self, job: Job) -> None:
        """Write the job, if that was asked for."""
        from trine.formats.chakra import write_chakra

        if self._prefix is not None:
            self._files = write_chakra(job, self._prefix, target=self._target)

    def report(self) -> None:
        """Say what was written."""
        if self._files is None:
            return
        beside = f", groups in {self._files.groups}" if self._files.groups is not None else ""
        say(
            f"{self._files.num_nodes} nodes written to {self._files.prefix}.<rank>.et, {self._files.num_ranks} ranks, "
            f"{format_bytes(self._files.num_bytes)}{beside}"
        )
        for note in self._files.notes:
            say(f"note: {note}")


def _roofline(peak: str | None, memory: str | None) -> NodeRoofline | None:
    from trine.formats.chakra import NodeRoofline
    from trine.units import parse_bandwidth, parse_rate

    if peak is None and memory is None:
        return None
    if peak is None or memory is None:
        raise InputError("a roofline needs both --peak and --memory")
    return NodeRoofline(flop_per_s=parse_rate(peak, "--peak"), memory_bytes_per_s=parse_bandwidth(memory, "--memory"))
