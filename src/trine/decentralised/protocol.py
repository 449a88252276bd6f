"""Hop, decentralised training that tolerates slow workers: the communication graph and the waiting rules.

Luo, Lin, Zhuo and Qian, Hop: Heterogeneity-aware Decentralized Training, ASPLOS 2019. docs/background/hop.md defines
each option exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from trine.common.arguments import named_arguments, option
from trine.common.shown import OneLine
from trine.errors import PlanError, nearest

#: When a worker sends an update: at the start of an iteration, alongside its gradients, or at its end.
ORDERS = ("parallel", "serial")
GRAPHS = ("ring", "ring-based", "double-ring", "full")
MAX_ITERATIONS = 1_000_000
#: Maximum number of workers of a full graph; its edges would otherwise need more tasks than a run may have.
MAX_FULL = 2048
#: Minimum values of a protocol's numbers.
_LOWEST = {"iterations": 1, "backup": 0, "staleness": 0, "max_gap": 0, "max_skip": 0, "skip_behind": 2}


@dataclass(frozen=True)
class WorkerGraph:
    """Directed graph of updates: ``out[i]`` are the out-neighbours of worker i, ascending, without i itself.

    Raises PlanError for fewer than two workers, a self-loop, an edge to an unknown worker, a repeated edge, or a worker
    whose updates never reach another worker.
    """

    name: str
    out: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        n = len(self.out)
        if n < 2:
            raise PlanError(f"decentralised training needs at least two workers, got {n}")
        for worker, neighbours in enumerate(self.out):
            wrong = [other for other in neighbours if other == worker or not 0 <= other < n]
            if wrong or len(set(neighbours)) != len(neighbours):
                raise PlanError(
                    f"worker {worker} sends to {list(neighbours)}: each other worker of 0..{n - 1} at most once"
                )
        for edges in (self.out, self.into):
            missing = set(range(n)) - _reached(edges)
            if missing:
                raise PlanError(
                    f"graph {self.name!r} falls apart: worker 0 and worker {min(missing)} never learn of each other"
                )

    @cached_property
    def into(self) -> tuple[tuple[int, ...], ...]:
        """The in-neighbours of each worker, ascending."""
        senders: list[list[int]] = [[] for _ in self.out]
        for worker, receivers in enumerate(self.out):
            for receiver in receivers:
                senders[receiver].append(worker)
        return tuple(tuple(sorted(workers)) for workers in senders)

    @property
    def num_workers(self) -> int:
        return len(self.out)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(sender, receiver) pairs, in order."""
        return tuple((worker, receiver) for worker, receivers in enumerate(self.out) for receiver in receivers)


def _reached(edges: tuple[tuple[int, ...], ...]) -> set[int]:
    reached, pending = {0}, [0]
    while pending:
        for neighbour in edges[pending.pop()]:
            if neighbour not in reached:
                reached.add(neighbour)
                pending.append(neighbour)
    return reached


def worker_graph(name: str, num_workers: int) -> WorkerGraph:
    """Return a named graph; edges go both ways.

    ``ring``: each worker and its two neighbours. ``ring-based``: also the farthest worker on the ring (TrioSim,
    ISCA'25, figure 16; an even number of workers). ``double-ring``: two ring-based graphs of half the workers, joined
    node to node. ``full``: all pairs of workers.

    Raises PlanError for an unknown name, or an unsupported number of workers.
    """
    if name not in GRAPHS:
        raise PlanError(f"unknown graph {name!r}{nearest(name, GRAPHS)}")
    n = num_workers
    if not 2 <= n <= 2**16:
        raise PlanError(f"decentralised training needs 2 to {2**16} workers, got {n}")
    if name == "full":
        if n > MAX_FULL:
            raise PlanError(
                f"a full graph joins {MAX_FULL} workers at most, got {n}: {n * (n - 1):,} edges are too many"
            )
        return graph_of(name, n, ((a, b) for a in range(n) for b in range(a)))
    if name == "double-ring":
        if n % 4:
            raise PlanError(f"two ring-based graphs need a multiple of 4 workers, got {n}")
        half = n // 2
        one = _ring_based(half)
        return graph_of(name, n, [*one, *((a + half, b + half) for a, b in one), *((a, a + half) for a in range(half))])
    if name == "ring-based":
        if n % 2:
            raise PlanError(f"on a ring of {n} workers no single one is farthest: take an even number")
        return graph_of(name, n, _ring_based(n))
    return graph_of(name, n, [(a, (a + 1) % n) for a in range(n)])


def _ring_based(n: int) -> list[tuple[int, int]]:
    return [*((a, (a + 1) % n) for a in range(n)), *((a, a + n // 2) for a in range(n // 2))]


def graph_of(name: str, num_workers: int, pairs: Iterable[tuple[int, int]]) -> WorkerGraph:
    """Return the graph with edges both ways for each pair; pairs may repeat. Raises PlanError like WorkerGraph."""
    out: list[set[int]] = [set() for _ in range(num_workers)]
    for a, b in pairs:
        if not (0 <= a < num_workers and 0 <= b < num_workers):
            raise PlanError(f"pair {a}, {b}: workers are 0..{num_workers - 1}")
        out[a].add(b)
        out[b].add(a)
    return WorkerGraph(name, tuple(tuple(sorted(neighbours)) for neighbours in out))


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class HopProtocol(OneLine):
    """Rules for when a worker may proceed.

    iterations: number per worker, including skipped iterations.
    backup: number of a worker's in-neighbours that may be late in each iteration (backup workers).
    staleness: maximum age of an update in iterations (bounded staleness); 0: updates of the same iteration only.
    max_gap: token queues: maximum lead of a worker over any out-neighbour, in iterations; None: no queues.
    max_skip: maximum number of iterations that a lagging worker skips at once; 0: it never skips.
    skip_behind: a worker skips if all its out-neighbours are at least N iterations ahead.
    order: ``parallel`` sends the parameters when an iteration starts, alongside the gradients; ``serial`` at its end.
    drop_late: drop an update if its receiver can no longer use it when its turn to be sent comes.

    Raises PlanError for numbers that are out of range or have no effect.
    """

    iterations: int = option(50, "Run N iterations of each worker.")
    backup: int = option(0, "Allow N neighbours to be late.")
    staleness: int = option(0, "Allow updates to be N iterations old.")
    max_gap: int | None = option(None, "Limit the lead over a neighbour (token queues) [8 with backup].")
    max_skip: int = option(0, "Skip at most N iterations at once.")
    skip_behind: int = option(2, "Skip when N iterations behind.")
    order: str = option("parallel", "Send while computing or after it.")
    drop_late: bool = option(False, "Do not send what would come too late.")

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is None and name == "max_gap":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= MAX_ITERATIONS:
                raise PlanError(f"{name} must be a whole number from {lowest} to {MAX_ITERATIONS}, got {value!r}")
        if self.order not in ORDERS:
            raise PlanError(f"unknown order {self.order!r}{nearest(self.order, ORDERS)}")
        lockstep = not self.backup and not self.staleness
        if self.max_gap is None and self.backup:
            raise PlanError("with backup workers nothing bounds how far neighbours drift apart: give max_gap")
        if self.max_gap == 0:
            raise PlanError("max_gap must be at least 1, or workers wait for each other for ever; got 0")
        if self.max_skip and lockstep:
            raise PlanError("neighbours are never two iterations apart without backup or staleness: nobody can skip")
        if self.drop_late and lockstep:
            raise PlanError("without backup or staleness every update is waited for: drop_late cannot matter")
        if not self.max_skip and self.skip_behind != 2:
            raise PlanError("skip_behind needs max_skip")

    def check(self, graph: WorkerGraph) -> None:
        """Raise PlanError if the graph has too few neighbours, or bounds the gap more tightly than an option."""
        fewest = min(range(graph.num_workers), key=lambda worker: len(graph.into[worker]))
        if self.backup >= len(graph.into[fewest]):
            heard = f"worker {fewest} hears from {len(graph.into[fewest])} others"
            raise PlanError(f"{heard}: {self.backup} backup workers leave nobody to wait for")
        two_way = all(set(out) == set(into) for out, into in zip(graph.out, graph.into, strict=True))
        if not two_way:
            return
        tightest = None if self.backup else self.staleness + 1
        if tightest is not None and self.max_gap is not None and self.max_gap >= tightest:
            raise PlanError(f"max_gap {self.max_gap} has no effect: the gap between neighbours is at most {tightest}")
        bound = min(bound for bound in (self.max_gap, tightest, MAX_ITERATIONS) if bound is not None)
        if self.max_skip and self.skip_behind > bound:
            effect = f"has no effect: the gap between neighbours is at most {bound}"
            raise PlanError(f"skip_behind {self.skip_behind} {effect}")
