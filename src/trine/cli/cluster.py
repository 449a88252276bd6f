"""``trine cluster``: what machines are known, and what is in one."""

from __future__ import annotations

from typing import Annotated

import typer

from trine.cli.output import reports_errors, show, write_json

app = typer.Typer(no_args_is_help=True)


@app.command("list")
@reports_errors
def list_clusters(json: Annotated[str | None, typer.Option(help="Write JSON; - for stdout.")] = None) -> None:
    """List the cluster presets."""
    from trine.cluster import known_clusters, load_cluster

    rows = []
    for name in known_clusters():
        machine = load_cluster(name)
        rows.append({"name": name, "gpus": len(machine.gpus), "links": len(machine.links), "notes": machine.notes})
        show(
            f"{name:20} {len(machine.gpus):4} GPUs  {machine.notes.strip().splitlines()[0] if machine.notes else ''}",
            json,
        )
    write_json({"clusters": rows}, json)


@app.command("show")
@reports_errors
def show_cluster(
    cluster: Annotated[str, typer.Argument(help="Preset name or cluster file.")],
    json: Annotated[str | None, typer.Option(help="Write JSON; - for stdout.")] = None,
) -> None:
    """Show the devices and links of a cluster, and where its numbers come from."""
    from trine.cluster import load_cluster
    from trine.units import format_bandwidth, format_time

    machine = load_cluster(cluster)
    show(f"{machine.name}: {len(machine.gpus)} GPUs, {len(machine.links)} links; numbers are {machine.evidence}", json)
    if machine.notes:
        show(machine.notes.strip(), json)
    for device in machine.devices:
        show(f"  {device.kind:7} {device.name}{f' ({device.gpu})' if device.gpu else ''}", json)
    for link in machine.links:
        show(f"  {link.name:34} {format_bandwidth(link.bytes_per_s):>12}  {format_time(link.latency_ps):>10}", json)
    for what, source in machine.sources.items():
        show(f"  source of {what}: {source}", json)
    write_json(
        {
            "name": machine.name,
            "evidence": machine.evidence,
            "devices": [{"name": d.name, "kind": d.kind, "gpu": d.gpu, "node": d.node} for d in machine.devices],
            "links": [
                {
                    "name": link.name,
                    "from": machine.devices[link.source].name,
                    "to": machine.devices[link.target].name,
                    "bytes_per_s": link.bytes_per_s,
                    "latency_ps": link.latency_ps,
                }
                for link in machine.links
            ],
            "sources": dict(machine.sources),
        },
        json,
    )
