"""Predict the time of one collective: the library's choice, its duration, and the alternatives.

The choice follows the library's own cost model (:mod:`tuner`), the time trine's (:mod:`costs`). Few measurements
between nodes show that the library's model is the better one. Without such measurements the answer takes another
candidate if trine's estimate of it is below the likely range of the library's choice; a note reports this.

Four rules keep answers in order:

- Hand-described links: more bandwidth never gives a longer time (:mod:`monotone`). Between several nodes the fastest
  estimate is the choice, so less latency never gives a longer time either.
- Size: the time never falls as the size grows. If the library changes to a faster candidate, the time is constant until
  this candidate takes as long. On a degraded machine the rule holds between powers of two.
- A reduce_scatter or all_gather takes at most as long as the all_reduce of its size, which delivers the same data and
  more. The limit matters with many domains or switches that reduce, because only all_reduce has trees and NVLS there.
- A degraded machine is never faster than the machine with one fault less.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from trine.cluster.cluster import Cluster
from trine.cluster.planes import spread_over_planes
from trine.cluster.presets import library_of_gpu
from trine.collectives.bus_bandwidth import MAX_BYTES, bus_factor, sent_bytes
from trine.collectives.degraded import clusters_before, not_faster
from trine.collectives.nccl.costs import (
    COSTS,
    DIRECT_OPS,
    IN_NETWORK,
    NVLS_CHUNK_BYTES,
    RING_OPS,
    Cost,
    CostContext,
    runnable,
)
from trine.collectives.nccl.measured import bytes_factors
from trine.collectives.nccl.monotone import Candidate, monotone_in_bandwidth
from trine.collectives.nccl.parameters import LL, LL128, SIMPLE, Library, Medium, load_library
from trine.collectives.nccl.topology import CommTopology, blended, comm_topology, slowed
from trine.collectives.nccl.tuner import tuner_us
from trine.collectives.options import AUTO, LAUNCHES, CollectiveOptions, CollectiveTime, TimePart
from trine.common.evidence import EVIDENCE
from trine.common.units import format_bandwidth, format_time
from trine.errors import InputError, nearest

OPS = (*RING_OPS, *DIRECT_OPS)
ALGORITHMS = tuple(COSTS)
#: Collectives that do part of an all_reduce's work.
CONTAINED = ("reduce_scatter", "all_gather")
#: NCCL has 64 channels at most, RCCL 128.
MAX_CHANNELS = 128
#: Limits of NVLS chunks that trine takes: from the smallest that NCCL chooses to one of its buffers.
MIN_NVLS_CHUNK_BYTES, MAX_NVLS_CHUNK_BYTES = 16 << 10, 4 << 20
_GRID_PER_OCTAVE = 4
#: Maximum number of cached contexts with less bandwidth.
_MAX_CONTEXTS = 1000
#: Requirements of algorithms that some groups lack.
_NEEDS = {
    "nvls": " (it needs switches that reduce, and all ranks on one node or rack, or a fabric that reduces)",
    "nvlstree": " (it needs switches that reduce, and several nodes or racks)",
    "collnet": " (it needs a fabric that reduces, 'reduces: true', and several nodes)",
}
#: Binary logarithms of the size between which the band changes from small to large messages.
_BAND_FROM, _BAND_TO = 18, 21

#: A message whose time only the bandwidth decides.
MANY_BYTES = 1 << 30
#: Steps between a better and a degraded machine that are searched for switches, and bisections of each step.
_STEPS, _HALVINGS = 16, 30


@dataclass(frozen=True, slots=True)
class _Segment:
    """From ``first`` bytes on the library takes ``candidate``; ``floor_us`` is the longest time of any smaller size."""

    first: int
    candidate: Candidate
    floor_us: float


#: All measured groups but one have at most so many nodes. That one, of 360 nodes, takes up to 1.96 times as long as
#: predicted where the range for fewer nodes ends at 1.27 times: 1.2 for each doubling.
MEASURED_NODES, SCALE_DOUBT = 64, 1.2
_SHARP = "SHARP: no public results of these machines test the assumption that switches reduce at the links' rate"


class Collectives:
    """Predictor of one group's collectives. It examines the group's links once; a prediction then takes microseconds.

    Parameters
    ----------
    cluster, group: ``group`` lists ranks (positions in ``cluster.gpus``); None: all GPUs.
    options: library, algorithm, protocol and limits.
    library: costs to use instead of the library's. context: costs and links to use instead (:func:`with_context`).

    Raises InputError: unknown option value, or one that does not fit the cluster.
    """

    def __init__(
        self, cluster: Cluster, group: Sequence[int] | None = None, options: CollectiveOptions | None = None,
        library: Library | None = None, context: CostContext | None = None,
    ) -> None:  # fmt: skip
        self.options = options or CollectiveOptions()
        self.cluster = cluster if context else spread_over_planes(cluster)
        self.group = range(len(self.cluster.gpus)) if group is None else group
        self.context = context or self._library_context(library)
        self.library, self.topology = self.context.library, self.context.topology
        self._segments: dict[str, tuple[list[int], list[_Segment]]] = {}
        self._slowed_contexts: dict[float, CostContext] = {}
        self._longest: dict[str, list[float]] = {}

    def _library_context(self, library: Library | None) -> CostContext:
        """Return the group's links with the costs of ``library``, by default of the library that the options select."""
        cluster, options = self.cluster, self.options
        topology = comm_topology(cluster, self.group)
        name = topology.library if options.library == AUTO else options.library
        if cluster.library not in (None, name) and library_of_gpu(topology.gpu) != name:
            raise InputError(f"the GPUs of {cluster.name!r} run {cluster.library}, not {name}", field="library")
        library = library or load_library(name)
        _check_options(options, topology)
        return CostContext(
            topology=topology, library=library, launch=options.launch,
            min_channels=options.min_channels, max_channels=options.max_channels,
            nvls_chunk_bytes=options.nvls_chunk or NVLS_CHUNK_BYTES,
            bytes_factors=bytes_factors(cluster, topology, links_alone),
        )  # fmt: skip

    # -- candidates ----------------------------------------------------------------------------------------------

    def candidates(self, op: str) -> list[Candidate]:
        """Return the (algorithm, protocol) pairs allowed by the options. Raises InputError if no pair is left."""
        _check_op(op)
        pairs = runnable(self.topology, self.library.name, op)
        options = self.options
        matches = [
            pair
            for pair in pairs
            if options.algorithm in (AUTO, pair[0])
            and options.protocol in (AUTO, pair[1])
            and options.nvls in (None, pair[0] in IN_NETWORK)
        ]
        if not matches:
            raise self._no_candidate_error(op, pairs)
        return matches

    def _no_candidate_error(self, op: str, pairs: Sequence[Candidate]) -> InputError:
        options = self.options
        terms = []
        for name in ("algorithm", "protocol"):
            if (value := getattr(options, name)) != AUTO:
                terms.append(f"{name} {value!r}")
        nvls = [] if options.nvls is None else ["NVLS" if options.nvls else "NVLS forbidden"]
        terms += nvls
        text = ", ".join(f"{algorithm}/{protocol}" for algorithm, protocol in pairs)
        if options.algorithm != AUTO:
            field = "algorithm"
        elif options.protocol != AUTO:
            field = "protocol"
        else:
            field = "nvls"
        why = _NEEDS.get(options.algorithm, "")
        return InputError(
            f"{self.library.name} has no {op} with {' and '.join(terms)} on this group{why}; it has {text}", field=field
        )

    def choice(self, op: str, size_bytes: int) -> Candidate:
        """Return the library's candidate for this size."""
        pairs = self.candidates(op)
        if len(pairs) == 1:
            return pairs[0]
        if self.library.name != "nccl":  # its tuning tables are not modelled: take the fastest candidate
            return min(pairs, key=lambda pair: self.cost(op, size_bytes, pair).total_us)
        return self._choice(self.context, op, size_bytes)

    def _choice(self, context: CostContext, op: str, size_bytes: int) -> Candidate:
        if self.topology.by_hand and not self._is_choice_measured:
            return self._fastest(context, op, size_bytes)  # neither more bandwidth nor less latency makes it slower
        return self._preferred(context, op, size_bytes)

    def _fastest(self, context: CostContext, op: str, size_bytes: int) -> Candidate:
        """Return the candidate with the shortest time by trine's estimate."""
        pairs = self.candidates(op)
        return min(pairs, key=lambda pair: COSTS[pair[0]](context, op, float(size_bytes), pair[1]).total_us)

    def _preferred(self, context: CostContext, op: str, size_bytes: int) -> Candidate:
        """Return the candidate that NCCL's cost model prefers."""
        pairs = self.candidates(op)
        best: tuple[float, Candidate] | None = None
        for pair in pairs:
            us = tuner_us(context, op, float(size_bytes), *pair)
            if us is not None and (best is None or us < best[0]):
                best = us, pair
        return best[1] if best else pairs[0]

    @cached_property
    def _is_choice_measured(self) -> bool:
        """Whether measurements show that NCCL's cost model predicts NCCL's choice better than trine's estimate.

        They do on one node, on two nodes of one GPU (``v100-2-10gbe``, ``spark-2``), on racks (``gb200-20-racks``), and
        on two nodes with NVLS (``h100-2x8``; two A4 nodes of eight B200, github.com/dstackai/dstack examples, GCP A4).
        """
        topology = self.topology
        return (
            topology.between is None
            or (topology.max_per_domain == 1 and topology.num_nodes == 2)
            or topology.num_domains < topology.num_nodes
            or (topology.multicast and topology.num_nodes == 2)
        )

    def cost(self, op: str, size_bytes: int, pair: Candidate) -> Cost:
        """Return trine's cost of one candidate."""
        return COSTS[pair[0]](self.context, op, float(size_bytes), pair[1])

    def scaled_us(self, op: str, size_bytes: int, factor: float) -> float:
        """Return the time of the library's candidate if its bytes take ``factor`` times as long."""
        context = replace(self.context, bytes_factors={op: factor})
        pairs = self.candidates(op)
        pair = pairs[0] if len(pairs) == 1 else with_context(self, context).choice(op, size_bytes)
        return COSTS[pair[0]](context, op, float(size_bytes), pair[1]).total_us

    def notes(self, op: str) -> tuple[str, ...]:
        """Return the sources of the costs and the effects that are not modelled, as sentences."""
        notes = [*self.bandwidth_notes(op), *self.cost_notes()]
        if self.library.name != "nccl":
            notes.append(f"{self.library.name} tunes by tables that are not modelled; trine takes its fastest")
        if self.topology.between is not None:
            notes.append("not modelled: other traffic on the fabric, and congestion control of its transport")
        if self._doubt_of_scale > 1.0:
            limit = self.cost(op, MANY_BYTES, self.choice(op, MANY_BYTES)).limit or "the fabric"
            notes.append(
                f"{self.topology.num_nodes:,} nodes: one measured group has more than {MEASURED_NODES}, so the range "
                f"is wider; {limit} bounds large messages"
            )
        if self.topology.sharp:
            reducing = any(self._reduces_in_fabric(pair) for pair in self.candidates(op))
            notes.append(_SHARP if reducing else f"SHARP has no effect: {self.library.name} has no {op} with it")
        return tuple(notes)

    def bandwidth_notes(self, op: str) -> tuple[str, ...]:
        """Return the note on a bandwidth per collective of the cluster file, if it has any."""
        given, nodes = self.cluster.collective_bandwidth, self.topology.num_domains
        if given is None:
            return ()
        rate = given.at(op, nodes) if op in self.context.bytes_factors else None
        if rate is None:
            return (f"the cluster file has no collective_bandwidth for {op} here: it takes the links' bandwidth",)
        where = f"{nodes} node{'' if nodes == 1 else 's'}"
        return (
            f"bus bandwidth {format_bandwidth(round(rate))} on {where} of {given.gpus_per_node} GPUs, from the "
            f"cluster file ({given.evidence_at(op, nodes)}); the bytes take {self.context.bytes_factors[op]:.2f} times "
            "as long as the links suggest",
        )

    def cost_notes(self) -> tuple[str, ...]:
        """Return the source of the software costs, one sentence per medium."""
        notes = []
        for medium in self._media():
            basis = "fitted to nccl-tests results" if medium.evidence != "assumed" else "assumed from similar links"
            notes.append(f"{self.library.name.upper()} overheads on {medium.name}: {basis} (trine help collectives)")
        return tuple(notes)

    # -- answers -------------------------------------------------------------------------------------------------

    def predict(self, op: str, size_bytes: int) -> CollectiveTime:
        """Predict one collective's time for ``size_bytes``, as nccl-tests counts; one fault less never makes it longer.

        Raises InputError: an unknown op, or a size below 0 or above 1 PiB.
        """
        answer = self._unbounded_answer(op, size_bytes)
        for machine in self._repairs:
            media = self.topology.slowest_medium, machine.topology.slowest_medium
            better = machine.predict(op, size_bytes), *self._switch_answers(machine, op, size_bytes)
            answer = not_faster(answer, max(better, key=float), media)
        return answer

    def _switch_answers(self, machine: Collectives, op: str, size: int) -> Iterator[CollectiveTime]:
        """Yield the times just before the library switches candidates, between a better machine and this one."""
        sent = sent_bytes(op, size, self.topology.num_ranks)
        if self.library.name != "nccl" or len(self.candidates(op)) < 2:
            return
        if machine.choice(op, sent) == self.choice(op, sent) or blended(machine.topology, self.topology, 1.0) is None:
            return
        steps = [step / _STEPS for step in range(_STEPS + 1)]
        choices = [self._choice(self._blended_context(machine, part), op, sent) for part in steps]
        for low, high, pair, next_pair in zip(steps, steps[1:], choices, choices[1:], strict=False):
            if pair != next_pair:
                for _ in range(_HALVINGS):
                    middle = (low + high) / 2
                    is_same = self._choice(self._blended_context(machine, middle), op, sent) == pair
                    low, high = (middle, high) if is_same else (low, middle)
                degraded = with_context(self, self._blended_context(machine, low))
                yield degraded._answer(op, size, sent, pair, None)

    def _blended_context(self, machine: Collectives, part: float) -> CostContext:
        topology = blended(machine.topology, self.topology, part)
        assert topology is not None
        return replace(self.context, topology=topology)

    @cached_property
    def _repairs(self) -> tuple[Collectives, ...]:
        """The same group on the clusters with one slow or missing link less."""
        machines = tuple(
            Collectives(cluster, self.group, self.options, self.library) for cluster in clusters_before(self.cluster)
        )
        duplicate = next((machine for machine in machines if machine.topology == self.topology), None)
        return machines if duplicate is None else duplicate._repairs  # the fault does not affect these ranks

    def _unbounded_answer(self, op: str, size_bytes: int) -> CollectiveTime:
        """Return the time without the bound of a better machine."""
        _check_op(op)
        answer = self._choice_answer(op, size_bytes)
        is_given = op in self.context.bytes_factors  # a measurement is no bound's business
        if op not in CONTAINED or is_given or self.options.algorithm not in (AUTO, "ring"):
            return answer
        all_reduce = self._choice_answer("all_reduce", size_bytes)
        return answer if answer.time_ps <= all_reduce.time_ps else _bounded(answer, all_reduce)

    def _choice_answer(self, op: str, size_bytes: int) -> CollectiveTime:
        """Return the answer for the library's candidate."""
        sent = sent_bytes(op, size_bytes, self.topology.num_ranks)
        if self._repairs and self.library.name == "nccl":
            return self._answer(op, size_bytes, sent, self.choice(op, sent), self._smaller_us(op, size_bytes))
        segment = self._segment(op, sent)
        return self._answer(op, size_bytes, sent, segment.candidate, segment.floor_us)

    def _smaller_us(self, op: str, size: int) -> float:
        """Return the longest time of any power of two below ``size`` on a degraded machine, and on the way to it.

        The floor of a segment may fall with the bandwidth: it is the time at the size at which the library switches,
        and this size differs on a slower link.
        """
        longest = self._longest.setdefault(op, [0.0])
        octaves = (size - 1).bit_length() if size > 1 else 0
        for octave in range(len(longest) - 1, octaves):
            sent = sent_bytes(op, 1 << octave, self.topology.num_ranks)
            answer = self._answer(op, 1 << octave, sent, self.choice(op, sent), 0.0)
            switches = [each for machine in self._repairs for each in self._switch_answers(machine, op, 1 << octave)]
            longest.append(max(longest[-1], *(each.time_ps / 1e6 for each in (answer, *switches))))
        return longest[octaves]

    def alternatives(self, op: str, size_bytes: int) -> list[CollectiveTime]:
        """Return every candidate's time, fastest first, independent of the library's choice."""
        sent = sent_bytes(op, size_bytes, self.topology.num_ranks)
        rows = [self._answer(op, size_bytes, sent, pair, None) for pair in self.candidates(op)]
        return sorted(rows, key=lambda row: row.time_ps)

    def crossovers(self, op: str) -> list[tuple[int, str, str]]:
        """Return (first size in bytes, algorithm, protocol) of each choice of the library, smallest size first."""
        self._segment(op, 0)
        return [(segment.first, *segment.candidate) for segment in self._segments[op][1]]

    def _answer(self, op: str, size: int, sent: int, pair: Candidate, floor_us: float | None) -> CollectiveTime:
        """Return one candidate's answer. floor_us: minimum from smaller sizes; None: the candidate's time alone."""
        cost, notes, rival = self.cost(op, sent, pair), tuple[str, ...](), None
        if floor_us is not None:
            slower = self._faster_with_less(op, sent, pair)
            if slower is not None and slower[0].total_us < cost.total_us:
                cost, notes = slower[0], (self._bandwidth_note(op, pair, cost, slower),)
        time_us = max(cost.total_us, floor_us or 0.0)
        if floor_us is not None and (rival := self._rival(op, sent, time_us)) is not None and rival[0] != pair:
            notes += (self._rival_note(rival, pair),)
        evidence = "assumed" if self._reduces_in_fabric(pair) else self._evidence
        given = self.cluster.collective_bandwidth
        if given is not None and op in self.context.bytes_factors:
            evidence = given.evidence_at(op, self.topology.num_domains)
        low, high = self._band(evidence, sent)
        low_us = low * (min(time_us, rival[1]) if rival is not None else time_us)
        high_us = high * time_us * self._doubt_of_scale
        return CollectiveTime(
            op=op, size_bytes=size, sent_bytes=sent, num_ranks=self.topology.num_ranks, time_ps=_ps(time_us),
            low_ps=_ps(low_us), high_ps=_ps(high_us), algorithm=pair[0], protocol=pair[1],
            channels=self.context.channels, bus_factor=bus_factor(op, self.topology.num_ranks), evidence=evidence,
            limit=cost.limit, parts=_parts(cost, time_us), notes=notes,
        )  # fmt: skip

    def _faster_with_less(self, op: str, size: int, choice: Candidate) -> tuple[Cost, Candidate, float] | None:
        """Return (cost, candidate, share of the bandwidth) of a faster answer with less bandwidth, or None.

        Applies to hand-described links only (:mod:`monotone`): on catalogue links the choice is measured.
        """
        pairs = self.candidates(op)
        if len(pairs) < 2 or self.library.name != "nccl" or not self.topology.by_hand:
            return None
        return monotone_in_bandwidth(
            choice, pairs,
            lambda pair, share: COSTS[pair[0]](self._slowed_context(share), op, float(size), pair[1]),
            lambda share: self._choice(self._slowed_context(share), op, size),
        )  # fmt: skip

    def _slowed_context(self, part: float) -> CostContext:
        """Return the context of the same group with a fraction of its bandwidth."""
        if part == 1.0:
            return self.context
        if part not in self._slowed_contexts:
            if len(self._slowed_contexts) > _MAX_CONTEXTS:
                self._slowed_contexts.clear()
            self._slowed_contexts[part] = replace(self.context, topology=slowed(self.topology, part))
        return self._slowed_contexts[part]

    def _bandwidth_note(self, op: str, choice: Candidate, cost: Cost, slower: tuple[Cost, Candidate, float]) -> str:
        _, pair, part = slower
        rival, name = ("/".join(one) for one in (pair, choice))
        return (
            f"{self.library.name} takes {name}, which alone would take {format_time(_ps(cost.total_us))}, but {rival} "
            f"with {part:.3g} of the bandwidth: {op} takes as long as with that, as more does not make it slower"
        )

    def _rival(self, op: str, size: int, time_us: float) -> tuple[Candidate, float] | None:
        """Return a candidate that is faster by trine's estimate, and its time in us; None if a measurement decides.

        Faster means below the range of the answer, which takes ``time_us``. That may be the time of a smaller message
        for which the library makes another choice.
        """
        if self.library.name != "nccl" or self._is_choice_measured or len(self.candidates(op)) < 2:
            return None
        fastest = self._fastest(self.context, op, size)
        fastest_us = self.cost(op, size, fastest).total_us
        return (fastest, fastest_us) if fastest_us < self._band(self._evidence, size)[0] * time_us else None

    def _rival_note(self, rival: tuple[Candidate, float], pair: Candidate) -> str:
        """Return the note of an answer whose range spans two algorithms."""
        faster, time_us = rival
        return (
            f"NCCL's cost model prefers {'/'.join(pair)}; {'/'.join(faster)} would take {format_time(_ps(time_us))} by "
            "trine's estimate. No measurement of such nodes decides, so the range spans both"
        )

    @cached_property
    def _evidence(self) -> str:
        return max((medium.evidence for medium in self._media()), key=EVIDENCE.index)

    @cached_property
    def _doubt_of_scale(self) -> float:
        """Factor on the upper end of the range of a group that is larger than almost all measured ones."""
        return float(max(1.0, SCALE_DOUBT ** math.log2(self.topology.num_nodes / MEASURED_NODES)))

    def _reduces_in_fabric(self, pair: Candidate) -> bool:
        """Return whether the fabric's switches reduce (SHARP), which no measurement of these fits covers."""
        return self.topology.sharp and pair[0] in ("nvls", "collnet")

    def _media(self) -> list[Medium]:
        topology, context = self.topology, self.context
        inner = [context.inner] if topology.inside else []
        outer = [context.outer] if topology.between else []
        return inner + outer

    def _band(self, evidence: str, size: int) -> tuple[float, float]:
        kind = f"{evidence}-net" if self.topology.between else evidence
        rows = self.library.bands.get(kind) or self.library.bands[evidence]
        (_, *small), (_, *large) = rows
        share = min(1.0, max(0.0, (math.log2(max(size, 1)) - _BAND_FROM) / (_BAND_TO - _BAND_FROM)))
        low, high = (a + share * (b - a) for a, b in zip(small, large, strict=True))
        return low, high

    def share_choices(self, source: Collectives) -> None:
        """Share the segments of ``source``: a group with an equal topology and the same options."""
        self._segments = source._segments

    # -- segments ------------------------------------------------------------------------------------------------

    def _segment(self, op: str, size: int) -> _Segment:
        if op not in self._segments:
            segments = self._find_segments(op)
            self._segments[op] = [segment.first for segment in segments], segments
        firsts, segments = self._segments[op]
        return segments[bisect_right(firsts, size) - 1]

    def _find_segments(self, op: str) -> list[_Segment]:
        """Return the segments in ascending order, each starting at the exact byte at which the choice changes."""
        segments = [_Segment(0, self.choice(op, 0), 0.0)]
        previous, last = 0, MAX_BYTES
        grid = {int(2 ** (step / _GRID_PER_OCTAVE)) for step in range(12, 50 * _GRID_PER_OCTAVE)} | {last}
        grid |= {2**octave - 1 for octave in range(4, 50)}  # NCCL's correction of trees jumps at powers of two
        for size in sorted(grid):
            if self.choice(op, size) != segments[-1].candidate:
                first = self._switch(op, previous, size, segments[-1].candidate)
                last_segment = segments[-1]
                slower = self._faster_with_less(op, first - 1, last_segment.candidate)
                cost = self.cost(op, first - 1, last_segment.candidate) if slower is None else slower[0]
                top = max(last_segment.floor_us, cost.total_us)
                segments.append(_Segment(first, self.choice(op, first), top))
            previous = size
        return segments

    def _switch(self, op: str, low: int, high: int, candidate: Candidate) -> int:
        """Return the first size above ``low``, at most ``high``, at which another candidate is chosen."""
        while high - low > 1:
            middle = (low + high) // 2
            if self.choice(op, middle) == candidate:
                low = middle
            else:
                high = middle
        return high


def _check_op(op: str) -> None:
    if op not in OPS:
        raise InputError(f"unknown collective {op!r}{nearest(op, OPS)}", field="op")


def _check_options(options: CollectiveOptions, topology: CommTopology) -> None:
    """Raise InputError for unknown names and contradictory limits."""
    for name, value, allowed in (
        ("algorithm", options.algorithm, (AUTO, *ALGORITHMS)),
        ("protocol", options.protocol, (AUTO, LL, LL128, SIMPLE)),
        ("launch", options.launch, LAUNCHES),
    ):
        if value not in allowed:
            raise InputError(f"unknown {name} {value!r}{nearest(value, allowed)}", field=name)
    low, high = options.min_channels, options.max_channels
    for name, number in (("min_channels", low), ("max_channels", high)):
        if number is not None and not 1 <= number <= MAX_CHANNELS:
            raise InputError(f"must be 1 to {MAX_CHANNELS}, got {number}", field=name)
    if low is not None and high is not None and low > high:
        raise InputError(f"is {low}, more than max_channels {high}", field="min_channels")
    chunk = options.nvls_chunk
    if chunk is not None and not MIN_NVLS_CHUNK_BYTES <= chunk <= MAX_NVLS_CHUNK_BYTES:
        from trine.collectives.sizes import format_size

        limits = f"{format_size(MIN_NVLS_CHUNK_BYTES)} to {format_size(MAX_NVLS_CHUNK_BYTES)}"
        raise InputError(f"must be {limits}, got {format_size(chunk)}", field="nvls_chunk")
    if options.nvls and not topology.multicast:
        raise InputError("no switch of this group reduces (NVLS), so it cannot be demanded", field="nvls")


def _bounded(answer: CollectiveTime, bound: CollectiveTime) -> CollectiveTime:
    """Return ``answer`` with the time of ``bound``, an all_reduce, in one part."""
    note = (
        f"{answer.op} is bounded by the all_reduce of its size ({bound.algorithm}/{bound.protocol}), which contains "
        f"it: {answer.algorithm}/{answer.protocol} alone would take {format_time(answer.time_ps)}"
    )
    part = TimePart(name="all_reduce", time_ps=bound.time_ps, why=note)
    return replace(
        answer, time_ps=bound.time_ps, low_ps=bound.low_ps, high_ps=bound.high_ps, limit=bound.limit, parts=(part,),
        notes=(*answer.notes, note),
    )  # fmt: skip


def _ps(us: float) -> int:
    return round(us * 1e6)


def _parts(cost: Cost, time_us: float) -> tuple[TimePart, ...]:
    """Return the parts of a cost, the floor last if it raises the time; they add up to the time exactly."""
    steps = f"{cost.num_steps} step{'s' if cost.num_steps != 1 else ''}"
    named_us = [
        ("launch", cost.launch_us, "starting the kernels"),
        ("set-up", cost.base_us, "fixed cost of the protocol per call"),
        ("latency", cost.steps_us, f"{steps}, one after the other"),
        ("bandwidth", cost.bytes_us, f"bytes over {cost.limit}" if cost.limit else "bytes over the links"),
        ("ramp", cost.delay_us, "pipeline fill: chunks wait for earlier steps"),
        ("level", time_us - cost.total_us, "raised to the time of a smaller size"),
    ]
    ends = [0, *map(_ps, accumulate(us for _, us, _ in named_us))]
    ends[-1] = _ps(time_us)
    return tuple(
        TimePart(name=name, time_ps=end - start, why=why)
        for (name, us, why), start, end in zip(named_us, ends, ends[1:], strict=False)
        if us > 0 and end > start
    )


def links_alone(cluster: Cluster, group: Sequence[int]) -> Collectives:
    """Return the predictor of a group by its links, without bandwidths per collective."""
    return Collectives(replace(cluster, collective_bandwidth=None, degraded_from=()), group)


def with_library(collectives: Collectives, library: Library) -> Collectives:
    """Return the predictor of the same group with the costs of ``library``, for a fit."""
    return with_context(collectives, replace(collectives.context, library=library))


def with_context(collectives: Collectives, context: CostContext) -> Collectives:
    """Return the predictor of the same group with the links and costs of ``context``."""
    return Collectives(collectives.cluster, collectives.group, collectives.options, context=context)
