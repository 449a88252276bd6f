"""Is a measured collective what the machine should do? Measured against predicted, a verdict, and a likely cause."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

from trine.cluster.cluster import Cluster
from trine.collectives.library import Collectives
from trine.collectives.library.conventions import bus_factor
from trine.errors import InputError
from trine.model.collective import AUTO, CollectiveOptions, CollectiveTime
from trine.studies.hypotheses import FITTED_PENALTY, Hypothesis, hypotheses
from trine.studies.nccl_tests import NcclLog
from trine.units import whole_number

#: The band holds 80 % of measurements, so one in ten of a sound machine lies above it. A run of rows above it is
#: suspicious if two of them in a row are beyond this factor of its upper end, or if it is so long; any other is noise.
MARGIN = 1.15
MIN_RUN, MIN_LONG_RUN = 2, 4
#: A cause is named if it explains the slow rows this well (root mean square of the logarithm of measured / predicted),
#: and at most this part of what the usual prediction leaves.
MAX_RESIDUAL = math.log(1.35)
MAX_REMAINING = 0.6
INSIDE, SLOW, FAST = "inside", "slow", "fast"
_GPU_NAMES = re.compile(
    r"\b(?:GB200|GB300|GH200|GB10|[VAHBTPL]\d{2,3}S?|H20|RTX (?:PRO )?[A]?\d{4}D?|RTX\d{4}|MI\d{2,3}[XA]?)\b", re.I
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRow:
    """One size. ``state``: inside the band, slow or fast. Bandwidth in bytes/s, as measured."""

    size_bytes: int
    measured_ps: int
    busbw_bytes_per_s: float
    predicted: CollectiveTime
    state: str

    @property
    def ratio(self) -> float:
        """Measured / predicted time."""
        return self.measured_ps / self.predicted.time_ps


@dataclass(frozen=True, kw_only=True)
class Check:
    """The answer of :func:`check_log`.

    ``suspicious_from``, ``suspicious_to``: sizes between which the run is slower than it should be; None if healthy.
    ``cause``: the hypothesis that fits best, None where none does. ``residuals``: (name, root mean square logarithm) of
    all hypotheses over the slow rows, best first. ``noise``: slow sizes that stand alone.
    """

    log: NcclLog
    cluster: Cluster
    options: CollectiveOptions
    result: str
    rows: tuple[CheckedRow, ...]
    suspicious_from: int | None = None
    suspicious_to: int | None = None
    cause: Hypothesis | None = None
    residuals: tuple[tuple[str, float], ...] = ()
    noise: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether the results are right and no range of sizes is slower than the band allows."""
        return self.suspicious_from is None and not self.log.has_wrong_results

    def table(self) -> str:
        """Measured against predicted by size, and the verdict."""
        from trine.studies.check_text import check_table

        return check_table(self)

    def to_json(self) -> dict[str, Any]:
        """As documented in docs/guides/check.md."""
        from trine.studies.check_text import check_json

        return check_json(self)

    def plot(self, path: str) -> None:
        """Draw measured and predicted with the band. Needs the extra ``plot``."""
        from trine.studies.check_plot import plot_check

        plot_check(self, path)


def check_log(
    log: NcclLog, cluster: Cluster, *, options: CollectiveOptions | None = None, in_place: bool = False
) -> Check:
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
    found, said = options_of(log)
    options = found if options is None else options
    measured, notes = _measured(log, in_place)
    asked = Collectives(cluster, None, options)
    rows = tuple(_checked(size, times, asked.predict(log.op, size)) for size, times in measured)
    start, stop, noise = slow_range(rows)
    check = Check(
        log=log, cluster=cluster, options=options, result="in-place" if in_place else "out-of-place", rows=rows,
        suspicious_from=start, suspicious_to=stop, noise=noise,
        notes=(*log.notes, *said, *notes, *_doubts(log, cluster)),
    )  # fmt: skip
    return check if check.suspicious_from is None else _with_cause(check)


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
    said = tuple(
        f"the log sets NCCL_{name}={value}"
        + ("" if re.fullmatch(r"\w+", value) else ": a list or an exclusion, which is not modelled and was left out")
        for name, value in environment.items()
    )
    if log.launch is None:
        said = (*said, "the log does not say how processes were launched: taken as process-per-gpu")
    return CollectiveOptions(**fields), said


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
    return compared_row(size, measured, predicted, median(rate for _, rate in times))


def compared_row(size: int, measured_ps: int, predicted: CollectiveTime, busbw_bytes_per_s: float) -> CheckedRow:
    """A row with its state."""
    state = SLOW if measured_ps > predicted.high_ps else FAST if measured_ps < predicted.low_ps else INSIDE
    return CheckedRow(
        size_bytes=size, measured_ps=measured_ps, busbw_bytes_per_s=busbw_bytes_per_s, predicted=predicted, state=state
    )


def slow_range(rows: Sequence[CheckedRow]) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Sizes from and to which the run is slow, and sizes that are far too slow, but alone."""
    runs = [list(run) for slow, run in groupby(rows, key=lambda row: row.state == SLOW) if slow]
    found = [run for run in runs if _matters(run, len(rows))]
    noise = tuple(row.size_bytes for run in runs if run not in found for row in run if _far(row))
    if not found:
        return None, None, noise
    return found[0][0].size_bytes, found[-1][-1].size_bytes, noise


def _far(row: CheckedRow) -> bool:
    return row.measured_ps > row.predicted.high_ps * MARGIN


def _matters(run: Sequence[CheckedRow], num_rows: int) -> bool:
    """Whether consecutive slow rows are more than noise; of a log with one row, that row."""
    far = max((len(list(rows)) for is_far, rows in groupby(run, key=_far) if is_far), default=0)
    return far >= min(MIN_RUN, num_rows) or len(run) >= MIN_LONG_RUN


def _with_cause(check: Check) -> Check:
    """Compare the slow rows with every hypothesis, and the others so that a cause does not slow those too."""
    rows = check.rows
    slow = [row.state == SLOW for row in rows]
    usual = _residual(rows, [row.predicted.time_ps for row in rows], slow)
    assert check.log.op is not None
    tried = hypotheses(
        check.log.op, [row.size_bytes for row in rows], [row.measured_ps for row in rows], check.cluster, check.options
    )
    scored = [(_residual(rows, each.times_ps, slow), each) for each in tried]
    scored.sort(key=lambda pair: pair[0] * (FITTED_PENALTY if pair[1].fitted else 1))
    cause = None
    if scored and scored[0][0] <= min(MAX_RESIDUAL, usual * MAX_REMAINING):
        cause = scored[0][1]
    return replace(check, cause=cause, residuals=tuple((each.name, residual) for residual, each in scored))


def _residual(rows: Sequence[CheckedRow], times_ps: Sequence[int], slow: Sequence[bool]) -> float:
    """Root mean square of log(measured / time); rows that are not slow count half."""
    total = weight = 0.0
    for row, time, is_slow in zip(rows, times_ps, slow, strict=True):
        share = 1.0 if is_slow else 0.5
        total += share * math.log(row.measured_ps / time) ** 2
        weight += share
    return math.sqrt(total / weight)


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
