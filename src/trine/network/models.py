"""How flows share links, in plain Python: the readable definition, and the interface of models from outside.

The compiled forms of the built-in models are ``_fair.py`` and ``_equal.py``; they give bit-identical rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from trine.errors import InputError, nearest
from trine.plugins import Registry


@runtime_checkable
class NetworkModel(Protocol):
    """What a network model provides: a name and the rates of the flows in flight.

    ``rates`` is called whenever a flow has started or ended. ``routes[i]`` holds the links of flow i (a link that is
    crossed twice is listed twice); flows come in the order of their task numbers. ``capacity[link]`` is in bytes/s.
    Returns one rate a flow in bytes/s, finite and not negative; a flow of rate 0 waits for a later call. The result
    must depend on the arguments only, and not on the numbers of the flows.
    """

    name: str

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> Sequence[float]: ...


class FairSharing:
    """Max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).

    Level by level: every link at the lowest fair share freezes its flows at that share. The share of a link is
    (capacity - sum of count x rate over its frozen levels, in ascending rate) / count of its other flows. All links at
    the bit-equal minimum freeze together, so neither the order of flows nor that of links can matter.
    """

    name = "fair"

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> list[float]:
        rates = [0.0] * len(routes)
        waiting = set(range(len(routes)))
        left = _count(routes)
        used = dict.fromkeys(left, 0.0)
        share = {link: float(capacity[link]) / count for link, count in left.items()}
        while waiting:
            level = min(share[link] for link in left if left[link] > 0)
            full = {link for link in left if left[link] > 0 and share[link] == level}
            frozen = [flow for flow in waiting if not full.isdisjoint(routes[flow])]
            for flow in frozen:
                rates[flow] = level
            waiting.difference_update(frozen)
            for link, count in _count([routes[flow] for flow in frozen]).items():
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

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> list[float]:
        count = _count(routes)
        return [min(float(capacity[link]) / count[link] for link in route) for route in routes]


#: The models that have a compiled form too, see ``_dispatch.py``.
BUILT_IN = {"fair": "trine.network.models:FairSharing", "equal": "trine.network.models:EqualSplit"}

#: Another package adds a model as an entry point: a class, or a function without arguments that makes one.
NETWORK_MODELS: Registry[Callable[[], NetworkModel]] = Registry("network model", "trine.network", BUILT_IN)


def network_model(network: str | NetworkModel) -> NetworkModel:
    """Return the model called ``network``, or ``network`` itself if it is one; else raise InputError."""
    if isinstance(network, str):
        if network not in NETWORK_MODELS:
            raise InputError(
                f"unknown network model {network!r}{nearest(network, NETWORK_MODELS.names())}", field="network"
            )
        network = NETWORK_MODELS.get(network)()
    if isinstance(network, type) or not isinstance(network, NetworkModel):
        raise InputError(f"a network model has a name and a method rates, {network!r} has not", field="network")
    return network


def is_compiled(network: str | NetworkModel) -> bool:
    """Whether the compiled engine has this model: a built-in one, given by its name."""
    return isinstance(network, str) and network in BUILT_IN


def _count(routes: Sequence[Sequence[int]]) -> dict[int, int]:
    """How often each link is crossed."""
    count: dict[int, int] = {}
    for route in routes:
        for link in route:
            count[link] = count.get(link, 0) + 1
    return count
