"""``trine hop``: decentralised training that tolerates slow workers and links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.machine import ClusterOption, LinkDownOption, NodesOption, SlowLinkOption
from trine.cli.output import end, reports_errors, say, show, write_json, writes
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.parallel.hop import HopProtocol, WorkerGraph
    from trine.parallel.stragglers import Stragglers
    from trine.studies.hop import HopResult

Text = str | None
Number = int | None
DEFAULT_MAX_GAP = 8
_PROTOCOL, _LINKS, _SLOW = "Protocol", "Links", "Slow ranks and links"


@reports_errors
def hop(
    workload: Annotated[str, typer.Argument(help="Trace folder or file, or a bundled trace such as vgg13-h100-b128.")],
    workers: Annotated[Number, typer.Option(help="How many workers [8, or the cluster's GPUs].")] = None,
    graph: Annotated[str, typer.Option(metavar="ring|ring-based|double-ring|full", help="Who talks to whom.")] = (
        "ring-based"
    ),
    iterations: Annotated[int, typer.Option(help="Of each worker.", rich_help_panel=_PROTOCOL)] = 50,
    backup: Annotated[int, typer.Option(help="Neighbours that may be late.", rich_help_panel=_PROTOCOL)] = 0,
    staleness: Annotated[int, typer.Option(help="How old an update may be.", rich_help_panel=_PROTOCOL)] = 0,
    max_gap: Annotated[
        Number, typer.Option(help="Token queues: lead over a neighbour [8 with backup].", rich_help_panel=_PROTOCOL)
    ] = None,
    max_skip: Annotated[int, typer.Option(help="Iterations left out at once.", rich_help_panel=_PROTOCOL)] = 0,
    skip_behind: Annotated[Number, typer.Option(help="Skip when so far behind [2].", rich_help_panel=_PROTOCOL)] = None,
    order: Annotated[
        str, typer.Option(metavar="parallel|serial", help="Send beside or behind computing.", rich_help_panel=_PROTOCOL)
    ] = "parallel",
    drop_late: Annotated[
        bool, typer.Option("--drop-late", help="Send nothing that comes too late.", rich_help_panel=_PROTOCOL)
    ] = False,
    bandwidth: Annotated[
        Text, typer.Option(help='One link an edge of the graph: "25 GB/s".', rich_help_panel=_LINKS)
    ] = None,
    latency: Annotated[Text, typer.Option(help='Of each of these links: "2 us".', rich_help_panel=_LINKS)] = None,
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    slow_link: SlowLinkOption = None,
    link_down: LinkDownOption = None,
    network: Annotated[Text, typer.Option(metavar="fair|equal|fifo|circuit", rich_help_panel=_LINKS)] = None,
    slow_by: Annotated[
        Text, typer.Option(metavar="LOW:HIGH", help="Random factor of bandwidths, 1:10.", rich_help_panel=_SLOW)
    ] = None,
    slow_per: Annotated[Text, typer.Option(metavar="link|gpu", help="Who draws [link].", rich_help_panel=_SLOW)] = None,
    slow: Annotated[
        list[str] | None, typer.Option(metavar="rank=3:1.5", help="Slow workers.", rich_help_panel=_SLOW)
    ] = None,
    jitter: Annotated[
        Text, typer.Option(metavar="normal:5%", help="Of each iteration and worker.", rich_help_panel=_SLOW)
    ] = None,
    seed: Annotated[Number, typer.Option(help="Of what is random [0].", rich_help_panel=_SLOW)] = None,
    repeat: Annotated[Number, typer.Option(help="Run so many seeds; say how times spread.")] = None,
    batch: Annotated[Number, typer.Option(help="Samples of one worker; as in the trace if not given.")] = None,
    gpu: Annotated[Text, typer.Option(help="Predict for this GPU; the trace's own keeps its times.")] = None,
    trace_gpu: Annotated[Text, typer.Option(help="The GPU of the trace, where the trace does not say.")] = None,
    compute: Annotated[
        str, typer.Option(metavar="auto|recorded|linear|roofline", help="Where operator times come from.")
    ] = "auto",
    compare: Annotated[bool, typer.Option("--compare", help="Also run without any of the options of Hop.")] = False,
    json: Annotated[Text, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
    perfetto: Annotated[Text, typer.Option(help="Write a timeline for https://ui.perfetto.dev.")] = None,
) -> None:
    """Simulate decentralised training of WORKLOAD with Hop: who waits for whom, and what late neighbours cost."""
    from trine.engine.models import is_compiled
    from trine.parallel.hop import HopProtocol
    from trine.studies.ensemble import ensemble
    from trine.studies.hop import hop as simulate_hop
    from trine.studies.hop import load_for

    if max_gap is None and backup:
        max_gap = DEFAULT_MAX_GAP
    if skip_behind is not None and not max_skip:
        raise InputError("--skip-behind says when iterations are skipped: give --max-skip as well")
    protocol = HopProtocol(
        iterations=iterations, backup=backup, staleness=staleness, max_gap=max_gap, max_skip=max_skip,
        skip_behind=2 if skip_behind is None else skip_behind, order=order, drop_late=drop_late,
    )  # fmt: skip
    standard = HopProtocol(iterations=iterations, order=order)
    if compare and protocol == standard:
        raise InputError("--compare needs an option of Hop to compare with, such as --backup 1")
    if seed is not None and slow_by is None and jitter is None:
        raise InputError("--seed matters to --slow-by and --jitter only")
    if repeat is not None and ((slow_by is None and jitter is None) or perfetto is not None or compare):
        raise InputError("--repeat needs something random (--slow-by, --jitter), and one answer a run: no other output")
    machine, worker_graph = _machine(
        graph, workers, bandwidth, latency, cluster, nodes, tuple(slow_link or ()), tuple(link_down or ())
    )
    trace = load_for(workload, machine, worker_graph, gpu, trace_gpu)

    def run(protocol: HopProtocol, seed: int) -> HopResult:
        return simulate_hop(
            trace,
            protocol,
            graph=worker_graph,
            cluster=_slowed(machine, slow_by, slow_per, seed),
            batch=batch,
            compute=compute,
            gpu=gpu,
            trace_gpu=trace_gpu,
            network=network,
            engine="compiled" if network is None or is_compiled(network) else "reference",
            stragglers=_stragglers(slow, jitter, seed),
        )

    if repeat is not None:
        runs = ensemble(lambda each: run(protocol, each).end_ps, repeat, seed or 0)
        show(runs.summary(), json)
        write_json(runs, json, "hop")
        end(runs.finished)
        return
    result = run(protocol, seed or 0)
    show(result.summary(), json)
    answer = result.document()
    if compare:
        against = run(standard, seed or 0)
        speedup = against.end_ps / result.end_ps
        show(f"{speedup:.3f} times as fast as standard decentralised training", json)
        answer = {**answer, "standard": against.document(), "speedup": speedup}
    write_json(answer, json, "hop")
    if perfetto is not None:
        with writes():
            result.to_perfetto(perfetto)
            say(f"timeline written to {perfetto}: open it at https://ui.perfetto.dev and expand all groups")


def _machine(
    graph: str,
    workers: int | None,
    bandwidth: str | None,
    latency: str | None,
    cluster: str | None,
    nodes: int | None,
    slow_links: tuple[str, ...],
    links_down: tuple[str, ...],
) -> tuple[Cluster, WorkerGraph]:
    """The links between the workers: those of a cluster, or one for each edge of the graph."""
    from trine.cli.machine import MachineOptions, group_machine, slow_link
    from trine.cluster.select import slow_down
    from trine.parallel.hop import worker_graph
    from trine.studies.hop import edge_cluster
    from trine.units import parse_bandwidth, parse_time

    if cluster is not None:
        if bandwidth is not None or latency is not None:
            raise InputError("--bandwidth and --latency describe one link an edge of the graph, --cluster other links")
        machine, _ = group_machine(
            MachineOptions(cluster=cluster, nodes=nodes, slow_links=slow_links, links_down=links_down)
        )
        return machine, worker_graph(graph, len(machine.gpus) if workers is None else workers)
    if bandwidth is None:
        raise InputError('no links were described: --cluster NAME or FILE, or --bandwidth "25 GB/s" for each edge')
    if nodes is not None or links_down:
        raise InputError("--nodes and --link-down are about the links of --cluster, which was not given")
    edges = worker_graph(graph, 8 if workers is None else workers)
    latency_ps = 0 if latency is None else parse_time(latency, "--latency")
    machine = edge_cluster(edges, parse_bandwidth(bandwidth, "--bandwidth"), latency_ps)
    return slow_down(machine, [slow_link(text) for text in slow_links]), edges


def _slowed(machine: Cluster, slow_by: str | None, slow_per: str | None, seed: int) -> Cluster:
    from trine.studies.hop import slowed_links

    if slow_by is None:
        if slow_per is not None:
            raise InputError("--slow-per says who draws the factors of --slow-by, which was not given")
        return machine
    low, _, high = slow_by.partition(":")
    try:
        factors = float(low), float(high)
    except ValueError:
        raise InputError(f"--slow-by takes LOW:HIGH such as 1:10, got {slow_by!r}") from None
    return slowed_links(machine, factors, seed, slow_per or "link")


def _stragglers(slow: list[str] | None, jitter: str | None, seed: int) -> Stragglers | None:
    from trine.parallel.stragglers import Stragglers, parse_jitter, parse_slow

    if not slow and jitter is None:
        return None
    return Stragglers(
        slow=parse_slow(slow or ()), jitter=None if jitter is None else parse_jitter(jitter), per="step", seed=seed
    )


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(hop)
