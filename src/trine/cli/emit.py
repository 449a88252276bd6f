"""The output of ``trine train --emit``: the layout as launch flags of a training software."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.cli.output import Section, show
from trine.common.plugins import load_target
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cli.output import StepRequest
    from trine.results import Result

_CHECK, _EMIT = "trine.search.flags:check_dialect", "trine.search.flags:emit_plan"


class EmitAnswer(Section):
    """The flags of one dialect, if requested. Raises InputError for an unknown dialect."""

    def __init__(self, dialect: str | None) -> None:
        self._dialect, self._text = dialect, ""
        if dialect is not None:
            load_target(_CHECK)(dialect)

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Write the flags, if requested. Raises InputError if the dialect cannot express the layout."""
        if self._dialect is None:
            return
        from trine.parallel.constraints import LayoutFacts
        from trine.training.setup import setup_layout, setup_machine, setup_workload

        workload, requested, options = step
        if requested.replica_batches:
            raise InputError("launch configurations have one batch for all replicas", field="replica_batches")
        loaded, software = setup_workload(workload, setup_machine(requested, options), options)
        plan = setup_layout(requested, loaded, software.profile).plan
        name = str(workload).removeprefix("model:").partition(",")[0]
        samples = (plan.batch or loaded.batch) * plan.dp
        self._text = load_target(_EMIT)(self._dialect, name, plan, samples, LayoutFacts(loaded))

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Print the flags, if requested."""
        if self._text:
            show("\n" + self._text, json)
