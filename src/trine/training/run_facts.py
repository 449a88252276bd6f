"""What the results of one run say alike, whichever ranks they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.common.evidence import Evidence
from trine.results.headline import Band, StepWork
from trine.results.memory import MemoryFacts
from trine.results.run import Simulator

if TYPE_CHECKING:
    from trine.results.host_memory import HostMemory
    from trine.results.operator_work import OperatorWork
    from trine.results.repeats import RepeatedSteps, Repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Fields of :class:`trine.results.run.TaskRun` that results of all ranks share; described there."""

    plan: Mapping[str, object]
    evidence: tuple[Evidence, ...]
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    simulator: Simulator
    work: StepWork | None
    band: Band | None
    memory_facts: MemoryFacts
    host_memory: HostMemory | None
    repeats: Repeats | None
    repeated_steps: RepeatedSteps | None
    inputs: Mapping[str, object]
    operator_work: Callable[[], OperatorWork | None] | None
