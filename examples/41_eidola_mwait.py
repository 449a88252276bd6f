"""Flag reads if wavefronts sleep until a flag is written. Figure 2 of Eidola (arXiv 2606.12638).

Writes 41_eidola_mwait.png. Guide to all five figures: docs/guides/eidola-figures.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import run_eidolon
from trine.gpu.replay.sweep import Sweep, sweep
from trine.gpu.replay.writes import WriteTable
from trine.gpu.text import parse_program

#: The paper's set-up: 43 workgroups, each on one compute unit, with flags per workgroup and peer. Tiles are assumed.
EIDOLA = EidolonOptions(rows=1024, cols=1024, peers=3, tile=(16, 1024), workgroups=43, flags="single")
WAKEUPS_US = range(0, 41, 5)
JOINT_US = (0, 5, 10, 20, 30, 40)
ASSUMED = "tiles of 16 rows on 43 workgroups, a flag from each peer for each, the lines that a monitor watches"
WAYS = ("spin", "mwait", "sleep")
#: Flag reads by way to wait, one per wake-up time.
Reads = dict[str, tuple[float, ...]]
SCATTERED = "exponential(10 us)"
#: The paper's range of flag reads; the pause that reproduces spinning's slope in figure 1.
PAPER, FITTED = (728, 788), "3 us"
#: Interval between flags that land one by one: longer than a wake-up and a read.
ONE_BY_ONE_US = 1
WAITING = """program waits
ranks 4
line 64 B
buffer flags 4 KiB uncached
semaphores 129 at flags step {step}
kernel rank 0
workgroups 43
for d in 0..2
  acquire sem 43 * d + wg
end
"""


def main() -> None:
    found = {way: sweep(EIDOLA, {"wakeup": times(WAKEUPS_US), "sync": [way]}) for way in WAYS}
    joint = sweep(EidolonOptions(rows=1024, cols=1024), {"wakeup": times(JOINT_US), "sync": ("spin", "mwait")})
    reads = {way: of(found[way], way, "flag_reads") for way in WAYS}
    data = {way: of(found[way], way, "non_flag_reads") for way in WAYS}
    fitted = sweep(replace(EIDOLA, poll=FITTED), {"wakeup": times(WAKEUPS_US), "sync": ["spin"]})
    slow = of(fitted, "spin", "flag_reads")
    one_by_one = {step: tuple(reads_one_by_one(step, us) for us in WAKEUPS_US) for step in (4, 8, 64)}
    study = CaseStudy(
        name="eidola-mwait",
        title="Eidola, figure 2: reads against the wake-up time, by how wavefronts wait",
        settings=(
            "GEMV + all-reduce, 1024 x 1024 x 4 B, 3 peers replayed; 43 workgroups, each with a flag from every peer.",
            "spin: a read, 20 ns of instructions, and so on; sleep: with the longest pause of s_sleep, 8.1 us; mwait: "
            "the wavefront sleeps until the line of the flag is written (monitor with room for all, wake-up 100 ns).",
            f"spin 3 us: with the pause that is fitted to figure 1. 8 B apart: with mwait, 43 workgroups that ask for "
            f"the flags of each peer in the same order; these land one by one, {ONE_BY_ONE_US} us apart.",
        ),
        columns=("wake-up us", *WAYS, "spin 3 us", "8 B apart", "non-flag reads", *(f"{way} us" for way in WAYS)),
        rows=tuple(
            (us, *values)
            for us, *values in zip(
                WAKEUPS_US,
                *reads.values(),
                slow,
                one_by_one[8],
                data["spin"],
                *(of(found[way], way, "wait_s", 1e6) for way in WAYS),
                strict=True,
            )
        ),
        findings=(*findings(reads, data, slow, one_by_one), *other_findings(reads, joint)),
        panels=(
            panel(
                "43 workgroups, a flag of each peer",
                {"spin, 3 us": slow, "mwait": reads["mwait"], "mwait, one by one, 8 B apart": one_by_one[8]},
                WAKEUPS_US,
            ),
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


def reads_one_by_one(step: int, first_us: int) -> int:
    """Return the flag reads with mwait if flags ``step`` bytes apart land in address order."""
    program = parse_program(WAITING.format(step=step))
    base, table = program.buffers[0].base, WriteTable()
    for flag in range(129):
        at_us = 10 + first_us + ONE_BY_ONE_US * flag  # all workgroups wait by then
        table.register_write(
            peer=1 + flag // 43, address=base + step * flag, size_bytes=4, value=1, time_ps=at_us * 1_000_000
        )
    return run_eidolon(EidolonOptions(kernel=program, writes=table, sync="mwait")).flag_reads


def findings(
    reads: Reads, data: dict[str, tuple[float, ...]], slow: tuple[float, ...], one_by_one: dict[int, tuple[int, ...]]
) -> tuple[Finding, ...]:
    asleep = reads["mwait"]
    near = one_by_one[8]
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
            paper="728 to 788 flag reads",
            here=f"{max(asleep)} if all flags arrive at once: one for each of 129 flags, and one for each of 43 "
            "wavefronts that is woken",
            holds=min(asleep) >= PAPER[0] and max(asleep) <= PAPER[1],
            assumed=ASSUMED,
        ),
        Finding(
            paper="728 to 788 flag reads, more than spinning needs up to 40 us (660)",
            here=f"{max(near)} at all times ({100 * (max(near) / PAPER[0] - 1):+.0f} % of 728), where flags 8 B apart "
            "land one by one and all workgroups ask for them in the same order: a read that finds nothing for each of "
            "129, and for a line of eight 8 + 7 + ... + 1 after wake-ups, 448 of them in vain; spinning at the "
            f"paper's rate up to {max(slow)}",
            holds=min(near) > max(slow) and max(near) / PAPER[0] > 0.95,
            assumed="flags arrive one by one, the order of reads, and 8 B; not in the paper",
        ),
        Finding(
            paper="",
            here=f"the same with flags 4 B apart: {max(one_by_one[4])}; 64 B: {max(one_by_one[64])}, none in vain",
            holds=None,
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
        "The paper does not state the lines that its monitor watches; re-reads of this kind raise its number as well",
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
