"""Each peer writes in its own way, and one of them is looked at alone. Figure 5 of Eidola (arXiv 2606.12638).

Writes 44_eidola_patterns.png. The guide to all five: docs/guides/eidola-figures.md.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel
from trine.gpu.program import ACQUIRE
from trine.gpu.replay.distributions import draw_writes, parse_distribution
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.result import EidolonResult
from trine.gpu.replay.run import Prepared, run_eidolon
from trine.gpu.replay.writes import WriteTable

EIDOLA = EidolonOptions(rows=1024, cols=1024, peers=3, tile=(16, 1024), workgroups=43, flags="single", flag_spacing=64)
PEERS = (1, 2, 3)
#: After how long each peer's flags land, from when the target's last workgroup waits.
PATTERNS = {
    "all alike": ("5 us", "5 us", "5 us"),
    "rank 3 late": ("5 us", "5 us", "25 us"),
    "rank 3 scattered": ("5 us", "5 us", "uniform(5 us, 45 us)"),
    "each its own": ("5 us", "uniform(5 us, 15 us)", "exponential(10 us)"),
    "of it rank 2 alone": ("0 us", "uniform(5 us, 15 us)", "0 us"),
    "of it rank 3 alone": ("0 us", "0 us", "exponential(10 us)"),
}
SHOWN = ("all alike", "rank 3 late", "each its own", "of it rank 3 alone")


def main() -> None:
    tables = written(Prepared(EIDOLA))
    spin = {name: run_eidolon(replace(EIDOLA, writes=table)) for name, table in tables.items()}
    mwait = {name: run_eidolon(replace(EIDOLA, writes=table, sync="mwait")) for name, table in tables.items()}
    study = CaseStudy(
        name="eidola-patterns",
        title="Eidola, figure 5: a pattern of writes for each peer",
        settings=(
            "GEMV + all-reduce, 1024 x 1024 x 4 B, 43 workgroups, each with a flag from each of ranks 1, 2, 3, 64 B "
            "apart. Flags and data arrive this time after the last workgroup starts waiting. r1, r2, r3: wait of a "
            "wavefront for the flag of each, in the order of its reads; spinning.",
        ),
        columns=(
            "pattern", "spin", "mwait", "non-flag reads", "wait us", "r1 us", "r2 us", "r3 us", "kernel us"
        ),
        rows=tuple(
            (
                name, one.flag_reads, mwait[name].flag_reads, one.non_flag_reads, one.wait_ps / 1e6,
                *waits_us(one), one.end_ps / 1e6,
            )
            for name, one in spin.items()
        ),
        findings=findings(spin, mwait),
        panels=(written_panel(spin["each its own"]), waiting_panel(spin)),
    )  # fmt: skip
    print(study.text())
    study.plot(Path(__file__).with_suffix(".png"))


def written(prepared: Prepared) -> dict[str, WriteTable]:
    """For each pattern the writes of all peers: flags at drawn times, the data behind each with it."""
    flags, data, base_ps = prepared.work.flags(), prepared.work.data(), prepared.waiting_ps
    tables = {}
    for name, pattern in PATTERNS.items():
        tables[name] = table = WriteTable()
        for peer, words in zip(PEERS, pattern, strict=True):
            mine, its = flags.peer == peer, data.peer == peer
            drawn = draw_writes(
                peer=flags.peer[mine], address=flags.address[mine], size_bytes=8, value=flags.value[mine],
                distribution=parse_distribution(words), seed=1, base_ps=base_ps,
            ).columns  # fmt: skip
            table.register_writes(
                peer=drawn.peer, address=drawn.address, size_bytes=8, value=drawn.value, time_ps=drawn.time_ps
            )
            when_ps = np.zeros(flags.workgroup.max() + 1, np.int64)
            when_ps[flags.workgroup[mine]] = drawn.time_ps
            table.register_writes(
                peer=data.peer[its], address=data.address[its], size_bytes=data.size_bytes[its],
                time_ps=when_ps[data.workgroup[its]],
            )  # fmt: skip
    return tables


def waits_us(result: EidolonResult) -> tuple[float, ...]:
    """Mean time that a wavefront spends in the acquire of each peer's flag."""
    shown, records, program = result.inside.shown, result.inside.records, result.work.program
    flags = result.work.flags()
    peer_of = np.full(flags.semaphore.max() + 1, -1)
    peer_of[flags.semaphore] = flags.peer
    rows = np.flatnonzero(program.op_kind[shown.op] == ACQUIRE)
    peer = peer_of[program.operand_semaphore[program.operand_ptr[shown.op[rows]]]]
    took_us = (records.op_end_ps[rows] - records.op_start_ps[rows]) / 1e6
    return tuple(float(took_us[peer == one].mean()) for one in PEERS)


ASSUMED = "tiles, workgroups and flags, and which patterns; the paper gives no numbers"


def findings(spin: dict[str, EidolonResult], mwait: dict[str, EidolonResult]) -> tuple[Finding, ...]:
    data = {one.non_flag_reads for found in (spin, mwait) for one in found.values()}
    late = spin["rank 3 late"].end_ps - spin["all alike"].end_ps
    whole, alone = spin["each its own"].end_ps, spin["of it rank 3 alone"].end_ps
    return (
        Finding(
            paper="patterns are configurable for each GPU",
            here=f"rank 3 later by 20 us ends the kernel {late / 1e6:.1f} us later; other reads are {max(data):,} in "
            f"all {2 * len(spin)} runs",
            assumed=ASSUMED,
            holds=len(data) == 1 and abs(late - 20_000_000) < spin["all alike"].polling_interval_ps,
        ),
        Finding(
            paper="one pattern can be isolated",
            here=f"each its own: {whole / 1e6:.1f} us; of that, rank 3's alone: {alone / 1e6:.1f} us, rank 2's: "
            f"{spin['of it rank 2 alone'].end_ps / 1e6:.1f} us",
            assumed=ASSUMED,
            holds=alone <= whole,
        ),
    )


def written_panel(result: EidolonResult) -> Panel:
    """Flags that have landed, by peer."""
    outside = result.incoming.outside
    curves = []
    for colour, peer in enumerate(PEERS):
        landed = np.sort(outside.time_ps[(outside.semaphore >= 0) & (outside.peer == peer)])
        curves.append(steps(f"rank {peer}", landed, np.ones(len(landed)), result.end_ps, colour))
    return Panel(
        title="Flags that have landed: each its own", x_label="time (us)", y_label="flags", curves=tuple(curves), log=""
    )


def waiting_panel(spin: dict[str, EidolonResult]) -> Panel:
    """Wavefronts that wait, by pattern."""
    curves = []
    for colour, name in enumerate(SHOWN):
        begin, end = spin[name].acquires_ps.T
        change = np.append(np.ones(len(begin)), -np.ones(len(end)))
        curves.append(steps(name, np.append(begin, end), change, spin[name].end_ps, colour))
    return Panel(title="Wavefronts that wait", x_label="time (us)", y_label="wavefronts", curves=tuple(curves), log="")


def steps(label: str, at_ps: np.ndarray, change: np.ndarray, end_ps: int, colour: int) -> Curve:
    """A count that changes at instants, drawn as steps."""
    order = np.argsort(at_ps, kind="stable")
    at, count = np.repeat(at_ps[order] / 1e6, 2), np.repeat(np.append(0, np.cumsum(change[order])), 2)
    x = (0.0, *at.tolist(), end_ps / 1e6)
    return Curve(label=label, x=x, y=tuple(count.tolist()), style="-", colour=colour)


if __name__ == "__main__":
    main()
