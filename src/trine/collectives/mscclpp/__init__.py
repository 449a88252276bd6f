"""MSCCL++ execution plans (both JSON generations) and MSCCL XML: load, prove, describe, and turn into transfers."""

from trine.collectives.mscclpp.load import PlanSummary, describe_plan, load_plan
from trine.collectives.mscclpp.proof import PlanProof, check_plan
from trine.collectives.mscclpp.transfers import plan_schedule, plan_switches

__all__ = [
    "PlanProof", "PlanSummary", "check_plan", "describe_plan", "load_plan", "plan_schedule", "plan_switches",
]  # fmt: skip
