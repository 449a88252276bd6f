"""Names for completion, imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trine.common.plugins import load_target


def _names(target: str) -> Callable[[], Iterable[str]]:
    return lambda: load_target(target)()


clusters = _names("trine.cluster:known_clusters")
gpus = _names("trine.cluster.presets:known_gpus")
gpu_models = _names("trine.gpu.model.files:known_gpu_models")
traces = _names("trine.workload.readers:bundled")
models = _names("trine.workload:known_models")
topologies = _names("trine.cluster:known_topologies")
collectives = _names("trine.collectives.registry:known_kinds")
schedules = _names("trine.parallel.schedules:SCHEDULES.names")
engines = _names("trine.inference.engines:known_engines")
cast_recipes = _names("trine.software.precision:known_precisions")
served_precisions = _names("trine.inference.precision:served_precisions")
compute_models = _names("trine.compute.models:COMPUTE_MODELS.names")
networks = _names("trine.engine.models:NETWORK_MODELS.names")
formats = _names("trine.formats.clusters:READERS.names")
studies = _names("trine.gpu.cases:CASES.keys")
fused_kernels = _names("trine.gpu.kernels.fused.build:known_fused")


def workloads() -> Iterable[str]:
    return [*traces(), *(f"model:{name}" for name in models())]


def software_profiles() -> Iterable[str]:
    from trine.software import known_software
    from trine.software.profile import NO_SOFTWARE

    return [*known_software(), NO_SOFTWARE]


def algorithms() -> Iterable[str]:
    from trine.collectives.registry import known_algorithms

    return dict.fromkeys(name for kind in collectives() for name in known_algorithms(kind))


def algorithm_pairs() -> Iterable[str]:
    from trine.collectives.registry import known_algorithms

    return [f"{kind}={name}" for kind in collectives() for name in known_algorithms(kind)]
