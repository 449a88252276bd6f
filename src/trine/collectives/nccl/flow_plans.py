"""Flows of a library's collectives: bytes and rate between each pair of ranks, chosen to match the library's time.

The flows follow the collective's algorithm, with all channels combined. Inside a domain, rings and trees go to the next
GPU over switches, or over all direct links in proportion to their rates. Between domains they go from each GPU to its
counterpart in the next domain. NVLS loads each GPU's links like a ring, with its own bytes. Direct messages go straight
to their target. Every link carries the algorithm's bytes (:func:`trine.collectives.query.link_load`).

Without other traffic, the collective takes the time of the library's formula: launch, set-up and steps first, then the
bytes at a rate that caps each flow. If that rate exceeds a link's bandwidth, the first part is shortened. If the
formula is still faster than the links (it is fitted to large transfers, and some collectives exceed these), the flows
carry fewer bytes, so that the time stays within ``TOLERANCE`` of the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_UP
from trine.collectives.library_flows import (
    FROM_ROOT,
    INNER,
    OUTER,
    TO_ROOT,
    Flow,
    FlowPlan,
    FlowShape,
    ListedFlows,
    RegularFlows,
    ShiftFlows,
    StarFlows,
)
from trine.collectives.nccl.rings import PairTable
from trine.collectives.nccl.topology import domain_classes, domains_of
from trine.collectives.one_operation import ONE_OPERATION
from trine.collectives.options import CollectiveTime
from trine.common.arrays import Int64, row_sums
from trine.common.units import PS_PER_S
from trine.engine._limits import MAX_WHOLE

#: Maximum time of a collective without other traffic, relative to the formula.
TOLERANCE = 1.015
#: Above this many messages, links are not examined: the formula alone limits the flows.
MAX_MESSAGES = 20_000
#: Margin against rounding: the rates that fill a link must not add up to more than its bandwidth.
_MARGIN = 1.0 + 1e-6
#: Parts of a collective's time that pass before its bytes.
_FIXED_PARTS = ("launch", "set-up", "latency")
_ROOTED = {"broadcast": FROM_ROOT, "reduce": TO_ROOT, "scatter": FROM_ROOT, "gather": TO_ROOT}

#: bytes of a flow as a fraction of the collective's size
Weight = Fraction


@dataclass(frozen=True, slots=True, eq=False)
class _Flows:
    """Flows of an algorithm. weights: of each kind, the first is 0. seconds_per_byte: time of the busiest link for each
    byte of the collective; latency_ps: latency of the longest route."""

    shape: FlowShape
    weights: tuple[Weight, ...]
    seconds_per_byte: float
    latency_ps: int


@dataclass(frozen=True, slots=True)
class TimeAlone:
    """Time of a collective without other traffic, in ps: the total, and the part before its bytes."""

    total_ps: int
    before_ps: int

    @classmethod
    def of_answer(cls, answer: CollectiveTime) -> TimeAlone:
        """Return the time by the library's formula."""
        return cls(answer.time_ps, sum(part.time_ps for part in answer.parts if part.name in _FIXED_PARTS))


class FlowPlanner:
    """Plans of one group. ``group``: positions in ``cluster.gpus``, in the order of the collective's ranks."""

    def __init__(self, cluster: Cluster, group: Sequence[int]) -> None:
        self.cluster = cluster
        self.gpus = np.array([cluster.gpus[rank] for rank in group], np.int64)
        self._flow_cache: dict[tuple[str, str, bool], _Flows] = {}

    def plan(
        self, kind: str, answer: CollectiveTime, timing: TimeAlone, factor: float = 1.0, *, as_one: bool = False
    ) -> tuple[FlowPlan, int]:
        """Return the flow plan of ``answer``, and ps of software before each message.

        kind: as in a job; ``answer.op`` is the library's name for it. factor: on the duration without other traffic.
        as_one: all ranks of a rooted collective behave alike, with the bytes of its chain spread evenly over the ring.
        """
        key = (kind, answer.algorithm, as_one)
        if key not in self._flow_cache:
            self._flow_cache[key] = self._flows(*key, answer.op)
        flows = self._flow_cache[key]
        before_ps, bytes_ps, part = _fit_times(flows, timing, answer.sent_bytes)
        if not answer.sent_bytes:
            before_ps += bytes_ps
        before_ps, bytes_ps = round(before_ps * factor - flows.latency_ps), max(1, round(bytes_ps * factor))
        sizes = [-(-weight.numerator * answer.sent_bytes // weight.denominator) for weight in flows.weights]
        if part < 1.0:
            sizes = [round(size * part) for size in sizes]
        caps = [min(MAX_WHOLE, -(-size * PS_PER_S // bytes_ps)) for size in sizes]
        name = ONE_OPERATION if as_one else f"{answer.algorithm}/{answer.protocol}"
        return FlowPlan(name, flows.shape, tuple(sizes), tuple(caps)), max(0, before_ps)

    # -- who sends to whom -----------------------------------------------------------------------------------------

    @cached_property
    def domains(self) -> list[list[int]]:
        """The ranks of each domain, in the library's order."""
        position = {gpu: rank for rank, gpu in enumerate(self.gpus.tolist())}
        positions = []
        for domain in domains_of(self.cluster, sorted(position)):
            positions.append([position[gpu] for gpu in domain])
        return positions

    @cached_property
    def meshes(self) -> list[list[list[int]] | None]:
        """Bytes/s of the direct links between the members of each domain; None if a member has no direct link."""
        gpu_of = self.gpus.tolist()
        gpus = [[gpu_of[rank] for rank in domain] for domain in self.domains]
        class_meshes: dict[object, list[list[int]] | None] = {}
        meshes = []
        for domain_class, domain in zip(domain_classes(self.cluster, gpus), gpus, strict=True):
            if domain_class not in class_meshes:
                class_meshes[domain_class] = _direct_rates(self.cluster, domain)
            meshes.append(class_meshes[domain_class])
        return meshes

    def _flows(self, kind: str, algorithm: str, as_one: bool, op: str) -> _Flows:
        num_ranks = len(self.gpus)
        if algorithm != "direct":
            part = Weight(num_ranks - 1, num_ranks) if as_one else Weight(1)
            return self._algorithm_flows(op, algorithm, "" if as_one else _ROOTED.get(op, ""), part)
        has_gaps = any(mesh is not None and _has_gaps(mesh) for mesh in self.meshes)
        if kind == "send_recv" and num_ranks == 2:
            return self._shape_flows(StarFlows(FROM_ROOT), (Weight(0), Weight(1)))
        if op in ("gather", "scatter"):
            return self._shape_flows(StarFlows(_ROOTED[op]), (Weight(0), Weight(1, num_ranks)))
        count, weight = (num_ranks - 1, Weight(1, num_ranks)) if op == "all_to_all" else (1, Weight(1))
        if has_gaps:
            pairs = [(rank, (rank + by) % num_ranks) for rank in range(num_ranks) for by in range(1, count + 1)]
            return self._listed_flows(self._relayed_flows(pairs, weight), waits=False)
        return self._shape_flows(ShiftFlows(num_ranks, count), (Weight(0), weight))

    def _algorithm_flows(self, op: str, algorithm: str, rooted: str, part: Weight) -> _Flows:
        """Return the flows of rings, trees and reducing switches, for the fraction ``part`` of the bytes."""
        sizes = [len(domain) for domain in self.domains]
        inner = {size: part * _inner_weight(op, algorithm, len(self.gpus), size, len(sizes)) for size in set(sizes)}
        outer = part * _outer_weight(op, algorithm, len(self.gpus), len(sizes))
        pattern = self._pattern()
        if pattern is not None:
            send, strided = pattern
            shape = RegularFlows(len(sizes), sizes[0], send, strided, rooted)
            peers = sizes[0] - 1 if send == "direct" else 1
            return self._shape_flows(shape, (Weight(0), inner[sizes[0]] / peers, outer / sizes[0]))
        flows: dict[tuple[int, int], Weight] = {}
        for domain, mesh in zip(self.domains, self.meshes, strict=True):
            _add_inner_flows(flows, domain, mesh, inner[len(domain)])
        width = min(sizes)
        for domain, next_domain in zip(self.domains, [*self.domains[1:], self.domains[0]], strict=True):
            for source, target in zip(domain[:width], next_domain[:width], strict=True):
                if source != target:
                    flows[source, target] = flows.get((source, target), Weight(0)) + outer / width
        return self._listed_flows(flows, waits=True, rooted=rooted)

    def _pattern(self) -> tuple[str, bool] | None:
        """Return (how ranks of a domain send, whether domains alternate in rank order); None if domains differ."""
        groups, size = len(self.domains), len(self.domains[0])
        if set(map(len, self.domains)) != {size}:
            return None
        table = np.array(self.domains)
        numbers = np.arange(groups * size)
        contiguous = np.array_equal(table, numbers.reshape(groups, size))
        if not contiguous and not np.array_equal(table, numbers.reshape(size, groups).T):
            return None
        kinds = {_mesh_kind(mesh) for mesh in {id(mesh): mesh for mesh in self.meshes}.values()}
        send = kinds.pop()
        return None if kinds or not send else (send, not contiguous)

    def _relayed_flows(self, pairs: Sequence[tuple[int, int]], weight: Weight) -> dict[tuple[int, int], Weight]:
        """Return the messages of all ``pairs``; a mesh relays pairs without a direct link through other GPUs."""
        place = {rank: (number, i) for number, domain in enumerate(self.domains) for i, rank in enumerate(domain)}
        tables: dict[int, PairTable] = {}
        flows: dict[tuple[int, int], Weight] = {}
        for source, target in pairs:
            (number, i), (target_number, j) = place[source], place[target]
            mesh, domain = self.meshes[number], self.domains[number]
            hops: Sequence[tuple[tuple[int, int], float]] = ()
            if number == target_number and mesh is not None and not mesh[i][j]:
                if number not in tables:
                    tables[number] = PairTable(self.cluster, [int(self.gpus[rank]) for rank in domain], mesh)
                hops = tables[number].way(i, j).hops
            legs = [(domain[a], domain[b], Weight(part).limit_denominator(1000)) for (a, b), part in hops]
            for start, end, part in legs or [(source, target, Weight(1))]:
                flows[start, end] = flows.get((start, end), Weight(0)) + part * weight
        return flows

    # -- time on the links -------------------------------------------------------------------------------------------

    def _listed_flows(self, flows: dict[tuple[int, int], Weight], *, waits: bool, rooted: str = "") -> _Flows:
        """Return the shape of irregular flows, listed one by one."""
        weights = (Weight(0), *dict.fromkeys(flows.values()))
        kind_of = {weight: kind for kind, weight in enumerate(weights)}
        rows: list[list[Flow]] = [[] for _ in self.gpus]
        for (source, target), weight in flows.items():
            if weight:
                rows[source].append((target, kind_of[weight]))
        order = tuple(rank for domain in self.domains for rank in domain)
        shape = ListedFlows(tuple(map(tuple, rows)), order, waits, rooted)
        pairs = [(source, target, float(weight)) for (source, target), weight in flows.items() if weight]
        starts, ends, amounts = zip(*pairs, strict=True)
        return _Flows(shape, weights, *self._load(np.array(starts), np.array(ends), np.array(amounts)))

    def _shape_flows(self, shape: RegularFlows | ShiftFlows | StarFlows, weights: tuple[Weight, ...]) -> _Flows:
        messages = _messages(shape, len(self.gpus))
        amounts = np.array([float(weight) for weight in weights])[messages.kinds]
        return _Flows(shape, weights, *self._load(messages.senders, messages.receivers, amounts))

    def _load(self, sources: Int64, targets: Int64, amounts: npt.NDArray[np.float64]) -> tuple[float, int]:
        """Return the busiest link's time per byte of the collective, in s, and the longest latency in ps."""
        cluster = self.cluster
        sample = slice(None) if len(sources) <= MAX_MESSAGES else slice(0, MAX_MESSAGES)
        ptr, links = cluster.routes(self.gpus[sources[sample]], self.gpus[targets[sample]])
        latency_ps = int(row_sums(cluster.link_latency_ps[links], ptr).max(initial=0))
        if len(sources) > MAX_MESSAGES:
            return 0.0, latency_ps
        used_links, inverse = np.unique(links, return_inverse=True)
        load = np.bincount(inverse.ravel(), np.repeat(amounts, np.diff(ptr)), len(used_links))
        return float((load / cluster.link_bytes_per_s[used_links]).max(initial=0.0)), latency_ps


class _FittedTimes(NamedTuple):
    """Parts of a collective's time: before its bytes (hardware included), and during them.

    carried: fraction of the bytes that the flows carry.
    """

    before_ps: int
    bytes_ps: int
    carried: float


def _fit_times(flows: _Flows, timing: TimeAlone, sent_bytes: int) -> _FittedTimes:
    """Divide the time alone so that the flows fit into it."""
    needed_ps = round(flows.seconds_per_byte * sent_bytes * PS_PER_S * _MARGIN)
    max_ps = max(1, timing.total_ps - flows.latency_ps)
    bytes_ps = min(max_ps, max(timing.total_ps - timing.before_ps, needed_ps))
    part = min(1.0, TOLERANCE * max_ps / needed_ps) if needed_ps else 1.0
    return _FittedTimes(timing.total_ps - bytes_ps, bytes_ps, part)


def _inner_weight(op: str, algorithm: str, num_ranks: int, size: int, num_domains: int) -> Weight:
    """Return the bytes from each GPU to its domain of ``size``, as a fraction of the collective's size."""
    if algorithm == "nvls":
        return 1 + Weight(1, num_ranks if num_domains == 1 else size)
    if algorithm == "nvlstree":
        return 1 + Weight(1, size)
    if algorithm in ("ring", "pat"):
        weight = _ring_weight(op, num_ranks)
        return weight if num_domains == 1 else weight * Weight(size - 1, size)
    return 2 * Weight(size - 1, size)


def _outer_weight(op: str, algorithm: str, num_ranks: int, num_domains: int) -> Weight:
    """Return the bytes that leave each domain: the buffer for trees and in-network sums, twice it for two trees."""
    if num_domains == 1:
        return Weight(0)
    if algorithm in ("ring", "pat"):
        return _ring_weight(op, num_ranks)
    return Weight(1 if num_domains <= 2 or algorithm in ("collnet", "nvls") else 2)


def _ring_weight(op: str, num_ranks: int) -> Weight:
    """Return the bytes through each GPU of a ring."""
    if op in ("broadcast", "reduce"):
        return Weight(1)
    return Weight((2 if op in ("all_reduce", "barrier") else 1) * (num_ranks - 1), num_ranks)


def _direct_rates(cluster: Cluster, domain: Sequence[int]) -> list[list[int]] | None:
    """Return bytes/s of the direct links between all GPUs of a domain; None if a GPU has no direct link."""
    place = {gpu: i for i, gpu in enumerate(domain)}
    rates = [[0] * len(domain) for _ in domain]
    for gpu, i in place.items():
        for link in cluster.links_from(gpu):
            if link.link_class == SCALE_UP and link.target in place:
                rates[i][place[link.target]] += link.bytes_per_s
    return rates if all(map(any, rates)) else None


def _has_gaps(mesh: list[list[int]]) -> bool:
    return any(not rate for i, row in enumerate(mesh) for j, rate in enumerate(row) if i != j)


def _mesh_kind(mesh: list[list[int]] | None) -> str:
    """Return how ranks of a domain send: "ring" over switches, "direct" to all alike, or "" otherwise."""
    if mesh is None:
        return "ring"
    rates = {rate for i, row in enumerate(mesh) for j, rate in enumerate(row) if i != j}
    return "direct" if len(rates) == 1 and 0 not in rates else ""


def _add_inner_flows(
    flows: dict[tuple[int, int], Weight], domain: Sequence[int], mesh: list[list[int]] | None, amount: Weight
) -> None:
    """Add the flows inside a domain: over all direct links in proportion to their rates, else to the next rank."""
    if len(domain) < 2:
        return
    for i, source in enumerate(domain):
        if mesh is None:
            flows[source, domain[(i + 1) % len(domain)]] = amount
            continue
        total = sum(mesh[i])
        for target, rate in zip(domain, mesh[i], strict=True):
            if rate:
                flows[source, target] = amount * rate / total


class _MessageEnds(NamedTuple):
    """Messages of a shape: int64[messages] each; ``kinds``: INNER or OUTER."""

    senders: Int64
    receivers: Int64
    kinds: Int64


def _messages(shape: RegularFlows | ShiftFlows | StarFlows, num_ranks: int) -> _MessageEnds:
    """Return the ends of all messages; for a rooted shape as if every rank sent some."""
    ranks = np.arange(num_ranks)
    if isinstance(shape, StarFlows):
        zeros, peers = np.zeros(num_ranks - 1, np.int64), ranks[1:]
        sources, targets = (zeros, peers) if shape.rooted == FROM_ROOT else (peers, zeros)
        return _MessageEnds(sources, targets, np.full(num_ranks - 1, INNER))
    if isinstance(shape, ShiftFlows):
        shift = np.arange(1, shape.count + 1)
        targets = (ranks[:, None] + shift) % num_ranks
        return _MessageEnds(np.repeat(ranks, shape.count), targets.ravel(), np.full(targets.size, INNER))
    size, groups = shape.size, shape.groups
    positions = np.arange(num_ranks).reshape((size, groups) if shape.strided else (groups, size))
    table = positions.T if shape.strided else positions
    inner = range(1, size if shape.inner == "direct" else min(size, 2))
    receivers = [np.roll(table, -shift, axis=1).ravel() for shift in inner]
    kinds = [INNER] * len(receivers)
    if groups > 1:
        receivers.append(np.roll(table, -1, axis=0).ravel())
        kinds.append(OUTER)
    senders = np.tile(table.ravel(), len(kinds))
    return _MessageEnds(senders, np.concatenate(receivers), np.repeat(kinds, num_ranks))
