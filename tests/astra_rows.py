"""Loader of the 416 ASTRA-sim results in tests/data/astra, with the settings from their notes."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from astra_system import Setting, System, collective

FILE = Path(__file__).parent / "data" / "astra" / "astra_sim_cycles.csv"

#: Line numbers of rows that are not reproduced, with the reason.
GAPS = {
    344: "model-shared-bus: a LogGP bus inside the NPU in place of the endpoint delay",
    367: "model-shared-bus, congestion-unaware",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the file; ``first_ns`` is the end time of the first NPU, if the note gives one."""

    line: int
    setting: Setting
    note: str
    cycles_ns: int
    first_ns: int | None


def rows(aware: bool) -> list[Row]:
    """Return the rows of one back end, in file order."""
    with FILE.open() as file:
        lines = list(enumerate(csv.DictReader(file), start=2))
    return [_row(line, row) for line, row in lines if (row["backend"] == "aware") == aware]


def _row(line: int, row: dict[str, str]) -> Row:
    note = row["note"]
    first = re.search(r"per-NPU min (\d+)", note)
    setting = Setting(
        topology=row["topology"],
        ranks=int(row["npus"]),
        gib_per_s=float(row["link_bandwidth_GBps"]),
        latency_ns=float(row["latency_ns"]),
        collective=row["collective"],
        algorithm=row["algorithm"],
        size_bytes=int(row["bytes"]),
        chunks=max(1, int(row["chunks"])),
        aware=row["backend"] == "aware",
        both_ways="baseline" in note,
        rendezvous="rendezvous on" in note,
    )
    return Row(
        line=line,
        setting=_noted(setting, note),
        note=note,
        cycles_ns=int(row["cycles_ns"]),
        first_ns=int(first[1]) if first else None,
    )


def _noted(setting: Setting, note: str) -> Setting:
    """Return the setting with the parameters that the note gives."""

    def number(pattern: str, default: float) -> float:
        found = re.search(pattern + r" ([\d.]+)", note)
        return float(found[1]) if found else default

    setting = replace(
        setting,
        endpoint_ns=number("endpoint(?:-delay)?", 10) * number("injection-scale", 1),
        memory_gb_per_s=number("(?:local-)?mem-bw", 1600),
        active=int(number("active(?:-chunks)?", 1)),
        queues=int(number("num-queues-per-dim", 1)),
    )
    if "local-mem-bw absent" in note:
        return replace(setting, memory_gb_per_s=None)
    if "no local memory cost" in note:  # same machine as rows "H100 plot fit", which state endpoint 1
        return replace(setting, memory_gb_per_s=None, endpoint_ns=1)
    if "hgx_h100_4gpu" in note:  # that file overrides the columns and the note: 1 chunk, memory of 50 GB/s
        return replace(setting, memory_gb_per_s=50, chunks=1)
    if "tutorial micro2024" in note:
        return replace(setting, memory_gb_per_s=50)
    return setting


# -- workloads: system -> last task of each NPU ------------------------------------------------------------------------


def _collective(system: System) -> list[int]:
    return collective(system)


def _custom_ring(system: System) -> list[int]:
    """Add a ring all-reduce given as a custom graph: no endpoint delay, 7 us of compute per reduction."""
    system.setting = replace(system.setting, collective="all_reduce", algorithm="ring", endpoint_ns=0, reduce_ns=7000)
    return collective(system)


def _message(system: System) -> list[int]:
    """Add one message; NPUs without work end after 1 ns."""
    target = int(system.setting.collective[-1])
    return [system.send(0, target, system.setting.size_bytes, []), system.delay(1, [])]


def _messages_in_turn(system: System) -> list[int]:
    """Add four messages; an NPU sends one at a time."""
    last: list[int] = []
    for _ in range(4):
        last = [system.send(0, 1, system.setting.size_bytes // 4, last)]
    return [*last, system.delay(1, [])]


def _nothing(system: System) -> list[int]:
    """Add a broadcast, which takes its recorded duration; a duration of 0 becomes 1 ns."""
    return [system.delay(1, [])]


def _kernel(operations: float, size_bytes: float, peak: float, memory: float) -> Callable[[System], list[int]]:
    """Return a workload of one kernel with its roofline time, the longer of compute and memory."""
    return lambda system: [system.delay(int(max(operations / peak, size_bytes / memory) * 1e9), [])]


def _recorded_kernel(system: System) -> list[int]:
    return [system.delay(5000, [])]


def _overlap(system: System) -> list[int]:
    """Add kernels of 100 and 30 us in sequence, concurrent with an all-reduce; then a kernel of 10 us."""
    system.setting = replace(system.setting, collective="all_reduce")
    kernels = system.delay(30_000, [system.delay(100_000, [])])
    return [system.delay(10_000, [end, kernels]) for end in collective(system)]


def _two_in_turn(system: System) -> list[int]:
    """Add two independent collectives; an NPU runs only one at a time."""
    system.setting = replace(system.setting, collective="all_reduce", size_bytes=system.setting.size_bytes // 2)
    return collective(system, start=collective(system))


def _two_groups(system: System) -> list[int]:
    return [*collective(system, range(4)), *collective(system, range(4, 8))]


def _diverging(system: System) -> list[int]:
    """Add an all-reduce of NPUs 4 to 7, then an all-gather of all eight."""
    gathering, reducing = (replace(system.setting, collective=kind) for kind in ("all_gather", "all_reduce"))
    system.setting = reducing
    late = collective(system, range(4, 8))
    system.setting = gathering
    return collective(system, start=[-1] * 4 + late)


def _stragglers(system: System) -> list[int]:
    system.setting = replace(system.setting, collective="all_reduce")
    return collective(system, start=[system.delay((10 * rank + 1) * 1000, []) for rank in range(8)])


def _remote_loads(system: System, pooled: bool) -> list[int]:
    """Add loads of 100 ns + bytes at 50 B/ns; NPUs load from a pool one after the other."""
    ends: list[int] = []
    for _ in range(system.setting.ranks):
        ends.append(system.delay(100 + system.setting.size_bytes // 50, ends[-1:] if pooled else []))
    return ends


SPECIAL: dict[str, Callable[[System], list[int]]] = {
    "custom:msccl ring .et": _custom_ring,
    "p2p 0->2": _message,
    "p2p 0->3": _message,
    "p2p x4 0->1": _messages_in_turn,
    "broadcast": _nothing,
    "all_reduce+compute": _overlap,
    "all_reduce x2": _two_in_turn,
    "comm groups": _two_groups,
    "all_reduce(4-7)+all_gather(0-7)": _diverging,
    "compute+all_reduce": _stragglers,
    "PER_NPU_MEMORY_EXPANSION": lambda system: _remote_loads(system, pooled=False),
    "MEMORY_POOL": lambda system: _remote_loads(system, pooled=True),
    "roofline 0": _recorded_kernel,
    "COMP num_ops 1e9 tensor_size 1e7 duration 5us; peak-perf 1 TF local-mem-bw 100 GB/s": _kernel(
        1e9, 1e7, 1e12, 1e11
    ),
    "COMP num_ops 1e9 tensor_size 1e7 duration 5us; peak-perf 900 TF local-mem-bw 1600 GB/s": _kernel(
        1e9, 1e7, 9e14, 1.6e12
    ),
}


def simulated(row: Row, *, whole_ns: bool = True) -> tuple[Fraction, Fraction]:
    """Return the end times of the first and the last NPU, in ns."""
    texts = (row.setting.collective, row.setting.algorithm, row.note, row.note.partition(" {")[0])
    what = next((SPECIAL[text] for text in texts if text in SPECIAL), _collective)
    system = System(row.setting, whole_ns=whole_ns)
    through = what(system)
    ends = system.ends_ns()
    times = [ends[task] for task in through]
    return min(times), max(times)
