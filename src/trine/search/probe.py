"""Costs of one layer under a form of parallelism, from the rank program of a model with three layers.

All layers of a decoder-only transformer are equal. So trine writes the program of a three-layer model on one stage
(no simulation), and measures the middle layer: longest paths through the program, and bytes kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from trine.common.arrays import Int64
from trine.common.units import PS_PER_S
from trine.compute.kinds import layer_of
from trine.graph.grid import RankGrid
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import COMPUTE_STREAM, Collective, Compute, HostCopy, Phase, RankProgram
from trine.graph.workload import BACKWARD, FORWARD, Operator, Workload
from trine.parallel.constraints import LayoutFacts, resolve_layout
from trine.parallel.job import JobContext
from trine.parallel.plan import PARAMETERS_SHARDED, Plan
from trine.parallel.stage import StageBuilder
from trine.parallel.stages import BOTH, WEIGHT_PART
from trine.search.step_clocks import StepClocks
from trine.training.memory import NoTimes
from trine.training.setup import Setup, costs_on, setup_of
from trine.workload.architecture.blocks import Attention
from trine.workload.architecture.model import Architecture, Layer
from trine.workload.synthesis.model import ModelRecipe
from trine.workload.synthesis.spec import ModelSpec, Transformer

if TYPE_CHECKING:
    from trine.compute import ComputeModel
    from trine.parallel.contention import CommunicationKernels
    from trine.search.space import Layout
    from trine.training.options import SimulateOptions

#: Layers of the probed model: the middle one has neighbours on both sides.
LAYERS = 3
#: Share of a collective's predicted time in a bound: a margin for the rounding of flows to picoseconds.
MARGIN = 0.99
#: Parts of a whole in a pressure.
PPM = 1_000_000
#: First words of the keys of collectives that every micro-batch has.
EACH_MICRO_BATCH = ("tp", "cp", "ep")
#: First word of the keys of exchanges among experts.
EXPERT_KEY = "ep"
_RESIDENT = tuple(MEMORY_CATEGORIES)
_WEIGHTS = _RESIDENT.index("weights")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCosts:
    """Costs of one layer, and of the rest of the model, on one rank for one micro-batch. Times in ps, sizes in bytes.

    forward, backward: the longest path from a layer's first operator to the next layer's. forward_within,
    backward_within: the longest path to the end of the layer's last operator. forward_alone, backward_alone: compute
    time of the layer without its communication. first, last: compute time of the embedding, and of head and loss, both
    passes together; first_forward, last_forward: of the forward pass. weight, first_weight, last_weight: the part of a
    backward pass that computes only gradients of weights. after, after_rest: compute time after each backward pass,
    such as the sum of gradients, of a layer and of the rest. forward_chain, backward_chain: compute time of a layer
    that lies between the arrival of a message and the next message. message: bytes that a stage sends per pass.
    weights: bytes of a layer's weights on a rank. launch: launch time of a pass's first operator, both passes together,
    if the launching thread waits for the GPU after each pass. offload: time of the copies of a layer's activations to
    the host, if they are offloaded. exchange: time of the exchanges of experts that compute waits for, both passes
    together. kept: bytes that a layer keeps between the passes. peak: further bytes at the peak of the last layer and
    head. rise: further bytes after the start of a layer's backward pass. resident: bytes of a layer by category. rest:
    resident bytes of the rest of the model by category.
    """

    forward: int
    backward: int
    forward_within: int
    backward_within: int
    forward_alone: int
    backward_alone: int
    first: int
    last: int
    first_forward: int
    last_forward: int
    weight: int
    first_weight: int
    last_weight: int
    after: int
    after_rest: int
    forward_chain: int
    backward_chain: int
    message: int
    weights: int
    launch: int
    offload: int
    kept: int
    peak: int
    rise: int
    resident: Mapping[str, int]
    rest: Mapping[str, int]
    exchange: int = 0

    def scaled(self, slowdown: float) -> LayerCosts:
        """Return the costs with the layers' times multiplied by ``slowdown``."""
        times: dict[str, Any] = {name: int(slowdown * getattr(self, name)) for name in _TIMES}
        return replace(self, **times)

    def without_activations(self) -> LayerCosts:
        """Return the costs without the bytes of activations, for bounds of any recomputation and micro-batch."""
        return replace(self, kept=0, peak=0, rise=0)


#: Times of a layer, and of the model's ends.
_TIMES = (
    "forward", "backward", "forward_within", "backward_within", "forward_alone", "backward_alone", "first", "last",
    "first_forward", "last_forward", "weight", "first_weight", "last_weight", "after", "after_rest", "forward_chain",
    "backward_chain",
)  # fmt: skip


class Probe:
    """Writer of three-layer programs for one search; costs are cached by the form of parallelism."""

    def __init__(self, workload: Workload, options: SimulateOptions, gpus: int) -> None:
        recipe: Any = workload.recipe
        short = with_layers(recipe, LAYERS)
        self.clocks = StepClocks(workload, options, gpus)
        if self.clocks.is_known:
            options = replace(options, clocks={})
        self._setup: Setup = setup_of(short, Plan(dp=gpus), options)
        self._models: dict[int, ComputeModel] = {}
        self._shorter = setup_of(with_layers(recipe, LAYERS - 1), Plan(dp=gpus), options).workload
        self.software = self._setup.software.profile
        factors = (1.0, 1.0) if self.software is None else self.software.communication_factors()
        costs = options.collective_costs if isinstance(options.collective_costs, str) else "auto"
        self._costs = costs_on(costs, self._setup.machine, network=self._setup.network, factors=factors)
        self.facts = LayoutFacts(self._setup.workload)
        self._gpus = gpus
        self._messages: dict[tuple[int, int, int], Int64] = {}
        self._between: dict[tuple[bool, int], int] = {}
        self._gathers: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._by_key: dict[tuple[object, ...], LayerCosts] = {}
        self._resident: dict[tuple[object, ...], tuple[int, ...]] = {}

    @property
    def slower(self) -> float:
        """How much slower than the average GPU the slowest one of the job is, as a fraction."""
        return self._setup.slower

    def costs(self, plan: Plan) -> LayerCosts:
        """Return the costs of a layer under ``plan``; its pipeline, replicas and batch do not matter."""
        key = (plan.tp, plan.cp, plan.ep, plan.etp, plan.micro_batch, plan.sequence_parallel, plan.recompute,
               plan.offload == "activations", plan.tp_overlap, plan.cp_style, plan.order)  # fmt: skip
        if key not in self._by_key:
            self._by_key[key] = self._measure(_on_one_stage(plan))
        return self._by_key[key]

    def message_ps(self, layout: Layout, size_bytes: int) -> int:
        """Return the time of a message to the next stage, alone on the network, if each pass waits for it; else 0.

        The launching thread waits for the message before it launches the next pass (``synchronises: pass``).
        """
        launch, costs = self._setup.launch, self._costs
        if launch is None or costs is None or launch.synchronises not in ("pass", "forward") or layout.pp == 1:
            return 0
        return int(int(self.messages(layout, size_bytes)[:-1].min()) * MARGIN)

    def waits(self, layout: Layout, size_bytes: int) -> Int64:
        """Return the time of each of :meth:`messages` for which its sender waits; zeros if the software sends ahead.

        Between virtual stages, most software does not wait.
        """
        times, launch = self.messages(layout, size_bytes), self._setup.launch
        if launch is None or launch.synchronises not in ("pass", "forward") or layout.virtual_stages > 1:
            return np.zeros_like(times)
        return times

    def messages(self, layout: Layout, size_bytes: int) -> Int64:
        """Return the time of a message from each stage to the next one, alone on the network, in ps: int64[pp].

        The last stage's goes to the first, as between virtual stages.
        """
        ranks = layout.dp * layout.cp * layout.tp
        key = (layout.pp, ranks, size_bytes)
        if key not in self._messages:
            first = ranks * np.arange(layout.pp, dtype=np.int64)
            pairs = self._setup.places[np.stack([first, np.roll(first, -1)], axis=1)]
            self._messages[key] = np.array([self._message(pair, size_bytes) for pair in pairs], np.int64)
        return self._messages[key]

    def _message(self, pair: Int64, size_bytes: int) -> int:
        """Return the time of a message between two places in ps; all pairs within a node, or between two, are equal."""
        machine, costs = self._setup.machine, self._costs
        if machine is None or costs is None or pair[0] == pair[1]:
            return 0
        first, second = (int(machine.node_of[machine.gpus[place]]) for place in pair)
        key = (first == second, size_bytes)
        if key not in self._between:
            times = costs.predicted("send_recv", size_bytes, pair[None, :])
            self._between[key] = min((time.time_ps for time in times), default=0)
        return self._between[key]

    def gathers(self, layout: Layout, size_bytes: int) -> tuple[int, int]:
        """Return the time of two gathers of a layer's sharded parameters and one reduction of its gradients, in ps.

        The second number is the compute time that they cost beside them, as the pressure of their kernels. They share a
        queue, and every micro-batch has them. (0, 0) with a pipeline, which may keep gathered parameters for the next
        micro-batch, and with experts, which have other groups.
        """
        ways, costs = (layout.shard_ways or layout.dp) * layout.cp, self._costs
        is_known = layout.pp == 1 and layout.ep == 1 and not self.facts.experts
        if costs is None or layout.sharding not in PARAMETERS_SHARDED or ways == 1 or not is_known:
            return 0, 0
        key = (layout.tp, ways, size_bytes)
        if key not in self._gathers:
            group = layout.tp * np.arange(ways, dtype=np.int64)[None, :]
            total = slowed = 0
            for kind, count in (("all_gather", 2), ("reduce_scatter", 1)):
                times = costs.predicted(kind, size_bytes, self._setup.places[group])
                time_ps = int(min((t.time_ps for t in times), default=0) * MARGIN)
                ppm = [k.ppm(k.of_groups(kind, size_bytes, group), 0) for k in self._kernels]
                total, slowed = (
                    total + count * time_ps,
                    slowed + count * time_ps * min(*ppm, PPM // 2) // PPM if ppm else slowed,
                )
            self._gathers[key] = total, slowed
        return self._gathers[key]

    @cached_property
    def _kernels(self) -> tuple[CommunicationKernels, ...]:
        return self._setup.kernels(self._costs)

    def _context(self, workload: Workload, plan: Plan) -> JobContext:
        filled, _ = resolve_layout(plan, self.software, self.facts)
        setup = self._setup
        if workload is not setup.workload:  # operator times are bound to a workload, and memory needs none
            return JobContext(workload, filled, NoTimes(), None, self.software)
        return JobContext(workload, filled, self._model(filled.micro_batch or 1), setup.launch, self.software)

    def _model(self, micro_batch: int) -> ComputeModel:
        """Return the operator times at the clock of a long step with this micro-batch."""
        if micro_batch not in self._models:
            setup = self._setup
            self._models[micro_batch] = self.clocks.times(setup.model, setup.workload, micro_batch)
        return self._models[micro_batch]

    def _measure(self, plan: Plan) -> LayerCosts:
        context = self._context(self._setup.workload, plan)
        program = StageBuilder(context, 0, True).build()
        return _layer_costs(
            program, context, self._alone(context.plan), self._shorter_resident(plan), self._link_bytes_per_s
        )

    @cached_property
    def host_bytes_per_s(self) -> float:
        """Bandwidth of host memory per GPU; infinite if it is unknown."""
        plan = replace(self._setup.plan, offload="optimizer")
        return replace(self._setup, plan=plan).host_bytes_per_s or inf

    @cached_property
    def _link_bytes_per_s(self) -> float:
        """Bandwidth between a GPU and its host, without other traffic; infinite if it is unknown."""
        machine = self._setup.machine
        host = None if machine is None else machine.host_of(machine.gpus[0])
        if machine is None or host is None:
            return inf
        route = machine.paths(machine.gpus[0], host)[0][0]
        return float(min((machine.links[link].bytes_per_s for link in route), default=inf))

    def _shorter_resident(self, plan: Plan) -> tuple[int, ...]:
        """Return the resident bytes of the model with a layer less; they do not depend on the micro-batch."""
        key = (plan.tp, plan.ep, plan.etp)
        if key not in self._resident:
            short = self._context(self._shorter, replace(plan, recompute="none", batch=1, micro_batch=1))
            self._resident[key] = StageBuilder(short, 0, True).resident_bytes()
        return self._resident[key]

    def _alone(self, plan: Plan) -> Callable[[Collective], int]:
        """Return a function from a collective to a lower bound of its time: alone on the network."""
        grid, places, costs = RankGrid(plan.axes), self._setup.places, self._costs
        cache: dict[tuple[str, str, int], int] = {}

        def time_ps(step: Collective) -> int:
            key = (step.kind, step.axis, step.size_bytes)
            if key not in cache:
                ranks = np.arange(grid.num_ranks, dtype=np.int64)
                group = ranks[ranks == sum(grid.coordinates(ranks, a) * grid.strides[a] for a in step.axis.split("+"))]
                times = [] if costs is None else costs.predicted(step.kind, step.size_bytes, places[group][None, :])
                cache[key] = int(min((t.time_ps for t in times), default=0) * MARGIN)
            return cache[key]

        return time_ps


#: Least share of a model's layers that must be equal, but for windows, for these to stand for all.
MIN_EQUAL = Fraction(2, 3)


def can_probe(workload: Workload) -> bool:
    """Return whether the workload is a decoder written by trine, whose layers are all equal, or nearly all."""
    recipe = workload.recipe
    if not isinstance(recipe, ModelRecipe) or workload.operators is not recipe.operators:
        return False
    return _with_equal_layers(recipe.spec) is not None


def has_equal_layers(workload: Workload) -> bool:
    """Return whether all layers of a workload that :func:`can_probe` accepts are equal, so that bounds are exact."""
    recipe = workload.recipe
    return isinstance(recipe, ModelRecipe) and _with_equal_layers(recipe.spec) == recipe.spec


def with_layers(recipe: ModelRecipe, layers: int) -> Workload:
    """Return the model of a recipe with another number of layers, each like most of the model's."""
    spec = _with_equal_layers(recipe.spec)
    assert spec is not None  # can_probe
    return replace(recipe, spec=spec, asked=replace(recipe.asked, layers=layers)).write()


def _without_window(layer: Layer) -> Layer:
    """Return a layer whose attention sees all tokens."""
    mixer = layer.mixer
    return replace(layer, mixer=replace(mixer, window=0)) if isinstance(mixer, Attention) else layer


def _with_equal_layers(spec: ModelSpec) -> ModelSpec | None:
    """Return a model with all layers like most of them; None if too few layers are equal, or there are too few."""
    if isinstance(spec, Transformer):
        return spec if spec.layers >= LAYERS else None
    if not isinstance(spec, Architecture) or len(spec.layers) < LAYERS or not spec.head:
        return None
    if all(layer == spec.layers[0] for layer in spec.layers):
        return spec
    layers = [_without_window(layer) for layer in spec.layers]
    usual = max(layers, key=layers.count)
    if layers.count(usual) < MIN_EQUAL * len(layers):
        return None
    return replace(spec, layers=(usual,) * len(spec.layers), parameters=None)


def _on_one_stage(plan: Plan) -> Plan:
    """Return the plan without pipeline and sharding, with one micro-batch, on the fewest replicas for its experts."""
    etp, dp = plan.expert_tp, 1
    while (plan.tp * plan.cp * dp) % (etp * plan.ep):
        dp += 1
    return replace(
        plan, pp=1, dp=dp, schedule=None, virtual_stages=1, balance=None, sharding="none", shard_ways=None,
        prefetch=None, reshard=True, batch=plan.micro_batch, dp_overlap=None, sync="last",
        offload=plan.offload if plan.offload == "activations" else "none",
        overlap=None,
    )  # fmt: skip


def _layer_costs(
    program: RankProgram,
    context: JobContext,
    alone: Callable[[Collective], int],
    shorter: Sequence[int],
    host_bytes_per_s: float,
) -> LayerCosts:
    marks, resident = _Marks(program, context), program.resident_bytes
    copies = [step.size_bytes for step in program.steps if isinstance(step, HostCopy) and step.to_host]
    forward = {block: marks.first(block, (Phase.FORWARD,)) for block in range(LAYERS)}
    backward = {block: marks.first(block, (Phase.BACKWARD, Phase.RECOMPUTE)) for block in range(LAYERS)}
    held = _held(program)
    of_layer = [b - a for a, b in zip(shorter, resident, strict=True)]
    rest = [b - LAYERS * layer for b, layer in zip(resident, of_layer, strict=True)]
    kept = max(0, held[forward[2]] - held[forward[1]])
    after = marks.total_after_passes()
    forward_path = marks.path(forward[1], forward[2], alone)
    backward_path = marks.path(backward[2], backward[1], alone)

    def no_exchange(step: Collective) -> int:
        return 0 if step.key[0] == EXPERT_KEY else alone(step)

    without = marks.path(forward[1], forward[2], no_exchange) + marks.path(backward[2], backward[1], no_exchange)
    return LayerCosts(
        forward=forward_path,
        backward=backward_path,
        exchange=forward_path + backward_path - without,
        forward_within=marks.path(forward[1], marks.last(1, (Phase.FORWARD,)), alone, with_target=True),
        backward_within=marks.path(
            backward[1], marks.last(1, (Phase.BACKWARD, Phase.RECOMPUTE)), alone, with_target=True
        ),
        forward_alone=marks.total(1, (Phase.FORWARD,)),
        backward_alone=marks.total(1, (Phase.BACKWARD, Phase.RECOMPUTE)),
        first=marks.total_of_rest(before_blocks=True),
        last=marks.total_of_rest(before_blocks=False),
        first_forward=marks.total_of_rest(True, (Phase.FORWARD,)),
        last_forward=marks.total_of_rest(False, (Phase.FORWARD,)),
        weight=marks.total_of_weights(1),
        after=int(after * of_layer[_WEIGHTS] / max(resident[_WEIGHTS], 1)),
        after_rest=int(after * rest[_WEIGHTS] / max(resident[_WEIGHTS], 1)),
        first_weight=marks.total_of_rest(True, (Phase.BACKWARD,), marks.weight_share),
        last_weight=marks.total_of_rest(False, (Phase.BACKWARD,), marks.weight_share),
        forward_chain=marks.total(1, (Phase.FORWARD,), drop=1),
        backward_chain=marks.total(1, (Phase.BACKWARD,), drop=2),
        message=context.rank_bytes(marks.operators(1, FORWARD)[-1].outputs[0], context.micro_batches[0]),
        weights=sum(
            context.local_bytes[t]
            for t in {t for op in marks.operators(1, FORWARD) for t in op.inputs if t in context.local_bytes}
        ),
        launch=sum(context.launches.get(marks.operators(1, phase)[0].id, (0,))[0] for phase in (FORWARD, BACKWARD)),
        offload=int(min(copies[1:LAYERS], default=0) / host_bytes_per_s * PS_PER_S),
        kept=kept,
        peak=max(0, max(held[forward[2] : backward[1]]) - (LAYERS - 1) * kept),
        rise=max(held[backward[2] : backward[1]]) - held[backward[2]],
        resident=dict(zip(_RESIDENT, of_layer, strict=False)),
        rest=dict(zip(_RESIDENT, rest, strict=False)),
    )


def _held(program: RankProgram) -> list[int]:
    """Return the allocated bytes, besides the resident ones, at the start of each step, before its own allocations."""
    change = [0] * (len(program.steps) + 1)
    for each in program.memory:
        change[each.step + 1] += each.delta_bytes
    return list(accumulate(change[:-1]))


#: Phases of passes, and the share of an operator that computes gradients of weights, by its part.
_PASSES = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
_WEIGHT_SHARES = {WEIGHT_PART: 1.0, BOTH: 0.5}


class _Marks:
    """The steps of a program by block and phase, and longest paths between them."""

    def __init__(self, program: RankProgram, context: JobContext) -> None:
        self._steps = program.steps
        names = context.layer_names
        blocks = list(dict.fromkeys(b for op in context.workload.operators if (b := layer_of(op.layer))))
        number = {name: blocks.index(b) if (b := layer_of(name)) else -1 for name in names}
        self._block = [number[names[s.label.layer]] if s.label.layer >= 0 else -1 for s in self._steps]
        forward = [op.layer for op in context.workload.operators if op.phase == FORWARD]
        first = next((i for i, layer in enumerate(forward) if layer_of(layer)), 0)
        self._early = set(forward[:first])
        self._names, self._parts = names, context.stages.parts
        self._operators, self._blocks = context.workload.operators, blocks

    def operators(self, block: int, phase: str) -> list[Operator]:
        """Return the operators of a block in a phase, in order."""
        return [op for op in self._operators if op.phase == phase and layer_of(op.layer) == self._blocks[block]]

    def _is_compute(self, index: int, phases: Sequence[Phase]) -> bool:
        step = self._steps[index]
        return isinstance(step, Compute) and step.stream == COMPUTE_STREAM and step.label.phase in phases

    def first(self, block: int, phases: Sequence[Phase]) -> int:
        """Return the first compute step of a block in these phases."""
        return next(i for i in range(len(self._steps)) if self._block[i] == block and self._is_compute(i, phases))

    def last(self, block: int, phases: Sequence[Phase]) -> int:
        """Return the last compute step of a block in these phases."""
        return max(i for i in range(len(self._steps)) if self._block[i] == block and self._is_compute(i, phases))

    def total(self, block: int, phases: Sequence[Phase], drop: int = 0) -> int:
        """Return the compute time of a block in ps; without its last ``drop`` operators."""
        times = [
            step.duration_ps for i, step in enumerate(self._steps)
            if self._block[i] == block and isinstance(step, Compute) and self._is_compute(i, phases)
        ]  # fmt: skip
        return sum(times[: len(times) - drop])

    def total_of_rest(
        self, before_blocks: bool, phases: Sequence[Phase] = _PASSES, share: Callable[[int], float] | None = None
    ) -> int:
        """Return the compute time outside of the blocks: of layers before the first block, or behind the last.

        share: returns the share of a step, by its index, that counts.
        """
        return int(sum(
            step.duration_ps * (1.0 if share is None else share(i)) for i, step in enumerate(self._steps)
            if self._block[i] < 0 and isinstance(step, Compute) and self._is_compute(i, phases)
            and step.label.layer >= 0 and (self._names[step.label.layer] in self._early) == before_blocks
        ))  # fmt: skip

    def total_of_weights(self, block: int) -> int:
        """Return the compute time of a block's gradients of weights in ps."""
        return int(sum(
            step.duration_ps * self.weight_share(i) for i, step in enumerate(self._steps)
            if self._block[i] == block and isinstance(step, Compute) and self._is_compute(i, (Phase.BACKWARD,))
        ))  # fmt: skip

    def weight_share(self, index: int) -> float:
        """Return the share of a step that a schedule with divided backward passes runs as gradients of weights."""
        operator = self._operators[self._steps[index].label.operator]
        return _WEIGHT_SHARES.get(self._parts.get(operator.id, ""), 0.0)

    def total_after_passes(self) -> int:
        """Return the compute time of the optimizer phase that follows a micro-batch, in ps."""
        return sum(
            step.duration_ps for step in self._steps
            if isinstance(step, Compute) and step.stream == COMPUTE_STREAM and step.label.phase == Phase.OPTIMIZER
            and step.label.microbatch >= 0
        )  # fmt: skip

    def path(self, source: int, target: int, alone: Callable[[Collective], int], with_target: bool = False) -> int:
        """Return the longest path in ps from the start of step ``source`` to the start of step ``target``, or its end.

        Streams and queues of collectives run in order. Messages take no time. Collectives that only some
        micro-batches have (reductions of gradients) are left out.
        """
        end: dict[int, int] = {}
        last: dict[str, int] = {}
        for index in range(source, target + 1):
            step = self._steps[index]
            stream = step.stream if isinstance(step, Compute) else ""
            if isinstance(step, Collective) and step.key[0] not in EACH_MICRO_BATCH and index != target:
                continue
            if isinstance(step, Collective):
                stream = f"queue {step.queue or step.axis}"
            before = [end[i] for i in step.after if i in end]
            if stream in last:
                before.append(last[stream])
            if index == source:
                before = [0]
            if index == target:
                own = step.duration_ps if with_target and isinstance(step, Compute) else 0
                return max(before, default=0) + own
            if not before:
                continue
            length = step.duration_ps if isinstance(step, Compute) else 0
            if isinstance(step, Collective):
                length = alone(step)
            end[index] = max(before) + length
            if stream:
                last[stream] = end[index]
        raise AssertionError("the target comes after the source")
