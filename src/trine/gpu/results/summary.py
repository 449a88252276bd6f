"""A load-store result as text: on one screen, and with all its tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from trine.common._version import __version__
from trine.common.evidence import count_kinds
from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.gpu.results import run
from trine.gpu.results.bottleneck import Bottleneck
from trine.gpu.results.resources import KIND_NAMES, ResourceUses, Traffic, fabric_traffic, noc_traffic
from trine.results.screen import Listing, Screen
from trine.results.text import aligned, behaviour, wrapped

_LINKS, _OPERATIONS = 4, 6


#: GPUs of NVIDIA by name, and its words for the parts of a GPU.
_NVIDIA = re.compile(r"(a|b|gb|gh|h|l|p|t|v)\d|rtx")
_WORDS = {"CU": "SM", "wavefront": "warp", "workgroup": "block"}
#: Options keep their names: --wavefronts, and "wavefronts 2" of Python.
_PARTS = re.compile(r"(?<![-.\w])(CU|wavefront|workgroup)(s?)\b(?!\w| \d)")


def use_vendor_terms(text: str, gpu: str) -> str:
    """Return ``text`` with SM, warp and block in place of CU, wavefront and workgroup if ``gpu`` is NVIDIA's."""
    if not _NVIDIA.match(gpu):
        return text
    return _PARTS.sub(lambda match: _WORDS[match[1]] + match[2], text).replace(" a SM", " an SM")


def screen(result: ResourceUses, bottleneck: Bottleneck) -> Screen:
    """Return the default view of the answer."""
    program, stopped = result.program, _stopped(result)
    size = f", {format_bytes(program.payload_bytes)}" if program.payload_bytes else ""
    busy = []
    for kind_use in sorted(result.kinds, key=lambda use: -use.busiest_ps):
        if kind_use.used:
            busy.append((KIND_NAMES[kind_use.kind], _percent(kind_use.busiest_ps, result.kernel_ps), kind_use.busiest))
    answer = Screen(
        question=f"{_title(result)}{size}",
        numbers=[("time", format_time(result.time_ps), "; ".join([*_rates(result), *stopped]))],
        listings=(state_listing(result), Listing(title="busiest resources", rows=busy[:5])),
        warnings=result.notes,
        warning_label="note",
        closing=(
            ("bottleneck", bottleneck.sentence),
            ("rests on", f"{_basis(result)}; errors: trine validate loadstore"),
            ("simulated", f"{_behaviour(result)}, {result.records.num_events:,} events"),
            ("next", "--details (requests, links, messages, operations, assumptions); trine help inside-the-gpu"),
        ),
    )
    return answer.translated(partial(use_vendor_terms, gpu=result.model.name))


def state_listing(result: run.KernelRun) -> Listing:
    """Return the share of wavefront time by state; no rows if no wavefront ran."""
    times = run.state_times(result)
    rows = [*zip(times, run.percentages(list(times.values())), strict=True)] if any(times.values()) else []
    return Listing(title="where wavefronts spend their time", rows=rows)


def details(result: ResourceUses, bottleneck: Bottleneck) -> str:
    """Return every block as text."""
    blocks = (
        _head(result),
        wrapped("bottleneck", bottleneck.sentence),
        _wavefronts(result),
        _requests(result),
        _resources(result),
        _links(result),
        _traffic(result),
        _operations(result),
        _notes(result),
    )
    return "\n".join(line.rstrip() for block in blocks for line in block)


def _title(result: ResourceUses) -> str:
    program = result.program
    hosts = f", and the memory of {_count(program.num_hosts, 'host')}" if program.num_hosts else ""
    left_out = f", {result.left_out}" if result.left_out else ""
    return (
        f"{program.name}: {_count(program.num_gpus, 'rank')} of {result.model.name} on {result.cluster.name}"
        + hosts
        + left_out
    )


def _rates(result: ResourceUses) -> list[str]:
    rates = (("algbw", result.algbw_bytes_per_s), ("busbw", result.busbw_bytes_per_s))
    return [f"{name} {format_bandwidth(rate)}" for name, rate in rates if rate is not None]


def _stopped(result: ResourceUses) -> list[str]:
    if result.finished:
        return []
    has_ended = result.records.workgroup_end_ps >= 0
    return [f"PARTIAL: stopped; {int(has_ended.sum()):,} of {len(has_ended):,} workgroups had ended"]


def _head(result: ResourceUses) -> list[str]:
    program = result.program
    start, end = result.window_ps
    size = [f"of {format_bytes(program.payload_bytes)}"] if program.payload_bytes else []
    time = "  ".join([f"time  {format_time(result.time_ps)}", *size, *_rates(result)])
    kernels = [f"kernels run from {format_time(start)} to {format_time(end)}"] if end else []
    return [_title(result), time, *_stopped(result), *kernels]


def _wavefronts(result: ResourceUses) -> list[str]:
    times = run.state_times(result)
    if not any(times.values()):
        return []
    parts = zip(times, run.percentages(list(times.values())), strict=True)
    occupied = sum(gpu.occupied_ps for gpu in result.gpus)
    used = sum(gpu.occupied_cus for gpu in result.gpus)
    cus = f"{used} of {len(result.gpus) * result.model.num_cus} CUs have workgroups"
    return [
        "wavefronts  " + ", ".join(f"{name} {share}" for name, share in parts),
        f"CUs  {cus}, for {_percent(occupied, used * result.time_ps)} of the time",
    ]


def _requests(result: ResourceUses) -> list[str]:
    gpus = result.gpus
    names = ("loads", "stores", "acquires", "releases", "polls", "packets")
    counts = []
    for name in names:
        counts.append((name, sum(getattr(gpu, name) for gpu in gpus)))
    gpus_text = f"of {_count(len(gpus), 'GPU')}"
    lines = [f"requests {gpus_text}  " + ", ".join(f"{name} {count:,}" for name, count in counts if count)]
    lines += _flags(result)
    loads = sum(gpu.loads for gpu in gpus)
    if loads:
        latency = sum(gpu.load_latency_ps for gpu in gpus) / loads
        occupied = sum(gpu.occupied_ps for gpu in gpus)
        if occupied:
            under_way = sum(gpu.load_latency_ps for gpu in gpus) / occupied
        else:
            under_way = 0.0
        rate = loads / occupied * 1e6 if occupied else 0.0
        lines.append(
            f"load latency {format_time(latency)} (mean); {under_way:.1f} of at most {run.places(result):.0f} loads "
            f"in flight per occupied CU ({rate:.4g} per us)"
        )
    hits = sum(gpu.l2_hits for gpu in gpus)
    accesses = sum(gpu.l2_hits + gpu.l2_misses for gpu in gpus)
    if accesses:
        lines.append(f"L2  {accesses:,} accesses, {_percent(hits, accesses)} hit")
    return lines


def _flags(result: ResourceUses) -> list[str]:
    """Return what waiting took, of a run about waiting: reads of flags, and wavefronts that a monitor woke."""
    gpus = result.gpus
    if not result.left_out and result.model.monitor is None:
        return []
    reads = sum(gpu.flag_reads for gpu in gpus)
    other_reads = sum(gpu.non_flag_reads for gpu in gpus)
    line = f"flag reads {reads:,}, other reads {other_reads:,}"
    if result.model.monitor is None:
        return [line]
    names = {"wakeups": "wake-ups", "spurious_wakeups": "spurious", "monitor_full": "found the monitor full"}
    counts = []
    for name, words in names.items():
        counts.append(f"{words} {sum(getattr(g, name) for g in gpus):,}")
    return [f"{line}; " + ", ".join(counts)]


def _resources(result: ResourceUses) -> list[str]:
    time = result.kernel_ps  # as in the sentence about the bottleneck
    rows = [("utilisation", "used", "mean", "busiest", "which")]
    for use in result.kinds:
        owner = f" of rank {use.busiest_rank}" if use.busiest_rank >= 0 and len(result.gpus) > 1 else ""
        rows.append(
            (
                KIND_NAMES[use.kind],
                f"{use.used:,} of {use.count:,}",
                _percent(use.busy_ps, use.count * time),
                _percent(use.busiest_ps, time),
                f"{use.busiest}{owner}" if use.used else "",
            )
        )
    return _table(rows)


def _links(result: ResourceUses) -> list[str]:
    used = sorted(result.links, key=lambda use: (-use.utilisation, use.link))
    rows = [(f"links ({min(_LINKS, len(used))} of {len(used)})", "busy", "lanes used", "bytes", "rate")]
    for use in used[:_LINKS]:
        rows.append(
            (
                use.name,
                _percent(use.busy_ps, use.lanes * result.kernel_ps),
                f"{use.used} of {use.lanes}",
                format_bytes(use.data_bytes + use.control_bytes),
                format_bandwidth(use.bytes_per_s),
            )
        )
    return _table(rows) if used else []


def _traffic(result: ResourceUses) -> list[str]:
    places = (("links out of GPUs", fabric_traffic(result)), ("CUs and NoC", noc_traffic(result)))
    rows: list[tuple[str, ...]] = [("messages", "with data", "bytes", "control", "bytes", "control share")]
    rows += [_traffic_row(name, traffic) for name, traffic in places if traffic.data + traffic.control]
    return _table(rows) if len(rows) > 1 else []


def _traffic_row(name: str, traffic: Traffic) -> tuple[str, ...]:
    return (
        name,
        f"{traffic.data:,}",
        format_bytes(traffic.data_bytes),
        f"{traffic.control:,}",
        format_bytes(traffic.control_bytes),
        _percent(traffic.control_bytes, traffic.data_bytes + traffic.control_bytes),
    )


def _operations(result: ResourceUses) -> list[str]:
    uses = result.operations
    rows = [(f"operations ({min(len(uses), _OPERATIONS)} of {len(uses)})", "count", "mean", "longest")]
    for use in uses[:_OPERATIONS]:
        name = use.kind if use.label in ("", use.kind) else f"{use.kind} {use.label}"
        rows.append((name, f"{use.count:,}", format_time(use.time_ps / use.count), format_time(use.longest_ps)))
    return _table(rows) if uses else []


def _notes(result: ResourceUses) -> list[str]:
    lines = _evidence(result)
    lines += wrapped("not modelled", "; ".join(result.not_modelled))
    for note in (*result.program.notes, *result.notes):
        lines += wrapped("note", note)
    return [*lines, *_folding(result), _simulated(result)]


def _evidence(result: ResourceUses) -> list[str]:
    """Return the evidence of the GPU model's numbers, and the names of those that are assumed."""
    assumed = [item.what.rpartition(" ")[2] for item in result.evidence[:-1] if item.kind == "assumed"]
    return [*wrapped("evidence", _basis(result)), *wrapped("assumed", ", ".join(assumed))]


def _basis(result: ResourceUses) -> str:
    *of_model, of_cluster = result.evidence
    numbers = f"numbers of GPU {result.model.name}: {count_kinds(of_model)}; " if of_model else ""
    return f"{numbers}{of_cluster.what}: {of_cluster.kind}"


def _folding(result: ResourceUses) -> list[str]:
    fold = result.fold
    if fold is None or result.program.num_ranks == 1 or result.left_out:
        return []
    if fold.why_unfolded is not None:
        return wrapped(f"all {result.program.num_ranks} GPUs simulated", fold.why_unfolded)
    return [f"folded: {behaviour(result.program.num_ranks, fold.classes)}"]


def _behaviour(result: ResourceUses) -> str:
    return result.simulated_gpus + (f" ({result.left_out})" if result.num_replayed else "")


def _simulated(result: ResourceUses) -> str:
    wall = "" if result.wall_s is None else f" in {format_time(result.wall_s * 1e12)}"
    return f"simulated {_behaviour(result)}, {result.records.num_events:,} events{wall} by trine {__version__}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align columns; the first row is the head of those below."""
    head, *below = rows
    return aligned([head, *((f"  {row[0]}", *row[1:]) for row in below)], 26)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
