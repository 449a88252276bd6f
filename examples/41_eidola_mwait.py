"""The same reads when wavefronts sleep until a flag is written. Figure 2 of Eidola (arXiv 2606.12638).

Writes 41_eidola_mwait.png. The guide to all five: docs/guides/eidola-figures.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trine.replay.options import EidolonOptions
from trine.replay.run import run_eidolon
from trine.replay.sweep import Sweep, SweepGrid, sweep
from trine.studies.loadstore_cases.case import CaseStudy, Curve, Finding, Panel

#: As the paper has it: a compute unit each for 43 workgroups, and flags for each of three peers. Tiles are assumed.
EIDOLA = EidolonOptions(rows=1024, cols=1024, peers=3, tile=(16, 1024), workgroups=43, flags="single")
WAKEUPS_US = range(0, 41, 5)
JOINT_US = (0, 5, 10, 20, 30, 40)
ASSUMED = "tiles of 16 rows on 43 workgroups, a flag from each peer for each, what a monitor watches"
WAYS = ("spin", "mwait", "sleep")
#: Flag reads by way to wait, each by wake-up time.
Reads = dict[str, tuple[float, ...]]
SCATTERED = "exponential(10 us)"


def main() -> None:
    found = {way: sweep(EIDOLA, SweepGrid(wakeup=times(WAKEUPS_US), sync=[way])) for way in WAYS}
    joint = sweep(EidolonOptions(rows=1024, cols=1024), SweepGrid(wakeup=times(JOINT_US), sync=("spin", "mwait")))
    reads = {way: of(found[way], way, "flag_reads") for way in WAYS}
    data = {way: of(found[way], way, "non_flag_reads") for way in WAYS}
    study = CaseStudy(
        name="eidola-mwait",
        title="Eidola, figure 2: reads against the wake-up time, by how wavefronts wait",
        settings=(
            "GEMV + all-reduce, 1024 x 1024 x 4 B, 3 peers replayed; 43 workgroups, each with a flag from every peer.",
            "spin: a read, 3 us of pause, and so on; sleep: with the longest pause of s_sleep, 8.1 us; mwait: the "
            "wavefront sleeps until the line of the flag is written (monitor with room for all, wake-up 100 ns).",
        ),
        columns=("wake-up us", *WAYS, "non-flag reads", *(f"{way} us" for way in WAYS)),
        rows=tuple(
            (us, *values)
            for us, *values in zip(
                WAKEUPS_US,
                *reads.values(),
                data["spin"],
                *(of(found[way], way, "wait_s", 1e6) for way in WAYS),
                strict=True,
            )
        ),
        findings=(*findings(reads, data), *other_findings(reads, joint)),
        panels=(
            panel("43 workgroups, a flag of each peer", reads, WAKEUPS_US),
            panel(
                "16 workgroups, one flag for all",
                {way: of(joint, way, "flag_reads") for way in ("spin", "mwait")},
                JOINT_US,
            ),
        ),
    )
    print(study.text())
    print("columns in us: mean wait of a wavefront")
    study.plot(Path(__file__).with_suffix(".png"))


def times(values_us: Sequence[int]) -> list[str]:
    return [f"{us} us" for us in values_us]


def of(found: Sweep, way: str, key: str, scale: float = 1) -> tuple[float, ...]:
    return tuple(scale * row[key] for row in found.rows if row["sync"] == way)


def findings(reads: Reads, data: dict[str, tuple[float, ...]]) -> tuple[Finding, ...]:
    asleep = reads["mwait"]
    others = {count for way in WAYS for count in data[way]}
    return (
        Finding(
            paper="with mwait flag reads stay flat whatever the wake-up time",
            here=f"{asleep[0]} at 0, {max(asleep)} from {WAKEUPS_US[1]} to {WAKEUPS_US[-1]} us",
            holds=max(asleep[1:]) == min(asleep[1:]),
            assumed=ASSUMED,
        ),
        Finding(
            paper="other reads do not change",
            here=f"{max(others):,} whatever the way and the time",
            holds=len(others) == 1,
            assumed=ASSUMED,
        ),
        Finding(
            paper="728 to 788 flag reads, more than spinning ever needs up to 40 us",
            here=f"{max(asleep)}: one for each of 129 flags, and one for each of 43 wavefronts that is woken",
            holds=min(asleep) >= 728 and max(asleep) <= 788,
            assumed=ASSUMED,
        ),
    )


def other_findings(reads: Reads, joint: Sweep) -> tuple[Finding, ...]:
    rows = []
    for spacing in (8, 64):
        base = replace(EIDOLA, distribution=SCATTERED, flag_spacing=spacing)
        spin, mwait = (run_eidolon(replace(base, sync=way)) for way in ("spin", "mwait"))
        spurious = mwait.inside.gpus[0].spurious_wakeups
        rows.append(f"{spacing} B apart: spin {spin.flag_reads}, mwait {mwait.flag_reads}, {spurious} in vain")
    one, few = joint.fits[0], 1 - reads["mwait"][-1] / reads["spin"][-1]
    last_spin, last_mwait = joint.rows[len(JOINT_US) - 1], joint.rows[-1]
    texts = (
        f"one flag for all peers, 16 workgroups (what `trine eidolon run` does): {last_spin['flag_reads']} reads at "
        f"40 us spinning, {last_mwait['flag_reads']} with mwait. mwait reads less from {1e6 * one.break_even_s:.2f} us "
        f"on; at ten times that {100 * one.saved:.1f} % less",
        f"a flag of each peer: {100 * few:.0f} % less at 40 us, as 129 reads are needed whatever the way",
        f"where flags come one by one ({SCATTERED}), mwait is woken by neighbours in the line: {'; '.join(rows)}. "
        "What the paper's monitor watches is not stated; re-reads of this kind raise its number as well",
    )
    return tuple(Finding(paper="", here=text, holds=None) for text in texts)


def panel(title: str, reads: Reads, values_us: Sequence[int]) -> Panel:
    x = tuple(float(us) for us in values_us)
    curves = [Curve(label=way, x=x, y=y, colour=i) for i, (way, y) in enumerate(reads.items())]
    return Panel(
        title=f"Flag reads: {title}", x_label="wake-up time (us)", y_label="flag reads", curves=tuple(curves), log=""
    )


if __name__ == "__main__":
    main()
