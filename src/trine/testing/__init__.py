"""Conformance checks for plug-in authors, one for each kind of plug-in. See docs/guides/plug-ins.md.

Each check returns None, or raises AssertionError with the fault and its place. Exceptions of the plug-in pass through,
except trine's own errors: these mean that the plug-in rejected valid input, so they fail the check.
"""

from trine.testing.network import check_network_model
from trine.testing.plug_ins import check_collective, check_compute_model, check_reader
from trine.testing.schedule import check_schedule

__all__ = ["check_collective", "check_compute_model", "check_network_model", "check_reader", "check_schedule"]
