"""``trine.step_time``: seconds of one step of an inference engine, for schedulers and other simulators."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from trine.common.arguments import check_whole, named_arguments
from trine.errors import InputError, nearest
from trine.inference.context import ContextWarning, context_warning
from trine.inference.deployment import resolve, step_timer
from trine.inference.job import MAX_WAYS, ServingJob, ServingLayout
from trine.inference.ranges import Estimate, range_power, ranged, serving_ranges
from trine.inference.stack import Stack, read_stack
from trine.inference.step_table import StepTable, read_batch
from trine.inference.steps import Deployment

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.workload.architecture.model import Architecture

_S = 1e-6
_MAX_TABLES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLayout:
    """GPUs, precision and engine of the steps of :func:`step_time`.

    tp, pp, ep, attention_dp: as in :class:`trine.inference.job.ServingLayout`. precision, kv_precision: of weights and
    KV cache, empty for the model's and the engine's defaults. engine: a profile, with a version after a colon.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    precision: str = ""
    kv_precision: str = ""
    engine: str = "vllm"

    def __post_init__(self) -> None:
        """Raise InputError for a field of another type."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, type(each.default)):
                kind = "a text" if each.default in ("", "vllm") else "a whole number"
                raise InputError(f"takes {kind}, got {value!r:.40}", field=each.name)

    def job(self, model: Architecture | str, cluster: Cluster | str) -> ServingJob:
        """Return a question about this layout. Raises InputError for a number out of range."""
        for name in ("tp", "pp", "ep", "attention_dp"):
            check_whole(name, getattr(self, name), 1, MAX_WAYS)
        engine, _, version = self.engine.partition(":")
        return ServingJob(
            model=model, cluster=cluster, input_tokens=1, output_tokens=1, batch=1,
            layout=ServingLayout(tp=self.tp, pp=self.pp, ep=self.ep, attention_dp=self.attention_dp),
            precision=self.precision, kv_precision=self.kv_precision, engine=engine, engine_version=version,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The table of a deployment, the seconds of one table unit, and the likely range.

    max_context: longest context of the model in tokens, infinite if unknown. kept: the objects whose ids are in the
    key.
    """

    table: StepTable
    scale: float
    low: float
    high: float
    max_context: float
    kept: tuple[object, ...]


_prepared: dict[tuple[object, ...], _Prepared] = {}


@named_arguments
def step_time(
    model: Architecture | str,
    cluster: Cluster | str,
    layout: StepLayout | Mapping[str, Any] | None = None,
    prefill: Sequence[tuple[int, int]] = (),
    decode: Sequence[int] = (),
    stack: Stack | str | os.PathLike[str] | None = None,
) -> Estimate:
    """Predict the time of one step of an inference engine: GPU, communication and exposed CPU time.

    The first call for a model, cluster and layout computes tables in up to a second; further calls interpolate and take
    less than 0.1 ms. The interpolation deviates by at most 0.5 % from the direct computation.

    Parameters
    ----------
    model: name of a bundled model, path of a config.json, or an architecture.
    cluster: name of a preset, or a cluster.
    layout: a :class:`StepLayout`, or its fields as a dict: ``{"tp": 4, "precision": "fp8", "engine": "sglang"}``.
    prefill: chunks of prompts in the step, as pairs: new tokens, and tokens before them in the KV cache.
    decode: tokens in the KV cache of each sequence that makes one token in the step. A list or an array.
    stack: a calibrated stack, or the file of one that ``trine calibrate --serving`` wrote; a file is read once.

    With ``attention_dp``, the work is one attention replica's, and the other replicas have the same. With ``pp``, the
    time covers all stages.

    Warns with a ContextWarning if a sequence is beyond the longest context of the model.

    Returns seconds: ``value``, and ``low`` to ``high``, between which 80 % of measured times are expected.

    Raises InputError: an unknown name, a layout that does not divide the model, a step without work, more than 65,536
    tokens or 8,192 sequences in a step, a context above 4,194,304 tokens, or a stack of another deployment.
    """
    prepared = _prepare(model, cluster, _layout(layout), stack)
    batch = read_batch(prefill, decode)
    if batch.longest > prepared.max_context:
        served = prepared.table.timer.deployment.model
        message = context_warning(served.name, served.max_context, batch.longest)
        warnings.warn(message, ContextWarning, stacklevel=3)
    seconds = prepared.table.us(batch) * prepared.scale
    return Estimate(seconds, seconds * prepared.low, seconds * prepared.high)


def step_table(model: Architecture | str, cluster: Cluster | str, layout: StepLayout) -> StepTable:
    """Return the table behind :func:`step_time`, which further calls share. Raises the errors of that function."""
    return _prepare(model, cluster, layout, None).table


def _layout(layout: StepLayout | Mapping[str, Any] | None) -> StepLayout:
    """Return the layout of a dict. Raises InputError for an unknown key."""
    if isinstance(layout, StepLayout):
        return layout
    if layout is not None and not isinstance(layout, Mapping):
        raise InputError(f"takes a StepLayout or a dict, got {layout!r:.40}", field="layout")
    settings = dict(layout or {})
    known = [each.name for each in fields(StepLayout)]
    for name in settings:
        if name not in known:
            raise InputError(f"unknown key {name!r:.40}{nearest(str(name), known)}", field="layout")
    return StepLayout(**settings)


def _prepare(
    model: Architecture | str,
    cluster: Cluster | str,
    layout: StepLayout,
    stack: Stack | str | os.PathLike[str] | None,
) -> _Prepared:
    objects = model, cluster, os.fspath(stack) if isinstance(stack, os.PathLike) else stack
    key = (layout, *(each if isinstance(each, str) else id(each) for each in objects))
    found = _prepared.get(key)
    if found is None:
        deployment = resolve(layout.job(model, cluster))
        factors = ranged(1.0, serving_ranges().tpot, range_power(deployment.gpu, deployment.precision))
        if stack is not None:
            factors = _corrected(deployment, read_stack(stack), factors)
        low, high = factors.low / factors.value, factors.high / factors.value
        found = _Prepared(
            StepTable(step_timer(deployment)), factors.value * _S, low, high,
            deployment.model.max_context or math.inf, objects,
        )  # fmt: skip
        if len(_prepared) >= _MAX_TABLES:
            _prepared.pop(next(iter(_prepared)))
        _prepared[key] = found
    return found


def _corrected(deployment: Deployment, stack: Stack, blind: Estimate) -> Estimate:
    """Return the factor of a stack on steps with its range. Raises InputError for a stack of another deployment."""
    names = {
        "model": deployment.model.name, "gpu": deployment.gpu.name, "engine": deployment.engine.name,
        "precision": deployment.precision_name,
    }  # fmt: skip
    stack.check(names)
    return blind if stack.tpot is None else stack.tpot.scaled(1.0)
