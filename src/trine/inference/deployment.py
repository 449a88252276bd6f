"""The names of a question, resolved: model, cluster, engine and precision, and the timer of their steps."""

from __future__ import annotations

import os
from functools import lru_cache

from trine.cluster import Cluster, load_cluster
from trine.errors import InputError
from trine.inference.communication import gpu_of
from trine.inference.engines import load_engine
from trine.inference.job import ServingJob, ServingLayout
from trine.inference.precision import kv_name, precision_name, served_precisions
from trine.inference.shards import check_layout
from trine.inference.steps import Deployment, StepTimer
from trine.workload.architecture.blocks import Mixture
from trine.workload.architecture.counts import described
from trine.workload.architecture.model import Architecture
from trine.workload.synthesis.model_files import load_model


def resolve(job: ServingJob) -> Deployment:
    """Return the deployment of a question.

    Raises InputError for an unknown model, engine, version or precision, a layout that does not divide the model, and
    GPUs that the cluster lacks.
    """
    model = served_model(job.model)
    cluster = _cluster(job.cluster, job.layout.gpus)
    engine = load_engine(job.engine, job.engine_version)
    name = precision_name(job.precision, model.stored)
    gpu = gpu_of(cluster)
    check_model(model, job.layout, name)
    return Deployment(
        model=model, cluster=cluster, gpu=gpu, layout=job.layout, precision=served_precisions()[name].on(gpu),
        precision_name=name, kv=kv_name(job.kv_precision, engine.kv_precision, name), engine=engine,
    )  # fmt: skip


def served_model(model: Architecture | str | os.PathLike[str]) -> Architecture:
    """Return a model by its name or path. Raises InputError if it generates no tokens."""
    return model if isinstance(model, Architecture) else _named_model(os.fspath(model))


def check_model(model: Architecture, layout: ServingLayout, precision: str) -> None:
    """Raise InputError if the layout does not divide the model, or the model has no weights of the precision."""
    _check_experts(model, layout, precision)
    for layer in dict.fromkeys(model.layers):
        if layer.cross is not None:
            raise InputError(f"{model.name} has an encoder: trine serves decoders only", field="model")
        for block in (layer.mixer, layer.feed_forward, layer.beside):
            if block is not None:
                check_layout(block, layout)
    if layout.pp > len(model.layers):
        raise InputError(f"{layout.pp} stages are more than the {len(model.layers)} layers", field="pp")


def _check_experts(model: Architecture, layout: ServingLayout, precision: str) -> None:
    """Raise InputError for options about experts that the model lacks, or that the GPUs cannot divide."""
    has_experts = any(isinstance(layer.feed_forward, Mixture) for layer in model.layers)
    if has_experts and layout.stage_gpus % layout.ep:
        text = (
            f"ep {layout.ep} does not divide tp x attention dp = {layout.stage_gpus}, the GPUs that share the experts"
        )
        raise InputError(f"{text}: with tp {layout.ep} or attention dp {layout.ep} it does", field="ep")
    if not has_experts and layout.ep > 1:
        raise InputError(f"{model.name} has no experts to divide", field="ep")
    if not has_experts and not served_precisions()[precision].dense:
        raise InputError(f"{precision} is a precision of experts, and {model.name} has none", field="precision")


@lru_cache(maxsize=64)
def _named_model(name: str) -> Architecture:
    found = described(load_model(name.removeprefix("model:")))
    if found is None or not found.head:
        raise InputError(f"{name} generates no tokens", field="model")
    return found


@lru_cache(maxsize=64)
def _preset(name: str, gpus: int) -> Cluster:
    return load_cluster(name, gpus=gpus)


def _cluster(cluster: Cluster | str, gpus: int) -> Cluster:
    if isinstance(cluster, str):
        return _preset(cluster, gpus)
    if len(cluster.gpus) < gpus:
        raise InputError(f"{gpus} GPUs are more than the cluster's {len(cluster.gpus)}", field="cluster")
    return cluster


_MAX_TIMERS = 256
_timers: dict[tuple[object, ...], StepTimer] = {}


def step_timer(deployment: Deployment) -> StepTimer:
    """Return the timer of a deployment, which further answers share; it keeps the objects that its key names."""
    key = (
        id(deployment.model), id(deployment.cluster), deployment.layout, deployment.precision_name, deployment.kv,
        deployment.engine.name, deployment.engine.version,
    )  # fmt: skip
    if key not in _timers:
        if len(_timers) >= _MAX_TIMERS:
            _timers.pop(next(iter(_timers)))
        _timers[key] = StepTimer(deployment)
    return _timers[key]
