"""Is a measured collective what the machine should do? Measured against predicted, a verdict, and a likely cause."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from trine.cluster.cluster import Cluster
from trine.collectives.options import AUTO, CollectiveOptions, CollectiveTime
from trine.collectives.sizes import bus_factor
from trine.errors import InputError
from trine.studies.check_result import FAST, INSIDE, SLOW, CheckedRow, CheckResult
from trine.studies.hypotheses import Expected, Hypothesis, expect
from trine.studies.likelihood import NOISE, Noise, Weighed, weigh
from trine.studies.nccl_tests import NcclLog
from trine.units import whole_number

#: A run is suspicious if its curve fits to a cause, known or not, so much better than to a sound machine.
MIN_LOG_ODDS = math.log(50)
#: A size beyond this factor of the band's upper end is named as noise where slow sizes are alone: in a run of less than
#: so many octaves, each size standing for half of the way to its neighbours.
MARGIN = 1.15
MIN_OCTAVES = 1.5
_GPU_NAMES = re.compile(
    r"\b(?:GB200|GB300|GH200|GB10|[VAHBTPL]\d{2,3}S?|H20|RTX (?:PRO )?[A]?\d{4}D?|RTX\d{4}|MI\d{2,3}[XA]?)\b", re.I
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdict on a curve: the fields of :class:`CheckResult` of the same names."""

    suspicious_from: int | None
    suspicious_to: int | None
    noise: tuple[int, ...]
    log_odds: float
    cause: Hypothesis | None = None
    alike: tuple[str, ...] = ()
    causes: tuple[Weighed, ...] = ()


def check_log(
    log: NcclLog, cluster: Cluster, *, options: CollectiveOptions | None = None, in_place: bool = False
) -> CheckResult:
    """Compare a log with what the cluster should do.

    Parameters
    ----------
    log: of :func:`trine.studies.nccl_tests.read_log`. cluster: all its GPUs are the ranks.
    options: how the collective was run; None: as the log says (launch, NCCL_ALGO, ...).
    in_place: compare the in-place results.

    Raises
    ------
    InputError: a cluster of another size, a collective that is not predicted, or a log without such results.
    """
    if log.op is None:
        raise InputError("the log does not say which collective it is: give --op", file=log.path)
    _check_ranks(log, cluster)
    _check_ratio(log, log.op, len(cluster.gpus))
    found, stated = options_of(log)
    options = found if options is None else options
    measured, notes = _measured(log, in_place)
    expected = expect(log.op, [size for size, _ in measured], cluster, options)
    rows = tuple(_checked(size, times, p) for (size, times), p in zip(measured, expected.usual, strict=True))
    judged = check_curve(expected, [row.measured_ps for row in rows])
    return CheckResult(
        log=log, cluster=cluster, options=options, result="in-place" if in_place else "out-of-place", rows=rows,
        suspicious_from=judged.suspicious_from, suspicious_to=judged.suspicious_to, log_odds=judged.log_odds,
        cause=judged.cause, alike=judged.alike, causes=judged.causes, noise=judged.noise,
        notes=(*log.notes, *stated, *notes, *_doubts(log, cluster)),
    )  # fmt: skip


def check_curve(expected: Expected, measured_ps: Sequence[int], noise: Noise = NOISE) -> Verdict:
    """The verdict on times of the sizes of ``expected``, and a cause if it is not a good one."""
    weights = weigh(expected, measured_ps, noise)
    start, stop, alone = _slow_range(expected, measured_ps, weights.log_odds)
    if start is None or not weights.causes:
        return Verdict(suspicious_from=start, suspicious_to=stop, noise=alone, log_odds=weights.log_odds)
    best, causes = weights.causes[0], weights.causes
    named = best.cause if best.probability >= weights.unknown else None
    if named is None:
        causes = tuple(sorted(causes, key=lambda each: each.left))
    alike = () if named is None else weights.alike(named)
    return Verdict(
        suspicious_from=start, suspicious_to=stop, noise=alone, log_odds=weights.log_odds, cause=named, alike=alike,
        causes=causes,
    )  # fmt: skip


def options_of(log: NcclLog) -> tuple[CollectiveOptions, tuple[str, ...]]:
    """How a log says that its collective was run, and that in words."""
    environment = log.environment
    fields: dict[str, Any] = {} if log.launch is None else {"launch": log.launch}
    if log.library is not None:
        fields["library"] = log.library
    for name, key in (("ALGO", "algorithm"), ("PROTO", "protocol")):
        if re.fullmatch(r"\w+", value := environment.get(name, "")):
            fields[key] = {"collnetdirect": AUTO, "collnetchain": AUTO}.get(value.lower(), value.lower())
    if environment.get("NVLS_ENABLE") == "0":
        fields["nvls"] = False
    for name, key in (("MIN_NCHANNELS", "min_channels"), ("MAX_NCHANNELS", "max_channels")):
        if (channels := whole_number(environment.get(name, ""))) is not None:
            fields[key] = channels
    for key in ("min_channels", "max_channels"):
        if fields.get(key) == 0:
            del fields[key]
    if log.op != "all_reduce":  # NCCL_ALGO filters what a collective has; of the others most have a ring only
        fields.pop("algorithm", None)
    stated = tuple(
        f"the log sets NCCL_{name}={value}"
        + ("" if re.fullmatch(r"\w+", value) else ": a list or an exclusion, which is not modelled and was left out")
        for name, value in environment.items()
    )
    if log.launch is None:
        stated = (*stated, "the log does not say how processes were launched: taken as process-per-gpu")
    return CollectiveOptions(**fields), stated


def _check_ranks(log: NcclLog, cluster: Cluster) -> None:
    have = len(cluster.gpus)
    if log.num_ranks is None or log.num_ranks == have:
        return
    where = f"({log.ranks_from})"
    raise InputError(
        f"the log is of {log.num_ranks} ranks {where}, cluster {cluster.name!r} has {have} GPUs: give --gpus "
        f"{log.num_ranks}" + (f" --nodes {len(log.hosts)}" if len(log.hosts) > 1 else ""),
        file=log.path,
    )


def _check_ratio(log: NcclLog, op: str, num_ranks: int) -> None:
    """Refuse a collective whose busbw / algbw is not the log's."""
    expected = bus_factor(op, num_ranks)
    if log.bus_ratio is not None and expected and abs(log.bus_ratio / expected - 1) > 0.02:
        raise InputError(
            f"busbw / algbw is {log.bus_ratio:.3f} in the log, but {expected:.3f} for {op} of {num_ranks} ranks: "
            "another collective, or another number of ranks (--op, --gpus)",
            file=log.path,
        )


def _measured(log: NcclLog, in_place: bool) -> tuple[list[tuple[int, list[tuple[int, float]]]], tuple[str, ...]]:
    """(size, [(time in ps, bus bandwidth)]) in ascending sizes, and what was left out."""
    found: dict[int, list[tuple[int, float]]] = {}
    without = 0
    for row in log.rows:
        result = row.in_place if in_place else row.out_of_place
        if result is None or row.size_bytes == 0:
            without += 1
            continue
        found.setdefault(row.size_bytes, []).append((result.time_ps, result.busbw_bytes_per_s))
    kind, other = ("in-place", "out-of-place") if in_place else ("out-of-place", "in-place")
    if not found:
        raise InputError(f"has no {kind} results; {'leave out' if in_place else 'give'} --in-place for {other}",
                         file=log.path)  # fmt: skip
    notes = (f"{without} rows have no {kind} result and were left out",) if without else ()
    if any(len(times) > 1 for times in found.values()):
        notes = (*notes, "sizes that were measured more than once are compared by their median")
    return sorted(found.items()), notes


def _checked(size: int, times: list[tuple[int, float]], predicted: CollectiveTime) -> CheckedRow:
    measured = round(median(time for time, _ in times))
    state = SLOW if measured > predicted.high_ps else FAST if measured < predicted.low_ps else INSIDE
    rate = median(rate for _, rate in times)
    return CheckedRow(size_bytes=size, measured_ps=measured, busbw_bytes_per_s=rate, predicted=predicted, state=state)


def _slow_range(
    expected: Expected, measured_ps: Sequence[int], log_odds: float
) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Sizes from and to which the run is slow, and sizes that are far too slow, but alone.

    None for both, unless the odds against a sound machine are high and a size lies above its band.
    """
    sizes = expected.sizes
    above = [time / usual.high_ps for time, usual in zip(measured_ps, expected.usual, strict=True)]
    runs = [list(run) for slow, run in groupby(range(len(sizes)), key=lambda i: above[i] > 1) if slow]
    wide = [run for run in runs if _octaves(sizes, run) >= MIN_OCTAVES]
    found = (wide or runs) if log_odds >= MIN_LOG_ODDS else []
    alone = tuple(sizes[i] for run in runs if run not in found and run not in wide for i in run if above[i] > MARGIN)
    if not found:
        return None, None, alone
    return sizes[found[0][0]], sizes[found[-1][-1]], alone


def _octaves(sizes: Sequence[int], run: Sequence[int]) -> float:
    """How wide a run of sizes is, from half-way to the one before to half-way to the one behind."""
    octaves = [math.log2(size) for size in sizes]
    first, last = run[0], run[-1]
    before = octaves[first] - octaves[first - 1] if first else 0.0
    behind = octaves[last + 1] - octaves[last] if last + 1 < len(sizes) else 0.0
    return octaves[last] - octaves[first] + (before + behind) / 2


def _doubts(log: NcclLog, cluster: Cluster) -> tuple[str, ...]:
    """What in the log does not look like this cluster."""
    doubts = []
    named = {match.upper().replace(" ", "") for name in log.gpu_names for match in _GPU_NAMES.findall(name)}
    ours = {device.gpu.upper() for i in cluster.gpus if (device := cluster.devices[i]).gpu}
    if named and ours and not any(name in gpu.replace("-", "") for name in named for gpu in ours):
        doubts.append(f"the log names {', '.join(log.gpu_names)}, the cluster has {', '.join(sorted(ours)).lower()}")
    nodes = len({cluster.devices[i].node for i in cluster.gpus})
    if log.hosts and len(log.hosts) != nodes:
        doubts.append(f"the log names {len(log.hosts)} hosts, the cluster has {nodes} nodes")
    return tuple(doubts)
