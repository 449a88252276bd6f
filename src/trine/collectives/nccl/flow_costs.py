"""A library's collectives in a job, as :func:`trine.collectives.nccl.collective_time` has them: flows with limits."""

from __future__ import annotations

from trine.cluster.cluster import Cluster
from trine.collectives.nccl.costs import IN_NETWORK
from trine.collectives.nccl.flow_plans import FlowPlanner, TimeAlone
from trine.collectives.nccl.predict import CONTAINED, Collectives
from trine.collectives.nccl.steps import SAME, Answer, StepCosts
from trine.collectives.one_operation import ONE_OPERATION
from trine.collectives.options import CollectiveOptions, CollectiveTime


class FlowCosts(StepCosts):
    """Answers for one cluster, as :class:`StepCosts`, whose collectives are flows on the links that the library uses.

    Collectives whose algorithm is given are simulated message by message, as there; those in which switches reduce are
    flows as well, since ranks alone cannot send their messages.
    """

    def __init__(self, cluster: Cluster, factors: tuple[float, float] = (1.0, 1.0)) -> None:
        super().__init__(cluster, factors)
        self._planners: dict[tuple[int, ...], FlowPlanner] = {}
        self._demanded: dict[tuple[str, tuple[int, ...]], Collectives] = {}

    @property
    def software(self) -> str:
        """What collectives cost, in words."""
        return (
            f"algorithms and software costs of {self.library}: alone, a collective takes what 'trine collective' says"
            f"{self.said_of_factor} (docs/background/collectives.md)"
        )

    def _find(self, kind: str, size: int, group: tuple[int, ...], algorithm: str | None) -> Answer:
        as_one = algorithm == ONE_OPERATION
        if algorithm is not None and not as_one and algorithm not in IN_NETWORK:
            return super()._find(kind, size, group, algorithm)
        asked = self._asked_of(group) if algorithm is None or as_one else self._asked_with(algorithm, group)
        answer = asked.predict(SAME.get(kind, kind), size)
        if group not in self._planners:
            self._planners[group] = FlowPlanner(self.cluster, group)
        return self._planners[group].plan(kind, answer, _timing(asked, answer), self.factor_of(asked), as_one=as_one)

    def _asked_with(self, algorithm: str, group: tuple[int, ...]) -> Collectives:
        """The collectives of ``group`` with a demanded algorithm. Raises InputError if the group cannot run it."""
        key = algorithm, group
        if key not in self._demanded:
            self._demanded[key] = Collectives(self.cluster, group, CollectiveOptions(algorithm=algorithm))
        return self._demanded[key]


def _timing(asked: Collectives, answer: CollectiveTime) -> TimeAlone:
    """What passes before the bytes; of what an all_reduce bounds, what does there."""
    timing = TimeAlone.of(answer)
    if not timing.before_ps and answer.op in CONTAINED:
        return TimeAlone.of(asked.predict("all_reduce", answer.size_bytes))
    return timing
