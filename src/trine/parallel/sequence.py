"""Sequence parallelism: between split operators each tensor-parallel rank holds a part of the tokens.

Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, section 4.2.2. The all-reduces
of tensor parallelism become an all-gather before a column split and a reduce-scatter after a row split, and vice versa
in the backward pass. Unless the software keeps it, the gathered input of a column split is freed, and gathered again
for the weight gradient, overlapped with the input gradient.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trine.errors import PlanError
from trine.graph.program import Label, Phase
from trine.graph.workload import BACKWARD, FORWARD, Operator
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.layer_codes import LayerCodes, OtherStateError
from trine.parallel.recompute import heads_of
from trine.parallel.stages import BOTH, INPUT_PART, WEIGHT_PART
from trine.parallel.tensor import SplitCollectives, sums_of
from trine.parallel.tensor_layout import TensorSplit
from trine.parallel.tensor_times import gathered_end_ps, scattered_end_ps
from trine.parallel.token_partition import is_expert
from trine.software.precision import CAST_DTYPES
from trine.workload.synthesis.written_style import HEAD_NORMS

GATHER, SCATTER = "all_gather", "reduce_scatter"
#: A GEMM runs in pieces if they end earlier by at least this part; smaller gains are below the accuracy of the times.
MIN_GAIN = 0.02


@dataclass(slots=True)
class _Gathered:
    """A gathered tensor for the operators of one forward operator; ``last``: the last step that used it."""

    owner: int | None
    place: Place
    step: int
    size_bytes: int
    last: int


class SequenceCollectives(SplitCollectives):
    """All-gathers and reduce-scatters on the ``tp`` axis, whole or in ``Plan.tp_overlap`` pieces."""

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._pieces = self.context.plan.tp_overlap
        self._pays: dict[tuple[object, ...], bool] = {}
        self._gathered: dict[int, _Gathered] = {}  # by lane
        software = self.context.software
        self._copies = software is not None and software.operators.sequence_gathers == "copied"
        passes = {} if software is None else software.operators.passes
        self._rotation_passes = Fraction(passes.get("rotary", [1.0])[0])
        self._gathered_part: Fraction | None = None
        self._gathers_heads = software is not None and software.operators.head_norms == "gathered"
        operators = (self.context.operators[op.id] for op in (*program.forward, *program.backward))
        splits = {}
        for each in operators:
            if (split := self.context.split_of(each)) is not None:
                splits[each.id] = split
        self._splits = splits
        for op_id, split in self.context.splits.items():
            if split.mode == "column" and split.forward:
                op = self.context.operators[op_id]
                raise PlanError(
                    f"sequence parallelism needs each column split to end in a row split, and the output of operator "
                    f"{op_id} ({op.layer}) has to be whole"
                )

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        if self._pieces > 1 or self._gathers_heads:
            raise OtherStateError
        gathered, noted = self._gathered.get(0), None
        if gathered is not None:
            if gathered.place._replace(rerun=False) != place._replace(is_last=False):
                raise OtherStateError
            steps = codes.code(gathered.step), codes.code(gathered.last)
            noted = codes.name(gathered.owner), gathered.place.rerun, gathered.size_bytes, steps
        return super().layer_state(codes, place), noted

    def set_layer_state(self, state: Any, codes: LayerCodes, place: Place) -> None:
        of_splits, noted = state
        super().set_layer_state(of_splits, codes, place)
        self._gathered.pop(0, None)
        if noted is not None:
            name, is_rerun, size_bytes, (step, last) = noted
            of_gather = place._replace(is_last=False, rerun=is_rerun)
            self._gathered[0] = _Gathered(
                codes.operator(name), of_gather, codes.step(step), size_bytes, codes.step(last)
            )

    # -- gathered inputs and scattered outputs ---------------------------------------------------------------------

    def _part(self, op: Operator, place: Place) -> str:
        """Return which gradients this run of a backward operator computes."""
        part = self.context.stages.parts[op.id]
        return place.part if part == BOTH and place.part else part

    def _gathered_tensor(self, op: Operator, split: TensorSplit) -> int | None:
        """Return the tensor that must be gathered before ``op``, if any."""
        forward = op if op.phase == FORWARD else self.context.operators[op.forward_id or 0]
        if op.phase == FORWARD:
            return next(iter(self.differentiable_input(op)), None) if split.mode == "column" else None
        tensors = self.context.workload.tensors
        if split.mode == "row" and op.inputs and tensors[op.inputs[0]].dtype in CAST_DTYPES:
            return op.inputs[0]  # each rank casts the gradient of its tokens before the gather
        if split.mode in ("row", "embedding"):
            return forward.outputs[0]
        style = self.context.memory_style
        is_kept = style.gathered_inputs == "kept" or (is_expert(op) and style.expert_inputs == "kept")
        if split.mode == "column" and not is_kept:
            return None if self._is_frozen(forward) else next(iter(self.differentiable_input(op)), None)
        return None

    def _is_frozen(self, forward: Operator) -> bool:
        """Return whether a product beside adapters has no weight gradient, which would need the gathered input."""
        gradients = self.context.gradient_of
        return "trainable" in self.context.workload.metadata and not any(t in gradients for t in forward.inputs)

    def _is_gathered_later(self, op: Operator, place: Place) -> bool:
        """Return whether the input of this backward operator is gathered for the deferred weight gradient only."""
        deferred, operators = self.context.stages.deferred, self.context.operators
        is_head = op.phase == BACKWARD and any(operators[late].forward_id == op.forward_id for late in deferred)
        return is_head and place.part != WEIGHT_PART and self.program.actions.defers(place.microbatch)

    def _collective_after(self, op: Operator, split: TensorSplit, place: Place) -> tuple[str, int] | None:
        """Return the collective after ``op`` and its tensor, if any."""
        if op.phase == FORWARD and split.mode in ("row", "embedding"):
            return SCATTER, op.outputs[0]
        if op.phase == FORWARD and split.forward:
            return split.forward, op.outputs[0]
        is_last = op.phase == BACKWARD and self.program.last_backward[op.forward_id] == op.id
        if is_last and split.mode == "column" and split.backward and place.part != WEIGHT_PART:
            return SCATTER, next(iter(self.input_gradient(op)))
        return None

    def _half(self, op: Operator, place: Place) -> str:
        """Return the part of a backward operator that runs in halves, else BOTH."""
        return place.part if self.context.stages.parts.get(op.id) == BOTH else BOTH

    def _overlaps(self, op: Operator, split: TensorSplit, place: Place) -> bool:
        """Return whether the operator runs in pieces overlapped with its collective."""
        if self._pieces == 1 or split.mode not in ("column", "row"):
            return False
        if op.phase != FORWARD and self._part(op, place) != INPUT_PART:
            return False
        return self._pieces_pay(op, split, place)

    def _pieces_pay(self, op: Operator, split: TensorSplit, place: Place) -> bool:
        """Return whether the operator ends earlier in pieces; computed once per operator, batch and part."""
        batch = self.context.micro_batches[place.microbatch]
        key = op.id, batch, place.part
        if key not in self._pays:
            self._pays[key] = self._ends_earlier(op, split, batch, place)
        return self._pays[key]

    def _ends_earlier(self, op: Operator, split: TensorSplit, batch: int, place: Place) -> bool:
        """Return whether the operator in pieces, with their collectives, ends before the whole one with its own."""
        times, pieces, work = self.context.tensor_times, self._pieces, self.context.work
        if times is None or is_expert(op):
            return True
        gathers = (op.phase == FORWARD) == (split.mode == "column")
        if op.phase == BACKWARD and not gathers:
            return False  # the whole reduce-scatter overlaps with the gradient of the weight
        tensor = self._gathered_tensor(op, split) if gathers else op.outputs[0]
        if tensor is None:
            return True
        kind, size = GATHER if gathers else SCATTER, self.context.gathered_bytes(op, tensor, batch)
        piece_bytes, part = -(-size // pieces), self._half(op, place)
        piece_ps = times.beside_ps(op, work.piece_ps(op, batch, pieces, part), times.channels(kind, piece_bytes))
        whole_ps, transfer_ps = work.duration(op, batch, part=part)[0], times.collective_ps(kind, piece_bytes)
        more_launches_ps = (pieces - 1) * self.writer.collective_launch_ps(self.axis)
        ends = []
        for late_ps in self._lateness_ps():
            if gathers:
                end_ps = gathered_end_ps(piece_ps, [late_ps + (i + 1) * transfer_ps for i in range(pieces)])
            else:
                end_ps = scattered_end_ps(piece_ps, transfer_ps, pieces, late_ps)
            ends.append(end_ps + more_launches_ps)
        return self._saves(op, ends, whole_ps, times.collective_ps(kind, size), gathers)

    def _lateness_ps(self) -> tuple[int, int]:
        """Return the delays of a transfer behind the GEMM's start with which pieces must pay: none, or a launch."""
        return 0, self.writer.collective_launch_ps(self.axis)

    def _saves(self, op: Operator, ends_ps: list[int], whole_ps: int, transfer_ps: int, gathers: bool) -> bool:
        """Return whether pieces that end at ``ends_ps``, for each lateness, save time over a whole GEMM and transfer.

        They save none if the launching thread takes longer than both: then transfers overlap with launches already.
        """
        late = self._lateness_ps()
        launch_ps = 0 if self.context.launch is None else self.context.launch_of(op, self.writer.stage)[0]
        if whole_ps + transfer_ps <= late[-1] + launch_ps:
            return False
        whole_ends = (
            (late_ps + whole_ps if gathers else max(whole_ps, late_ps)) + transfer_ps for late_ps in late
        )  # fmt: skip
        return all(end * (1 + MIN_GAIN) < whole for end, whole in zip(ends_ps, whole_ends, strict=True))

    # -- points of a program -----------------------------------------------------------------------------------------

    def before(self, op: Operator, place: Place) -> None:
        self.let_weights_pass(op)
        if place.phase == Phase.OPTIMIZER:
            return
        self._free_gathered(op.forward_id if op.phase == BACKWARD else op.id, place)
        batch = self.context.micro_batches[place.microbatch]
        if self._gathers_heads and op.phase == FORWARD and op.name.startswith(HEAD_NORMS):
            self._gather_heads(op, batch, place)
        split = self._splits.get(op.id)
        if split is None:
            return
        tensor = self._gathered_tensor(op, split)
        if self._is_gathered_later(op, place):
            return
        in_pieces = self._overlaps(op, split, place) and (op.phase == FORWARD or split.mode == "row")
        if tensor is None or in_pieces:
            return
        gathered = self._gathered.get(self.writer.lane)
        if gathered is None:
            after = self.writer.last_compute_and_waits()
            step = self._collective(GATHER, tensor, batch, op, place, after)
            gathered = self._keep(op, place, step, self.context.gathered_bytes(op, tensor, batch))
            if self._copies and not self._queue(op, GATHER):
                self.writer.wait(step)
                self._copy(tensor, batch, op, place)
        # During the input gradient of a column split, the gather for its weight gradient may still be in progress.
        if op.phase == FORWARD or split.mode != "column" or self._part(op, place) != INPUT_PART:
            self.writer.wait(gathered.step)

    def write(self, run: OperatorRun, duration_ps: int, label: Label, batch: int, place: Place) -> int | None:
        """Write a GEMM and its collective in pieces: each piece is gathered before, or scattered after, its part."""
        op = run.op
        split = self._splits.get(op.id)
        if split is None or not self._overlaps(op, split, place):
            return None
        gathers = (op.phase == FORWARD and split.mode == "column") or (op.phase == BACKWARD and split.mode == "row")
        tensor = self._gathered_tensor(op, split) if gathers else None
        scatter = None if gathers else self._collective_after(op, split, place)
        if tensor is None and scatter is None:
            return None
        ready = self.writer.last_compute_and_waits()
        scatters, done = [], -1
        piece_ps = self.context.work.piece_ps(op, batch, self._pieces, self._half(op, place))
        for i in range(self._pieces):
            if tensor is not None:
                step = self._collective(GATHER, tensor, batch, op, place, ready, i)
                self.writer.wait(step)
                if not i:
                    self._keep(op, place, step, self.context.gathered_bytes(op, tensor, batch))
            done = self.writer.operator(op, piece_ps, label, is_first=not i)
            if scatter is not None:
                scatters.append(self._collective(scatter[0], scatter[1], batch, op, place, (done,), i))
        for step in scatters:
            self.writer.wait(step)
        return done

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        self.hold_again()
        gathered = self._gathered.get(self.writer.lane)
        if gathered is not None:
            gathered.last = done
        split = self._splits.get(op.id)
        if split is None:
            return
        scatter = self._collective_after(op, split, place)
        if scatter is None or (scatter[0] == SCATTER and self._overlaps(op, split, place)):
            return
        if scatter[0] == SCATTER and self._copies and not self._queue(op, SCATTER):
            done = self._copy(scatter[1], batch, op, place)
        for number in range(sums_of(op) - 1):  # of a loss: one after the other
            done = self._collective(scatter[0], scatter[1], batch, op, place, (done,), -2 - number)
        step = self._collective(scatter[0], scatter[1], batch, op, place, (done,))
        if scatter[0] == SCATTER:  # the sum over the ranks stays whole until the reduce-scatter ends
            size = self.context.gathered_bytes(op, scatter[1], batch)
            self.program.memory.temporary(size, done, step, user=step)
            self.program.memory.used_by(op.outputs[:1], place.microbatch, step)
        self.wait_beside_weights(op, step)

    def end_pass(self, place: Place) -> None:
        super().end_pass(place)
        self._free_gathered(None, place)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _collective(
        self, kind: str, tensor: int, batch: int, op: Operator, place: Place, after: tuple[int, ...], piece: int = -1
    ) -> int:
        size, groups = self.context.gathered_bytes(op, tensor, batch), self.context.plan.groups
        axis = groups.expert_tensor if is_expert(op) else groups.tensor
        if piece >= 0:
            size = parts(size, self._pieces)[piece]
        label = self.label(op, place)
        key = ("tp", kind, op.id, piece, *place.key)
        return self.writer.collective(kind, axis, key, size, after, label, queue=self._queue(op, kind))

    def _queue(self, op: Operator, kind: str) -> str:
        """Return the queue of a collective; "" for the axis's."""
        return ""

    def _copy(self, tensor: int, batch: int, op: Operator, place: Place) -> int:
        """Copy a whole tensor to or from the collective's layout; return the step of the copy."""
        duration_ps = self.context.work.copy_ps(tensor, batch)
        return self.writer.operator(op, duration_ps, self.label(op, place), is_first=False)

    def _gather_heads(self, op: Operator, batch: int, place: Place) -> None:
        """Gather queries and keys after their norms, copy them, and rotate the other ranks' as well."""
        context, tensor, label = self.context, op.inputs[0], self.label(op, place)
        if self._gathered_part is None:
            heads, keys = heads_of(context.workload, op)
            self._gathered_part = Fraction(heads + keys, heads + 2 * keys)  # values stay with their ranks
        part = self._gathered_part
        size = round(context.scaled_bytes(tensor, batch) * part)
        key = ("tp", "head norms", op.id, *place.key)
        after = self.writer.last_compute_and_waits()
        self.writer.wait(self.writer.collective(GATHER, context.plan.groups.tensor, key, size, after, label))
        passes = 1 + self._rotation_passes * Fraction(context.plan.tp - 1, context.plan.tp)
        self.writer.operator(op, round(context.work.copy_ps(tensor, batch) * part * passes), label, is_first=False)

    def _keep(self, op: Operator, place: Place, step: int, size_bytes: int) -> _Gathered:
        owner = op.forward_id if op.phase == BACKWARD else op.id
        gathered = self._gathered[self.writer.lane] = _Gathered(
            owner, place._replace(is_last=False), step, size_bytes, step
        )
        return gathered

    def _free_gathered(self, owner: int | None, place: Place) -> None:
        """Free a tensor gathered for another forward operator than ``owner``, or in another pass."""
        gathered = self._gathered.get(self.writer.lane)
        if gathered is not None and (gathered.owner != owner or gathered.place != place._replace(is_last=False)):
            self.program.memory.temporary(gathered.size_bytes, gathered.step, gathered.last, user=gathered.step)
            del self._gathered[self.writer.lane]


class SequenceGradients(Extension):
    """The reduction of gradients of weights that see only a part of the tokens (norms, routers, row-split biases).

    One all-reduce on the ``tp`` axis per step, after the data-parallel reductions, as in Megatron-LM's
    ``finalize_model_grads``.
    """

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        plan, sizes = self.context.plan, {}
        storage_of = {self.context.workload.tensors[w.weight].storage: w for w in program.weights}
        for op in (op for op in program.forward if not is_expert(op)):
            split = self.context.split_of(op)
            for tensor_id in op.inputs:
                tensor = self.context.workload.tensors[tensor_id]
                parameter = storage_of.get(tensor.storage)
                if parameter is None or parameter.gradient_operator is None:
                    continue
                if split is None or (split.mode == "row" and len(tensor.shape) == 1):
                    sizes[parameter.weight] = self.context.gradient_bytes(parameter.weight)
        degree = plan.groups.size(plan.groups.shard) if plan.splits_gradients else 1
        self.size_bytes = -(-sum(sizes.values()) // degree)

    def forgets(self) -> bool:
        return True

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        return ()

    def before_optimizer(self, step: int) -> None:
        if not self.size_bytes or not self.context.workload.is_training:
            return
        plan, label = self.context.plan, Label(phase=Phase.BACKWARD, stage=self.program.stage, step=step)
        after = self.writer.last_compute_and_waits()
        key = ("tp", "norms", self.program.stage, step)
        self.writer.wait(self.writer.collective("all_reduce", plan.groups.tensor, key, self.size_bytes, after, label))


def parts(total: int, count: int) -> list[int]:
    """Split ``total`` into ``count`` integer parts that differ by at most one."""
    return [total * (i + 1) // count - total * i // count for i in range(count)]
