"""Case 6: a ring all-reduce between nodes, packet by packet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.cluster import build_topology
from trine.collectives.expand import expand
from trine.collectives.registry import make_schedule
from trine.collectives.schedule import Schedule
from trine.common.units import format_time
from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel, Value
from trine.gpu.cases.runs import MIB, tell
from trine.gpu.collective.packets import HEADER_BYTES, PACKET_BYTES, PacketRun, packet_collective

GPUS = 8
#: The paper's figures: us, Gbit/s, and times of flows in ns.
PAPER = {
    "completion us": 165.98, "busbw Gb/s": 88.45, "flow, mean ns": 11_477.0, "flow, least ns": 11_250.0,
    "flow, most ns": 14_552.0, "flow alone ns": 11_857.0,
}  # fmt: skip
JUDGED = ("completion us", "flow, mean ns")
TOLERANCE = 0.05
NOT_STATED = (
    "rate and latency of a link, packets, GPUs a leaf; the rate is the round number above the paper's bandwidth"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumed:
    """Settings that the paper does not state. latency_ns: per link; per_leaf: GPUs per leaf switch."""

    latency_ns: int = 50
    per_leaf: int = 2
    packet_bytes: int = PACKET_BYTES
    header_bytes: int = HEADER_BYTES

    def __str__(self) -> str:
        packets = f"packets of {self.packet_bytes} + {self.header_bytes} B"
        return f"{self.per_leaf} GPUs a leaf, {self.latency_ns} ns a link, {packets}"


#: The first variant counts for the verdict: 10 m of fibre per link, two GPUs per leaf.
VARIANTS = (
    Assumed(), Assumed(per_leaf=4), Assumed(latency_ns=0), Assumed(latency_ns=150),
    Assumed(latency_ns=150, packet_bytes=1000, header_bytes=48),
)  # fmt: skip


def clos(size_bytes: int = MIB) -> CaseStudy:
    """Run case 6 under several assumptions."""
    schedule = make_schedule("all_reduce", GPUS, size_bytes, "ring")
    runs = [_run(schedule, assumed) for assumed in VARIANTS]
    facts = [numbers(run) for run in runs]
    rows: list[tuple[Value, ...]] = [("paper", *PAPER.values())]
    rows += [(str(assumed), *each.values()) for assumed, each in zip(VARIANTS, facts, strict=True)]
    errors = {name: facts[0][name] / PAPER[name] - 1 for name in PAPER}
    worst = max(abs(each[name] / PAPER[name] - 1) for each in facts for name in JUDGED)
    return CaseStudy(
        name="clos",
        title=f"Case 6: ring all-reduce of 1 MiB on {GPUS} GPUs, two-tier Clos, packet by packet",
        settings=(
            f"Assumed (the paper does not say): 100 Gb/s a link; {VARIANTS[0]}. Other assumptions: the lines below.",
            "Switches store a packet and send it on; queues have no limit.",
        ),
        columns=("assumed", *PAPER),
        rows=tuple(rows),
        findings=(
            *(
                Finding(
                    paper=f"{name}: {PAPER[name]:,.2f}",
                    here=f"{facts[0][name]:,.2f} ({100 * errors[name]:+.1f} %)",
                    holds=abs(errors[name]) <= TOLERANCE,
                    assumed=NOT_STATED,
                )
                for name in JUDGED
            ),
            Finding(
                paper="", here=f"under all assumptions of the table both are within {100 * worst:.1f} %", holds=None
            ),
            Finding(
                paper=f"least and most of a flow {PAPER['flow, least ns']:,.0f} and {PAPER['flow, most ns']:,.0f} ns",
                here=f"{facts[0]['flow, least ns']:,.0f} and {facts[0]['flow, most ns']:,.0f} ns: no two flows meet at "
                "a link here, as one flow leaves each leaf and one comes; the paper does not explain its slowest flow",
                holds=abs(errors["flow, most ns"]) <= TOLERANCE,
            ),
        ),
        panels=_panels(schedule, runs[0]),
    )


def _run(schedule: Schedule, assumed: Assumed) -> PacketRun:
    cluster = build_topology(f"clos:{assumed.per_leaf}", "100 Gb/s", f"{assumed.latency_ns} ns", GPUS)
    run = packet_collective(
        schedule, cluster, cluster.gpus, packet_bytes=assumed.packet_bytes, header_bytes=assumed.header_bytes
    )
    tell(f"{assumed}: {format_time(run.end_ps)}")
    return run


def numbers(run: PacketRun) -> dict[str, float]:
    """Return the paper's figures for one run."""
    flow_ns = run.flow_ps / 1e3
    return {
        "completion us": run.end_ps / 1e6, "busbw Gb/s": run.bus_bytes_per_s * 8 / 1e9,
        "flow, mean ns": float(flow_ns.mean()), "flow, least ns": float(flow_ns.min()),
        "flow, most ns": float(flow_ns.max()), "flow alone ns": float(run.flow_alone_ps.max() / 1e3),
    }  # fmt: skip


def _panels(schedule: Schedule, run: PacketRun) -> tuple[Panel, ...]:
    step = expand(schedule).step
    steps = range(int(step.max()) + 1)
    ends = tuple(float(run.flow_end_ps[step == s].max() / 1e6) for s in steps)
    number = tuple(float(s + 1) for s in steps)
    paper = tuple(PAPER["completion us"] / len(ends) * n for n in number)
    flow = tuple(float(t) for t in np.sort(run.flow_ps) / 1e3)
    place = tuple(float(i + 1) for i in range(len(flow)))
    marks = [
        Curve(
            label=f"paper: {name.removesuffix(' ns')}", x=(place[0], place[-1]), y=(PAPER[name],) * 2, style="--",
            colour=colour,
        )
        for colour, name in ((1, "flow, least ns"), (2, "flow, mean ns"), (3, "flow, most ns"), (4, "flow alone ns"))
    ]  # fmt: skip
    return (
        Panel(
            title="All-reduce: end of each step", x_label="step", y_label="time (µs)", log="",
            curves=(
                Curve(label="here", x=number, y=ends), Curve(label="paper", x=number, y=paper, style="--", colour=1)
            ),
        ),
        Panel(
            title="Completion of flows, ascending", x_label="flow", y_label="time of a flow (ns)", log="",
            curves=(Curve(label="here", x=place, y=flow, style="."), *marks),
        ),
    )  # fmt: skip
