"""Times of operators on the GPU, and of their launches on the CPU."""

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
