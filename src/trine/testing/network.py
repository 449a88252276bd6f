"""Checks of network models: rate-based models and queues (whole messages from link to link)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from trine.engine.circuit_model import CircuitModel
from trine.engine.models import Network, NetworkModel, QueueModel, WeightedModel, drain_ps, network_model, why_unfolded
from trine.engine.reference import Reference
from trine.errors import InputError, TrineError
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import TRANSFER, Records, TaskGraph
from trine.testing.circuits import check_circuit_run
from trine.testing.plug_ins import require, require_order

#: Allowed relative error of sums of rates.
TOLERANCE = 1e-9
PLATFORMS = 8

#: (now in ps, tasks in flight, their rates) after each change of the flows
History = list[tuple[int, tuple[int, ...], tuple[float, ...]]]


def check_network_model(model: Network | Callable[[], Network], *, work_conserving: bool = False) -> None:
    """Check a network model, or its factory, in the reference engine on random but reproducible platforms.

    Rate-based models, for every set of flows: one rate per flow, finite and not negative; no link over its capacity; a
    flow of rate 0 crosses a full link; repeated calls agree; rates are bit-identical after renumbering flows and links,
    and from weighted_rates if the model folds. For each run: every transfer ends, its rates add up to its bytes,
    nothing starts before its predecessors end, and more bytes never end earlier nor change earlier events.

    Models that carry messages from link to link: one whole number of ps per message, never more bytes than the link can
    carry by then, repeated calls agree, and twice the bytes never end sooner. For each run: every transfer takes at
    least the service times of its links, each link serves all bytes that cross it, nothing starts before its
    predecessors end, and a second run and a run with renumbered links and routes give the same times.

    Models with circuits, besides the checks of rates: every choice of a circuit to tear down is a position in the list,
    and repeated calls agree. For each run: every transfer ends, no rank has more circuits than ports, a circuit stays
    up while in use, each direction sends one transfer at a time, no receive buffer overflows, nothing starts before its
    predecessors end, and a second run and a run with renumbered ranks are identical.

    ``work_conserving``: require that every flow crosses a full link, so that no usable bandwidth is wasted, or that a
    link with messages is never idle. Max-min fairness and store-and-forward are work-conserving; TrioSim's equal split
    is not.
    """
    instance: object = model() if callable(model) else model
    try:
        checked = network_model(instance)  # type: ignore[arg-type]
    except InputError as error:
        raise AssertionError(str(error)) from error
    if isinstance(instance, str) or not (isinstance(checked.name, str) and checked.name):
        raise AssertionError(f"a network model has a name and a method rates or service_ps, {instance!r} has not")
    for seed in range(PLATFORMS):
        graph = _platform(random.Random(seed))
        case = f"network model {checked.name!r}, random platform {seed}"
        if isinstance(checked, CircuitModel):
            check_circuit_run(checked, random.Random(seed), case)
        if isinstance(checked, NetworkModel):
            _check_rate_run(checked, graph, work_conserving, case)
        else:
            check_queue_run(checked, graph, work_conserving, random.Random(seed), case)


def _check_rate_run(model: NetworkModel, graph: TaskGraph, work_conserving: bool, case: str) -> None:
    """Run ``graph`` twice, and again with twice the bytes in one transfer."""
    records, history = _simulated(graph, model, work_conserving, case)
    _require_lawful_run(graph, records, history, case)
    rerun, history_again = _simulated(graph, model, work_conserving, case)
    is_same = history == history_again and np.array_equal(records.end_ps, rerun.end_ps)
    require(is_same, f"{case}: a second run differs from the first")
    for task in np.flatnonzero((graph.kind == TRANSFER) & (graph.size_bytes > 0))[:3].tolist():
        size_bytes = graph.size_bytes.copy()
        size_bytes[task] *= 2
        grown = _simulated(replace(graph, size_bytes=size_bytes), model, work_conserving, case)
        _require_monotone(task, int(records.end_ps[task]), history, grown, case)


class _NetworkWatch:
    """Wrapper that checks a model's rates and records them with the simulated time of each call."""

    def __init__(self, model: NetworkModel, work_conserving: bool, case: str) -> None:
        self.name = model.name
        self.history: History = []
        self.reference: Reference | None = None
        self._model, self._work_conserving, self._case = model, work_conserving, case
        self._random = random.Random(0)

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> list[float]:
        rates = _rates(self._model, routes, capacity, self._case)
        _require_fitting(routes, capacity, rates, self._work_conserving, self._case)
        is_same = _rates(self._model, routes, capacity, self._case) == rates
        asked = f"{self._case}: other rates when asked again about routes {list(routes)}"
        require(is_same, f"{asked}: rates must depend on the arguments only")
        _require_invariant(self._model, routes, capacity, rates, self._random, self._case)
        _require_counting(self._model, routes, capacity, self._random, self._case)
        if self.reference is not None:
            self.history.append((self.reference.now, tuple(sorted(self.reference.flows)), tuple(rates)))
        return rates


def _require_counting(
    model: NetworkModel, routes: Sequence[Sequence[int]], capacity: Sequence[int], rng: random.Random, case: str
) -> None:
    """Require of a model that folds: N flows on one route get the same rate as one flow with count N."""
    if not isinstance(model, WeightedModel) or why_unfolded(model) is not None:
        return
    times = [rng.choice((1, 1, 2, 3, 7)) for _ in routes]
    flow_routes = [tuple(route) for route, count in zip(routes, times, strict=True) for _ in range(count)]
    counts = [(count,) * len(route) for route, count in zip(routes, times, strict=True)]
    at_once = list(model.weighted_rates([tuple(route) for route in routes], counts, list(capacity)))
    one_by_one = _rates(model, flow_routes, capacity, case)
    expected = [rate for rate, count in zip(at_once, times, strict=True) for _ in range(count)]
    weighted = f"{case}: weighted_rates gives {at_once} on routes {list(routes)} with counts {counts}"
    require(one_by_one == expected, f"{weighted}, rates gives {one_by_one} to the same flows one by one")


def _platform(rng: random.Random) -> TaskGraph:
    """Return transfers that compete for few links; some are empty, have no links, or cross a link twice."""
    num_links = rng.randint(1, 6)
    capacity = [rng.choice((333_333, 10**6, 7 * 10**8, 10**9, 10**9 + 7, 65 * 10**9)) for _ in range(num_links)]
    builder = TaskGraphBuilder(capacity, [rng.choice((0, 0, 1_000, 10**6)) for _ in range(num_links)])
    for task in range(30):
        after = rng.sample(range(task), min(task, rng.choice((0, 0, 1, 2))))
        if rng.random() < 0.15:
            builder.compute(rng.randrange(3), "main", rng.choice((0, 1, 10**6, 3 * 10**9)), after)
            continue
        route = rng.sample(range(num_links), min(num_links, rng.choice((0, 1, 1, 2, 2, 3))))
        if route and rng.random() < 0.1:
            route.append(route[0])
        builder.transfer(0, 1, route, rng.choice((0, 1, 1000, 1001, 10**6, 123_456_789)), after)
    return builder.build()


def _simulated(graph: TaskGraph, model: NetworkModel, work_conserving: bool, case: str) -> tuple[Records, History]:
    """Run ``graph`` on the reference engine; return its records and the history of rates."""
    watch = _NetworkWatch(model, work_conserving, case)
    watch.reference = Reference(graph, watch)
    try:
        watch.reference.run()
    except TrineError as error:
        raise AssertionError(f"{case}: {error}") from error
    return watch.reference.records(), watch.history


def _rates(model: NetworkModel, routes: Sequence[Sequence[int]], capacity: Sequence[int], case: str) -> list[float]:
    """Return the model's rates; require one valid rate per flow and unchanged arguments."""
    given_routes, given_capacity = [tuple(route) for route in routes], list(capacity)
    answer = list(model.rates(given_routes, given_capacity))
    is_unchanged = given_routes == [tuple(route) for route in routes] and given_capacity == list(capacity)
    require(is_unchanged, f"{case}: rates() must not change its arguments")
    require(len(answer) == len(routes), f"{case}: {len(answer)} rates for {len(routes)} flows, routes {list(routes)}")
    for route, rate in zip(routes, answer, strict=True):
        message = f"{case}: the rate of a flow over links {list(route)} is {rate!r}; it must be finite and not negative"
        require(_is_rate(rate), message)
    return [float(rate) for rate in answer]


def _is_rate(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and float(value) >= 0


def _require_fitting(
    routes: Sequence[Sequence[int]], capacity: Sequence[int], rates: Sequence[float], work_conserving: bool, case: str
) -> None:
    """Require that no link is over its capacity and that no flow waits without a full link."""
    used: dict[int, list[float]] = {}
    for route, rate in zip(routes, rates, strict=True):
        for link in route:
            used.setdefault(link, []).append(rate)
    loads = {link: math.fsum(shares) for link, shares in used.items()}
    flows = f"routes {list(routes)}, rates {list(rates)}"
    for link, total in loads.items():
        problem = f"link {link} of {capacity[link]} bytes/s is over its capacity with {total} bytes/s"
        require(total <= capacity[link] * (1 + TOLERANCE), f"{case}: {problem}, {flows}")
    for route, rate in zip(routes, rates, strict=True):
        is_full = any(loads[link] >= capacity[link] * (1 - TOLERANCE) for link in route)
        problem = f"a flow over links {list(route)} has {rate} bytes/s although no link on its way is full"
        require(is_full or (rate > 0 and not work_conserving), f"{case}: {problem}, {flows}")


def _require_invariant(
    model: NetworkModel, routes: Sequence[Sequence[int]], capacity: Sequence[int], rates: Sequence[float],
    rng: random.Random, case: str,
) -> None:  # fmt: skip
    """Require the same rates after renumbering flows and links."""
    order = rng.sample(range(len(routes)), len(routes))
    new_link = rng.sample(range(len(capacity)), len(capacity))
    other_capacity = [0] * len(capacity)
    for link, new in enumerate(new_link):
        other_capacity[new] = capacity[link]
    other_routes = []
    for flow in order:
        other_routes.append([new_link[link] for link in routes[flow]])
    other_rates = _rates(model, other_routes, other_capacity, case)
    for flow, other in zip(order, other_rates, strict=True):
        change = f"gets {rates[flow]!r} bytes/s, but {other!r} when flows and links are numbered otherwise"
        why = "(sums of floats depend on their order: math.fsum does not)"
        require(other == rates[flow], f"{case}: a flow over links {list(routes[flow])} {change} {why}")


def _require_lawful_run(graph: TaskGraph, records: Records, history: History, case: str) -> None:
    """Require that all tasks end after their predecessors, and that the rates carry exactly the bytes."""
    volume = np.zeros(graph.num_tasks)
    rates_before: dict[int, float] = {}
    since = 0
    for now, tasks, rates in [*history, (int(records.end_ps.max()), (), ())]:
        for task, rate in rates_before.items():
            volume[task] += rate * (now - since) / 1e12
        rates_before, since = dict(zip(tasks, rates, strict=True)), now
    last_rates = {task: rate for _, tasks, rates in history for task, rate in zip(tasks, rates, strict=True)}
    for task in range(graph.num_tasks):
        require(records.end_ps[task] >= 0, f"{case}: task {task} never ends: its flow was given no rate for ever")
        require_order(graph, records, task, case)
        if task in last_rates:
            size, slack = int(graph.size_bytes[task]), 2e-12 * last_rates[task]  # times are rounded up to a picosecond
            is_carried = abs(volume[task] - size) <= slack + TOLERANCE * size
            require(is_carried, f"{case}: the rates of transfer {task} carry {volume[task]} of its {size} bytes")


def _require_monotone(task: int, end_ps: int, history: History, grown: tuple[Records, History], case: str) -> None:
    """Require that twice the bytes of ``task`` end no earlier, and change no event before its original end."""
    records, grown_history = grown
    grown_ps = records.end_ps[task]
    require(
        grown_ps >= end_ps, f"{case}: transfer {task} ends at {end_ps} ps, but with twice the bytes at {grown_ps} ps"
    )
    before, grown_before = ([state for state in each if state[0] < end_ps] for each in (history, grown_history))
    message = f"{case}: the events before the end of transfer {task} depend on its remaining bytes"
    require(before == grown_before, message)


#: (sizes in bytes, bytes/s of the link) of each call to the model in a run
Questions = list[tuple[tuple[int, ...], int]]


def check_queue_run(model: QueueModel, graph: TaskGraph, work_conserving: bool, rng: random.Random, case: str) -> None:
    """Run ``graph`` three times: unchanged, unchanged again, and with renumbered links and routes."""
    records, questions = _queue_records(graph, model, work_conserving, case)
    _require_lawful_queues(graph, records, questions, case)
    rerun, questions_again = _queue_records(graph, model, work_conserving, case)
    is_same = questions == questions_again and np.array_equal(records.end_ps, rerun.end_ps)
    require(is_same, f"{case}: a second run differs from the first")
    relabelled, _ = _queue_records(_relabelled(graph, rng), model, work_conserving, case)
    is_same = np.array_equal(records.end_ps, relabelled.end_ps)
    require(is_same, f"{case}: transfers end at other times when links and routes are numbered otherwise")


class _QueueWatch:
    """Wrapper that checks a model's service times and records the calls."""

    def __init__(self, model: QueueModel, work_conserving: bool, case: str) -> None:
        self.name = model.name
        self.questions: Questions = []
        self._model, self._work_conserving, self._case = model, work_conserving, case

    def service_ps(self, sizes_bytes: Sequence[int], bytes_per_s: int) -> list[int]:
        self.questions.append((tuple(sizes_bytes), bytes_per_s))
        answer = _answer(self._model, sizes_bytes, bytes_per_s, self._case)
        case = f"{self._case}, messages of {list(sizes_bytes)} bytes on a link of {bytes_per_s} bytes/s"
        _require_possible(sizes_bytes, bytes_per_s, answer, self._work_conserving, case)
        is_same = _answer(self._model, sizes_bytes, bytes_per_s, self._case) == answer
        require(is_same, f"{case}: other times when asked again: they must depend on the arguments only")
        for message, before in enumerate(answer):
            larger = []
            for i, size in enumerate(sizes_bytes):
                larger.append(size * 2 if i == message else size)
            after = _answer(self._model, larger, bytes_per_s, self._case)[message]
            times = f"is through after {before} ps, but with twice the bytes after {after} ps"
            require(after >= before, f"{case}: message {message} {times}")
        return answer


def _answer(model: QueueModel, sizes_bytes: Sequence[int], bytes_per_s: int, case: str) -> list[int]:
    """Return the model's service times; require whole ps, one per message, and unchanged arguments."""
    argument = list(sizes_bytes)
    answer = list(model.service_ps(argument, bytes_per_s))
    require(argument == list(sizes_bytes), f"{case}: service_ps() must not change its arguments")
    require(len(answer) == len(argument), f"{case}: {len(answer)} times of service for {len(argument)} messages")
    for time in answer:
        require(isinstance(time, Integral), f"{case}: the time of service {time!r} is no whole number of ps")
    return [int(time) for time in answer]


def _require_possible(
    sizes_bytes: Sequence[int], bytes_per_s: int, answer: Sequence[int], work_conserving: bool, case: str
) -> None:
    """Require that the link never exceeds its capacity and, if ``work_conserving``, that it is never idle."""
    total = 0
    for end_ps, size in sorted(zip(answer, sizes_bytes, strict=True)):
        total += size
        least = drain_ps(float(total), float(bytes_per_s))
        through = f"{total} bytes are through after {end_ps} ps"
        require(end_ps >= least, f"{case}: {through}, the link needs {least} ps for them")
    busy_ps = sum(drain_ps(float(size), float(bytes_per_s)) for size in sizes_bytes)
    rests = f"{case}: the link rests: all is through after {max(answer)} ps, {busy_ps} ps would do"
    require(max(answer) <= busy_ps or not work_conserving, rests)


def _queue_records(graph: TaskGraph, model: QueueModel, work_conserving: bool, case: str) -> tuple[Records, Questions]:
    watch = _QueueWatch(model, work_conserving, case)
    run = Reference(graph, watch)
    try:
        run.run()
    except TrineError as error:
        raise AssertionError(f"{case}: {error}") from error
    return run.records(), watch.questions


def _require_lawful_queues(graph: TaskGraph, records: Records, questions: Questions, case: str) -> None:
    """Require that tasks end after their predecessors, no sooner than links allow, and that links serve all bytes."""
    assert graph.link_latency_ps is not None
    crossing = 0
    for task in range(graph.num_tasks):
        require_order(graph, records, task, case)
        if graph.kind[task] != TRANSFER:
            continue
        route, size = int(graph.route[task]), int(graph.size_bytes[task])
        links = graph.links_of(route)
        least = int(graph.route_latency_ps[route])
        if size:
            least += sum(drain_ps(float(size), float(graph.link_bytes_per_s[link])) for link in links)
            crossing += size * len(links)
        duration_ps = int(records.end_ps[task] - records.start_ps[task])
        require(duration_ps >= least, f"{case}: transfer {task} takes {duration_ps} ps, its links need {least} ps")
    served = sum(sum(sizes) for sizes, _ in questions)
    require(served == crossing, f"{case}: links serve {served} bytes, transfers cross them with {crossing}")


def _relabelled(graph: TaskGraph, rng: random.Random) -> TaskGraph:
    """Return the same tasks with renumbered links and routes."""
    assert graph.link_latency_ps is not None
    old_link = np.array(rng.sample(range(len(graph.link_names)), len(graph.link_names)), np.int64)
    old_route = np.array(rng.sample(range(len(graph.route_latency_ps)), len(graph.route_latency_ps)), np.int64)
    new_link, new_route = np.argsort(old_link).astype(np.int32), np.argsort(old_route).astype(np.int32)
    rows = [graph.links_of(route) for route in old_route]
    return replace(
        graph, route=np.where(graph.route >= 0, new_route[graph.route], np.int32(-1)),
        route_ptr=np.cumsum([0, *map(len, rows)]).astype(np.int64), route_links=new_link[np.concatenate(rows)],
        route_latency_ps=graph.route_latency_ps[old_route], link_bytes_per_s=graph.link_bytes_per_s[old_link],
        link_latency_ps=graph.link_latency_ps[old_link],
        link_names=tuple(graph.link_names[link] for link in old_link),
    )  # fmt: skip
