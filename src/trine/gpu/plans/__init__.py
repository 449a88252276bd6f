"""MSCCL++ execution plans (both JSON generations) and MSCCL XML: load, prove, describe, and turn into transfers."""

from dataclasses import replace

from trine.errors import InputError
from trine.gpu.plans.load import load_plan
from trine.gpu.plans.plan import KernelPlan
from trine.gpu.plans.proof import PlanProof, check_plan
from trine.gpu.plans.summary import PlanSummary, describe_plan
from trine.gpu.plans.transfers import plan_schedule, plan_switches

__all__ = [
    "PlanProof", "PlanSummary", "check_plan", "describe_plan", "load_checked", "load_plan", "plan_schedule",
    "plan_switches",
]  # fmt: skip


def load_checked(path: str, no_proof: bool = False) -> KernelPlan:
    """Load a plan and prove it correct. Raises InputError or SpecError for a wrong or incorrect plan.

    no_proof: return a plan without a proof too, with the reason in its notes.
    """
    plan = load_plan(path)
    try:
        check_plan(plan)
    except InputError as error:
        if not no_proof:
            message = f"{error.problem}; --no-proof runs the plan without a proof"
            raise InputError(message, file=error.file, field=error.field) from None
        note = f"the plan is not proven correct, and its result may be wrong: {error}"
        return replace(plan, notes=(*plan.notes, note), is_proven=False)
    return plan
