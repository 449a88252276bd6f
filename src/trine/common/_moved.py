"""Import paths of 0.11, which work until 0.13: each is the module at its new place, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Old module or package below ``trine`` -> new one; the longest that fits decides.
MOVED = {
    "collectives.kernels": "gpu.kernels", "collectives.loadstore": "gpu.collective",
    "collectives.mscclpp": "gpu.plans", "collectives.packets": "gpu.collective.packets",
    "formats.chakra.loadstore": "gpu.chakra", "parallel.hop": "decentralised", "replay": "gpu.replay",
    "results.gpu": "gpu.results", "testing.proofs": "gpu.proofs",
    "simulation": "training", "studies": "validation",
    "simulation.detail": "gpu.detail.detail", "simulation.detail_choice": "gpu.detail.choice",
    "simulation.detail_result": "gpu.detail.result",
    "studies.check": "check.compare", "studies.check_result": "check.result", "studies.hypotheses": "check.hypotheses",
    "studies.likelihood": "check.likelihood", "studies.nccl_tests": "check.nccl_tests",
    "studies.nccl_facts": "check.nccl_facts", "studies.nccl_rows": "check.nccl_rows",
    "studies.ensemble": "training.ensemble", "studies.overlap": "training.overlap",
    "studies.step_fit": "training.step_fit", "studies.factor_fit": "training.factor_fit",
    "studies.hop": "decentralised.study", "studies.loadstore_cases": "validation.cases",
    "studies.validate": "validation.collectives", "studies.validate_layouts": "validation.layouts",
    "studies.validate_memory": "validation.memory", "studies.validate_operators": "validation.operators",
    "studies.validate_scaling": "validation.scaling", "studies.validate_training": "validation.training",
    "studies.validation": "validation.harness", "studies.gpu_measured": "validation.gpu.measured",
    "studies.gpu_kernels": "validation.gpu.kernels", "studies.host_loops": "validation.gpu.measured",
    "studies.nccl_primitives": "validation.gpu.nccl_primitives",
    **{name: f"common.{name}" for name in (
        "arguments", "arrays", "evidence", "inputs", "outputs", "plugins", "schema", "shown", "spec", "units",
    )},
}  # fmt: skip
_OLD = tuple(sorted((f"trine.{old}" for old in MOVED), key=len, reverse=True))


class MovedModules(MetaPathFinder, Loader):
    """Finder and loader of modules by their old names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        """Return a spec for an old name; None for all others."""
        return ModuleSpec(name, self) if name.startswith(_OLD) and _new_name(name) else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in the place of ``module``."""
        old = module.__name__
        new = _new_name(old)
        assert new is not None
        warnings.warn(f"{old} is now {new}; the old name goes away in trine 0.13", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)


def _new_name(name: str) -> str | None:
    old = next((old for old in _OLD if name == old or name.startswith(f"{old}.")), None)
    return None if old is None else f"trine.{MOVED[old.removeprefix('trine.')]}{name.removeprefix(old)}"
