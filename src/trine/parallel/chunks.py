"""The passes of one chunk of the model: the operators of each kind of pass, and the tensors that cross its borders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trine.graph.workload import BACKWARD, FORWARD, Operator, Workload
from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, INPUT_PASS, WEIGHT_PASS
from trine.parallel.stages import BOTH, INPUT_PART, WEIGHT_PART, Crossing, Stages


class OperatorRun(NamedTuple):
    """One run of an operator within a pass.

    part: the gradients that a backward operator computes in this run, if it can run in halves; else BOTH.
    rerun: a recomputed forward operator. adds: this run adds to weight gradients, if the operator has any.
    """

    op: Operator
    part: str = BOTH
    rerun: bool = False
    adds: bool = True

    @property
    def key(self) -> tuple[int, str, bool]:
        """Identifies this run within one micro-batch."""
        return self.op.id, self.part, self.rerun


class MicroBatch(int):
    """The number of a micro-batch in a :class:`Place`; copies of a pass find it in keys by its type."""

    __slots__ = ()


class Place(NamedTuple):
    """Position in a stage's program: phase (:class:`trine.graph.program.Phase`), micro-batch (-1: none) and step.

    ``is_last``: this pass (or this operator, in an operator hook) completes its weights' gradients, so they can be
    reduced. With ``Plan.sync = "each"`` this happens once per micro-batch, else once per step.
    ``chunk``: the part of the model that the pass runs; a stage may hold several.
    ``part``: in a split backward phase, ``"input"`` (activation gradients) or ``"weight"``. An operator that computes
    both runs twice, once in each part.
    ``rerun``: a forward operator runs again in a backward pass (recomputation); all data that it needs from other ranks
    is sent again.
    """

    phase: int
    microbatch: int
    step: int
    is_last: bool = False
    chunk: int = 0
    part: str = BOTH
    rerun: bool = False

    @property
    def key(self) -> tuple[int | str, ...]:
        """Distinguishes the collectives of one operator at different places: part of a collective's ``key``."""
        part = [self.part] if self.part else []
        rerun = ["rerun"] if self.rerun else []
        return (self.microbatch, self.step, *part, *rerun)


class ChunkPass(NamedTuple):
    """The runs of one kind of pass, and by position the arrivals from other chunks before a run and sends after it."""

    runs: tuple[OperatorRun, ...]
    arriving: Mapping[int, tuple[Crossing, ...]]
    leaving: Mapping[int, tuple[Crossing, ...]]


class Chunk:
    """Consecutive operators of the model: ``forward`` and ``backward``, and its passes by kind.

    ``segments``: the recomputed forward operators, each segment right before the first backward operator of one of its
    members; ``left_out``: ids of members that do not run again.
    """

    def __init__(
        self,
        number: int,
        stages: Stages,
        operators: tuple[Sequence[Operator], Sequence[Operator]],
        segments: Sequence[Sequence[Operator]],
        splits: bool,
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        self.number = number
        self.forward, self.backward = (tuple(group) for group in operators)
        self._segment_of = {op.id: i for i, ops in enumerate(segments) for op in ops}
        self._segments = []
        for ops in segments:
            self._segments.append([op for op in ops if op.id not in left_out])
        self._parts = stages.parts
        self._deferred = stages.deferred if number == stages.num_stages - 1 else frozenset()
        self.passes = {FORWARD_PASS: self._forward_pass(stages)}
        self.passes[BACKWARD_PASS] = self._backward_pass(stages, self._backward_runs(BOTH, set()))
        if splits:
            begun: set[int] = set()
            self.passes[INPUT_PASS] = self._backward_pass(stages, self._backward_runs(INPUT_PART, begun))
            self.passes[WEIGHT_PASS] = ChunkPass(self._backward_runs(WEIGHT_PART, begun), {}, {})

    def _forward_pass(self, stages: Stages) -> ChunkPass:
        position = {op.id: i for i, op in enumerate(self.forward)}
        # A chunk without operators passes on what other chunks make and read.
        arriving = [(position.get(c.consumer, 0), c) for c in stages.crossings if c.target == self.number]
        leaving = [(position.get(c.producer, 0), c) for c in stages.crossings if c.source == self.number]
        return ChunkPass(tuple(OperatorRun(op) for op in self.forward), _grouped(arriving), _grouped(leaving))

    def _backward_runs(self, part: str, begun: set[int]) -> tuple[OperatorRun, ...]:
        """Return the runs of a backward pass, or of one part of it; ``begun``: segments already recomputed."""
        runs: list[OperatorRun] = []
        for op in self.backward:
            op_part = self._parts.get(op.id, INPUT_PART)
            if self._deferred:
                op_part = WEIGHT_PART if op.id in self._deferred else INPUT_PART
            if part not in (BOTH, op_part) and op_part != BOTH:
                continue
            segment = self._segment_of.get(op.forward_id, -1) if op.forward_id is not None else -1
            if segment >= 0 and segment not in begun:
                begun.add(segment)
                runs += [OperatorRun(forward, rerun=True, adds=False) for forward in self._segments[segment]]
            is_half = part != BOTH and op_part == BOTH
            runs.append(OperatorRun(op, part if is_half else BOTH, adds=not (is_half and part == INPUT_PART)))
        return tuple(runs)

    def _backward_pass(self, stages: Stages, runs: tuple[OperatorRun, ...]) -> ChunkPass:
        """Return a backward pass. A gradient arrives before its first use and leaves after its last reader computes it.

        In the input part of a pass, this is the last operator there that computes a gradient of the same reader.
        """
        last = len(runs) - 1
        reader_of = {op.id: op.forward_id for op in self.backward}
        run_of = {run.op.id: i for i, run in enumerate(runs)}
        of_reader = {run.op.forward_id: i for i, run in enumerate(runs) if run.op.forward_id is not None}

        def last_producer(crossing: Crossing) -> int:
            reader = reader_of.get(crossing.gradient_after)
            return run_of.get(crossing.gradient_after, last if reader is None else of_reader.get(reader, last))

        gradients = [c for c in stages.crossings if c.has_gradient]
        arriving = [(_first_use(runs, c), c) for c in gradients if c.source == self.number]
        leaving = [(last_producer(c), c) for c in gradients if c.target == self.number]
        return ChunkPass(runs, _grouped(arriving), _grouped(leaving))


def _first_use(runs: Sequence[OperatorRun], crossing: Crossing) -> int:
    """Return the first run that needs the gradient of the crossing tensor, or a recomputation just before it."""
    if crossing.gradient_before < 0:
        return 0
    first = next((i for i, run in enumerate(runs) if run.op.forward_id == crossing.producer), 0)
    while first and runs[first - 1].rerun:
        first -= 1
    return first


def operators_by_chunk(workload: Workload, stages: Stages) -> list[tuple[list[Operator], list[Operator]]]:
    """Return the forward and backward operators of each chunk, in order."""
    chunks: list[tuple[list[Operator], list[Operator]]] = [([], []) for _ in range(stages.num_stages)]
    for op in workload.operators:
        if op.phase in (FORWARD, BACKWARD):
            chunks[stages.stage_of[op.id]][op.phase == BACKWARD].append(op)
    return chunks


def _grouped(pairs: Sequence[tuple[int, Crossing]]) -> dict[int, tuple[Crossing, ...]]:
    grouped: dict[int, list[Crossing]] = {}
    for position, crossing in pairs:
        grouped.setdefault(position, []).append(crossing)
    return {position: tuple(crossings) for position, crossings in grouped.items()}
