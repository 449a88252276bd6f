"""``trine hop``: decentralised training that tolerates slow workers and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from trine.cli.completions import networks, traces
from trine.cli.machine import MachineOptions, group_machine, slow_link
from trine.cli.options import JOB, NETWORK_WORDS, OUTPUT, Brief, Details, Json, Option, Perfetto, argument, number_pair
from trine.cli.output import TIMELINE, drawn, end, show, show_answer, write_json, written
from trine.cli.parameters import Fields, Given
from trine.common.arguments import option
from trine.decentralised.protocol import HopProtocol
from trine.errors import InputError
from trine.training.options import SimulateOptions

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.decentralised.protocol import WorkerGraph
    from trine.decentralised.study import HopResult
    from trine.parallel.stragglers import Stragglers

DEFAULT_MAX_GAP = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Chance:
    """The options for slow and random parts, as given."""

    slow_by: str | None = option(None, "Slow bandwidths by a random factor, e.g. 1:10.")
    slow_per: str | None = option(None, "Choose who draws it [link].")
    slow: tuple[str, ...] = option((), "Slow workers down.")
    jitter: str | None = option(None, "Randomise the durations of iterations and workers.")
    seed: int | None = option(None, "Set the random seed [0].")
    repeat: int | None = option(None, "Run N seeds; report the spread of times.")

    def check(self, has_other_output: bool) -> None:
        """Raise InputError for options without effect."""
        if self.slow_by is None and self.slow_per is not None:
            raise InputError("--slow-per needs --slow-by")
        is_random = self.slow_by is not None or self.jitter is not None
        if self.seed is not None and not is_random:
            raise InputError("--seed matters to --slow-by and --jitter only")
        if self.repeat is not None and (not is_random or has_other_output):
            raise InputError(
                "--repeat needs something random (--slow-by, --jitter), and one answer a run: no other output"
            )

    def slowed(self, machine: Cluster, seed: int) -> Cluster:
        """Return the machine with links slowed by random factors."""
        from trine.decentralised.study import slowed_links

        if self.slow_by is None:
            return machine
        return slowed_links(machine, number_pair(self.slow_by, "--slow-by"), seed, self.slow_per or "link")

    def stragglers(self, seed: int) -> Stragglers | None:
        """Return slow workers and jitter, or None without either."""
        from trine.parallel.stragglers import Stragglers, parse_jitter, parse_slow

        if not self.slow and self.jitter is None:
            return None
        jitter = None if self.jitter is None else parse_jitter(self.jitter)
        return Stragglers(slow=parse_slow(self.slow), jitter=jitter, per="step", seed=seed)


def hop(
    workload: Annotated[
        str, argument("Trace folder or file, or a bundled trace such as vgg13-h100-b128.", values=traces)
    ],
    given: Given[HopProtocol],
    how: Annotated[Given[SimulateOptions], Fields(only=("gpu", "trace_gpu", "compute"))],
    machine: Annotated[
        MachineOptions,
        Fields(
            only=("cluster", "nodes", "slow_link", "link_down", "bandwidth", "latency"),
            helps={
                "bandwidth": 'Set the bandwidth of each edge of the graph: "25 GB/s".',
                "latency": 'Set the latency of each edge: "2 us".',
            },
            panel="Links",
        ),
    ],
    chance: Chance,
    workers: Annotated[int | None, Option("Set the number of workers [8, or the cluster's GPUs].", panel=JOB)] = None,
    graph: Annotated[
        str, Option("Choose the graph of neighbours [ring-based].", "ring|ring-based|double-ring|full", JOB)
    ] = "ring-based",
    batch: Annotated[int | None, Option("Set the samples of one worker [the trace's].", panel=JOB)] = None,
    network: Annotated[
        str | None, Option("Choose how flows share links.", NETWORK_WORDS, "Links", values=networks)
    ] = None,
    compare: Annotated[bool, Option("Also run without Hop's options.", panel=OUTPUT)] = False,
    brief: Brief = False,
    details: Details = False,
    plot: Annotated[str | None, Option("Draw the workers' time (PNG, SVG); needs trine[plot].", "FILE", OUTPUT)] = None,
    json: Json = None,
    perfetto: Perfetto = None,
) -> None:
    """Simulate decentralised training of WORKLOAD with Hop: waiting, and the cost of late neighbours.

    Example: trine hop vgg13-h100-b128 --workers 8 --bandwidth "25 GB/s" --backup 1
    """
    from trine.decentralised.study import hop as simulate_hop
    from trine.decentralised.study import load_for
    from trine.engine.models import is_compiled
    from trine.training.ensemble import ensemble

    protocol = _protocol(given)
    standard = HopProtocol(iterations=protocol.iterations, order=protocol.order)
    if compare and protocol == standard:
        raise InputError("--compare needs an option of Hop to compare with, such as --backup 1")
    chance.check(perfetto is not None or plot is not None or compare)
    cluster, worker_graph = _machine(graph, workers, machine)
    trace = load_for(workload, cluster, worker_graph, how["gpu"], how["trace_gpu"])

    def run(protocol: HopProtocol, seed: int) -> HopResult:
        return simulate_hop(
            trace, protocol, graph=worker_graph, cluster=chance.slowed(cluster, seed), batch=batch, network=network,
            engine="compiled" if network is None or is_compiled(network) else "reference",
            stragglers=chance.stragglers(seed), **how.values,
        )  # fmt: skip

    seed = chance.seed or 0
    if chance.repeat is not None:
        runs = ensemble(lambda each: run(protocol, each).end_ps, chance.repeat, seed)
        show_answer(runs, json, brief, details)
        write_json(runs, json, "hop")
        end(runs.finished)
        return
    result = run(protocol, seed)
    show_answer(result, json, brief, details)
    answer = result.document()
    if compare:
        baseline = run(standard, seed)
        speedup = baseline.end_ps / result.end_ps
        show(f"{speedup:.3f} times as fast as standard decentralised training", json)
        answer = {**answer, "standard": baseline.document(), "speedup": speedup}
    write_json(answer, json, "hop")
    drawn(plot, result)
    written(perfetto, result.to_perfetto, f"{TIMELINE} and expand all groups")


def _protocol(options: Given[HopProtocol]) -> HopProtocol:
    if "skip_behind" in options and not options["max_skip"]:
        raise InputError("--skip-behind needs --max-skip")
    bounded = "max_gap" in options or not options["backup"]
    return options.make() if bounded else options.make(max_gap=DEFAULT_MAX_GAP)


def _machine(graph: str, workers: int | None, options: MachineOptions) -> tuple[Cluster, WorkerGraph]:
    """Return the cluster and graph of the workers; without ``--cluster``, one link per edge of the graph."""
    from trine.cluster.select import slow_down
    from trine.common.units import parse_bandwidth, parse_time
    from trine.decentralised.protocol import worker_graph
    from trine.decentralised.study import edge_cluster

    if options.cluster is not None:
        if options.bandwidth is not None or options.latency is not None:
            raise InputError("--bandwidth and --latency describe one link an edge of the graph, --cluster other links")
        machine, _ = group_machine(options)
        return machine, worker_graph(graph, len(machine.gpus) if workers is None else workers)
    if options.bandwidth is None:
        raise InputError('no links were described: --cluster NAME or FILE, or --bandwidth "25 GB/s" for each edge')
    if options.nodes is not None or options.link_down:
        raise InputError("--nodes and --link-down are about the links of --cluster, which was not given")
    edges = worker_graph(graph, 8 if workers is None else workers)
    latency_ps = 0 if options.latency is None else parse_time(options.latency, "--latency")
    machine = edge_cluster(edges, parse_bandwidth(options.bandwidth, "--bandwidth"), latency_ps)
    return slow_down(machine, [slow_link(text) for text in options.slow_link]), edges
