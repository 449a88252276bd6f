"""Experiments: one question at many points, in parallel, restartable. See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.experiments.experiment import Experiment as Experiment
    from trine.experiments.spec import ExperimentSpec as ExperimentSpec
    from trine.experiments.sweeps import sweep as sweep

_NAMES = {"Experiment": "experiment", "ExperimentSpec": "spec", "sweep": "sweeps"}
__getattr__ = lazy(__name__, {name: f"trine.experiments.{module}" for name, module in _NAMES.items()})
