"""Expert parallelism: tokens go to the ranks of their experts and come back, forward and backward.

Lepikhin et al., GShard, 2020; Rajbhandari et al., DeepSpeed-MoE, 2022. Each rank sends top_k copies of its tokens. An
all-to-all carries the smallest share of any rank; if shares differ, messages beside it carry each rank's remainder. So
a little imbalance costs little. Both share links, so it may end a little before an even exchange would.

After an all-to-all the tokens stand in the order of their senders, and a library may copy them into the order of the
experts, and back before the next one (Megatron-core, ``sort_chunks_by_idxs`` in token_dispatcher.py). Kernels of DeepEP
write them in place.
"""

from __future__ import annotations

from fractions import Fraction

from trine.graph.program import Label, Peer, Phase, Recv, Send
from trine.graph.workload import FORWARD, Operator
from trine.parallel.chunks import Place
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.stages import WEIGHT_PART
from trine.parallel.token_dispatch import ALL_TO_ALL, sent_share
from trine.parallel.token_partition import WHOLE

DISPATCH, COMBINE = "dispatch", "combine"


class ExpertExchange(Extension):
    """Messages among the ranks of the experts: after dispatch and before combine, reversed in the backward pass."""

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._even = self.context.with_load(WHOLE)
        self._load = self.context.expert_load
        self._axis = self.context.plan.groups.experts
        software, is_library = self.context.software, self.context.plan.dispatch == ALL_TO_ALL
        self._sorts = is_library and software is not None and software.operators.expert_sorts == "copied"

    def forgets(self) -> bool:
        return True

    def before(self, op: Operator, place: Place) -> None:
        role = op.attributes.get("moe")
        if role is None or place.phase == Phase.OPTIMIZER or place.part == WEIGHT_PART:
            return
        if role == (COMBINE if op.phase == FORWARD else DISPATCH):
            batch = self.context.micro_batches[place.microbatch]
            self._sort(op, op.inputs[0], batch, place)
            self._exchange(op, op.inputs[0], False, batch, place, self.writer.last_compute_and_waits())

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        role = op.attributes.get("moe")
        if role is None or place.phase == Phase.OPTIMIZER or place.part == WEIGHT_PART:
            return
        if role == (DISPATCH if op.phase == FORWARD else COMBINE):
            self._exchange(op, op.outputs[0], True, batch, place, (done,))
            self._sort(op, op.outputs[0], batch, place)

    def _sort(self, op: Operator, tensor: int, batch: int, place: Place) -> None:
        """Copy the tokens of several experts into their order, or back, if the software does."""
        experts = op.attributes.get("num_experts")
        if self._sorts and isinstance(experts, int) and experts > self.context.plan.ep:
            copy_ps = self.context.work.copy_ps(tensor, batch)
            self.writer.operator(op, copy_ps, self.label(op, place), is_first=False)

    def _exchange(
        self, op: Operator, tensor: int, to_experts: bool, batch: int, place: Place, after: tuple[int, ...]
    ) -> None:
        """Send the token copies (``to_experts``: to their experts, else back); the next operator waits for them."""
        size = self._even.rank_bytes(tensor, batch)
        top_k = op.attributes.get("top_k")
        plan, span = self.context.plan, self.context.expert_span
        size = _part(size, sent_share(str(plan.dispatch), top_k if isinstance(top_k, int) else 1, span))
        label = self.label(op, place)
        self.program.exchanges_tokens = True
        key = ("ep", op.id, *place.key)
        even_bytes = _part(size, min(self._load.shares) * len(self._load.shares))
        self.writer.wait(self.writer.collective("all_to_all", self._axis, key, even_bytes, after, label))
        if not self._load.is_even:
            self._messages(size, to_experts, key, after, label)

    def _messages(
        self, size: int, to_experts: bool, key: tuple[int | str, ...], after: tuple[int, ...], label: Label
    ) -> None:
        """Exchange the bytes to each rank (``to_experts``; else from it) in excess of the smallest share."""
        position, smallest = self.program.expert_position, _part(size, min(self._load.shares))
        excess = [_part(size, share) - smallest for share in self._load.shares]
        peers = [p for p in range(self.context.plan.ep) if p != position]
        for peer in peers:
            owner = peer if to_experts else position
            if num_bytes := excess[owner]:
                self.writer.add(Send(Peer(self._axis, peer), num_bytes, (*key, position, peer), after, label))
        for peer in peers:
            if excess[position if to_experts else peer]:
                self.writer.wait(self.writer.add(Recv(Peer(self._axis, peer), (*key, peer, position), after, label)))


def _part(size: int, share: Fraction) -> int:
    return -(-size * share.numerator // share.denominator)
