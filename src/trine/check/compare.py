"""Comparison of a measured collective with its prediction: a verdict, and a likely cause if the run is slow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from trine.check.hypotheses import LAUNCH, NETWORK, NICS, PCIE, TCP, Expected, expect
from trine.check.library_version import version_notes
from trine.check.nccl_rows import Measure
from trine.check.nccl_tests import GIVEN, NcclLog
from trine.check.result import FAST, INSIDE, SLOW, CheckedRow, CheckResult
from trine.check.verdict import INCOMPLETE, MISFIT, SLOW_RUN, UNDECIDED, Verdict, check_curve
from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_UP
from trine.cluster.presets import known_gpus
from trine.collectives.bus_bandwidth import bus_factor
from trine.collectives.options import AUTO, CollectiveOptions, CollectiveTime
from trine.common.units import whole_number
from trine.errors import InputError

#: Calls of a group overlap, which trine's times of single calls do not have.
_GROUPED = (
    "{} calls are launched as one group (-m), so small sizes take less than single calls, which trine predicts: "
    "measure without -m"
)


def check_log(
    log: NcclLog, cluster: Cluster, *, options: CollectiveOptions | None = None, in_place: bool = False
) -> CheckResult:
    """Compare a log with the cluster's prediction.

    log: from :func:`trine.check.nccl_tests.read_log`. cluster: all its GPUs are ranks.
    options: options of the measured run; None: from the log (launch, NCCL_ALGO, ...).
    in_place: compare the in-place results.

    Raises InputError: a cluster of another size, a collective without a prediction, or a log without the results.
    """
    if log.op is None:
        raise InputError("the log does not name its collective: give --op", file=log.path)
    _check_ranks(log, cluster)
    doubt = _check_ratio(log, log.op, len(cluster.gpus))
    stated_options, stated = options_of(log)
    options = stated_options if options is None else options
    _check_library(log, cluster)
    measured, notes = measured_times(log, in_place, len(cluster.gpus))
    library_notes = version_notes(log, cluster.library)
    expected = expect(log.op, [size for size, _ in measured], cluster, options)
    rows = tuple(_checked(size, times, p) for (size, times), p in zip(measured, expected.usual, strict=True))
    foreign = mismatches(log, cluster)
    stated = tuple(dict.fromkeys((*stated, *stated_causes(log).values())))
    judged = _judge(log, expected, rows, foreign)
    if log.incomplete is not None and judged.state != INCOMPLETE:
        notes = (*notes, f"the log is incomplete: {log.incomplete}")
    return CheckResult(
        log=log, cluster=cluster, options=options, result="in-place" if in_place else "out-of-place", rows=rows,
        state=judged.state, reason=judged.reason, suspicious_from=judged.suspicious_from,
        suspicious_to=judged.suspicious_to, log_odds=judged.log_odds, cause=judged.cause, stated=judged.stated,
        alike=judged.alike, causes=judged.causes, noise=judged.noise, unexplained_from=judged.unexplained_from,
        hints=hints_of(log, cluster),
        notes=(*log.notes, *doubt, *stated, *notes, *foreign, *doubts(log, cluster), *library_notes),
    )  # fmt: skip


def _judge(log: NcclLog, expected: Expected, rows: Sequence[CheckedRow], foreign: Sequence[str]) -> Verdict:
    """Return the verdict on a log: on its curve, unless the log itself says that the curve means little."""
    if foreign:
        return Verdict(state=MISFIT, reason="; ".join(foreign))
    if log.unsound is not None:
        see = " (see the note)" if log.has_wrong_results else ""
        return Verdict(state=UNDECIDED, reason=f"{log.unsound}{see}")
    measured = [row.measured_ps for row in rows]
    judged = check_curve(expected, measured, stated=stated_causes(log), excluded=excluded_causes(log))
    if log.aggregated > 1 and judged.state == MISFIT and any(row.state == FAST for row in rows):
        judged = replace(judged, state=UNDECIDED, reason=_GROUPED.format(log.aggregated))
    if log.incomplete is None or judged.state in (SLOW_RUN, MISFIT):
        return judged
    reason = "; ".join(filter(None, (log.incomplete, judged.reason)))
    return replace(judged, state=INCOMPLETE, reason=reason)


def options_of(log: NcclLog) -> tuple[CollectiveOptions, tuple[str, ...]]:
    """Return the collective's options as stated by the log, and notes about them."""
    environment = log.environment
    fields: dict[str, Any] = {} if log.launch is None else {"launch": log.launch}
    if log.library is not None:
        fields["library"] = log.library
    for name, key in (("ALGO", "algorithm"), ("PROTO", "protocol")):
        if re.fullmatch(r"\w+", value := environment.get(name, "")):
            fields[key] = {"collnetdirect": AUTO, "collnetchain": AUTO}.get(value.lower(), value.lower())
    if environment.get("NVLS_ENABLE") == "0":
        fields["nvls"] = False
    settings = (("MIN_NCHANNELS", "min_channels"), ("MAX_NCHANNELS", "max_channels"), ("NVLS_CHUNKSIZE", "nvls_chunk"))
    for name, key in settings:
        if (channels := whole_number(environment.get(name, ""))) is not None:
            fields[key] = channels
    for _, key in settings:
        if fields.get(key) == 0:
            del fields[key]
    if log.op != "all_reduce":  # NCCL_ALGO filters a collective's algorithms; most other collectives only have ring
        fields.pop("algorithm", None)
    stated = tuple(
        f"the log sets NCCL_{name}={value}"
        + ("" if re.fullmatch(r"\w+", value) else ": trine ignores lists and exclusions")
        for name, value in environment.items()
    )
    if log.num_ranks is None and log.fewest_ranks is None:
        stated = (*stated, "the log does not show the number of ranks: all GPUs of the cluster taken (--gpus)")
    if log.launch is None:
        stated = (*stated, "assumed launch process-per-gpu: the log does not show it (--launch)")
    return CollectiveOptions(**fields), stated


def _check_ranks(log: NcclLog, cluster: Cluster) -> None:
    """Raise InputError for a cluster of another size, unless the log does not state its number of ranks."""
    num_gpus = len(cluster.gpus)
    fewest = log.fewest_ranks
    if log.num_ranks == num_gpus or (fewest is None and log.num_ranks is None):
        return
    if fewest is not None and fewest <= num_gpus and (log.most_ranks is None or num_gpus <= log.most_ranks):
        return
    if log.most_ranks == log.num_ranks == fewest:
        ranks = f"{log.num_ranks} ranks"
    else:
        ranks = f"{fewest} to {log.most_ranks} ranks" if log.most_ranks else f"at least {fewest} ranks"
    hosts = f" --nodes {log.num_hosts}" if (log.num_hosts or 1) > 1 else ""
    remedy = f"give --gpus {log.num_ranks or fewest}{hosts}"
    message = f"the log is of {ranks} ({log.ranks_from}), cluster {cluster.name!r} has {num_gpus} GPUs: {remedy}"
    raise InputError(message, file=log.path)


def _check_library(log: NcclLog, cluster: Cluster) -> None:
    """Raise InputError for a log of NCCL and GPUs of AMD, or of RCCL and GPUs of NVIDIA."""
    vendors = {"nccl": "NVIDIA", "rccl": "AMD"}
    if log.library in vendors and cluster.library in vendors and log.library != cluster.library:
        needed, present = vendors[log.library], vendors[cluster.library]
        message = f"the log is of {log.library.upper()}, and {cluster.name!r} has GPUs of {present}: give --cluster a "
        raise InputError(f"{message}machine with GPUs of {needed} (trine cluster list)", file=log.path)


def _check_ratio(log: NcclLog, op: str, num_ranks: int) -> tuple[str, ...]:
    """Compare the collective's busbw / algbw with the log's; a note if --op or --gpus contradicts the log.

    Raises InputError: another ratio, and neither was given.
    """
    expected = bus_factor(op, num_ranks)
    if log.bus_ratio is None or not expected or abs(log.bus_ratio / expected - 1) <= 0.02:
        return ()
    ratios = f"busbw / algbw is {log.bus_ratio:.3f} in the log, but {expected:.3f} for {op} of {num_ranks} ranks"
    if GIVEN in (log.op_from, log.ranks_from):
        return (f"{ratios}: --op or --gpus contradicts the log",)
    raise InputError(f"{ratios}: another collective, or another number of ranks (--op, --gpus)", file=log.path)


def measured_times(
    log: NcclLog, in_place: bool, num_ranks: int | None = None
) -> tuple[list[tuple[int, list[tuple[int, float]]]], tuple[str, ...]]:
    """Return (size, [(time in ps, bus bandwidth)]) in ascending sizes, and notes about skipped rows.

    num_ranks: of the machine; a table that has bus bandwidths alone needs it. Raises InputError for such a table
    without it, and for a log without the results.
    """
    times_by_size: dict[int, list[tuple[int, float]]] = {}
    num_missing = num_empty = 0
    for row in log.rows:
        result = row.in_place if in_place else row.out_of_place
        if result is not None and row.size_bytes == 0:
            num_empty += 1
        elif result is None:
            num_missing += 1
        else:
            times_by_size.setdefault(row.size_bytes, []).append(_time_and_rate(log, row.size_bytes, result, num_ranks))
    kind, other_kind = ("in-place", "out-of-place") if in_place else ("out-of-place", "in-place")
    if not times_by_size:
        raise InputError(f"has no {kind} results; {'leave out' if in_place else 'give'} --in-place for {other_kind}",
                         file=log.path)  # fmt: skip
    rows = "1 row has" if num_missing == 1 else f"{num_missing} rows have"
    notes = (f"{rows} no {kind} result: left out",) if num_missing else ()
    if num_empty:
        notes = (*notes, f"{'1 row' if num_empty == 1 else f'{num_empty} rows'} of 0 bytes left out: no data moves")
    if any(len(times) > 1 for times in times_by_size.values()):
        notes = (*notes, "sizes that were measured more than once are compared by their median")
    return sorted(times_by_size.items()), notes


def _time_and_rate(log: NcclLog, size: int, result: Measure, num_ranks: int | None) -> tuple[int, float]:
    """Return a result's time and bus bandwidth; a table may have only one of them."""
    time_ps, busbw = result.time_ps, result.busbw_bytes_per_s
    if time_ps and (busbw or not result.algbw_bytes_per_s):
        return time_ps, busbw
    ranks = num_ranks or log.num_ranks
    factor = bus_factor(log.op or "", ranks) if ranks else 0.0
    if time_ps:
        return time_ps, size * 1e12 / time_ps * factor
    if not factor:
        message = "has bus bandwidths without times, which need the number of ranks: give a table with times or algbw"
        raise InputError(message, file=log.path)
    return max(1, round(size * 1e12 * factor / busbw)), busbw


def _checked(size: int, times: list[tuple[int, float]], predicted: CollectiveTime) -> CheckedRow:
    measured = round(median(time for time, _ in times))
    if measured > predicted.high_ps:
        state = SLOW
    elif measured < predicted.low_ps:
        state = FAST
    else:
        state = INSIDE
    rate = median(rate for _, rate in times)
    return CheckedRow(size_bytes=size, measured_ps=measured, busbw_bytes_per_s=rate, predicted=predicted, state=state)


#: GPU models in the names that drivers print, such as "NVIDIA H100 80GB HBM3".
_GPU_NAMES = re.compile(
    r"\b(?:GB200|GB300|GH200|GB10|[VAHBTPLK]\d{1,3}[SG]?|(?:RTX|GTX) ?(?:PRO )?A?\d{4}D?(?: Ti| SUPER)?"
    r"|MI\d{2,3}[XA]?)\b",
    re.IGNORECASE,
)
#: Names of drivers that say nothing about the model.
_NO_MODEL = re.compile(r"(?:NVIDIA )?(?:Graphics )?Device\b.*|GPU\b.*", re.IGNORECASE)
#: Models sold both as SXM module and as PCIe card.
_TWO_FORMS = ("P100", "V100", "A100", "A800", "H100", "H800", "H200")
_PCIE_CARD = re.compile(r"PCI-?E\b|\bNVL\b", re.IGNORECASE)


def stated_causes(log: NcclLog) -> dict[str, str]:
    """Return the kinds of causes that the log states, with the log's text."""
    stated = {}
    if log.network is not None and log.network.lower() == "socket":
        stated[TCP] = "the log says 'Using network Socket'"
    elif log.network is None and _is_on(log, "IB_DISABLE"):
        stated[TCP] = "the log sets NCCL_IB_DISABLE=1"
    if _is_on(log, "P2P_DISABLE"):
        stated[PCIE] = "the log sets NCCL_P2P_DISABLE=1"
    return stated


def excluded_causes(log: NcclLog) -> frozenset[str]:
    """Return the kinds of causes that the log rules out."""
    excluded = set()
    if log.launch is not None:
        excluded.add(LAUNCH)
    if log.num_hosts == 1:
        excluded |= {NICS, NETWORK, TCP}
    if log.network is not None and log.network.lower() != "socket":
        excluded.add(TCP)
    return frozenset(excluded)


def hints_of(log: NcclLog, cluster: Cluster) -> tuple[str, ...]:
    """Return settings of the log that slow a run down but match no cause."""
    hints = []
    if log.warmups == 0:
        hints.append("the log has no warm-up calls (-w 0), so the first sizes include the setup of the connections")
    if _is_on(log, "SHM_DISABLE"):
        hints.append("the log sets NCCL_SHM_DISABLE=1: GPUs of a host without P2P then talk over the network")
    if _is_on(log, "P2P_DISABLE") and all(link.link_class != SCALE_UP for link in cluster.links):
        hints.append("the log sets NCCL_P2P_DISABLE=1: GPUs then talk through the host's memory")
    return tuple(hints)


def mismatches(log: NcclLog, cluster: Cluster) -> tuple[str, ...]:
    """Return known differences between the log's machine and the cluster: GPU model, library, number of hosts."""
    known_names = []
    for name in _strange_gpus(log, cluster):
        if any(_is(name, gpu) for gpu in known_gpus()):
            known_names.append(name)
    differences = [_other_gpus(known_names, cluster)] if known_names else []
    if log.library is not None and cluster.library in ("nccl", "rccl") and log.library != cluster.library:
        differences.append(f"the log is of {log.library.upper()}, the cluster's GPUs use {cluster.library.upper()}")
    nodes = {cluster.devices[i].node for i in cluster.gpus}
    if log.num_hosts is not None and None not in nodes and log.num_hosts != len(nodes):
        hosts = "1 host" if log.num_hosts == 1 else f"{log.num_hosts} hosts"
        node_count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        differences.append(f"the log is of {hosts} with {log.num_ranks} ranks, the cluster has {node_count}")
    return tuple(differences)


def doubts(log: NcclLog, cluster: Cluster) -> tuple[str, ...]:
    """Return possible differences between the cluster and the log's machine: unlisted hosts, unknown GPU models."""
    differences = []
    nodes = {cluster.devices[i].node for i in cluster.gpus}
    if log.num_hosts is None and None not in nodes:
        place = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        differences.append(f"the log does not list all hosts: {len(cluster.gpus)} ranks on {place} taken (--nodes)")
    strange = []
    for name in _strange_gpus(log, cluster):
        if not any(_is(name, gpu) for gpu in known_gpus()):
            strange.append(name)
    unknown = [name for name in log.gpu_names if not _GPU_NAMES.search(name) and not _NO_MODEL.fullmatch(name)]
    strange += unknown if _models_of(cluster) else []
    return (*differences, *([_other_gpus(strange, cluster)] if strange else []))


def _strange_gpus(log: NcclLog, cluster: Cluster) -> list[str]:
    """Return the GPU names of a log that match no GPU model of the cluster."""
    models = _models_of(cluster)
    unlike = []
    for name in log.gpu_names:
        if models and _GPU_NAMES.search(name) and not any(_is(name, m) for m in models):
            unlike.append(name)
    return unlike


def _models_of(cluster: Cluster) -> set[str]:
    models = set()
    for i in cluster.gpus:
        if gpu := cluster.devices[i].gpu:
            models.add(gpu)
    return models


def _other_gpus(names: list[str], cluster: Cluster) -> str:
    return f"the log names {', '.join(names)}, the cluster has {', '.join(sorted(_models_of(cluster)))}"


def _is_on(log: NcclLog, name: str) -> bool:
    return log.environment.get(name, "0") not in ("0", "")


def _is(name: str, gpu: str) -> bool:
    """Return True if a driver's GPU name can be ``gpu``, a model of trine's catalogue."""
    parts, match = gpu.upper().split("-"), _GPU_NAMES.search(name)
    model = re.sub(r"[ -]", "", match[0].upper()) if match else ""
    if not any("".join(parts[:end]) in (model, f"{model}X") for end in range(1, len(parts) + 1)):
        return False
    if "PCIE" in parts:
        return "SXM" not in name.upper()
    return not (model in _TWO_FORMS and _PCIE_CARD.search(name))
