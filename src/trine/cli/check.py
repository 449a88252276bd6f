"""``trine check``: is a measured collective what the machine should do?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.machine import (
    BandwidthOption,
    ClusterOption,
    FabricOption,
    LatencyOption,
    LinkDownOption,
    RoutingOption,
    SlowLinkOption,
    TopologyOption,
)
from trine.cli.output import EXIT_FAILED, reports_errors, say, show, write_json, writes
from trine.errors import about

if TYPE_CHECKING:
    from trine.cli.machine import MachineOptions
    from trine.cluster import Cluster
    from trine.studies.nccl_tests import NcclLog

Text = str | None
Number = int | None
_MACHINE = "Machine"


@reports_errors
def check(
    log: Annotated[str, typer.Argument(metavar="LOG", help="Output of nccl-tests or rccl-tests.")],
    cluster: ClusterOption = None,
    gpus: Annotated[
        Number, typer.Option(help="GPUs, nodes filled in order [the log's].", rich_help_panel=_MACHINE)
    ] = None,
    nodes: Annotated[Number, typer.Option(help="Nodes of the preset [the log's].", rich_help_panel=_MACHINE)] = None,
    fabric: FabricOption = None,
    slow_link: SlowLinkOption = None,
    link_down: LinkDownOption = None,
    routing: RoutingOption = None,
    topology: TopologyOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    op: Annotated[Text, typer.Option(help="Which collective it is, or which of several runs.")] = None,
    launch: Annotated[Text, typer.Option(metavar="process-per-gpu|single-process|graph", help="[the log's]")] = None,
    nvls: Annotated[bool | None, typer.Option("--nvls/--no-nvls", help="Demand or forbid it [the log's].")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Compare the in-place results.")] = False,
    fail_if_suspicious: Annotated[
        bool, typer.Option("--fail-if-suspicious", help="Exit with 1 unless the run is healthy.")
    ] = False,
    plot: Annotated[Text, typer.Option(help="Draw measured and predicted (PNG, SVG); needs trine[plot].")] = None,
    json: Annotated[Text, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
) -> None:
    """Compare LOG with what the machine should do: measured, predicted with its band, a verdict, a likely cause."""
    from trine.cli.machine import MachineOptions
    from trine.studies.check import check_log, options_of
    from trine.studies.nccl_tests import read_log

    found = read_log(log, op)
    options, _ = options_of(found)
    if launch is not None:
        found, options = replace(found, launch=launch), replace(options, launch=launch)
    if nvls is not None:
        options = replace(options, nvls=nvls)
    machine = _machine(
        found,
        MachineOptions(
            cluster=cluster, gpus=gpus, nodes=nodes, fabric=fabric, slow_links=tuple(slow_link or ()),
            links_down=tuple(link_down or ()), routing=routing, topology=topology, bandwidth=bandwidth, latency=latency,
        ),
    )  # fmt: skip
    with about(log):
        answer = check_log(found, machine, options=options, in_place=in_place)
    show(answer.table(), json)
    write_json(answer, json, "check")
    if plot is not None:
        with writes():
            answer.plot(plot)
            say(f"drawn in {plot}")
    if fail_if_suspicious and not answer.healthy:
        raise typer.Exit(EXIT_FAILED)


def _machine(log: NcclLog, options: MachineOptions) -> Cluster:
    """The machine as described, with the log's number of ranks and hosts where they were not given."""
    from trine.cli.machine import group_machine

    if options.cluster is not None and options.gpus is None and log.num_ranks is not None:
        hosts = len(log.hosts) or None
        options = replace(options, gpus=log.num_ranks, nodes=options.nodes or hosts)
    machine, warnings = group_machine(options)
    for warning in warnings:
        say(f"note: {warning}")
    return machine


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(check)
