"""How transfers share links, in plain Python: the readable definition, and the interfaces of models from outside.

There are two kinds. A NetworkModel gives rates to the flows in flight, which cross all links of their route at once. A
QueueModel carries whole messages from link to link, one after the other. The compiled forms of the built-in models are
``_flows.py`` and ``serve`` in ``_loop.py``; they give bit-identical times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from trine.engine._limits import MAX_PS, MAX_WHOLE, SLACK
from trine.errors import InputError, nearest
from trine.plugins import Registry
from trine.units import PS_PER_S


@runtime_checkable
class NetworkModel(Protocol):
    """What a network model provides: a name and the rates of the flows in flight.

    ``rates`` is called whenever a flow has started or ended. ``routes[i]`` holds the links of flow i (a link that is
    crossed twice is listed twice); flows come in the order of their task numbers. ``capacity[link]`` is in bytes/s. A
    flow that may not be faster than so much crosses one link more, of its own, that carries so much; it comes after all
    links of the graph.
    Returns one rate a flow in bytes/s, finite and not negative; a flow of rate 0 waits for a later call. The result
    must depend on the arguments only, and not on the numbers of the flows.
    """

    name: str

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> Sequence[float]: ...


@runtime_checkable
class WeightedModel(NetworkModel, Protocol):
    """A NetworkModel that can also be asked about flows that stand for many, as those of a folded graph do.

    ``weighted_rates`` is ``rates`` with ``counts[i]``, parallel to ``routes[i]``: how often the flows that flow i
    stands for cross the link, in all. It must return, bit for bit, what ``rates`` would return for those flows one by
    one: so the arithmetic may know counts, but not who is counted (docs/design/time-and-order.md).
    """

    def weighted_rates(
        self, routes: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], capacity: Sequence[int]
    ) -> Sequence[float]: ...


@runtime_checkable
class QueueModel(Protocol):
    """What a network model provides that carries whole messages from link to link: a name and times of service.

    A message waits at each link of its route until it is its turn, is served, and comes to the next link the latency
    of the link later. ``service_ps`` is called for the messages that come to one link at one instant, in the order of
    their task numbers; ``sizes_bytes`` are positive. Returns how many ps after the link is free for them (it has served
    all that came before) the last byte of each is through: whole numbers, none less than :func:`drain_ps` of its
    bytes, and the largest no less than that of all bytes together. The result must depend on the arguments only.
    """

    name: str

    def service_ps(self, sizes_bytes: Sequence[int], bytes_per_s: int) -> Sequence[int]: ...


Network: TypeAlias = NetworkModel | QueueModel

#: The model that is described in circuit.py: flows over links, circuits where there are none.
CIRCUIT = "circuit"


def drain_ps(remaining: float, rate: float) -> int:
    """Picoseconds until ``remaining`` bytes are through at ``rate`` bytes/s, rounded up, at least 1.

    Exact where both are whole numbers (a flow alone on its links); else in float64, where the last few units in the
    last place are rounding errors and must not cost a picosecond.
    """
    if remaining.is_integer() and rate.is_integer() and rate <= MAX_WHOLE:
        return max(1, -(-int(remaining) * PS_PER_S // int(rate)))
    quotient = remaining * 1e12 / rate
    return max(1, math.ceil(quotient - quotient * SLACK)) if quotient < MAX_PS else MAX_PS + 1


class FairSharing:
    """Max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).

    Level by level: every link at the lowest fair share freezes its flows at that share. The share of a link is
    (capacity - sum of count x rate over its frozen levels, in ascending rate) / count of its other flows. All links at
    the bit-equal minimum freeze together, so neither the order of flows nor that of links can matter.
    """

    name = "fair"
    folds: str | None = None

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> list[float]:
        return self.weighted_rates(routes, _ones(routes), capacity)

    def weighted_rates(
        self, routes: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], capacity: Sequence[int]
    ) -> list[float]:
        rates = [0.0] * len(routes)
        waiting = set(range(len(routes)))
        left = _crossings(routes, counts, waiting)
        used = dict.fromkeys(left, 0.0)
        share = {link: float(capacity[link]) / count for link, count in left.items()}
        while waiting:
            level = min(share[link] for link in left if left[link] > 0)
            full = {link for link in left if left[link] > 0 and share[link] == level}
            frozen = [flow for flow in waiting if not full.isdisjoint(routes[flow])]
            for flow in frozen:
                rates[flow] = level
            waiting.difference_update(frozen)
            for link, count in _crossings(routes, counts, frozen).items():
                left[link] -= count
                used[link] += count * level
                if left[link] > 0:
                    # Rounding must not put a link below the level that has just been frozen.
                    share[link] = max((float(capacity[link]) - used[link]) / left[link], level)
        return rates


class EqualSplit:
    """TrioSim's sharing: a link gives each of its flows the same part; a flow runs at its smallest part.

    What a flow leaves unused on one link is not given to others (TrioSim, ISCA'25, section 4.5).
    """

    name = "equal"
    folds: str | None = None

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> list[float]:
        return self.weighted_rates(routes, _ones(routes), capacity)

    def weighted_rates(
        self, routes: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], capacity: Sequence[int]
    ) -> list[float]:
        crossings = _crossings(routes, counts, range(len(routes)))
        return [min(float(capacity[link]) / crossings[link] for link in route) for route in routes]


class StoreAndForward:
    """Each link serves whole messages first come, first served, those of one instant in the order of their tasks.

    A message is received entirely before the next link can take it, as in the congestion-aware analytical network of
    ASTRA-sim (docs/background/astra-sim.md): its bytes take time on every link of the route.
    """

    name = "fifo"
    folds: str | None = "equivalent messages are served one after the other, in the order of their tasks"

    def service_ps(self, sizes_bytes: Sequence[int], bytes_per_s: int) -> list[int]:
        ends, end = [], 0
        for size in sizes_bytes:
            end += drain_ps(float(size), float(bytes_per_s))
            ends.append(end)
        return ends


#: The models that have a compiled form too, see ``_flows.py`` and ``serve`` in ``_loop.py``.
BUILT_IN = {
    "fair": "trine.engine.models:FairSharing",
    "equal": "trine.engine.models:EqualSplit",
    "fifo": "trine.engine.models:StoreAndForward",
    CIRCUIT: "trine.engine.circuit_model:CircuitSwitching",
}

#: Another package adds a model as an entry point: a class, or a function without arguments that makes one.
NETWORK_MODELS: Registry[Callable[[], Network]] = Registry("network model", "trine.network", BUILT_IN)


def network_model(network: str | Network) -> Network:
    """Return the model called ``network``, or ``network`` itself if it is one; else raise InputError."""
    if isinstance(network, str):
        if network not in NETWORK_MODELS:
            raise InputError(
                f"unknown network model {network!r}{nearest(network, NETWORK_MODELS.names())}", field="network"
            )
        network = NETWORK_MODELS.get(network)()
    if isinstance(network, type) or not isinstance(network, NetworkModel | QueueModel):
        raise InputError(
            f"a network model has a name and a method rates or service_ps, {network!r} has not", field="network"
        )
    if isinstance(network, NetworkModel) and isinstance(network, QueueModel):
        raise InputError(
            f"the network model {network.name!r} has both rates and service_ps: only one can count", field="network"
        )
    return network


def is_compiled(network: str | Network) -> bool:
    """Whether the compiled engine has this model: a built-in one, given by its name, or the built-in circuits."""
    if isinstance(network, str):
        return network in BUILT_IN
    return f"{type(network).__module__}:{type(network).__qualname__}" == BUILT_IN[CIRCUIT]


def why_unfolded(network: Network) -> str | None:
    """Why a run on this network does not fold; None where it may.

    A model says so itself in its attribute ``folds``. One without it, or with None, folds if it has ``weighted_rates``
    that are no older than its ``rates``: a class that overrides only the latter would be asked past its own rule.
    """
    why: str | None = getattr(network, "folds", None)
    if why is None and not (isinstance(network, WeightedModel) and _counts_by_its_own_rule(type(network))):
        return f"the network {network.name!r} has no weighted_rates, which tell one flow from many equal ones"
    return why


def _counts_by_its_own_rule(model: type) -> bool:
    for base in model.__mro__:
        if "weighted_rates" in vars(base) or "rates" in vars(base):
            return "weighted_rates" in vars(base)
    return True


def _ones(routes: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[1] * len(route) for route in routes]


def _crossings(
    routes: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], flows: Iterable[int]
) -> dict[int, int]:
    """How often each link is crossed by ``flows``."""
    crossings: dict[int, int] = {}
    for flow in flows:
        for link, count in zip(routes[flow], counts[flow], strict=True):
            crossings[link] = crossings.get(link, 0) + count
    return crossings
