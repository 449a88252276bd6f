"""A replay's result for people and for programs: a table with units, and plain data with stable keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from trine._version import __version__
from trine.evidence import EVIDENCE
from trine.gpu.outside import IDEAL
from trine.replay.options import WAIT
from trine.results import gpu_document, gpu_metrics
from trine.results.document import Row, seconds
from trine.results.lines import wrapped
from trine.units import format_time

if TYPE_CHECKING:
    from trine.replay.result import EidolonResult

_LABEL = 26


def summary(result: EidolonResult) -> str:
    """Text of 100 columns."""
    blocks = (_head(result), _reads(result), _waits(result), _inside(result), _known(result))
    return "\n".join(line.rstrip() for block in blocks for line in block)


def _head(result: EidolonResult) -> list[str]:
    work = result.work
    lines = [
        f"{work.program.name}: rank {work.target} of {work.model.name}, {result.inside.replayed}",
        *(f"  {note}" for note in work.program.notes),
    ]
    if not result.finished:
        lines.append("PARTIAL: the run was stopped; what follows is about what had happened until then")
    return [*lines, _row("time", format_time(result.end_ps))]


def _reads(result: EidolonResult) -> list[str]:
    expected = result.work.non_flag_reads
    as_flow = "" if expected is None else f"lines; the data flow asks for {expected:,}"
    late = f" ({result.writes_late:,} more came later)" if result.writes_late else ""
    return [
        _row("flag reads", f"{result.flag_reads:,}"),
        _row("non-flag reads", f"{result.non_flag_reads:,}", as_flow),
        _row("writes delivered", f"{result.writes_delivered:,}", f"{result.incoming.num_flags:,} of flags{late}"),
    ]


def _waits(result: EidolonResult) -> list[str]:
    if result.wait_ps is None:
        return [_row("waiting", "none", "no wavefront acquires")]
    gpu, waits = result.inside.gpus[0], result.waits_from_ps
    since = "" if waits is None else f"; the last begins at {format_time(waits)}"
    lines = [
        _row("waiting wavefronts", f"{result.waiting_wavefronts:,}", f"{way_words(result)}{since}"),
        _row("wait of each", format_time(result.wait_ps), f"mean; {format_time(result.wait_total_ps)} of all"),
    ]
    asleep = " and none sleeps" if result.work.model.monitor is not None else ""
    interval, rate = result.polling_interval_ps, result.spin_reads_per_s
    if interval is not None and rate is not None:
        lines.append(
            _row(
                "polling interval",
                format_time(interval),
                f"uncontended; {rate / 1e6:.4g} flag reads a us while all wait{asleep}",
            )
        )
    if result.work.model.monitor is not None:
        full = f"{gpu.monitor_full:,} acquires found the monitor full"
        lines.append(_row("wake-ups", f"{gpu.wakeups:,}", f"{gpu.spurious_wakeups:,} found too little; {full}"))
    return lines


def way_words(result: EidolonResult) -> str:
    """How wavefronts wait, with its numbers."""
    model = result.work.model
    if model.monitor is not None:
        room = f"room for {model.monitor.capacity:,}"
        return f"mwait, {room}, wake-up {format_time(model.monitor.wakeup_ps)}"
    if model.poll_ps is None:
        return "the memory answers"
    return f"{result.work.way}, pause {format_time(model.poll_ps)}"


def _inside(result: EidolonResult) -> list[str]:
    times = gpu_metrics.state_times(result.inside)
    shares = zip(times, gpu_metrics.percentages(list(times.values())), strict=True)
    return [
        _row("wavefronts", ", ".join(f"{name} {share}" for name, share in shares)),
        *wrapped("bottleneck", result.inside.bottleneck.sentence),
    ]


def _known(result: EidolonResult) -> list[str]:
    own, *others = result.evidence
    kinds = [item.kind for item in others]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in EVIDENCE if kind in kinds)
    events = result.inside.records.num_events
    rate = f"{events / result.engine_s / 1e6:.2g} M a s" if result.engine_s else ""
    wall = format_time(result.wall_s * 1e12)
    return [
        *wrapped("evidence", f"{own.detail} ({own.kind}); numbers of GPU and cluster: {counts}"),
        *wrapped("not modelled", "; ".join(result.not_modelled)),
        *(line for words in result.warnings for line in wrapped("warning", words)),
        f"simulated 1 of {result.work.peers + 1:,} GPUs, {events:,} events in {wall} ({rate}) by trine {__version__}",
    ]


def document(result: EidolonResult) -> Row:
    """Plain data; times in seconds, reads and writes as counts."""
    return {
        "kernel": result.work.program.name,
        "finished": result.finished,
        "time_s": seconds(result.end_ps),
        "flag_reads": result.flag_reads,
        "non_flag_reads": result.non_flag_reads,
        "non_flag_reads_expected": result.work.non_flag_reads,
        "writes_delivered": result.writes_delivered,
        "writes_late": result.writes_late,
        "wait_s": None if result.wait_ps is None else seconds(result.wait_ps),
        "wait_total_s": seconds(result.wait_total_ps),
        "waiting_wavefronts": result.waiting_wavefronts,
        "waits_from_s": None if result.waits_from_ps is None else seconds(result.waits_from_ps),
        **_counts(result),
        "polling_interval_s": None if result.polling_interval_ps is None else seconds(result.polling_interval_ps),
        "spin_reads_per_s": result.spin_reads_per_s,
        "options": _options(result),
        "gpu_model": result.work.model.name,
        "cluster": result.work.cluster.name,
        "inside": _inside_rows(result),
        "evidence": [{key: value for key, value in asdict(item).items() if value} for item in result.evidence],
        "not_modelled": list(result.not_modelled),
        "warnings": list(result.warnings),
        "simulator": _simulator(result),
    }


def _counts(result: EidolonResult) -> Row:
    gpu = result.inside.gpus[0]
    return {name: getattr(gpu, name) for name in ("wakeups", "spurious_wakeups", "monitor_full")}


def _options(result: EidolonResult) -> Row:
    """What was asked for, with what was left open filled in."""
    options, work, model = result.options, result.work, result.work.model
    built = None if work.built is None else work.built.options
    sizes = {} if built is None else {name: getattr(built, name) for name in ("rows", "cols", "inner", "dtype_bytes")}
    drawn = options.source in ("wakeup", "distribution")
    monitor = model.monitor
    return {
        "peers": work.peers,
        "target": work.target,
        "fused": options.fused if built is not None else None,
        **sizes,
        "writes_from": options.source,
        "writes_from_words": result.incoming.origin,
        "wakeup_s": seconds(options.delay.first_ps) if options.source == "wakeup" else None,
        "wakeup_from": (options.wakeup_from or WAIT) if drawn else None,
        "fabric": result.incoming.fabric,
        "sync": work.way,
        "poll_s": None if model.poll_ps is None else seconds(model.poll_ps),
        "monitor": None if monitor is None else {"capacity": monitor.capacity, "wakeup_s": seconds(monitor.wakeup_ps)},
        "writes_begin_at_memory": result.incoming.fabric == IDEAL,
    }


def _inside_rows(result: EidolonResult) -> Row:
    inside = result.inside
    return {
        "gpu": gpu_document.gpu_row(inside, inside.gpus[0]),
        "bottleneck": asdict(inside.bottleneck),
        "resource_kinds": gpu_document.kind_rows(inside),
        "links": gpu_document.link_rows(inside),
    }


def _simulator(result: EidolonResult) -> Row:
    records = result.inside.records
    return {
        "name": "trine",
        "version": __version__,
        "engine": records.engine,
        "wall_s": result.wall_s,
        "events": records.num_events,
        "events_per_s": records.num_events / result.engine_s if result.engine_s else None,
    }


def _row(label: str, value: str, words: str = "") -> str:
    return f"{label:{_LABEL}}{value:>14}  {words}" if len(value) <= 14 else f"{label:{_LABEL}}{value}  {words}"
