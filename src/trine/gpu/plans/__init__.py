"""MSCCL++ execution plans (both JSON generations) and MSCCL XML: load, prove, describe, and turn into transfers."""

from trine.gpu.plans.load import PlanSummary, describe_plan, load_plan
from trine.gpu.plans.plan import KernelPlan
from trine.gpu.plans.proof import PlanProof, check_plan
from trine.gpu.plans.transfers import plan_schedule, plan_switches

__all__ = [
    "PlanProof", "PlanSummary", "check_plan", "describe_plan", "load_checked", "load_plan", "plan_schedule",
    "plan_switches",
]  # fmt: skip


def load_checked(path: str) -> KernelPlan:
    """Load a plan and prove it correct. Raises InputError or SpecError for a wrong or incorrect plan."""
    plan = load_plan(path)
    check_plan(plan)
    return plan
