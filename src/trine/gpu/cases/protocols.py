"""LL against Simple: the smallest size at which a signal after the data is faster than flags in the data.

Measured on the paper's links, and on real machines with MSCCL++'s kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trine.cluster import build_topology
from trine.collectives.sizes import format_size
from trine.common.units import PS_PER_S
from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel
from trine.gpu.cases.published import program_times_ps
from trine.gpu.cases.runs import KIB, MIB, measure, tell

GIB_PER_S = 1 << 30
#: Overhead of a message in software (assumed): 0.46 to 1.16 us give the paper's four sizes.
OVERHEAD_PS = 1_000_000
#: The paper's GPU: 32 channels of 128 GiB/s.
MEMORY_BYTES_PER_S = 4096 * GIB_PER_S
#: Link properties that the paper varies.
FIELDS = ("latency_ps", "bytes_per_s")
SIMULATED = "one-shot all-reduce of two GPUs, 128 workgroups, GPU astra3-generic without software costs"
GRID = tuple(KIB << power for power in range(6, 16))


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkCase:
    """A link between GPUs; simple_bytes: smallest size at which Simple wins in the paper's alpha-beta model."""

    bytes_per_s: int
    latency_ps: int
    simple_bytes: int

    def __str__(self) -> str:
        return f"{self.bytes_per_s // GIB_PER_S} GiB/s, {self.latency_ps / 1e6:g} us"


LINKS = (
    LinkCase(bytes_per_s=256 * GIB_PER_S, latency_ps=500_000, simple_bytes=512 * KIB),
    LinkCase(bytes_per_s=256 * GIB_PER_S, latency_ps=5_000_000, simple_bytes=2 * MIB),
    LinkCase(bytes_per_s=1024 * GIB_PER_S, latency_ps=500_000, simple_bytes=4 * MIB),
    LinkCase(bytes_per_s=1024 * GIB_PER_S, latency_ps=5_000_000, simple_bytes=16 * MIB),
)


def ll_ps(size_bytes: int, link: LinkCase) -> float:
    """Return the time of one message; half of the bytes on the link are flags."""
    return link.latency_ps + OVERHEAD_PS + 2 * size_bytes * PS_PER_S / link.bytes_per_s


def simple_ps(size_bytes: int, link: LinkCase, passes: int = 2) -> float:
    """Return the time of two messages, data and signal, plus ``passes`` over memory that start after the signal."""
    per_byte = 1 / link.bytes_per_s + passes / MEMORY_BYTES_PER_S
    return 2 * (link.latency_ps + OVERHEAD_PS) + size_bytes * PS_PER_S * per_byte


def crossover(link: LinkCase, passes: int = 2) -> int:
    """Return the first size of GRID at which Simple is faster, by the formulas."""
    return next(size for size in GRID if simple_ps(size, link, passes) < ll_ps(size, link))


def ll_simple(links: Sequence[LinkCase] = LINKS, first: int = 256 * KIB, workgroups: int = 128) -> CaseStudy:
    """Compare formulas and simulated all-reduces of two GPUs, doubling sizes from ``first`` until Simple is faster."""
    runs = {link: _simulate(link, first, workgroups) for link in links}
    simulated = {link: row[-1][0] for link, row in runs.items()}
    formula = {x: crossover(x) for x in links}
    plain = {x: crossover(x, passes=0) for x in links}
    equal = sum(simulated[x] == x.simple_bytes for x in links)
    largest_ratio = max(max(simulated[x] / x.simple_bytes, x.simple_bytes / simulated[x]) for x in links)
    return CaseStudy(
        name="ll-simple",
        title="LL against Simple: the smallest size at which Simple is faster, on doubling sizes",
        settings=(
            "alpha-beta: LL = a + 2 S/B; Simple = 2 a + S/B + 2 S/M. a = link latency + 1 us of software a message "
            "(assumed; 0.46 to 1.16 us give the same sizes), B: link, M = 4 TiB/s: memory, read and written once more "
            "after the signal.",
            f"simulated: one-shot all-reduce of two GPUs astra3-generic, {workgroups} workgroups, so that S crosses "
            "the link each way.",
        ),
        columns=("link", "paper bytes", "alpha-beta bytes", "without memory bytes", "simulated bytes"),
        rows=tuple((str(x), x.simple_bytes, formula[x], plain[x], simulated[x]) for x in links),
        findings=(
            Finding(
                paper="0.5 us to 5 us moves it from 512 KiB to 2 MiB at 256 GiB/s, and from 4 MiB to 16 MiB at 1 TiB/s",
                here="simulated: " + ", ".join(format_size(simulated[x]) for x in links) + f": {equal} of {len(links)} "
                f"are the paper's sizes, the others at most {largest_ratio:.0f} times from them. Simple waits for the "
                "acknowledgement of its data before it signals, two latencies more than LL and not one, and nothing "
                "costs software time",
                holds=equal == len(links),
                assumed=SIMULATED,
            ),
            Finding(
                paper="more latency and more bandwidth both move it to larger sizes",
                here="simulated: with latency " + _factors_text(simulated, "latency_ps") + "; with bandwidth "
                + _factors_text(simulated, "bytes_per_s"),
                holds=all(factor > 1 for field in FIELDS for factor in _factors(simulated, field)),
                assumed=SIMULATED,
            ),
            Finding(
                paper="",
                here="alpha-beta with constants that give the paper's sizes (no evidence for them): "
                + ", ".join(format_size(formula[x]) for x in links)
                + ". The paper's formula is not known to us: with latency and bandwidth of the link alone, four times "
                "the bandwidth gives four times the size, and the paper has eight; so Simple must pay something by the "
                "byte that the link does not decide",
                holds=None,
            ),
        ),
        panels=tuple(_panel(rate, {x: row for x, row in runs.items() if x.bytes_per_s == rate})
                     for rate in dict.fromkeys(x.bytes_per_s for x in links)),
    )  # fmt: skip


#: Kernels on real machines, by column; names are from PROGRAMS (published.py).
KERNELS = {
    "packets": ("two-shot packets, 28 blocks", "two-shot packets, 56 blocks"),
    "zero copy": ("two-shot zero copy, 32 blocks", "two-shot zero copy, 64 blocks"),
    "NVLS": ("NVLS between meetings",),
}
MACHINES = ("dgx-h100", "hgx-h200")
#: src/ext/nccl/algorithm_selector.cc of MSCCL++ (August 2026): the last sizes of packets, without and with NVLS in
#: place.
LAST_PACKETS, LAST_BEFORE_NVLS = MIB, 64 * KIB
#: pymscclpp.py of sglang: the first size at which its tuner looks at the zero-copy kernel.
TUNED_FROM = 512 * KIB


def packets(machines: Sequence[str] = MACHINES, first: int = 128 * KIB, last: int = 4 * MIB) -> CaseStudy:
    """Compare MSCCL++'s kernels on eight GPUs, doubling sizes until all kernels with signals are ahead of packets."""
    rows = [(machine, *row) for machine in machines for row in _kernels_us(machine, first, last)]
    ahead = {
        name: {m: next((size for at, size, *times in rows if at == m and times[place] < times[0]), 0) for m in machines}
        for place, name in enumerate(KERNELS)
        if place
    }
    copies, switch = ahead["zero copy"], ahead["NVLS"]
    assumed = "values marked so by trine gpu show; kernels as read from their source"
    return CaseStudy(
        name="packets",
        title="Packets (LL) against kernels that signal behind the data (Simple): all-reduce of 8 GPUs, us",
        settings=(
            "MSCCL++'s kernels of two steps (allreducePacket, 28 and 56 blocks; allreduceRsAgZeroCopy, 32 and 64 "
            "blocks; the plan allreduce_nvls_zero_copy), the faster of each; warm L2, in a CUDA graph.",
        ),
        columns=("machine", "size bytes", *KERNELS),
        rows=tuple(rows),
        findings=(
            Finding(
                paper=f"packets up to {format_size(LAST_PACKETS)} (MSCCL++'s default without NVLS); sglang's tuner "
                f"looks at the zero-copy kernel from {format_size(TUNED_FROM)} on",
                here=f"the zero-copy kernel is ahead from {_sizes(copies)} on",
                holds=all(TUNED_FROM <= size <= 2 * LAST_PACKETS for size in copies.values()),
                assumed=assumed,
                whose="libraries",
            ),
            Finding(
                paper=f"packets up to {format_size(LAST_BEFORE_NVLS)} (MSCCL++'s default with NVLS in place)",
                here=f"NVLS is ahead from {_sizes(switch)} on: by the plan executor, which fetches its code for 1.1 "
                "us; MSCCL++'s own kernel for that size was not read",
                holds=all(size <= 2 * LAST_BEFORE_NVLS for size in switch.values()),
                assumed=assumed,
                whose="libraries",
            ),
        ),
        panels=tuple(_kernel_panel(machine, [row[1:] for row in rows if row[0] == machine]) for machine in machines),
    )


def _kernels_us(machine: str, first: int, last: int) -> list[tuple[int, float, float, float]]:
    """Return (size, us of each of KERNELS), doubling until packets are slower than all others, or ``last``."""
    rows, size = [], first
    while size <= last:
        times = []
        for names in KERNELS.values():
            times.append(min(program_times_ps(each, machine, 8, size)[-1] for each in names) / 1e6)
        tell(f"all-reduce of {format_size(size)} on 8 GPUs of {machine}: packets {times[0]:.2f} us")
        rows.append((size, times[0], times[1], times[2]))
        if max(times[1:]) < times[0]:
            break
        size *= 2
    return rows


def _sizes(by_machine: dict[str, int]) -> str:
    texts = []
    for name, size in by_machine.items():
        texts.append(f"{format_size(size) if size else 'no size'} ({name})")
    return ", ".join(texts)


def _kernel_panel(machine: str, rows: Sequence[Sequence[float]]) -> Panel:
    x = tuple(row[0] for row in rows)
    kernel_curves = []
    for place, name in enumerate(KERNELS, 1):
        kernel_curves.append(Curve(label=name, x=x, y=tuple(row[place] for row in rows), colour=place - 1))
    curves = tuple(kernel_curves)
    return Panel(title=f"8 GPUs of {machine}", x_label="size", y_label="time (µs)", curves=curves, sizes=True, log="xy")


def _factors(sizes: dict[LinkCase, int], field: str) -> list[float]:
    """Return the ratios of sizes between links that differ only in ``field``, larger over smaller."""
    other_field = next(name for name in FIELDS if name != field)
    pairs = [
        (low, high)
        for low in sizes
        for high in sizes
        if getattr(low, other_field) == getattr(high, other_field) and getattr(low, field) < getattr(high, field)
    ]
    return [sizes[high] / sizes[low] for low, high in pairs]


def _factors_text(sizes: dict[LinkCase, int], field: str) -> str:
    return " and ".join(f"{factor:g} times" for factor in _factors(sizes, field))


def _simulate(link: LinkCase, first: int, workgroups: int) -> list[tuple[int, float, float]]:
    """Return (size, LL in us, Simple in us), doubling until Simple is faster or GRID ends."""
    cluster = build_topology("full", link.bytes_per_s, link.latency_ps, 2)
    rows = []
    for size in (size for size in GRID if size >= first):
        ll, simple = (
            measure("all_reduce", 2, size, "oneshot", workgroups, cluster=cluster, protocol=protocol).time_us
            for protocol in ("ll", "simple")
        )
        rows.append((size, ll, simple))
        if simple < ll:
            break
    return rows


def _panel(rate: int, runs: dict[LinkCase, list[tuple[int, float, float]]]) -> Panel:
    curves = []
    sizes = tuple(float(size) for size in GRID)
    for number, (link, row) in enumerate(runs.items()):
        latency = f"{link.latency_ps / 1e6:g} us"
        for position, (name, formula) in enumerate((("LL", ll_ps), ("Simple", simple_ps))):
            y = tuple(formula(size, link) / 1e6 for size in GRID)
            colour, x = 2 * number + position, tuple(float(each[0]) for each in row)
            curves.append(Curve(label=f"{name}, {latency}", x=sizes, y=y, style="-", colour=colour))
            marks = tuple(each[1 + position] for each in row)
            curves.append(Curve(label=f"{name}, {latency}, simulated", x=x, y=marks, style="o", colour=colour))
    title = f"{rate // GIB_PER_S:,} GiB/s: alpha-beta (lines) and simulated (dots)"
    return Panel(title=title, x_label="size", y_label="time (µs)", curves=tuple(curves), sizes=True, log="xy")
