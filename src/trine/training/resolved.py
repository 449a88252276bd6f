"""Resolved inputs of a simulation as plain data: what two answers need to name the first input that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.measured_gpu import measured_gpu
from trine.common.spec import fingerprint
from trine.compute.origin import known_gpu
from trine.graph.workload import SYNTHESISED
from trine.software.profile import FACTORS

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.training.options import SimulateOptions
    from trine.training.setup import Setup

#: Options whose values are plain data.
_PLAIN = ("gpu", "trace_gpu", "compute", "cpu", "launch_cost_ps", "gpu_spread", "power_cap_w", "gradient_dtype", "loss")


def resolved_inputs(setup: Setup) -> dict[str, object]:
    """Return workload, layout, GPUs, cluster, software and options of a run, each as plain data."""
    plan = setup.plan
    layout = {each.name: _plain(getattr(plan, each.name)) for each in fields(plan)}
    gpu_rows = [_gpu(name) for name in setup.gpu_names if name is not None]
    cluster_row = None if setup.machine is None else _cluster(setup.machine)
    return {
        "workload": _workload(setup),
        "layout": layout,
        "gpus": gpu_rows,
        "cluster": cluster_row,
        "software": _software(setup),
        "options": _options(setup),
    }


def _workload(setup: Setup) -> dict[str, object]:
    """Return the workload; without the facts of a synthesised one that follow from its GPU and software."""
    workload, is_model = setup.workload, setup.workload.format == SYNTHESISED
    derived = ("software",) if is_model else ()
    gpu = None if is_model else workload.gpu
    num_operators = None if is_model else len(workload.operators)
    parameter_bytes = sum(each.size_bytes for each in workload.parameters)
    metadata = {name: _plain(value) for name, value in workload.metadata.items() if name not in derived}
    return {
        "name": workload.name,
        "batch": workload.batch,
        "gpu": gpu,
        "operators": num_operators,
        "parameter_bytes": parameter_bytes,
        "metadata": metadata,
    }


def _gpu(name: str) -> dict[str, object]:
    spec = known_gpu(name)
    if spec is None:
        return {"name": name}
    measured = measured_gpu(name)
    return {
        "name": spec.name,
        **({} if measured is None else {"kernels": measured.fingerprint}),
        "memory_bytes": spec.memory_bytes,
        "memory_bytes_per_s": spec.memory_bytes_per_s,
        "flop_per_s": dict(spec.flop_per_s),
        "power_w": spec.power_w,
    }


def _cluster(machine: Cluster) -> dict[str, object]:
    numbers = machine.link_table.numbers
    count = np.bincount(machine.link_table.number, minlength=len(numbers)).tolist()
    return {
        "name": machine.name,
        "gpus": len(machine.gpus),
        "library": machine.library,
        "routing": machine.routing,
        "links": [
            {
                "class": link.link_class, "kind": link.medium, "bytes_per_s": link.bytes_per_s,
                "latency_ps": link.latency_ps, "count": links,
            }
            for link, links in zip(numbers, count, strict=True)
        ],
        "fingerprint": machine.fingerprint,
    }  # fmt: skip


def _software(setup: Setup) -> dict[str, object]:
    profile = setup.software.profile
    if profile is None:
        return {"name": setup.software.name, "fingerprint": None, "factors": {}}
    return {
        "name": profile.name,
        "fingerprint": fingerprint(profile.model_dump(exclude_defaults=True)),
        "factors": {name: getattr(profile.factors, name).value for name in FACTORS},
    }


def _options(setup: Setup) -> dict[str, object]:
    options: SimulateOptions = setup.options
    costs, placement = options.collective_costs, options.placement
    plan_options = {name: getattr(options, name) for name in _PLAIN}
    costs_name = costs if isinstance(costs, str) else type(costs).__name__
    stragglers = list(options.stragglers.sentences) if options.stragglers is not None else []
    calibration = list(options.calibration.sources) if options.calibration is not None else []
    return {
        **plan_options,
        "network": setup.network_name,
        "collective_costs": costs_name,
        "placement": _plain(placement),
        "stragglers": stragglers,
        "calibration": calibration,
    }


def _plain(value: object) -> object:
    """Return tuples as lists and other objects as text; numbers, texts and None stay."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)
