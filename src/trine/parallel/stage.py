"""The program of one pipeline rank: its operators pass by pass, and its messages to and from other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import groupby

from trine.common.plugins import load_target
from trine.graph.program import Label, Peer, Phase, RankProgram, Recv, Send
from trine.parallel.chunks import ChunkPass, MicroBatch, OperatorRun, Place
from trine.parallel.data import Bucket, BucketReductions
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.fixed_costs import has_fixed_costs
from trine.parallel.inputs import InputCopies
from trine.parallel.job import JobContext
from trine.parallel.layer_copies import LayerCopies
from trine.parallel.pass_copies import PassCopies
from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, INPUT_PASS, WEIGHT_PASS, PipelineAction
from trine.parallel.stages import BOTH, INPUT_PART, WEIGHT_PART, Crossing
from trine.parallel.token_partition import WHOLE

#: Gradient reductions by ``Plan.sharding``, as modules of this package and their classes.
REDUCTIONS = {
    "none": "data:BucketReductions",
    "zero1": "sharded:ParameterUpdates",
    "zero2": "sharded:ParameterUpdates",
    "zero3": "sharded:ParameterGathers",
    "fsdp": "sharded:ParameterGathers",
}
#: External forms of parallelism, called after trine's: whether a job uses the form, and its extension.
FORMS: list[tuple[Callable[[JobContext], bool], type[Extension]]] = []
_PART = {INPUT_PASS: INPUT_PART, WEIGHT_PASS: WEIGHT_PART}


class StageBuilder(StageProgram):
    """The writer of the program of one pipeline rank. buckets: for gradient reduction."""

    def __init__(self, context: JobContext, stage: int, has_host: bool, expert_position: int = 0) -> None:
        super().__init__(context, stage, has_host, expert_position)
        self.next_copies: dict[tuple[int, int], int] = {}
        may_come_last = context.plan.overlap != "none" and not self.writer.has_clocks
        self.inputs = InputCopies(context, stage, may_come_last) if self.has_host else None
        self.extensions += [make(self) for make in extensions_of(context)]
        self._before = [ext.before for ext in self.extensions if type(ext).before is not Extension.before]
        self._write = [ext.write for ext in self.extensions if type(ext).write is not Extension.write]
        self._after = [ext.after for ext in self.extensions if type(ext).after is not Extension.after]
        reductions = (extension.buckets for extension in self.extensions if isinstance(extension, BucketReductions))
        self.buckets: tuple[Bucket, ...] = next(reductions, ())
        self._outbox: list[Callable[[], None]] | None = None
        self.bucket_ends = frozenset(bucket.ready_after for bucket in self.buckets)
        self._copies = PassCopies(self)
        self._layers = LayerCopies(self)

    # -- one step ------------------------------------------------------------------------------------------------

    def build(self) -> RankProgram:
        """Write all steps and return the program. Once only."""
        for step in range(self.context.plan.steps):
            if self.has_host:
                copies, plan = self._copy_inputs(step), self.context.plan
                self.copies, self.next_copies = (copies, {}) if plan.inputs == "step" else (self.next_copies, copies)
            for extension in self.extensions:
                extension.begin_step(step)
            synchronisations = self.writer.thread.synchronisations
            for group in self.actions.groups:
                if len(group) == 1:
                    self._alone(group[0], step)
                else:
                    self._joined(group, step)
            self.writer.thread.end_passes(synchronisations)
            self._optimizer_step(step)
        resident = self.resident_bytes()
        host_bytes = sum(extension.host_bytes() for extension in self.extensions)
        name = f"stage {self.stage}"
        if not self.context.expert_load.is_even:
            name += f", experts {self.expert_position}"
        if self.context.kind:
            name += f", {self.context.kind}"
        self._close()
        return replace(self.writer.finish(name, resident), host_bytes=host_bytes)

    def resident_bytes(self) -> tuple[int, ...]:
        """Return the bytes of each category of memory that persist across steps."""
        local, keeps = self.context.local_bytes, self.context.memory_style.buckets != "never"
        if keeps:
            bucket_bytes = sum(local[weight] for bucket in self.buckets for weight in bucket.weights)
        else:
            bucket_bytes = 0
        changes = [extension.resident for extension in self.extensions]
        return self.memory.resident(self.weights, self.optimizer, bucket_bytes, changes)

    def _close(self) -> None:
        """Let go of the extensions, which refer to this object: the lists of steps are then freed at once."""
        for references in (self.extensions, self._before, self._write, self._after):
            references.clear()
        del self._copies, self._layers

    def _copy_inputs(self, step: int) -> dict[tuple[int, int], int]:
        """Copy the inputs of each forward pass, one after the other, from the end of the previous step on.

        Micro-batches that the program leaves out are copied too, since copies do not wait for their passes. Unless
        their place in the program matters, :func:`trine.parallel.build.job_of` appends these copies.
        """
        assert self.inputs is not None
        copies: dict[tuple[int, int], int] = {}
        after, read = self.writer.last_of_step(), self.inputs.read
        for i in range(self.inputs.ahead):
            if copy := self.inputs.copy(i, step, after):
                after = (self.writer.add(copy),)
                copies[read[i] if i < len(read) else (-1, -1)] = after[0]
        self.inputs.behind.append((step, after))
        return copies

    def _optimizer_step(self, step: int) -> None:
        """Write one optimizer step after all gradients have arrived; a rank runs its weights' share of it."""
        for extension in self.extensions:
            extension.before_optimizer(step)
        self._add_up_shared_gradients(step)
        share, place = self.context.optimizer_share(self.stage), Place(Phase.OPTIMIZER, -1, step)
        if not share:
            for extension in self.extensions:
                extension.optimizer_elsewhere(place)
        for extension in self.extensions:
            share = extension.optimizer_share(share)
        if share:
            for op in self.optimizer:
                self.run(OperatorRun(op), place, share)
        for extension in self.extensions:
            extension.after_optimizer(step)
        self.memory.end_step(self.writer.last_compute())
        self.writer.end_step()

    def _add_up_shared_gradients(self, step: int) -> None:
        """Exchange the gradients of weights that two ranks share (as Megatron-LM does for embeddings)."""
        shared = [w for w in self.weights if w.tied_to >= 0 and w.gradient_operator is not None]
        for stage, group in groupby(sorted(shared, key=lambda w: w.tied_to), key=lambda w: w.tied_to):
            weights = [parameter.weight for parameter in group]
            label = Label(phase=Phase.BACKWARD, stage=self.stage, step=step)
            tag = ("tied", min(weights), step)
            groups = self.context.plan.groups
            degree = groups.size(groups.shard) if self.context.plan.sharding != "none" else 1
            size = sum(-(-self.context.gradient_bytes(weight) // degree) for weight in weights)
            self.writer.send(Send(Peer("pp", stage), size, tag, self.writer.last_compute_and_waits(), label))
            self.writer.wait(self.writer.receive(Recv(Peer("pp", stage), tag, (), label)))

    # -- one pass ------------------------------------------------------------------------------------------------

    def _alone(self, action: PipelineAction, step: int) -> None:
        """Write a pass that no other one overlaps, as the copy of an earlier one if possible."""
        place = self._place(action, step)
        self._enter(action, place)
        begin = self._copies.begin(action, place)
        if begin is None or not self._copies.copy(begin, action.microbatch):
            for _ in self._pass(action, place, self._layers):
                pass
            if begin is not None:
                self._copies.end(begin, action.microbatch)

    def _place(self, action: PipelineAction, step: int) -> Place:
        phase = Phase.FORWARD if action.kind == FORWARD_PASS else Phase.BACKWARD
        part = _PART.get(action.kind, "")
        if self.context.stages.deferred and part == INPUT_PART:
            part = BOTH  # a whole backward pass but for the deferred operators
        return Place(phase, MicroBatch(action.microbatch), step, False, action.chunk, part)

    def _enter(self, action: PipelineAction, place: Place) -> None:
        """Wait for the copy of the inputs from the host, and for the launch queue."""
        if place.phase == Phase.FORWARD and (action.chunk, action.microbatch) in self.copies:
            self.writer.wait(self.copies[action.chunk, action.microbatch])
        self.writer.begin_pass(self._edge(place))

    def _edge(self, place: Place) -> Label:
        return Label(phase=place.phase, stage=self.stage, microbatch=place.microbatch, step=place.step)

    def _joined(self, actions: tuple[PipelineAction, ...], step: int) -> None:
        """Write two overlapped passes; their messages are sent after both have ended (as in DeepSeek's DualPipe).

        With expert parallelism, each computes while the other one exchanges tokens, the backward pass first. Without,
        their operators alternate so that both progress evenly.
        """
        self._outbox = []
        self.writer.fork()
        walks = [self._entered(action, self._place(action, step)) for action in actions]
        if self.context.plan.ep > 1:
            self._alternate_at_exchanges(walks, first=0 if actions[0].kind == BACKWARD_PASS else 1)
        else:
            self._alternate_evenly(walks, [self._length(action) for action in actions])
        self.writer.join()
        for send in self._outbox:
            send()
        self._outbox = None

    def _alternate_evenly(self, walks: list[Iterator[int]], totals: list[int]) -> None:
        """Write the operators of two passes in turns. totals: compute time of each pass, ps."""
        done, open_lanes = [0, 0], [0, 1]
        while open_lanes:
            lane = min(open_lanes, key=lambda i: (done[i] * totals[1 - i], i))
            self.writer.lane = lane
            time_ps = next(walks[lane], None)
            if time_ps is None:
                open_lanes.remove(lane)
            else:
                done[lane] += time_ps

    def _alternate_at_exchanges(self, walks: list[Iterator[int]], first: int) -> None:
        """Write the operators of two passes; the lane changes behind each exchange of tokens with experts."""
        open_lanes = [first, 1 - first]
        while open_lanes:
            lane = open_lanes[0]
            self.writer.lane = lane
            self.exchanges_tokens = False
            has_ended = False
            while not (has_ended or self.exchanges_tokens):
                has_ended = next(walks[lane], None) is None
            del open_lanes[0]
            if not has_ended:
                open_lanes.append(lane)

    def _length(self, action: PipelineAction) -> int:
        """Return the compute time of a pass (ps)."""
        batch = self.context.micro_batches[action.microbatch]
        runs = self._chunk_pass(action).runs
        return sum(self.context.work.slowest(run.op, batch, run.part) for run in runs)

    def _chunk_pass(self, action: PipelineAction) -> ChunkPass:
        return self.context.chunks[action.chunk].passes[action.kind]

    def _entered(self, action: PipelineAction, place: Place) -> Iterator[int]:
        self._enter(action, place)
        yield from self._pass(action, place)

    def _pass(self, action: PipelineAction, place: Place, copies: LayerCopies | None = None) -> Iterator[int]:
        """Write a pass, operator by operator; yield the time of each. Layers may be ``copies``, which yield no time."""
        chunk_pass, phase = self._chunk_pass(action), place.phase
        ends = self.actions.completes(action)
        complete = place._replace(is_last=True)
        rerun = place._replace(rerun=True)
        completes = any(ends)
        for extension in self.extensions:
            extension.begin_pass(complete if ends.weights else place)
        layers = {} if copies is None else copies.of_pass(action, chunk_pass, ends)
        copied_to, written_to = 0, -1  # the runs behind the latest copied and written layer
        for position, run in enumerate(chunk_pass.runs):
            for crossing in chunk_pass.arriving.get(position, ()):
                self._receive(crossing, place)
            layer = layers.get(position)
            if copies is not None and layer is not None:
                if copies.copy(layer, place):
                    copied_to = layer.end
                else:
                    written_to = layer.end
            if position < copied_to:
                for crossing in chunk_pass.leaving.get(position, ()):
                    self._send(crossing, place)
                continue
            of_run = rerun if run.rerun else place
            if completes and not run.rerun and ends.covers(run, self.context.stages):
                of_run = complete
            self._prepare(run, of_run)
            if self.exchanges_tokens:
                yield 0
            yield self._write_run(run, of_run, WHOLE)
            if copies is not None and position == written_to - 1:
                copies.end(place)
            for crossing in chunk_pass.leaving.get(position, ()):
                self._send(crossing, place)
        if not chunk_pass.runs:
            self._pass_on(chunk_pass, place)
        for extension in self.extensions:
            extension.end_pass(complete if ends.weights else place)
        self.writer.end_pass(self._edge(place), phase == Phase.BACKWARD)
        if ends_backward(action):
            self.memory.end_of_backward()
        if self.actions.is_end_of_microbatch(action):
            self.memory.end_of_microbatch(action.microbatch)
        elif self.actions.comes_before_deferred(action):
            self.memory.end_of_microbatch(action.microbatch, kept=self._deferred_inputs())

    def _deferred_inputs(self) -> set[int]:
        """Return the storages that the deferred operators read."""
        tensors, operators = self.context.workload.tensors, self.context.operators
        return {tensors[t].storage for op in self.context.stages.deferred for t in operators[op].inputs}

    def _pass_on(self, chunk_pass: ChunkPass, place: Place) -> None:
        """Receive and send the tensors that cross the borders of a pass without operators."""
        for crossings in chunk_pass.arriving.values():
            for crossing in crossings:
                self._receive(crossing, place)
        for crossings in chunk_pass.leaving.values():
            for crossing in crossings:
                self._send(crossing, place)

    # -- one operator --------------------------------------------------------------------------------------------

    def run(self, run: OperatorRun, place: Place, share: Fraction = WHOLE) -> int:
        """Write one run of an operator; return its time on the slowest GPU model (ps)."""
        self._prepare(run, place)
        return self._write_run(run, place, share)

    def _prepare(self, run: OperatorRun, place: Place) -> None:
        """Write what comes before a run of an operator."""
        for before in self._before:
            before(run.op, place)

    def _write_run(self, run: OperatorRun, place: Place, share: Fraction) -> int:
        context, op = self.context, run.op
        label = context.label(op, self.stage, place.microbatch, place.step, place.rerun)
        batch = context.micro_batches[max(place.microbatch, 0)]
        duration_ps = context.duration(op, batch, share, part=run.part, microbatch=place.microbatch)
        done = None
        for write in self._write:
            if (done := write(run, duration_ps, label, batch, place)) is not None:
                break
        if done is None:
            done = self.writer.operator(op, duration_ps, label)
        self.memory.ran(run, done, place.microbatch, batch, share)
        for after in self._after:
            after(op, done, batch, place)
        return duration_ps if context.mixed is None else context.work.slowest(op, batch, run.part)

    # -- between ranks -------------------------------------------------------------------------------------------

    def _send(self, crossing: Crossing, place: Place) -> None:
        target = self.actions.peer(crossing, place)
        if target < 0:
            return
        size = self.context.rank_bytes(crossing.tensor, self.context.micro_batches[place.microbatch])
        label = Label(phase=place.phase, stage=self.stage, microbatch=place.microbatch, step=place.step)
        tag = ("pp", place.phase, crossing.source, crossing.target, crossing.tensor, place.microbatch, place.step)

        def send() -> None:
            self.writer.send(Send(Peer("pp", target), size, tag, self.writer.last_compute_and_waits(), label))

        if self._outbox is None:
            send()
        else:
            self._outbox.append(send)

    def _receive(self, crossing: Crossing, place: Place) -> None:
        source = self.actions.peer(crossing, place)
        if source < 0:
            return
        label = Label(phase=place.phase, stage=self.stage, microbatch=place.microbatch, step=place.step)
        tag = ("pp", place.phase, crossing.source, crossing.target, crossing.tensor, place.microbatch, place.step)
        received = self.writer.receive(Recv(Peer("pp", source), tag, (), label))
        self.writer.wait(received)
        if place.phase == Phase.FORWARD:
            is_kept = not self.context.chunks[place.chunk].forward
            self.memory.received(crossing.tensor, received, place.microbatch, is_kept)
        else:
            self.memory.received_gradient(crossing, received, place.microbatch)


def ends_backward(action: PipelineAction) -> bool:
    """Return whether a pass is the last of its micro-batch to add to its chunk's gradients."""
    return action.kind in (BACKWARD_PASS, WEIGHT_PASS)


def extensions_of(context: JobContext) -> list[Callable[[StageProgram], Extension]]:
    """Return the extensions of a plan's forms of parallelism, in call order."""
    makers: list[Callable[[StageProgram], Extension]] = []
    for name in names_of_extensions(context):
        makers.append(load_target(f"trine.parallel.{name}"))
    for is_wanted, make in FORMS:
        if is_wanted(context):
            makers.append(make)
    return makers


def names_of_extensions(context: JobContext) -> list[str]:
    """Return module and class of each extension of trine: a plan loads the forms that it uses only."""
    plan = context.plan
    names = []
    if plan.offload == "optimizer":
        names.append("offload:HostOptimizer")
    if plan.ep > 1:
        names.append("expert_exchange:ExpertExchange")
    if plan.cp > 1:
        names.append("context:ContextAttention")
    if any(split.regroups for split in context.splits.values()):
        names.append("tensor:HeadGathers")
    if plan.tp > 1 or plan.expert_tp > 1:
        moves_tokens = plan.sequence_parallel or plan.expert_tp != plan.tp
        if not moves_tokens:
            names.append("tensor:TensorCollectives")
        elif plan.userbuffers:
            names.append("userbuffers:UserbufferCollectives")
        else:
            names.append("sequence:SequenceCollectives")
    if plan.num_replicas > 1:
        names.append(REDUCTIONS[plan.sharding])
    if plan.offload == "optimizer":
        names.append("offload:GradientsToHost")
    elif plan.offload != "none":
        names.append("offload:ActivationOffload")
    if plan.sequence_parallel:
        names.append("sequence:SequenceGradients")
    if has_fixed_costs(context):
        names.append("fixed_costs:FixedCosts")
    return names
