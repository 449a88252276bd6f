"""A recorded step of an inference engine: engine, phase, tokens, layout and model, read from a trace's operators.

Engines register operators under their own names and pass shapes that show the layout: attention gets the tokens, and
the heads of one GPU. The job's size comes from the trace's process group, and counts as tensor parallelism. A trace may
hold the first layers only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.graph.workload import SHARD, Operator, Workload
from trine.inference.deployment import resolve, served_model, step_timer
from trine.inference.job import MAX_WAYS
from trine.inference.step_time import StepLayout
from trine.inference.steps import ATTENTION, COMMUNICATION, EXPERTS, GEMMS, SMALL, PromptChunk, Step
from trine.workload.architecture.blocks import Attention, Mixture
from trine.workload.architecture.model import Architecture
from trine.workload.synthesis.model_names import known_models

_US_PER_PS = 1e6 / PS_PER_S
#: Beginnings of operator names -> engine, the surest first (vLLM runs kernels of the others).
_ENGINES = {"vllm::": "vllm", "sgl_kernel::": "sglang", "sglang::": "sglang", "trtllm::": "trtllm"}
_EMBEDDING, _ATTENTION = "aten::embedding", "attention"
PARTS = (GEMMS, EXPERTS, ATTENTION, SMALL, COMMUNICATION)
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """An inference step as a trace shows it; a field is None if the trace does not hold it.

    phase: ``decode`` (a token of each sequence), ``prefill`` or ``mixed`` (chunks of prompts, of one or several
    sequences). tokens: of the step. layers: recorded ones. heads, kv_heads: of one GPU. vocab: of all GPUs. experts:
    outputs of the router. models: bundled ones with these shapes. measured_us: by part, of the recorded layers.
    """

    engine: str
    phase: str | None
    tokens: int
    sequences: int | None
    tp: int | None
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int | None
    experts: int | None
    models: tuple[str, ...]
    measured_us: dict[str, float]

    def text(self) -> str:
        """Return the step in words."""
        phase = "phase not known" if self.phase is None else self.phase
        sequences = "" if self.sequences is None else f" of {self.sequences:,} sequence{'s' * (self.sequences > 1)}"
        layers = f"{self.layers} layer{'s' * (self.layers > 1)}"
        tp = "tp not known" if self.tp is None else f"tp {self.tp}"
        models = ", ".join(self.models) or "no bundled model has these shapes"
        return (
            f"inference step of {self.engine}: {phase}, {self.tokens:,} tokens{sequences}, {tp}; {layers} recorded\n"
            f"hidden {self.hidden:,}, {self.heads} + {self.kv_heads} heads of {self.head_size} on each GPU: {models}"
        )


def recorded_step(workload: Workload) -> RecordedStep | None:
    """Return the step that a trace holds, None unless an inference engine's attention is among its operators."""
    names = [op.name for op in workload.operators]
    engine = next((each for start, each in _ENGINES.items() if any(name.startswith(start) for name in names)), None)
    calls = [op for op in workload.operators if _ATTENTION in op.name and len(_shapes(workload, op)) >= 3]
    if engine is None or workload.is_training or not calls:
        return None
    queries, keys = _shapes(workload, calls[0])[:2]
    table = next((_shapes(workload, op)[0] for op in workload.operators if op.name == _EMBEDDING), None)
    if len(queries) != 3 or len(keys) != 3 or table is None:
        return None
    ranks = re.search(r"of (\d+)", workload.metadata.get(SHARD, ""))
    tp = int(ranks.group(1)) if ranks and int(ranks.group(1)) <= MAX_WAYS else None
    tokens, sequences = queries[0], _sequences(workload)
    step = RecordedStep(
        engine=engine, phase=_phase(tokens, sequences), tokens=tokens, sequences=sequences, tp=tp, layers=len(calls),
        hidden=table[1], heads=queries[1], kv_heads=keys[1], head_size=queries[2],
        vocab=None if tp is None else table[0] * tp, experts=_experts(workload, table[1]), models=(),
        measured_us=_measured_us(workload),
    )  # fmt: skip
    return _with_models(step)


def predicted_us(step: RecordedStep, cluster: str, model: str | None = None) -> dict[str, float]:
    """Return the predicted time of the recorded layers by part, for a step without cached tokens.

    model: None for the bundled model with the trace's shapes. Raises InputError if the trace does not show tp, and if
    no or several bundled models have its shapes.
    """
    if step.tp is None:
        raise InputError("the trace does not show the number of its GPUs", field="--cluster")
    if model is None:
        if len(step.models) != 1:
            candidates = ", ".join(step.models) or "no bundled model has its shapes"
            raise InputError(f"the trace does not name one: add --model ({candidates})", field="--model")
        model = step.models[0]
    timer = step_timer(resolve(StepLayout(tp=step.tp, engine=step.engine).job(model, cluster)))
    chunk = (PromptChunk(step.tokens, 0),)
    asked = Step(step.tokens, 1.0) if step.phase == "decode" else Step(chunks=chunk)
    parts = timer.time(asked).parts
    share = step.layers / len(timer.deployment.model.layers)
    return {part: parts[part] * share for part in PARTS}


def comparison_text(step: RecordedStep, predicted: dict[str, float]) -> str:
    """Return measured and predicted time of each part as a table."""
    lines = [f"{'part':24} {'measured':>11} {'predicted':>11} {'ratio':>6}"]
    for part in PARTS:
        measured = step.measured_us.get(part, 0.0)
        ratio = f"{predicted[part] / measured:6.2f}" if measured else ""
        lines.append(f"{part:24} {measured:8.1f} us {predicted[part]:8.1f} us {ratio}".rstrip())
    lines.append("predicted without cached tokens; a recorded collective contains its wait for other ranks")
    return "\n".join(lines)


def _shapes(workload: Workload, op: Operator) -> list[Shape]:
    return [tuple(workload.tensors[tensor].shape) for tensor in op.inputs]


def _sequences(workload: Workload) -> int | None:
    """Return the rows of the block tables, which engines copy to the GPU before the embedding."""
    for op in workload.operators:
        shapes = _shapes(workload, op)
        if op.name == _EMBEDDING:
            return None
        if op.name == "aten::copy_" and shapes and len(shapes[0]) == 2:
            return shapes[0][0]
    return None


def _phase(tokens: int, sequences: int | None) -> str | None:
    if sequences is None:
        return None
    if sequences >= tokens:
        return "decode"
    return "prefill" if sequences == 1 else "mixed"


def _experts(workload: Workload, hidden: int) -> int | None:
    """Return the columns of the router's logits, the last input of an operator of experts; None for a dense model."""
    for op in workload.operators:
        shapes = _shapes(workload, op)
        if "moe" in op.name and len(shapes) >= 2 and len(shapes[1]) == 2 and shapes[1][1] < hidden:
            return shapes[1][1]
    return None


def _measured_us(workload: Workload) -> dict[str, float]:
    """Return the time of the operators from the embedding on, by part, and of the collectives."""
    found = dict.fromkeys(PARTS, 0.0)
    found[COMMUNICATION] = sum(each.time_ps for each in workload.collectives) * _US_PER_PS
    has_begun = False
    for op in workload.operators:
        has_begun = has_begun or op.name == _EMBEDDING
        if has_begun:
            found[_part(op.name)] += op.gpu_time_ps * _US_PER_PS
    return found


def _part(name: str) -> str:
    kind = name.rpartition("::")[2]
    if "moe" in kind:
        return EXPERTS
    if _ATTENTION in kind or "cache" in kind:
        return ATTENTION
    return GEMMS if kind in ("linear", "addmm", "mm", "matmul", "bmm") or kind.endswith("_mm") else SMALL


def _with_models(step: RecordedStep) -> RecordedStep:
    """Return the step with the names of the bundled models that have its shapes."""
    return replace(step, models=tuple(name for name in known_models() if _matches(step, name)))


def _matches(step: RecordedStep, name: str) -> bool:
    try:
        model = served_model(name)
    except InputError:
        return False
    mixer = next(model.mixers(), None)
    if not isinstance(mixer, Attention) or (model.hidden, mixer.head_size) != (step.hidden, step.head_size):
        return False
    if step.tp is not None:
        heads = mixer.heads == step.heads * step.tp and max(1, mixer.kv_heads // step.tp) == step.kv_heads
        if not heads or step.vocab is None or not model.vocab <= step.vocab < model.vocab + 512 * step.tp:
            return False
    return step.experts == next(_expert_counts(model), None)


def _expert_counts(model: Architecture) -> Iterator[int]:
    return (layer.feed_forward.experts for layer in model.layers if isinstance(layer.feed_forward, Mixture))
