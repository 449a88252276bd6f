"""Overlap of tensor parallelism by userbuffers of Transformer Engine: no kernels of NCCL, few or no SMs.

NVIDIA/NeMo, nemo/collections/llm/recipes/tp_overlap_configs/userbuffers.py (same in Megatron-Bridge, training/
comm_overlap.py), chooses for the GEMMs of a layer with sequence parallelism:

- ring exchange (qkv and fc1 forward; proj and fc2, gradient of the input): the GEMM runs in tp pieces. The first needs
  only local tokens; the tokens of the others arrive from the neighbour, by copy engine or one SM, beside the piece
  before.
- pipeline (proj and fc2 forward): the GEMM runs in 4 pieces on the SMs that the reduce-scatter of the piece before
  leaves free. Only the last reduce-scatter is exposed.
- bulk (qkv and fc1 backward): the all-gather of the input runs beside the gradient of the input, the reduce-scatter of
  that gradient beside the gradient of the weight, on few SMs.

A GEMM that pieces would not end earlier stays whole, with NCCL's collective. So do experts and the output head, which
Transformer Engine does not overlap.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from trine.graph.program import Label
from trine.graph.workload import BACKWARD, FORWARD, Operator
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.contention import BULK, PIPELINE, RING, userbuffer_channels
from trine.parallel.extension import StageProgram
from trine.parallel.layer_codes import LayerCodes, OtherStateError
from trine.parallel.sequence import GATHER, SCATTER, SequenceCollectives, parts
from trine.parallel.stages import INPUT_PART
from trine.parallel.tensor_layout import TensorSplit
from trine.parallel.tensor_times import gathered_end_ps, scattered_end_ps
from trine.parallel.token_partition import is_expert

PIPELINE_PIECES = 4
#: Compute streams: piece i runs on stream i modulo this number, so that the next pieces fill the last wave of blocks of
#: one (transformer_engine/common/comm_gemm_overlap, ``_stream_compute``; num_max_streams in pytorch/module/base.py).
STREAMS = 3


class UserbufferCollectives(SequenceCollectives):
    """All-gathers and reduce-scatters on the ``tp`` axis by userbuffers."""

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._heads = _output_heads(self.context.workload.operators, self.context.splits)

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        raise OtherStateError

    def _is_in_layer(self, op: Operator) -> bool:
        forward = op.id if op.phase == FORWARD else op.forward_id
        return not is_expert(op) and forward not in self._heads

    def _overlaps(self, op: Operator, split: TensorSplit, place: Place) -> bool:
        """Return whether the operator runs in pieces: by ring exchange, or as a pipeline."""
        if self.context.plan.overlap == "none" or not self._is_in_layer(op):
            return False
        is_pipeline = op.phase == FORWARD and split.mode == "row"
        is_ring = op.phase == FORWARD and split.mode == "column"
        is_ring |= op.phase == BACKWARD and split.mode == "row" and self._part(op, place) == INPUT_PART
        if not is_pipeline and not is_ring:
            return False
        return self._pieces_pay(op, split, place)

    def _ends_earlier(self, op: Operator, split: TensorSplit, batch: int, place: Place) -> bool:
        """Return whether the operator in pieces, with its transfers, ends before the whole one with its collective."""
        context, times = self.context, self.context.tensor_times
        is_pipeline = op.phase == FORWARD and split.mode == "row"
        tensor = op.outputs[0] if is_pipeline else self._gathered_tensor(op, split)
        if tensor is None:
            return False
        if times is None:
            return True
        size, part = context.gathered_bytes(op, tensor, batch), self._half(op, place)
        whole_ps = context.work.duration(op, batch, part=part)[0]
        if is_pipeline:
            piece_ps = context.work.piece_ps(op, batch, PIPELINE_PIECES, part, STREAMS)
            piece_ps = times.beside_ps(op, piece_ps, userbuffer_channels(PIPELINE), has_margin=True)
            transfer_ps = times.collective_ps(SCATTER, -(-size // PIPELINE_PIECES))
            ends = [scattered_end_ps(piece_ps, transfer_ps, PIPELINE_PIECES, late) for late in self._lateness_ps()]
            return self._saves(op, ends, whole_ps, times.collective_ps(SCATTER, size), gathers=False)
        pieces = context.plan.tp
        piece_ps = times.beside_ps(
            op, context.work.piece_ps(op, batch, pieces, part, STREAMS), userbuffer_channels(RING)
        )
        exchange_ps = times.collective_ps("shift", -(-size // pieces))
        ends = []
        for late in self._lateness_ps():
            ends.append(gathered_end_ps(piece_ps, [0, *(late + i * exchange_ps for i in range(1, pieces))]))
        return self._saves(op, ends, whole_ps, times.collective_ps(GATHER, size), gathers=True)

    def write(self, run: OperatorRun, duration_ps: int, label: Label, batch: int, place: Place) -> int | None:
        """Write a GEMM in pieces, beside the transfers of its input or result."""
        op, split = run.op, self._splits.get(run.op.id)
        if split is None or not self._overlaps(op, split, place):
            return None
        if op.phase == FORWARD and split.mode == "row":
            return self._write_pipeline(op, label, batch, place)
        return self._write_ring(op, split, label, batch, place)

    def _write_ring(self, op: Operator, split: TensorSplit, label: Label, batch: int, place: Place) -> int:
        """Write tp pieces, all but the first after an exchange with the neighbours; exchanges follow each other."""
        tensor = self._gathered_tensor(op, split)
        assert tensor is not None  # else it does not overlap
        size, pieces = self.context.gathered_bytes(op, tensor, batch), self.context.plan.tp
        piece_ps = self.context.work.piece_ps(op, batch, pieces, self._half(op, place), STREAMS)
        arrived, done = self.writer.last_compute_and_waits(), -1
        for i, piece_bytes in enumerate(parts(size, pieces)):
            if i:
                key = ("tp", "shift", op.id, i, *place.key)
                step = self.writer.collective(
                    "shift", self.axis, key, piece_bytes, arrived, label, queue=RING, is_first=i == 1
                )
                if i == 1:
                    self._keep(op, place, step, size)
                arrived = (step,)
                self.writer.wait(step)
            done = self.writer.operator(op, piece_ps, label, is_first=not i)
        return done

    def _write_pipeline(self, op: Operator, label: Label, batch: int, place: Place) -> int:
        """Write pieces of the GEMM, each followed by the reduce-scatter of its tokens."""
        size = self.context.gathered_bytes(op, op.outputs[0], batch)
        piece_ps = self.context.work.piece_ps(op, batch, PIPELINE_PIECES, self._half(op, place), STREAMS)
        scatters, done = [], -1
        for i, piece_bytes in enumerate(parts(size, PIPELINE_PIECES)):
            done = self.writer.operator(op, piece_ps, label, is_first=not i)
            key = ("tp", SCATTER, op.id, i, *place.key)
            scatters.append(
                self.writer.collective(
                    SCATTER, self.axis, key, piece_bytes, (done,), label, queue=PIPELINE, is_first=not i
                )
            )
        for step in scatters:
            self.writer.wait(step)
        return done

    def _queue(self, op: Operator, kind: str) -> str:
        """Return the queue of a whole collective: bulk for the backward pass of column splits within layers."""
        is_bulk = op.phase == BACKWARD and self._splits[op.id].mode == "column" and kind in (GATHER, SCATTER)
        return BULK if is_bulk and self._is_in_layer(op) else ""


def _output_heads(operators: Sequence[Operator], splits: Mapping[int, TensorSplit]) -> frozenset[int]:
    """Return the forward operators with a column split behind the last row split: they end in no row split."""
    heads: list[int] = []
    for op in operators:
        mode = splits[op.id].mode if op.phase == FORWARD and op.id in splits else ""
        if mode == "row":
            heads.clear()
        elif mode == "column":
            heads.append(op.id)
    return frozenset(heads)
