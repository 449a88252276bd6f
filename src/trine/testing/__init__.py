"""Conformance checks that the author of a plug-in runs, one for each kind. See docs/guides/plug-ins.md.

Each raises AssertionError, saying what is wrong and where, and returns None if nothing is. What the plug-in itself
raises passes through, except trine's own errors, which it has for input that it should have taken.
"""

from trine.testing.network import check_network_model
from trine.testing.plug_ins import check_collective, check_compute_model, check_reader
from trine.testing.schedule import check_schedule

__all__ = ["check_collective", "check_compute_model", "check_network_model", "check_reader", "check_schedule"]
