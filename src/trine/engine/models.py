"""Network models in plain Python: readable definitions of link sharing, and the interfaces for external models.

There are two kinds. A NetworkModel gives rates to the flows in flight; a flow crosses all links of its route at once. A
QueueModel carries whole messages from link to link. The compiled forms of the built-in models are
``_flows.py`` and ``serve`` in ``_loop.py``; they give bit-identical times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from trine.common.plugins import Registry
from trine.common.units import PS_PER_S
from trine.engine._limits import MAX_PS, MAX_WHOLE, SLACK
from trine.errors import InputError, nearest


@runtime_checkable
class NetworkModel(Protocol):
    """Interface of a rate-based network model: a name and the rates of the flows in flight.

    ``rates`` is called whenever a flow has started or ended. ``routes[i]`` holds the links of flow i (a link crossed
    twice is listed twice); flows are ordered by task number. ``capacity[link]`` is in bytes/s. A flow with a rate limit
    also crosses a private link with that capacity; private links come after all links of the graph.
    Returns one rate per flow in bytes/s, finite and not negative; a flow of rate 0 waits for a later call. The result
    must depend only on the arguments, and not on the order of the flows.
    """

    name: str

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> Sequence[float]: ...


@runtime_checkable
class WeightedModel(NetworkModel, Protocol):
    """A NetworkModel that also supports flows that represent several flows, as in a folded graph.

    ``weighted_rates`` is ``rates`` with ``counts[i]``, parallel to ``routes[i]``: the total number of times that the
    flows represented by flow i cross each link. The result must equal ``rates`` for the separate flows bit for bit. The
    arithmetic may therefore use counts, but not the identity of flows (docs/design/time-and-order.md).
    """

    def weighted_rates(
        self, routes: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], capacity: Sequence[int]
    ) -> Sequence[float]: ...


@runtime_checkable
class QueueModel(Protocol):
    """Interface of a network model that carries whole messages from link to link: a name and service times.

    A message waits for its turn at each link of its route, is served, and reaches the next link after the link's
    latency. ``service_ps`` is called for the messages that reach one link at the same instant, in task order;
    ``sizes_bytes`` are positive. The link is free for them once it has served all earlier messages. Returns, for each
    message, the ps from then until its last byte is through: integers, each at least :func:`drain_ps` of its bytes,
    and the largest at least ``drain_ps`` of all bytes together. The result must depend only on the arguments.
    """

    name: str

    def service_ps(self, sizes_bytes: Sequence[int], bytes_per_s: int) -> Sequence[int]: ...


Network: TypeAlias = NetworkModel | QueueModel

#: The model in circuit_model.py: flows over links, and circuits between ranks without links.
CIRCUIT = "circuit"


def drain_ps(remaining: float, rate: float) -> int:
    """Return the picoseconds to send ``remaining`` bytes at ``rate`` bytes/s, rounded up, at least 1.

    Exact if both are whole numbers (a flow alone on its links), else computed in float64: the last few units in the
    last place are then rounding errors and must not cost a picosecond.
    """
    if remaining.is_integer() and rate.is_integer() and rate <= MAX_WHOLE:
        return max(1, -(-int(remaining) * PS_PER_S // int(rate)))
    quotient = remaining * 1e12 / rate
    return max(1, math.ceil(quotient - quotient * SLACK)) if quotient < MAX_PS else MAX_PS + 1


class FairSharing:
    """Max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).

    At each level, every link at the lowest fair share freezes its flows at that share. The share of a link is
    (capacity - sum of count x rate over its frozen levels, in ascending rate) / count of its remaining flows. All links
    at the bit-equal minimum freeze together, so the order of flows and links does not matter.
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
        unfrozen = _crossings(routes, counts, waiting)
        used = dict.fromkeys(unfrozen, 0.0)
        share = {link: float(capacity[link]) / count for link, count in unfrozen.items()}
        while waiting:
            level = min(share[link] for link in unfrozen if unfrozen[link] > 0)
            full = {link for link in unfrozen if unfrozen[link] > 0 and share[link] == level}
            frozen = [flow for flow in waiting if not full.isdisjoint(routes[flow])]
            for flow in frozen:
                rates[flow] = level
            waiting.difference_update(frozen)
            for link, count in _crossings(routes, counts, frozen).items():
                unfrozen[link] -= count
                used[link] += count * level
                if unfrozen[link] > 0:
                    # Rounding must not put a link below the level just frozen.
                    share[link] = max((float(capacity[link]) - used[link]) / unfrozen[link], level)
        return rates


class EqualSplit:
    """TrioSim's sharing: a link splits its capacity equally; a flow runs at the smallest share on its route.

    Other flows do not get the capacity that a flow leaves unused on a link (TrioSim, ISCA'25, section 4.5).
    """

    name = "equal"
    folds: str | None = None

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> list[float]:
        return self.weighted_rates(routes, _ones(routes), capacity)

    def weighted_rates(
        self, routes: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], capacity: Sequence[int]
    ) -> list[float]:
        crossings = _crossings(routes, counts, range(len(routes)))
        flow_rates = []
        for route in routes:
            flow_rates.append(min(float(capacity[link]) / crossings[link] for link in route))
        return flow_rates


class StoreAndForward:
    """First-come, first-served links that carry whole messages; ties are served in task order.

    A link receives the entire message before the next link starts, as in the congestion-aware analytical network of
    ASTRA-sim (docs/background/astra-sim.md), so its bytes take time on every link of the route.
    """

    name = "fifo"
    folds: str | None = "equivalent messages are served one after the other, in the order of their tasks"

    def service_ps(self, sizes_bytes: Sequence[int], bytes_per_s: int) -> list[int]:
        ends, end = [], 0
        for size in sizes_bytes:
            end += drain_ps(float(size), float(bytes_per_s))
            ends.append(end)
        return ends


#: Models that also have a compiled form, see ``_flows.py`` and ``serve`` in ``_loop.py``.
BUILT_IN = {
    "fair": "trine.engine.models:FairSharing",
    "equal": "trine.engine.models:EqualSplit",
    "fifo": "trine.engine.models:StoreAndForward",
    CIRCUIT: "trine.engine.circuit_model:CircuitSwitching",
}

#: The models of the compiled engine (engine/_loop.py).
COMPILED = ("fair", "equal", "fifo", CIRCUIT)

#: Packages add models as entry points: a class, or a function without arguments that makes a model.
NETWORK_MODELS: Registry[Callable[[], Network]] = Registry("network model", "trine.network", BUILT_IN)


def network_model(network: str | Network) -> Network:
    """Return the model named ``network``, or ``network`` itself if it is a model; else raise InputError."""
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
    """Return whether the compiled engine has this model: its name, or the built-in circuits."""
    if isinstance(network, str):
        return network in COMPILED
    return f"{type(network).__module__}:{type(network).__qualname__}" == BUILT_IN[CIRCUIT]


def why_unfolded(network: Network) -> str | None:
    """Return the reason why a run on this network does not fold; None if it may.

    The reason is the model's attribute ``folds``. If that is missing or None, the model folds if it has
    ``weighted_rates`` and no subclass overrides only ``rates``: ``weighted_rates`` would then bypass the override.
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
    """Return link -> number of times that ``flows`` cross it."""
    crossings: dict[int, int] = {}
    for flow in flows:
        for link, count in zip(routes[flow], counts[flow], strict=True):
            crossings[link] = crossings.get(link, 0) + count
    return crossings
