"""Times of one collective for a table of sizes: what :func:`trine.collective` and ``trine collective`` ask."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.load import as_cluster
from trine.cluster.parts import SCALE_UP
from trine.cluster.uplinks import busiest, traffic_warnings
from trine.collectives.bare import is_bare
from trine.collectives.degraded import clusters_before, not_faster
from trine.collectives.nccl.costs import IN_NETWORK, LIBRARY_ALGORITHMS, runnable
from trine.collectives.nccl.predict import Collectives
from trine.collectives.nccl.topology import domains_of
from trine.collectives.options import AUTO, CollectiveOptions, CollectiveTime
from trine.collectives.registry import known_algorithms
from trine.collectives.result import CollectiveResult
from trine.collectives.sizes import Sizes, as_sizes, format_size
from trine.common.arguments import named_arguments
from trine.common.kept import keep
from trine.common.observer import OnCompile, Progress, observing
from trine.common.plugins import load_target
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.collectives.message_level import MessageLevelRuns
    from trine.collectives.schedules.direct import Matrix


#: Folding -> what simulates messages, a hook where it is folded.
_RUNNERS = {
    "on": "trine.folding.collective:run_folded",
    "off": "trine.collectives.run:run_schedule",
    "verify": "trine.folding.collective:run_both",
}


@named_arguments
def collective(
    op: str,
    sizes: Sizes,
    cluster: Cluster | str | os.PathLike[str],
    group: Sequence[int] | None = None,
    *,
    options: CollectiveOptions | None = None,
    network: str | None = None,
    explain: bool = False,
    matrix: Matrix | None = None,
    fold: str = "on",
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
) -> CollectiveResult:
    """Predict a collective for several sizes.

    Parameters
    ----------
    op, sizes: bytes as nccl-tests counts them, or texts as of ``--size``.
    cluster: or its name. group: positions in ``cluster.gpus``; None: all.
    options: how it is run. An algorithm that the library has not (``halving-doubling``, a plan file, ...) and the
        protocol ``none`` are simulated step by step.
    network: ``fair``, ``equal``, ``fifo`` or ``circuit`` simulates every message on the links, whatever the algorithm.
    explain: also work out the alternatives.
    matrix: of all_to_all_v, bytes from each rank (row) to each rank; the size is the largest sum of a row.
    fold: ``on`` simulates many messages of ranks that behave alike once, ``off`` each by itself, ``verify`` both, and
        compares. The answer is the same.
    progress, on_compile: as of :func:`trine.engine.run`.

    Raises
    ------
    InputError: what does not exist, does not fit or makes no difference.
    SimulationError: ``verify`` finds a difference.
    """
    if fold not in _RUNNERS:
        raise InputError(f"unknown folding {fold!r:.80}{nearest(str(fold)[:80], _RUNNERS)}", field="fold")
    with observing(progress=progress, on_compile=on_compile):
        answer = _answer(op, sizes, cluster, group, options, network, explain, matrix, _RUNNERS[fold])
    if fold != "on" and answer.network is None:
        raise InputError("is about runs of every message: give a network", field="fold")
    return answer


def _answer(
    op: str, sizes: Sizes, cluster: Cluster | str | os.PathLike[str], group: Sequence[int] | None,
    options: CollectiveOptions | None, network: str | None, explain: bool, matrix: Matrix | None, runner: str,
) -> CollectiveResult:  # fmt: skip
    """Answer :func:`collective`; runner: the hook that simulates messages, loaded if any is simulated."""
    options = options or CollectiveOptions()
    sizes = as_sizes(sizes)
    cluster = as_cluster(cluster)
    if not isinstance(op, str):
        raise InputError(f"must be the name of a collective, got {op!r:.80}", field="op")
    if group is not None and len(group) > len(cluster.gpus):
        raise InputError(f"the group has {len(group)} ranks, but {cluster.name!r} has {len(cluster.gpus)} GPUs")
    ranks = tuple(range(len(cluster.gpus)) if group is None else group)
    if matrix is not None and op != "all_to_all_v":
        raise InputError(f"a matrix of bytes belongs to all_to_all_v, not to {op}", field="matrix")
    if op == "barrier" and any(sizes):
        raise InputError("a barrier has no bytes: leave --size out", field="size")
    if "," in options.protocol:
        text = f"one protocol at a time, got {options.protocol!r:.80}: give one of them, or auto"
        raise InputError(f"{text} (the library's choice)", field="protocol")
    is_flow_level = network is None and not needs_steps(op, options, cluster)
    model = kept_collectives(cluster, ranks, options) if is_flow_level else None
    if model is None or _is_trine_only(op, model):
        from trine.collectives.message_level import MessageLevelRuns
        from trine.engine.circuit_model import usual_network

        runs = MessageLevelRuns(cluster, ranks, options, network or usual_network(cluster), matrix, load_target(runner))
        answer = _message_level(op, sizes, runs, explain)
        better = (
            _answer(op, sizes, machine, group, options, network, False, matrix, runner)
            for machine in clusters_before(cluster)
        )
        return reduce(_not_faster, better, answer)
    rows = tuple(model.predict(op, size) for size in sizes)
    _refuse_unused_options(op, model, rows)
    load = link_load(cluster, ranks, rows[-1])
    alternatives = tuple(tuple(model.alternatives(op, size)) for size in sizes) if explain else ()
    crossovers = tuple(model.crossovers(op)) if explain else ()
    return CollectiveResult(
        op=op, cluster=cluster, group=ranks, library=model.library.name, version=model.library.version,
        launch=options.launch, network=None, rows=rows, alternatives=alternatives, crossovers=crossovers,
        **_loads(cluster, load, (*model.notes(op), *_row_notes(rows, load))), num_domains=model.topology.num_domains,
        num_nodes=model.topology.num_nodes,
    )  # fmt: skip


@keep
def kept_collectives(cluster: Cluster, ranks: tuple[int, ...], options: CollectiveOptions) -> Collectives:
    """Return the predictor of a group; the next question about the same cluster object takes the same one."""
    return Collectives(cluster, ranks, options)


def _not_faster(answer: CollectiveResult, better: CollectiveResult) -> CollectiveResult:
    """Return ``answer``, of a degraded machine, with no row faster than in ``better``."""
    rows = tuple(map(not_faster, answer.rows, better.rows))
    if rows == answer.rows:
        return answer
    raised = [row for row, row_before in zip(rows, answer.rows, strict=True) if row != row_before]
    return replace(answer, rows=rows, notes=(*answer.notes, *_row_notes(raised, np.ones(1, np.int64))))


def _loads(cluster: Cluster, load: npt.NDArray[np.int64], notes: Sequence[str]) -> dict[str, Any]:
    """Return an answer's link fields, and its notes with a warning of overloaded uplinks."""
    order, tiers = busiest(cluster, load)
    names, sizes = map(cluster.link_name, order.tolist()), load[order].tolist()
    all_notes = (*(f"warning: {text}" for text in traffic_warnings(cluster, load)), *notes)
    return {"load": dict(zip(names, sizes, strict=True)), "tiers": tiers, "notes": all_notes}


def _row_notes(rows: Sequence[CollectiveTime], load: npt.NDArray[np.int64]) -> list[str]:
    """Return the rows' notes; the first row with notes stands for the others."""
    noted = [row for row in rows if row.notes]
    if noted:
        notes = [f"at {format_size(noted[0].size_bytes)}: {note}" for note in noted[0].notes]
    else:
        notes = []
    if len(noted) > 1:
        notes.append(f"also at {len(noted) - 1} more of the {len(rows)} sizes")
    if not load.any() and rows[-1].sent_bytes:
        notes.append("no link loads: there are too many pairs of ranks")
    return notes


def needs_steps(op: str, options: CollectiveOptions, cluster: Cluster) -> bool:
    """Return whether no library model applies: another algorithm, bare links, or links of unknown kind."""
    if op == "all_to_all_v" or is_bare(options, cluster):
        return True
    return options.algorithm not in (AUTO, *LIBRARY_ALGORITHMS.get(op, (options.algorithm,)))


def _is_trine_only(op: str, model: Collectives) -> bool:
    """Return whether the library lacks the algorithm on this group, but trine has a schedule of that name."""
    algorithm = model.options.algorithm
    pairs = runnable(model.topology, model.library.name, op) if op in LIBRARY_ALGORITHMS else ()
    return algorithm not in (AUTO, *(name for name, _ in pairs)) and algorithm in known_algorithms(op)


def _refuse_unused_options(op: str, model: Collectives, rows: Sequence[CollectiveTime]) -> None:
    """Raise InputError for options that are valid for the library but do not change these times."""
    options = model.options
    in_network = [pair for pair in runnable(model.topology, model.library.name, op) if pair[0] in IN_NETWORK]
    if options.nvls is False and not in_network:
        raise InputError(f"forbids what {model.library.name} has not for {op} on this group anyway", field="nvls")
    if options.nvls_chunk is not None:
        usual = Collectives(model.cluster, model.group, replace(options, nvls_chunk=None))
        if all(row.time_ps == usual.predict(op, row.size_bytes).time_ps for row in rows):
            chunk = format_size(options.nvls_chunk)
            raise InputError(
                f"{chunk} changes no time at these sizes: NVLS takes it for large ones", field="nvls_chunk"
            )
    for name, value, remaining in (
        ("min_channels", options.min_channels, replace(options, min_channels=None)),
        ("max_channels", options.max_channels, replace(options, max_channels=None)),
    ):
        if value is None:
            continue
        baseline = Collectives(model.cluster, model.group, remaining)
        if all(row.time_ps == baseline.predict(op, row.size_bytes).time_ps for row in rows):
            count = baseline.predict(op, rows[0].size_bytes).channels
            raise InputError(
                f"{value} changes no time at these sizes: {count} channels are used without it, and more of them only "
                "matter to LL",
                field=name,
            )


def _message_level(op: str, sizes: Sequence[int], runs: MessageLevelRuns, explain: bool) -> CollectiveResult:
    rows = tuple(runs.run(op, size) for size in sizes)
    cluster, ranks = runs.cluster, tuple(runs.ranks)
    launch = runs.options.launch if runs.library_name != "none" else "none"
    alternatives = tuple(tuple(runs.alternatives(op, size)) for size in sizes) if explain else ()
    nodes = {cluster.devices[cluster.gpus[rank]].node for rank in ranks}
    return CollectiveResult(
        op=op, cluster=cluster, group=ranks, library=runs.library_name, version=runs.library_version, launch=launch,
        network=runs.network, rows=rows, alternatives=alternatives, **_loads(cluster, runs.load, runs.notes),
        num_nodes=len(nodes),
    )  # fmt: skip


#: Above this many pairs, computing routes takes too long: link loads of direct collectives are omitted.
MAX_PAIRS = 20_000

Pair = tuple[int, int, int]
Item = TypeVar("Item")


def link_load(cluster: Cluster, group: Sequence[int], answer: CollectiveTime) -> npt.NDArray[np.int64]:
    """Return the bytes over each link: int64[links].

    The traffic of rings, trees and in-network reduction across domains is spread over all NICs of a domain.
    The loads are 0 for direct collectives of more than MAX_PAIRS pairs of ranks.
    """
    gpus = [cluster.gpus[rank] for rank in group]
    load = np.zeros(len(cluster.links), np.int64)
    for source, target, count in _pairs(cluster, gpus, answer):
        for route, part in cluster.paths(source, target):
            for link in route:
                load[link] += round(count * part)
    return load


def _pairs(cluster: Cluster, gpus: Sequence[int], answer: CollectiveTime) -> Iterator[Pair]:
    n, size = len(gpus), answer.sent_bytes
    if answer.algorithm == "direct":
        yield from _direct_pairs(gpus, answer.op, size)
    elif answer.algorithm == "nvls" and len(domains_of(cluster, sorted(gpus))) == 1:
        yield from _switch_pairs(cluster, gpus, size)
    else:
        turns = 2 if answer.op in ("all_reduce", "barrier") else 1
        num_bytes = size if answer.op in ("broadcast", "reduce") else turns * (n - 1) * size // n
        domains = domains_of(cluster, sorted(gpus))
        if answer.algorithm in ("ring", "pat"):
            yield from _ring_pairs(cluster, domains, num_bytes)
        else:  # trees and in-network sums: the buffer leaves each domain once, twice with more than two of them
            is_sharp = answer.algorithm in ("collnet", "nvls")
            yield from _crossing_pairs(domains, size * (1 if len(domains) <= 2 or is_sharp else 2))
            for domain in domains:
                if answer.algorithm in IN_NETWORK:
                    yield from _switch_pairs(cluster, domain, size)
                elif len(domain) > 1:
                    yield from _domain_pairs(cluster, domain, 2 * size * (len(domain) - 1) // len(domain))


def _ring_pairs(cluster: Cluster, domains: Sequence[Sequence[int]], num_bytes: int) -> Iterator[Pair]:
    """Yield ``num_bytes`` through every GPU; the rings leave each domain in equal parts from its first GPUs."""
    for domain in domains:
        m = len(domain)
        if m > 1:
            yield from _domain_pairs(cluster, domain, num_bytes if len(domains) == 1 else num_bytes * (m - 1) // m)
    if len(domains) > 1:
        yield from _crossing_pairs(domains, num_bytes)


def _domain_pairs(cluster: Cluster, domain: Sequence[int], num_bytes: int) -> Iterator[Pair]:
    """Yield ``num_bytes`` out of every GPU of a domain: over all its direct links in proportion to their rates (the
    rings use them all), or to the next GPU without direct links.
    """
    members = set(domain)
    for gpu, next_gpu in _neighbours(domain):
        direct = {
            link.target: 0 for link in cluster.links_from(gpu) if link.target in members and link.link_class == SCALE_UP
        }
        for link in cluster.links_from(gpu):
            if link.target in direct:
                direct[link.target] += link.bytes_per_s
        if not direct:
            yield gpu, next_gpu, num_bytes
        total = sum(direct.values())
        yield from ((gpu, target, num_bytes * rate // total) for target, rate in direct.items())


def _crossing_pairs(domains: Sequence[Sequence[int]], num_bytes: int) -> Iterator[Pair]:
    """Yield ``num_bytes`` out of every domain, spread over its first GPUs."""
    width = min(map(len, domains))
    if len(domains) > 1:
        for domain, next_domain in _neighbours(domains):
            for source, target in zip(domain[:width], next_domain[:width], strict=True):
                yield source, target, num_bytes // width


def _neighbours(items: Sequence[Item]) -> Iterator[tuple[Item, Item]]:
    """Pair each item with the next one, the last with the first."""
    return zip(items, [*items[1:], items[0]], strict=True)


def _direct_pairs(gpus: Sequence[int], op: str, size: int) -> Iterator[Pair]:
    n = len(gpus)
    if op == "send_recv":
        yield from ((source, target, size) for source, target in _neighbours(gpus))
    elif op in ("gather", "scatter"):
        for gpu in gpus[1:]:
            yield (gpu, gpus[0], size // n) if op == "gather" else (gpus[0], gpu, size // n)
    elif n * n <= MAX_PAIRS:
        for source in gpus:
            for target in gpus:
                if source != target:
                    yield source, target, size // n


def _switch_pairs(cluster: Cluster, gpus: Sequence[int], size: int) -> Iterator[Pair]:
    """Yield each GPU's traffic to the switches, its whole buffer and its finished part, and the same back."""
    n = len(gpus)
    for gpu in gpus:
        switches = [link for link in cluster.links_from(gpu) if cluster.devices[link.target].reduces]
        for link in switches:
            part = (size + size // n) // len(switches)
            yield gpu, link.target, part
            yield link.target, gpu, part
