"""Expert parallelism: tokens go to the ranks of their experts and come back, forward and backward.

Lepikhin et al., GShard, 2020; Rajbhandari et al., DeepSpeed-MoE, 2022. Each rank sends top_k copies of its tokens. An
all-to-all carries the smallest share of any rank; if shares differ, messages beside it carry each rank's remainder. So
a little imbalance costs little. Both share links, so it may end a little before an even exchange would.

After an all-to-all the tokens stand in the order of their senders, and a library may copy them into the order of the
experts, and back before the next one (Megatron-core, ``sort_chunks_by_idxs`` in token_dispatcher.py). Kernels of DeepEP
write them in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from trine.errors import PlanError
from trine.graph.program import Label, Peer, Phase, Recv, Send
from trine.graph.workload import FORWARD, Operator
from trine.parallel.chunks import Place
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.job import JobContext
from trine.parallel.stages import WEIGHT_PART
from trine.parallel.token_dispatch import ALL_TO_ALL, routing_of, sent_share
from trine.parallel.token_partition import WHOLE, is_expert

DISPATCH, COMBINE = "dispatch", "combine"


class ExpertExchange(Extension):
    """Messages among the ranks of the experts: after dispatch and before combine, reversed in the backward pass.

    With ``Plan.shared_expert_overlap``, an exchange to the experts is awaited by their first operator, and one from
    them starts behind their last operator, so that operators of shared experts run beside it. Raises PlanError for a
    model without such operators.
    """

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._even = self.context.with_load(WHOLE)
        self._load = self.context.expert_load
        self._axis = self.context.plan.groups.experts
        software, is_library = self.context.software, self.context.plan.dispatch == ALL_TO_ALL
        self._sorts = is_library and software is not None and software.operators.expert_sorts == "copied"
        self._early = early_exchanges(self.context) if self.context.plan.shared_expert_overlap else {}
        self._to_experts: list[tuple[Operator, int, Place, tuple[int, ...]]] = []  # not yet awaited
        self._from_experts: dict[int, tuple[int, ...]] = {}  # operator -> its exchange, which has begun

    def forgets(self) -> bool:
        return True

    def before(self, op: Operator, place: Place) -> None:
        if place.phase == Phase.OPTIMIZER or place.part == WEIGHT_PART:
            return
        if self._to_experts and is_expert(op):
            self._await_tokens()
        if op.id in self._early:
            later = self._early[op.id]
            self._from_experts[later.id] = self._from(later, place)
        if op.attributes.get("moe") == (COMBINE if op.phase == FORWARD else DISPATCH):
            for step in self._from_experts.pop(op.id, None) or self._from(op, place):
                self.writer.wait(step)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        if place.phase == Phase.OPTIMIZER or place.part == WEIGHT_PART:
            return
        if op.attributes.get("moe") == (DISPATCH if op.phase == FORWARD else COMBINE):
            steps = self._exchange(op, op.outputs[0], True, batch, place, (done,))
            self._to_experts.append((op, batch, place, steps))
            if not self.context.plan.shared_expert_overlap:
                self._await_tokens()

    def end_pass(self, place: Place) -> None:
        self._await_tokens()

    def _await_tokens(self) -> None:
        """Make the next operator wait for the tokens that have been sent to the experts."""
        for op, batch, place, steps in self._to_experts:
            for step in steps:
                self.writer.wait(step)
            self._sort(op, op.outputs[0], batch, place)
        self._to_experts.clear()

    def _from(self, op: Operator, place: Place) -> tuple[int, ...]:
        """Send the results of the experts back, before ``op`` combines them; return the steps to wait for."""
        batch = self.context.micro_batches[place.microbatch]
        self._sort(op, op.inputs[0], batch, place)
        return self._exchange(op, op.inputs[0], False, batch, place, self.writer.last_compute_and_waits())

    def _sort(self, op: Operator, tensor: int, batch: int, place: Place) -> None:
        """Copy the tokens of several experts into their order, or back, if the software does."""
        experts = op.attributes.get("num_experts")
        if self._sorts and isinstance(experts, int) and experts > self.context.plan.ep:
            copy_ps = self.context.work.copy_ps(tensor, batch)
            self.writer.operator(op, copy_ps, self.label(op, place), is_first=False)

    def _exchange(
        self, op: Operator, tensor: int, to_experts: bool, batch: int, place: Place, after: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Send the token copies (``to_experts``: to their experts, else back); return the steps to wait for."""
        size = self._even.rank_bytes(tensor, batch)
        plan, span = self.context.plan, self.context.expert_span
        size = _part(size, sent_share(str(plan.dispatch), routing_of(op), span))
        label = self.label(op, place)
        self.program.exchanges_tokens = True
        key = ("ep", op.id, *place.key)
        even_bytes = _part(size, min(self._load.shares) * len(self._load.shares))
        step = self.writer.collective("all_to_all", self._axis, key, even_bytes, after, label)
        if self._load.is_even:
            return (step,)
        return (step, *self._messages(size, to_experts, key, after, label))

    def _messages(
        self, size: int, to_experts: bool, key: tuple[int | str, ...], after: tuple[int, ...], label: Label
    ) -> list[int]:
        """Exchange the bytes to each rank (``to_experts``; else from it) in excess of the smallest share."""
        position, smallest = self.program.expert_position, _part(size, min(self._load.shares))
        excess = [_part(size, share) - smallest for share in self._load.shares]
        peers = [p for p in range(self.context.plan.ep) if p != position]
        for peer in peers:
            owner = peer if to_experts else position
            if num_bytes := excess[owner]:
                self.writer.add(Send(Peer(self._axis, peer), num_bytes, (*key, position, peer), after, label))
        received = []
        for peer in peers:
            if excess[position if to_experts else peer]:
                received.append(self.writer.add(Recv(Peer(self._axis, peer), (*key, peer, position), after, label)))
        return received


def early_exchanges(context: JobContext) -> dict[int, Operator]:
    """Return the operators behind the last one of routed experts -> the operator that combines their results.

    Raises PlanError if no operator lies between.
    """
    found: dict[int, Operator] = {}
    for chunk in context.chunks:
        for operators in (chunk.forward, chunk.backward):
            found |= _early_in(operators)
    if not found:
        raise PlanError("shared_expert_overlap needs a model with shared experts, such as deepseek-v3")
    return found


def _early_in(operators: Sequence[Operator]) -> dict[int, Operator]:
    found: dict[int, Operator] = {}
    first = None
    has_run = False
    for op in operators:
        if is_expert(op):
            has_run, first = True, None
        elif has_run and first is None:
            first = op.id
        if op.attributes.get("moe") == (COMBINE if op.phase == FORWARD else DISPATCH):
            if first is not None and first != op.id:
                found[first] = op
            has_run, first = False, None
    return found


def _part(size: int, share: Fraction) -> int:
    return -(-size * share.numerator // share.denominator)
