"""Software costs per message, chosen so that an uncontended collective takes the library's predicted time.

A collective is simulated message by message if the user requests its algorithm or the network serves messages in turn.
Its software costs (launches, protocols, synchronisation) are spread over the rounds of its schedule, as extra message
latency. Latency is never reduced, even if the library is faster than the schedule on bare links (in-network reduction,
several rings). All other collectives are flows with limits (:class:`FlowCosts`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.data import HASH, RAIL, SHORTEST, SPLIT
from trine.collectives.library_flows import FlowPlan
from trine.collectives.nccl.costs import IN_NETWORK
from trine.collectives.nccl.flow_plans import FlowPlanner, TimeAlone
from trine.collectives.nccl.predict import CONTAINED, OPS, Collectives
from trine.collectives.nccl.topology import CommTopology, domains_of, without_names
from trine.collectives.one_operation import ONE_OPERATION, chain_ps, name_of, next_of
from trine.collectives.options import CollectiveOptions, CollectiveTime
from trine.collectives.schedule import ROOTED, Schedule
from trine.common.arrays import Bool, Int64, pointers, row_sums
from trine.common.kept import keep
from trine.common.units import PS_PER_US
from trine.engine.run import run
from trine.errors import InputError
from trine.graph.taskgraph import TaskGraph

if TYPE_CHECKING:
    from trine.cluster.routing.batch_routing import BatchRoutes

#: Largest group whose schedule is timed by simulating it alone; such schedules use all links of a domain or all NICs
#: of a node, because every rank exchanges with all others. Larger groups use the closed form of their schedule.
MAX_SIMULATED = 64
#: Groups of at least ``FEW_STEPS_FROM`` ranks may get a schedule with fewer steps, if the usual one takes more than
#: ``MUCH_SLOWER`` times the library's time.
FEW_STEPS_FROM, MUCH_SLOWER = 32, 1.5
#: Answers, and examples of classes, kept for further runs on one machine.
MAX_ANSWERS = 20_000
#: Classes of groups found by comparing all groups with one of them.
MAX_COMPARED = 16
#: The first places of values in a row are found in a table of at most this many places for each entry, or by
#: comparison with each place of a row that is not wider than ``NARROW``.
MAX_TABLE, NARROW = 4, 16
#: Collectives with a different name in the library's formulas.
SAME = {"shift": "send_recv"}
_SPREAD = ("all_reduce", "reduce_scatter", "all_gather")


#: The algorithm to simulate (None: the default; a plan: a library's flows), and software ps before each message.
Answer: TypeAlias = tuple[str | FlowPlan | None, int]
C = TypeVar("C", bound="StepCosts")


class GroupClasses(NamedTuple):
    """Classes of equivalent groups.

    class_of: int32[groups]. examples: the first group of each class. names: of each class; a name depends only on the
    size and the class of a group, not on the other groups.
    """

    class_of: npt.NDArray[np.int32]
    examples: list[int]
    names: list[bytes]


class StepCosts:
    """Algorithms and software costs for one cluster.

    factors: multiply the library's durations, first between domains, second inside one, as far as the links allow.
    ``slowest_ratio``: the largest ratio so far of a bare schedule's time to the library's time.
    """

    def __init__(self, cluster: Cluster, factors: tuple[float, float] = (1.0, 1.0)) -> None:
        for name, factor in zip(("communication", "scale_up"), factors, strict=True):
            if not 0.01 <= factor <= 100.0:
                raise InputError(f"must be between 0.01 and 100, got {factor}", field=f"{name} factor")
        self.cluster = cluster
        self.factors = factors
        self.slowest_ratio = 0.0
        self.library = cluster.library or "nccl"
        self._collectives: dict[tuple[int, ...], Collectives] = {}
        self._answers: dict[tuple[object, ...], tuple[Answer, float]] = {}
        self._same_topology: dict[CommTopology, Collectives] = {}
        self._classes = EquivalenceClasses(cluster)
        self._checks: dict[tuple[tuple[int, ...], int], bool] = {}
        self._class_cache: dict[object, GroupClasses] = {}
        self._class_answers: dict[tuple[object, ...], tuple[Answer, float]] = {}
        #: size and name of a class -> the group that all questions about the class use, so that they share its facts
        self._class_examples: dict[tuple[int, bytes], tuple[int, ...]] = {}
        self._predictions: dict[tuple[object, ...], CollectiveTime] = {}

    @classmethod
    def of(cls, cluster: Cluster, factors: tuple[float, float] = (1.0, 1.0)) -> Self:
        """Return costs that share their answers with earlier runs on the same cluster object."""
        costs = copy.copy(_shared_costs(cluster, cls, factors))
        costs.slowest_ratio = 0.0
        return costs

    @property
    def software(self) -> str:
        """Description of the software cost of messages."""
        costs = f"{self.library.upper()}'s software costs{self.factor_note}"
        return f"schedules on one channel; {costs} (trine help background/collectives)"

    @property
    def factor_note(self) -> str:
        """Description of the factors on durations; "" if both are 1."""
        outer, inner = self.factors
        if outer == inner:
            return "" if outer == 1.0 else f", times {outer:g}"
        return f", times {outer:g} between domains, {inner:g} in one"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, as sentences."""
        return ()

    def check_used(self) -> None:
        """Raise InputError if the costs had no effect."""

    def __call__(self, kind: str, size_bytes: int, ranks: Sequence[int], algorithm: str | None) -> Answer:
        """Return the algorithm (by default one that uses all links) and the latency to add to each message, in ps.

        ranks: the group, as positions in ``cluster.gpus``.
        """
        group = tuple(ranks)
        if len(group) < 2 or SAME.get(kind, kind) not in OPS:
            return algorithm, 0
        return self._kept(
            self._answers, (kind, size_bytes, group, algorithm), lambda: self._find(kind, size_bytes, group, algorithm)
        )

    def _kept(
        self, answers: dict[tuple[object, ...], tuple[Answer, float]], key: tuple[object, ...],
        find: Callable[[], Answer],
    ) -> Answer:  # fmt: skip
        """Return a kept answer, and count its schedule's ratio to the library's time."""
        if key not in answers:
            if len(answers) >= MAX_ANSWERS:
                answers.clear()
            slowest, self.slowest_ratio = self.slowest_ratio, 0.0
            answer = find()
            answers[key], self.slowest_ratio = (answer, self.slowest_ratio), slowest
        answer, ratio = answers[key]
        self.slowest_ratio = max(self.slowest_ratio, ratio)
        return answer

    def of_groups(
        self, kind: str, size_bytes: int, groups: npt.NDArray[np.int64], algorithm: str | None
    ) -> tuple[npt.NDArray[np.int32], list[Answer]]:
        """Return (class: int32[groups], the result of :meth:`__call__` for each class).

        groups: int64[groups, ranks], positions in ``cluster.gpus``.
        """
        if groups.shape[1] < 2 or SAME.get(kind, kind) not in OPS:
            return np.zeros(len(groups), np.int32), [(algorithm, 0)] * min(1, len(groups))
        classes = self._classes_of(groups)
        answers = []
        for group, name in zip(classes.examples, classes.names, strict=True):
            key = (kind, size_bytes, groups.shape[1], name, algorithm)
            find = partial(self, kind, size_bytes, self._example(groups[group], name), algorithm)
            answers.append(self._kept(self._class_answers, key, find))
        return classes.class_of, answers

    def predicted(self, kind: str, size_bytes: int, groups: npt.NDArray[np.int64]) -> list[CollectiveTime]:
        """Return the library's prediction for each class of groups; empty if the library lacks this kind.

        groups: int64[groups, ranks], positions in ``cluster.gpus``.
        """
        kind = SAME.get(kind, kind)
        if groups.shape[1] < 2 or kind not in OPS:
            return []
        classes = self._classes_of(groups)
        times = []
        for group, name in zip(classes.examples, classes.names, strict=True):
            key = (kind, size_bytes, groups.shape[1], name)
            if key not in self._predictions:
                collectives = self._collectives_of(self._example(groups[group], name))
                time = collectives.predict(kind, size_bytes)
                self._predictions[key] = replace(time, time_ps=round(time.time_ps * self.factor_of(collectives)))
            times.append(self._predictions[key])
        return times

    def _example(self, group: npt.NDArray[np.int64], name: bytes) -> tuple[int, ...]:
        """Return the first known group of the class ``name``; ``group`` itself for a new class."""
        key = len(group), name
        if key not in self._class_examples:
            if len(self._class_examples) >= MAX_ANSWERS:
                self._class_examples.clear()
            self._class_examples[key] = tuple(group.tolist())
        return self._class_examples[key]

    def factor_of(self, collectives: Collectives) -> float:
        """Return the factor on the durations of one group."""
        return self.factors[collectives.topology.between is None]

    def _collectives_of(self, group: tuple[int, ...]) -> Collectives:
        if group not in self._collectives:
            collectives = self._collectives[group] = Collectives(self.cluster, group)
            collectives.share_choices(self._same_topology.setdefault(without_names(collectives.topology), collectives))
        return self._collectives[group]

    def _classes_of(self, groups: npt.NDArray[np.int64]) -> GroupClasses:
        """Return the classes of ``groups``; cached, because callers pass the same groups with many sizes."""
        key = (groups.shape, hashlib.sha256(groups.tobytes()).digest())
        if key not in self._class_cache:
            self._class_cache[key] = self._classes.classify(groups)
        return self._class_cache[key]

    def _find(self, kind: str, size: int, group: tuple[int, ...], algorithm: str | None) -> Answer:
        collectives = self._collectives_of(group)
        target_ps = round(collectives.predict(SAME.get(kind, kind), size).time_ps * self.factor_of(collectives))
        if algorithm == ONE_OPERATION:
            return self._as_one(group, target_ps, self._usual_algorithm("all_gather", collectives, group))
        name = algorithm if algorithm is not None else self._usual_algorithm(kind, collectives, group)
        times = self._times(kind, size, group, name)
        if algorithm is None and times is not None and times[0] > MUCH_SLOWER * target_ps:
            for other_name in self._short_schedules(kind, collectives, name):
                other_times = self._times(kind, size, group, other_name)
                if other_times is not None and other_times[0] < times[0]:
                    name, times = other_name, other_times
        return name, self._software_ps(times, target_ps)

    def _as_one(self, group: tuple[int, ...], target_ps: int, algorithm: str | None) -> tuple[str, int]:
        """Return one operation that takes ``target_ps``, with its bytes on the route of an all_gather."""
        size, inner = len(group), "ring"
        if algorithm == "direct":
            inner = algorithm
        elif algorithm is not None:
            size = int(algorithm.rpartition("x")[2])
        gpus = np.array([self.cluster.gpus[rank] for rank in group])
        next_gpus = gpus[next_of(np.arange(len(group)), size, len(group))]
        return name_of(len(group), size, inner), max(0, target_ps - max(self._latencies(gpus, next_gpus)))

    def _chain(self, size: int, group: tuple[int, ...]) -> Answer:
        """Return one operation with the time of a chain from rank to rank over bare links.

        Circuits are set up in turn, which no formula covers; they get the default schedule.
        """
        if self.cluster.circuits is not None:
            return None, 0
        return self._as_one(group, chain_ps(len(group), size, *self._hop(group)), None)

    def _latencies(self, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> list[int]:
        """Return the total link latency of each message between two GPUs, in ps."""
        ptr, links = self.cluster.routes(sources, targets)
        latencies: list[int] = row_sums(self.cluster.link_latency_ps[links], ptr).tolist()
        return latencies

    def _software_ps(self, times: tuple[int, int] | None, target_ps: int) -> int:
        """Return the software time per message at which a schedule with these :meth:`_times` takes ``target_ps``."""
        if times is None:
            return 0
        bare_ps, slower_ps = times
        rounds = (slower_ps - bare_ps) // PS_PER_US
        self.slowest_ratio = max(self.slowest_ratio, bare_ps / target_ps)
        if target_ps <= bare_ps or rounds < 1:
            return 0
        return (target_ps - bare_ps) // rounds

    def _times(self, kind: str, size: int, group: tuple[int, ...], name: str | None) -> tuple[int, int] | None:
        """Return :meth:`_bare_times` of an algorithm, or None if its time is unknown."""
        from trine.collectives.registry import make_schedule

        schedule = make_schedule(kind, len(group), size, name, 0 if kind in ROOTED else -1)
        if schedule.num_switches:
            return None
        if len(group) > MAX_SIMULATED:
            from trine.collectives.closed_forms import has_closed_form

            if not has_closed_form(schedule):
                return None
        return self._bare_times(schedule, group)

    def _short_schedules(self, kind: str, collectives: Collectives, algorithm: str | None) -> list[str]:
        """Return schedules whose step count grows with the logarithm of the group size, like a library's trees.

        They move the same bytes as rings, and all ranks do the same work, unlike the ranks of a tree.
        """
        num_ranks, num_domains = collectives.topology.num_ranks, collectives.topology.num_domains
        if num_ranks < FEW_STEPS_FROM or kind not in _SPREAD:
            return []
        if algorithm is not None and algorithm.startswith("hierarchical"):
            halves = num_domains & (num_domains - 1) == 0
            if kind != "all_reduce":
                outer = "pat"
            elif halves:
                outer = "halving-doubling"
            else:
                outer = ""
            return [f"{algorithm}:outer={outer}"] if outer else []
        if algorithm is not None:
            return []
        return ["pat"] if kind != "all_reduce" else [f"hierarchical:1x{num_ranks}:inner=pat"]

    def _bare_times(self, schedule: Schedule, group: tuple[int, ...]) -> tuple[int, int]:
        """Return the schedule's time in ps on otherwise idle links, and its time with 1 us more per message.

        Groups above ``MAX_SIMULATED`` use the closed form.
        """
        if len(group) > MAX_SIMULATED:
            from trine.collectives.closed_forms import uncontended_ps

            rate, latency_ps = self._hop(group)
            times = (uncontended_ps(schedule, rate, latency_ps + step_ps) for step_ps in (0, PS_PER_US))
        else:
            from trine.collectives.run import schedule_graph

            graph, _ = schedule_graph(schedule, self.cluster, [self.cluster.gpus[rank] for rank in group])
            bare = _keep_used_links(graph)
            slower = replace(bare, route_latency_ps=bare.route_latency_ps + PS_PER_US)
            times = (int(run(tasks).end_ps.max(initial=0)) for tasks in (bare, slower))
        bare_ps, slower_ps = times
        return bare_ps, slower_ps

    def _usual_algorithm(self, kind: str, collectives: Collectives, group: tuple[int, ...]) -> str | None:
        """Return ``direct`` if every pair has a link, ``hierarchical`` across domains of one size, else None."""
        topology = collectives.topology
        if kind not in _SPREAD:
            return None
        if topology.num_domains == 1:
            is_meshed = topology.inside is not None and topology.inside.lanes == topology.num_ranks - 1 > 1
            return "direct" if is_meshed else None
        if topology.min_per_domain == topology.max_per_domain > 1 and self._is_in_order(group, topology.min_per_domain):
            return f"hierarchical:{topology.num_domains}x{topology.min_per_domain}"
        return None

    def _unsure_runs(self, gpus: npt.NDArray[np.int64], width: int) -> list[int]:
        """Return the starts of the runs of ``width`` GPUs that may span several scale-up domains (quick check)."""
        firsts = np.arange(0, len(gpus), width)
        island = self.cluster.scale_up_components[gpus]
        last = np.minimum(firsts + width, len(gpus)) - 1
        changes = pointers(island[1:] != island[:-1])
        is_fast = np.logical_and.reduceat(self.cluster.node_classes.has_scale_up[gpus], firsts)
        starts: list[int] = firsts[(changes[last] != changes[firsts]) | ~is_fast].tolist()
        return starts

    def _is_in_order(self, group: tuple[int, ...], width: int) -> bool:
        """Return whether each run of ``width`` ranks is one domain."""
        if (group, width) not in self._checks:
            gpus = np.asarray(self.cluster.gpus, np.int64)[list(group)]
            runs = [gpus[first : first + width] for first in self._unsure_runs(gpus, width)]
            self._checks[group, width] = all(len(domains_of(self.cluster, np.sort(run).tolist())) == 1 for run in runs)
        return self._checks[group, width]

    def _hop(self, group: tuple[int, ...]) -> tuple[int, int]:
        """Return the rate of the slowest link (bytes/s) and the mean latency (ps) from each rank to the next."""
        cluster = self.cluster
        gpus = np.array([cluster.gpus[rank] for rank in group])
        if cluster.routing == SPLIT:
            pairs = zip(gpus.tolist(), np.roll(gpus, -1).tolist(), strict=True)
            links = np.array([link for source, target in pairs for link in cluster.paths(source, target)[0][0]])
        else:
            links = cluster.routes(gpus, np.roll(gpus, -1))[1]
        return int(cluster.link_bytes_per_s[links].min()), int(cluster.link_latency_ps[links].sum()) // len(gpus)


@keep
def _shared_costs(cluster: Cluster, make: type[C], factors: tuple[float, float]) -> C:
    return make(cluster, factors)


class LinkCosts(StepCosts):
    """Costs of the links alone, without software; only a collective simulated as one operation needs a time."""

    def of_groups(
        self, kind: str, size_bytes: int, groups: npt.NDArray[np.int64], algorithm: str | None
    ) -> tuple[npt.NDArray[np.int32], list[Answer]]:
        """See :meth:`StepCosts.of_groups`."""
        if algorithm != ONE_OPERATION:
            return np.zeros(len(groups), np.int32), [(algorithm, 0)] * min(1, len(groups))
        return super().of_groups(kind, size_bytes, groups, algorithm)

    def __call__(self, kind: str, size_bytes: int, ranks: Sequence[int], algorithm: str | None) -> Answer:
        """See :meth:`StepCosts.__call__`."""
        if algorithm != ONE_OPERATION:
            return algorithm, 0
        return super().__call__(kind, size_bytes, ranks, algorithm)

    def _find(self, kind: str, size: int, group: tuple[int, ...], algorithm: str | None) -> Answer:
        return self._chain(size, group)


def _keep_used_links(graph: TaskGraph) -> TaskGraph:
    """Return the tasks on a network of only the links they use, in the same order; a machine may have millions."""
    links, route_links = np.unique(graph.route_links, return_inverse=True)
    latency_ps = None if graph.link_latency_ps is None else graph.link_latency_ps[links]
    link_names = tuple(graph.link_names[link] for link in links.tolist())
    return replace(
        graph,
        route_links=route_links.astype(np.int32),
        link_bytes_per_s=graph.link_bytes_per_s[links],
        link_latency_ps=latency_ps,
        link_names=link_names,
    )


class FlowCosts(StepCosts):
    """Costs for one cluster, like :class:`StepCosts`, with collectives as flows on the links that the library uses.

    Collectives with a requested algorithm are simulated message by message, as in :class:`StepCosts`. In-network
    reductions stay flows, because ranks alone cannot send the messages of switches.
    """

    def __init__(self, cluster: Cluster, factors: tuple[float, float] = (1.0, 1.0)) -> None:
        super().__init__(cluster, factors)
        self._planners: dict[tuple[int, ...], FlowPlanner] = {}
        self._algorithm_collectives: dict[tuple[str, tuple[int, ...]], Collectives] = {}

    @property
    def software(self) -> str:
        """Description of the cost of collectives."""
        return (
            f"{self.library.upper()}'s algorithms and software costs{self.factor_note}, as in trine collective "
            "(trine help background/collectives)"
        )

    def _find(self, kind: str, size: int, group: tuple[int, ...], algorithm: str | None) -> Answer:
        as_one = algorithm == ONE_OPERATION
        if algorithm is not None and not as_one and algorithm not in IN_NETWORK:
            return super()._find(kind, size, group, algorithm)
        model = self._collectives_of(group) if algorithm is None or as_one else self._collectives_with(algorithm, group)
        answer = model.predict(SAME.get(kind, kind), size)
        if group not in self._planners:
            self._planners[group] = FlowPlanner(self.cluster, group)
        return self._planners[group].plan(kind, answer, _timing(model, answer), self.factor_of(model), as_one=as_one)

    def _collectives_with(self, algorithm: str, group: tuple[int, ...]) -> Collectives:
        """Return the collectives of ``group`` with this algorithm. Raises InputError if the group cannot run it."""
        key = algorithm, group
        if key not in self._algorithm_collectives:
            self._algorithm_collectives[key] = Collectives(self.cluster, group, CollectiveOptions(algorithm=algorithm))
        return self._algorithm_collectives[key]


def _timing(model: Collectives, answer: CollectiveTime) -> TimeAlone:
    """Return the time before the bytes; collectives contained in an all_reduce fall back to the all_reduce's."""
    timing = TimeAlone.of_answer(answer)
    if not timing.before_ps and answer.op in CONTAINED:
        return TimeAlone.of_answer(model.predict("all_reduce", answer.size_bytes))
    return timing


@dataclass(frozen=True, eq=False)
class EquivalenceClasses:
    """Equivalence classes of groups on one cluster: groups that agree in everything a collective's time depends on.

    Two groups are equivalent if renaming nodes, leaf switches and pods maps one to the other, rank by rank. Their nodes
    then have one class (links, link numbers, NICs), each rank uses the same GPU of its node, the GPUs have the same
    order, and the routes share equally many links. The time of a class is computed once.
    """

    cluster: Cluster

    def classify(self, groups: npt.NDArray[np.int64]) -> GroupClasses:
        """Return the classes of ``groups``.

        groups: int64[groups, ranks], positions in ``cluster.gpus``. A group gets a separate class if the cluster has no
        known node structure, or if the group uses a fabric link that differs from the others.
        """
        rows = self._rows(self._gpus[groups])
        class_of, examples = equal_rows(rows)
        return GroupClasses(class_of, examples, [rows[example].tobytes() for example in examples])

    @cached_property
    def _gpus(self) -> Int64:
        return np.array(self.cluster.gpus, np.int64)

    def _rows(self, gpus: Int64) -> npt.NDArray[np.int32]:
        """Return int32[groups, ...], with equal rows for groups of one class."""
        bulk, node_make = self.cluster.node_classes.bulk, self.cluster.node_classes.node_make
        if bulk is None or node_make is None:
            return gpus.astype(np.int32)
        block, copy, local = (part.reshape(gpus.shape) for part in bulk.layout.places(gpus.ravel()))
        node = np.array([each.first for each in bulk.layout.blocks])[block] + copy
        closed = np.array([each.is_closed for each in bulk.nodes])[block[:, :1]]
        crosses = ~((node == node[:, :1]).all(axis=1, keepdims=True) & closed)
        fabric, single = self._fabric(bulk, gpus, crosses)
        is_separate = single | ~np.array([each.is_uniform for each in bulk.nodes])[block].all(axis=1, keepdims=True)
        columns = [
            node_make[gpus],
            local,
            first_places(node),
            _order_of(gpus),
            *fabric,
            np.where(is_separate, gpus + 1, 0),
        ]
        return np.concatenate(columns, axis=1).astype(np.int32)

    def _fabric(self, bulk: BatchRoutes, gpus: Int64, crosses: Bool) -> tuple[list[Int64], Bool]:
        """Return (fabric columns, bool[groups, 1]: groups unlike all others). ``crosses``: groups using the fabric."""
        clos = bulk.clos
        if clos is None or not clos.is_even:
            return [], crosses
        nics = bulk.nics_of(gpus.ravel()).reshape(gpus.shape)
        ports = np.maximum(nics, 0)
        leaf = clos.leaf[ports]
        is_cut = (nics < 0) | (clos.up[ports] < 0) | (clos.down[ports] < 0)
        is_split = ~(leaf == leaf[:, :1]).all(axis=1, keepdims=True)
        odd = is_split & clos.is_odd(leaf, self.cluster.link_table.number)
        if bulk.policy in (HASH, SPLIT) and clos.chooses:
            odd |= is_split
        columns = [first_places(leaf)]
        if clos.num_pods > 1:
            columns.append(first_places(clos.pod(leaf)))
        if bulk.policy != SHORTEST and clos.chooses:
            above, core = clos.dealt(ports)
            columns += [first_places(above), first_places(core)] if bulk.policy not in (HASH, SPLIT) else []
        if bulk.policy == RAIL:
            columns.append(first_places(self._leaves_of_hosts[gpus].reshape(len(gpus), -1)))
        return [np.where(crosses, column, 0) for column in columns], crosses & (odd | is_cut).any(axis=1, keepdims=True)

    @cached_property
    def _leaves_of_hosts(self) -> Int64:
        """int64[devices, ...]: leaf switches of all NICs in each GPU's host, any usable for sending; -1: no leaf."""
        bulk = self.cluster.node_classes.bulk
        assert bulk is not None
        assert bulk.clos is not None
        gpus = self._gpus
        hosts = self.cluster.node_of[gpus].astype(np.int64)
        nics = bulk.nics_of(gpus)
        order = np.argsort(hosts, kind="stable")
        first = np.searchsorted(hosts[order], hosts[order])
        place = np.arange(len(order)) - first
        table = np.full((int(hosts.max()) + 1, int(place.max()) + 1), -1, np.int64)
        table[hosts[order], place] = np.where(nics < 0, -1, bulk.clos.leaf[np.maximum(nics, 0)])[order]
        leaves = np.full((len(self.cluster.devices), table.shape[1]), -1, np.int32)
        leaves[gpus] = table[hosts]
        return leaves.astype(np.int64)


def equal_rows(rows: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Return the number of each row among the different ones, and the first row of each number; rows: int32[n, m].

    Most clusters have few classes: whole classes are found by comparison with one row, later ones by their bytes.
    """
    class_of, examples = np.full(len(rows), -1, np.int32), list[int]()
    left = np.arange(len(rows))
    while len(left) and len(examples) < MAX_COMPARED:
        is_equal = (rows[left] == rows[left[0]]).all(axis=1)
        class_of[left[is_equal]] = len(examples)
        examples.append(int(left[0]))
        left = left[~is_equal]
    numbers: dict[bytes, int] = {}
    for row in left.tolist():
        number = numbers.setdefault(rows[row].tobytes(), len(examples))
        if number == len(examples):
            examples.append(row)
        class_of[row] = number
    return class_of, examples


def _order_of(rows: Int64) -> Int64:
    """Return the place of each entry in the order of its row: int64, shaped like ``rows``."""
    if (rows[:, 1:] > rows[:, :-1]).all():
        return np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    return np.argsort(np.argsort(rows, axis=1), axis=1)


def first_places(rows: Int64) -> Int64:
    """Return int64, shaped like ``rows`` (2-D, from -1): for each entry, the first position of its value in that row.

    A table of rows and values takes the least position of each value. Sparse tables would be large: there the values
    are sorted.
    """
    size = int(rows.max(initial=0)) + 2
    key = (np.arange(len(rows))[:, None] * size + rows + 1).ravel()
    position = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    if len(rows) * size <= MAX_TABLE * rows.size:
        table = np.full(len(rows) * size, rows.shape[1], np.int64)
        np.minimum.at(table, key, position.ravel())
        return np.asarray(table[key].reshape(rows.shape))
    if rows.shape[1] <= NARROW:
        places = position.copy()
        for place in range(rows.shape[1] - 2, -1, -1):
            places[rows == rows[:, place : place + 1]] = place
        return places
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    first_of_row = np.arange(len(rows), dtype=np.int64)[:, None] * rows.shape[1]
    return np.asarray(first[inverse].reshape(rows.shape) - first_of_row)
