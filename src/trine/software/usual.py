"""The profile of a job whose software nobody names, and the profiles to propose if it cannot run the layout."""

from __future__ import annotations

from functools import cache
from typing import Literal

from trine.inputs import PRESETS
from trine.schema import Spec
from trine.spec import read_spec


class UsualRule(Spec):
    """The profile of one kind of workload on the GPUs of one vendor."""

    workload: Literal["transformer", "other"]
    vendor: Literal["nvidia", "amd"]
    software: str
    reason: str
    source: str


class UsualSoftware(Spec):
    """rules: the first that fits counts. proposals: profiles to name in an error, in this order."""

    rules: list[UsualRule]
    proposals: list[str]

    def rule_for(self, workload: str, vendor: str) -> UsualRule:
        """Return the rule for a kind of workload and a vendor; of another vendor the first for the workload."""
        rules = [rule for rule in self.rules if rule.workload == workload]
        return next((rule for rule in rules if rule.vendor == vendor), rules[0])


@cache
def usual_software() -> UsualSoftware:
    """Return the rules that come with trine."""
    return read_spec(PRESETS / "usual_software.yaml", UsualSoftware)
