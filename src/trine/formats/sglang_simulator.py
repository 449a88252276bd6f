"""SGLang Simulator: trine as its predictor of step times, and tables for its own replay predictor.

The simulator (sgl-project/sglang, tools/sglang-simulator, 2026) runs SGLang's scheduler on a CPU and asks a predictor
for each step: ``predict_infer_time(batch)`` returns seconds, and a negative number for a step that cannot run. A batch
has ``reqs``, each with ``extend_length`` new tokens after ``past_kv_length`` cached ones; one new token after cached
ones is a decode. Its replay predictor reads a JSON file: sorted pairs of both lengths as text -> seconds. This
module imports nothing from the simulator: objects with these attributes are enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trine.common.outputs import write_text
from trine.errors import InputError
from trine.inference.step_time import StepLayout, step_time

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.workload.architecture.model import Architecture

#: Data types of the simulator -> precisions of weights, and of the KV cache.
_PRECISIONS = {"FP16": "bf16", "BF16": "bf16", "FP8": "fp8", "FP4": "nvfp4"}
_KV_PRECISIONS = {"FP16": "bf16", "BF16": "bf16", "FP8": "fp8"}
Requests = list[tuple[int, int]]


class SglangPredictor:
    """Predictor of step times with the interface of the simulator's predictors.

    The simulator constructs a predictor with its own descriptions of model, accelerator and scheduler; the keywords
    name the model and cluster to trine. precision: None for the data type of the
    scheduler's configuration.

    Raises InputError for an unknown name or data type.
    """

    def __init__(
        self,
        model: object,
        hw: object,
        config: object,
        *,
        trine_model: Architecture | str,
        cluster: Cluster | str,
        precision: str | None = None,
    ) -> None:
        self.model, self.hw, self.config = model, hw, config
        self._question = trine_model, cluster
        self.layout = layout_of(config, precision)
        step_time(*self._question, self.layout, decode=[1])
        self._steps, self._refused, self._reason = 0, 0, ""

    def predict_infer_time(self, batch: Any) -> float:
        """Return seconds of a step; 0 for an empty batch, -1 for one beyond the limits of :func:`step_time`."""
        pairs = _pairs(batch)
        if not pairs:
            return 0.0
        try:
            seconds = _seconds(self._question, self.layout, pairs)
        except InputError as error:
            self._refused, self._reason = self._refused + 1, str(error)
            return -1.0
        self._steps += 1
        return seconds

    def get_metrics(self) -> dict[str, object]:
        """Return the number of predicted and refused steps, and the reason of the last refusal."""
        return {"trine_steps": self._steps, "trine_refused_steps": self._refused, "trine_refusal": self._reason}

    def reset_metrics(self) -> None:
        """Set the numbers of steps to 0."""
        self._steps, self._refused, self._reason = 0, 0, ""


def layout_of(config: Any, precision: str | None = None) -> StepLayout:
    """Return the layout of a scheduler configuration of the simulator.

    Its ``tp_size`` counts the GPUs of all attention replicas (``dp_size``). Raises InputError for a data type without
    a precision in trine, sizes that do not divide each other, and context parallelism (``cp_size`` above 1).
    """
    replicas, context_ways = int(getattr(config, "dp_size", 1)), int(getattr(config, "cp_size", 1))
    if context_ways > 1:
        raise InputError(f"trine serves without context parallelism, got {context_ways}", field="cp_size")
    if config.tp_size % replicas:
        raise InputError(f"{replicas} replicas do not divide tp_size {config.tp_size}", field="dp_size")
    version = getattr(config, "backend_version", None)
    weights = _precision_of(config, "data_type", _PRECISIONS) if precision is None else precision
    return StepLayout(
        tp=config.tp_size // replicas, pp=int(getattr(config, "pp_size", 1)), ep=int(getattr(config, "ep_size", 1)),
        attention_dp=replicas, precision=weights, engine=f"sglang:{version}" if version else "sglang",
        kv_precision=_precision_of(config, "kv_cache_data_type", _KV_PRECISIONS),
    )  # fmt: skip


def write_replay_table(
    path: str | Path, model: Architecture | str, cluster: Cluster | str, layout: StepLayout, steps: Iterable[Requests]
) -> None:
    """Write the file that the simulator's ``replay`` predictor reads, with trine's time of each of ``steps``.

    A step is a list of (new, cached) tokens of its requests. Raises InputError as :func:`step_time` does.
    """
    table = {}
    for step in steps:
        pairs = sorted([new, cached] for new, cached in step)
        table[json.dumps(pairs)] = _seconds((model, cluster), layout, pairs)
    write_text(path, json.dumps(table, indent=2) + "\n")


def _pairs(batch: Any) -> list[list[int]]:
    return [[request.extend_length, request.past_kv_length] for request in batch.reqs]


def _seconds(question: tuple[Architecture | str, Cluster | str], layout: StepLayout, pairs: list[list[int]]) -> float:
    """Return seconds of a step of (new, cached) pairs."""
    prefill, decode = [], []
    for new, cached in pairs:
        if new == 1 and cached:
            decode.append(cached)
        else:
            prefill.append((new, cached))
    return step_time(*question, layout, prefill, decode).value


def _precision_of(config: Any, field: str, precisions: dict[str, str]) -> str:
    """Return the precision of a data type such as ``FP8`` or ``FP8_TENSOR``; empty without one."""
    data_type = getattr(config, field, None)
    if data_type is None:
        return ""
    name = str(getattr(data_type, "value", data_type)).removesuffix("_TENSOR")
    if name not in precisions:
        raise InputError(f"{name[:40]} is not one of {', '.join(precisions)}", field=field)
    return precisions[name]
