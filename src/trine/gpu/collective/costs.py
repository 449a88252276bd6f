"""Collective costs of the operator level from the load-store level's durations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.collectives.bus_bandwidth import bus_factor
from trine.collectives.nccl.steps import Answer, StepCosts
from trine.collectives.one_operation import ONE_OPERATION
from trine.collectives.options import CollectiveTime
from trine.errors import InputError
from trine.gpu.collective.durations import DurationCache, GroupDurations, user_folder
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.runs import EVIDENCE
from trine.gpu.kernels.build import DETAILED, ROOTED, has_kernel, known_kernels
from trine.gpu.kernels.options import WORKGROUPS

#: The schedule at the operator level with the same messages as a program; ``direct`` for all others.
_SCHEDULE = {"oneshot": "one-shot", "oneshot-get": "one-shot", "ring": "ring", "ring-get": "ring"}
#: The program with the same messages as a schedule that was requested by name; None: from the options.
_PROGRAM = {None: None, "direct": None, "one-shot": "oneshot", "ring": "ring"}


class LoadStoreCosts(StepCosts):
    """Costs for one cluster, like :class:`StepCosts`, from load-store runs instead of the library's formula.

    trine simulates a schedule with the program's messages on the links, so traffic still contends there. A delay before
    each message makes an uncontended collective take the duration of the load-store run, to 1 ps per step. The delay is
    never negative, even if the links alone take longer (``slowest_ratio``). Durations are interpolated between the
    sizes of a grid and extrapolated beyond 16 MiB (:func:`trine.gpu.collective.durations.duration_ps`).

    Collectives without a program (groups not joined by scale-up links, kinds without a builder, other algorithms) use
    the library's costs, or link time only if the links are of no known kind; ``notes`` names them.

    Parameters
    ----------
    options: options of the programs; an algorithm other than ``auto`` applies to the kinds that have it.
    folder: the folder for durations, :func:`user_folder` for the user's cache; None disables caching.

    Raises
    ------
    InputError: if the algorithm is a plan, or the cluster has circuits instead of links.
    """

    def __init__(
        self, cluster: Cluster, options: LoadStoreOptions | None = None, *, folder: Path | None = None
    ) -> None:
        super().__init__(cluster)
        self.library = "the load-store level"
        self.options = LoadStoreOptions() if options is None else options
        if self.options.is_plan:
            raise InputError("a plan is for one kind and number of ranks; costs need a program", field="algorithm")
        if cluster.circuits is not None:
            raise InputError("loads and stores cross links, and this cluster has circuits", field="collective_costs")
        self.durations = GroupDurations(cluster, self.options, DurationCache(folder))
        self._has_library = any(numbers.medium for numbers in cluster.link_table.numbers)
        self._answered: dict[str, None] = {}
        self._skipped: dict[str, None] = {}

    @property
    def software(self) -> str:
        """Description of the cost of messages."""
        kinds = ", ".join(sorted(self._answered))
        return (
            f"durations of {kinds} by GPU programs, run load by load and store by store (algorithm "
            f"{self.options.algorithm}, protocol {self.options.wire_protocol}; trine help levels)"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Collectives without load-store runs, and problems with the cache files."""
        return (*self._skipped, *self.durations.cache.notes)

    def check_used(self) -> None:
        """Raise InputError if no collective used a load-store run."""
        if not self._answered:
            why = "; ".join(self._skipped) or "the job has no collectives of several ranks"
            raise InputError(f"'loadstore' changes nothing: {why}", field="collective_costs")

    def duration(
        self, kind: str, size_bytes: int, ranks: tuple[int, ...], algorithm: str | None = None
    ) -> tuple[int, str] | None:
        """Return (ps, program) of one uncontended collective; None, with an entry in :attr:`notes`, without a program.

        ranks: the group, as positions in ``cluster.gpus``. algorithm: of the schedule; None: not specified.
        """
        if size_bytes < 1:
            return None
        why = self._why_not(kind, ranks, algorithm)
        if why is not None:
            fallback = "has the library's costs" if self._has_library else "costs its link time only"
            self._skipped[f"{kind}: {why}, so it {fallback}"] = None
            return None
        group_class = self._classes_of(np.array([ranks], np.int64)).names[0]
        self._answered[kind] = None
        return self.durations.of(kind, size_bytes, ranks, group_class, _PROGRAM[algorithm])

    def predicted(self, kind: str, size_bytes: int, groups: npt.NDArray[np.int64]) -> list[CollectiveTime]:
        """See :meth:`StepCosts.predicted`; channels are workgroups."""
        if groups.shape[1] < 2:
            return []
        examples = self._classes_of(groups).examples
        times = [self._time(kind, size_bytes, tuple(groups[group].tolist())) for group in examples]
        predictions = [time for time in times if time is not None]
        if len(predictions) == len(times):
            return predictions
        return super().predicted(kind, size_bytes, groups) if self._has_library else []

    def _find(self, kind: str, size: int, group: tuple[int, ...], algorithm: str | None) -> Answer:
        as_one = algorithm == ONE_OPERATION
        answer = self.duration(kind, size, group, None if as_one else algorithm)
        if answer is None and self._has_library:
            return super()._find(kind, size, group, algorithm)
        if answer is None:
            return self._chain(size, group) if as_one else (algorithm, 0)
        duration_ps, program = answer
        if as_one:
            return self._as_one(group, duration_ps, None)
        name = algorithm if algorithm is not None else _SCHEDULE.get(program, "direct")
        return name, self._software_ps(self._times(kind, size, group, name), duration_ps)

    def _time(self, kind: str, size: int, ranks: tuple[int, ...]) -> CollectiveTime | None:
        answer = self.duration(kind, size, ranks)
        if answer is None:
            return None
        time_ps, program = answer
        return CollectiveTime(
            op=kind, size_bytes=size, sent_bytes=size, num_ranks=len(ranks), time_ps=time_ps, low_ps=time_ps,
            high_ps=time_ps, algorithm=program, protocol=self.options.wire_protocol,
            channels=self.options.workgroups or WORKGROUPS, bus_factor=bus_factor(kind, len(ranks)), evidence=EVIDENCE,
            limit="",
        )  # fmt: skip

    def _why_not(self, kind: str, ranks: tuple[int, ...], algorithm: str | None) -> str | None:
        algorithms = known_kernels(kind)
        if kind in (*ROOTED, *DETAILED):
            return "no GPU program gives its costs"
        if not algorithms:
            return "there is no GPU program for it"
        if algorithm not in _PROGRAM or _PROGRAM[algorithm] not in (None, *algorithms):
            return f"there is no GPU program for the algorithm {algorithm!r}"
        if algorithm is None and self.options.algorithm != "auto" and not has_kernel(kind, self.options.algorithm):
            return f"there is no GPU program {self.options.algorithm!r} for it"
        if not self.durations.are_joined(ranks):
            return f"no scale-up links join all of a group of {len(ranks)}, and loads and stores cross no others"
        return None


def kept_costs(cluster: Cluster) -> LoadStoreCosts:
    """Return load-store costs with durations in the user's cache: the hook of ``--collective-costs loadstore``."""
    return LoadStoreCosts(cluster, folder=user_folder())
