"""Times of operators on the GPU, and of their launches on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.compute.calibration import Calibration, calibrate
    from trine.compute.cost import Work, work
    from trine.compute.kinds import kind_of
    from trine.compute.launch import LaunchCosts, launch_costs
    from trine.compute.law import FitReport, KindFit
    from trine.compute.models import ComputeModel, make_compute, uses_recorded_times
    from trine.compute.origin import recorded_on
    from trine.compute.resize import Resized, Split, resized
    from trine.compute.roofline import Duration, Roofline, Shares

__all__ = [
    "Calibration", "ComputeModel", "Duration", "FitReport", "KindFit", "LaunchCosts", "Resized", "Roofline",
    "Shares", "Split", "Work", "calibrate", "kind_of", "launch_costs", "make_compute", "recorded_on", "resized",
    "uses_recorded_times", "work",
]  # fmt: skip

_HOMES = {
    "Calibration": "trine.compute.calibration",
    "ComputeModel": "trine.compute.models",
    "Duration": "trine.compute.roofline",
    "FitReport": "trine.compute.law",
    "KindFit": "trine.compute.law",
    "LaunchCosts": "trine.compute.launch",
    "Resized": "trine.compute.resize",
    "Roofline": "trine.compute.roofline",
    "Shares": "trine.compute.roofline",
    "Split": "trine.compute.resize",
    "Work": "trine.compute.cost",
    "calibrate": "trine.compute.calibration",
    "kind_of": "trine.compute.kinds",
    "launch_costs": "trine.compute.launch",
    "make_compute": "trine.compute.models",
    "recorded_on": "trine.compute.origin",
    "resized": "trine.compute.resize",
    "uses_recorded_times": "trine.compute.models",
    "work": "trine.compute.cost",
}

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _HOMES)
