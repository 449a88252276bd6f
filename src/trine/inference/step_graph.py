"""Single steps of an engine as a task graph: the kernels of each layer in their order, and the exposed CPU time.

One row of the graph is one step on the first GPU of a replica: a decode step, one chunk of a prompt, and both in one
step if the engine mixes them. Streams: CPU, compute and communication. A kernel waits for the one before it, so the
last task ends when :class:`trine.inference.steps.StepTime` says, within the rounding of each task to a picosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

from trine.common.units import PS_PER_S
from trine.engine import run
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import Records, TaskGraph
from trine.inference.products import at_tokens
from trine.inference.steps import (
    ATTENTION,
    COMMUNICATION,
    CPU,
    EXPERTS,
    GEMMS,
    HEAD,
    SMALL,
    Step,
    StepTimer,
)
from trine.workload.architecture.blocks import FeedForward, Mixer, Mixture
from trine.workload.architecture.model import Layer

_PS_PER_US = PS_PER_S / 1e6
#: Stream of each part that does not run on the stream of compute kernels.
_STREAMS = {COMMUNICATION: "communication", CPU: "CPU"}
_COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class StepKernel:
    """Consecutive kernels of one part of a step: its name, the part, and microseconds."""

    name: str
    part: str
    us: float


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A step with a title."""

    title: str
    step: Step


def duration_ps(kernel: StepKernel) -> int:
    """Return the time of a kernel in whole picoseconds."""
    return round(kernel.us * _PS_PER_US)


def step_kernels(timer: StepTimer, step: Step) -> list[StepKernel]:
    """Return the kernels of a step in their order, without those that take no time.

    The CPU time that the GPU does not hide comes first. Drafts of speculation run after the head, one entry per part.
    """
    whole = timer.time(step).parts
    found = [StepKernel("exposed CPU time", CPU, whole[CPU])]
    tokens = timer.graph_tokens(step)
    found.append(StepKernel("embedding", SMALL, at_tokens(tokens, timer.embedding_us())))
    curves = _LayerCurves(timer, step)
    for number, layer in enumerate(timer.deployment.model.layers):
        found += [StepKernel(f"layer {number}: {each.name}", each.part, each.us) for each in curves.of(layer)]
    found.append(StepKernel("messages between stages", COMMUNICATION, at_tokens(tokens, timer.messages_us())))
    rows = StepKernel("head and sampling", HEAD, at_tokens(step.rows, timer.head_us()) if step.rows else 0.0)
    found.append(rows)
    if step.drafts and step.decodes:
        for part, us in whole.items():
            listed_us = sum(kernel.us for kernel in found if kernel.part == part)
            found.append(StepKernel(f"drafts: {part}", part, max(0.0, us - listed_us)))
    return [kernel for kernel in found if kernel.us > 0]


class _LayerCurves:
    """The kernels of each kind of layer in one step; equal layers are computed once."""

    def __init__(self, timer: StepTimer, step: Step) -> None:
        self._timer, self._step = timer, step
        self._tokens, self._expert_tokens = timer.graph_tokens(step), timer.expert_tokens(step)
        self._known: dict[Layer, list[StepKernel]] = {}

    def of(self, layer: Layer) -> list[StepKernel]:
        """Return the kernels of a layer."""
        if layer not in self._known:
            self._known[layer] = self._kernels(layer)
        return self._known[layer]

    def _kernels(self, layer: Layer) -> list[StepKernel]:
        timer, tokens = self._timer, self._tokens
        found = [StepKernel("norms", SMALL, at_tokens(tokens, timer.norms_us(layer)))]
        if layer.mixer is not None:
            found += self._block("mixer", layer.mixer)
            found.append(StepKernel("attention", ATTENTION, self._attention_us(layer.mixer)))
            found += self._communication("mixer", layer.mixer)
        for title, block in (("feed-forward", layer.feed_forward), ("feed-forward beside", layer.beside)):
            if block is None:
                continue
            found += self._block(title, block)
            if isinstance(block, Mixture):
                found.append(StepKernel("experts", EXPERTS, at_tokens(self._expert_tokens, timer.experts_us(block))))
        if layer.feed_forward is not None:
            found += self._communication("feed-forward", layer.feed_forward)
        return found

    def _block(self, title: str, block: Mixer | FeedForward) -> list[StepKernel]:
        """Return the products and small kernels of a block."""
        return [
            StepKernel(f"{title} GEMMs", GEMMS, at_tokens(self._tokens, self._timer.gemms_us(block))),
            StepKernel(f"{title} small kernels", SMALL, at_tokens(self._tokens, self._timer.small_us(block))),
        ]

    def _communication(self, title: str, block: Mixer | FeedForward) -> list[StepKernel]:
        us = at_tokens(self._tokens, self._timer.communication_us(block))
        return [StepKernel(f"{title} communication", COMMUNICATION, us)]

    def _attention_us(self, mixer: Mixer) -> float:
        step, total = self._step, 0.0
        if step.decodes:
            total += self._timer.decode_us(mixer, step.decodes, step.context, 1 + step.drafts)
        for chunk in step.chunks:
            total += self._timer.prefill_us(mixer, chunk)
        return total


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """Steps of an engine as one task graph, and when its tasks run; one row of the graph per step."""

    graph: TaskGraph
    records: Records


def simulate_steps(timer: StepTimer, steps: list[NamedStep]) -> SimulatedSteps:
    """Run each step as a row of one task graph, all from time 0."""
    builder = TaskGraphBuilder([], [], rank_names=[each.title for each in steps])
    for row, each in enumerate(steps):
        last: tuple[int, ...] = ()
        for kernel in step_kernels(timer, each.step):
            stream = _STREAMS.get(kernel.part, _COMPUTE)
            last = (builder.compute(row, stream, duration_ps(kernel), last, kernel.name),)
    graph = builder.build()
    return SimulatedSteps(graph, run(graph, engine="reference"))


def named_steps(decode: Step | None, chunk: Step | None, mixes: bool) -> list[NamedStep]:
    """Return a decode step and a chunk of a prompt with their titles, and both in one step if the engine mixes them."""
    found = []
    decoding = prompt = ""
    if decode is not None:
        decoding = f"decode step of {decode.decodes:,} request{'s' if decode.decodes > 1 else ''}"
        found.append(NamedStep(decoding, decode))
    if chunk is not None:
        prompt = f"{chunk.tokens:,} prompt token{'s' if chunk.tokens > 1 else ''}"
        found.append(NamedStep(f"step of {prompt}", chunk))
    if decode is not None and chunk is not None and mixes:
        both = Step(decode.decodes, decode.context, chunk.chunks, decode.drafts)
        found.append(NamedStep(f"{decoding} with {prompt}", both))
    return found
