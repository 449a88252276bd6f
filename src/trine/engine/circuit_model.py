"""Circuit switching: ranks that no links join set up a circuit before they send, and keep it while they can.

The rules are those of Passage, a photonic interposer, as TrioSim models it (ISCA'25, section 7.1), made exact in
docs/background/photonic.md. Here is what the rules are about and which idle circuit goes; engine/circuits.py is the
readable definition of the rest, _circuits.py its compiled form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from trine.cluster.cluster import Cluster
from trine.cluster.parts import Circuits
from trine.engine.models import CIRCUIT, FairSharing, Network
from trine.errors import InputError, SpecError

#: The case study of TrioSim (ISCA'25, section 7.1): 20 ms, 8 links, "484 GB/s across 8 links" read as the sum.
PASSAGE = Circuits(setup_ps=20 * 10**9, ports=8, bytes_per_s=60_500_000_000, latency_ps=0)


class IdleCircuit(NamedTuple):
    """A circuit that could be torn down: unused since ``since_ps``, when the transfer ``last_task`` ended.

    Of several that ended at that instant it is the one with the highest number.
    """

    since_ps: int
    last_task: int


@runtime_checkable
class CircuitModel(Protocol):
    """What a network model with circuits provides: a name, the numbers, and which idle circuit goes.

    ``victim`` is asked when a rank needs a port and all of its own hold circuits: ``idle`` are those of them that no
    transfer uses, at least one, in no particular order of peers but in ascending order of the tuples. Returns the
    position of the one that is torn down. The result must depend on the argument only. ``rates`` is that of
    :class:`trine.engine.models.NetworkModel`, for transfers over links: host copies, and ranks that links do join.
    """

    name: str
    circuits: Circuits

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> Sequence[float]: ...

    def victim(self, idle: Sequence[IdleCircuit]) -> int: ...


class CircuitSwitching(FairSharing):
    """Circuits of which the one idle longest goes first; of several, the one whose last task has the lowest number.

    Transfers whose route has links share them max-min fairly. The default is TrioSim's case study.
    """

    name = CIRCUIT
    folds: str | None = (
        "circuits are set up in the order of tasks, one after the other, so that equivalent ranks are not served in "
        "the same way"
    )

    def __init__(self, circuits: Circuits = PASSAGE) -> None:
        self.circuits = circuits

    def victim(self, idle: Sequence[IdleCircuit]) -> int:
        return min(range(len(idle)), key=lambda place: idle[place])


def usual_network(cluster: Cluster | None) -> str:
    """The network that is taken where none is named: ``circuit`` for a cluster with circuits, else ``fair``."""
    return "fair" if cluster is None or cluster.circuits is None else CIRCUIT


def network_on(cluster: Cluster | None, network: str | Network | None) -> str | Network:
    """The network to run on ``cluster``: as asked, with the cluster's circuits where it has some.

    Raises
    ------
    InputError: circuits on a cluster without, or a cluster with circuits on a network that knows none.
    """
    chosen = usual_network(cluster) if network is None else network
    asks = chosen == CIRCUIT or isinstance(chosen, CircuitModel)
    circuits = None if cluster is None else cluster.circuits
    name = chosen if isinstance(chosen, str) else getattr(chosen, "name", None)
    if not isinstance(name, str):
        raise InputError(f"must be the name of a network model, or one, got {network!r:.80}", field="network")
    if circuits is None or cluster is None:
        if not asks:
            return chosen
        whose = "no machine was described" if cluster is None else f"cluster {cluster.name!r} has none"
        raise InputError(
            f"the network {name!r} is about circuits, and {whose}: a block 'circuits:' in the cluster file or the "
            "options --circuit-setup, --circuit-ports and --circuit-bandwidth describe them",
            field="network",
        )
    if not asks:
        raise InputError(
            f"the GPUs of {cluster.name!r} are joined by circuits, which the network {name!r} does not model: use "
            f"{CIRCUIT!r}",
            field="network",
        )
    if _links_join_all(cluster):
        raise InputError(
            f"circuits join GPUs without links, but links join all GPUs of {cluster.name!r}: leave the "
            "circuits out, or the links",
            field="network",
        )
    if chosen == CIRCUIT:
        return CircuitSwitching(circuits)
    if isinstance(chosen, CircuitModel) and chosen.circuits != circuits:
        raise InputError(
            f"the network has {chosen.circuits.describe()}, the cluster {cluster.name!r} {circuits.describe()}: give "
            "the model the cluster's",
            field="network",
        )
    return chosen


def _links_join_all(cluster: Cluster) -> bool:
    """Whether the first GPU reaches all others over links."""
    alone = replace(cluster, circuits=None)
    try:
        for gpu in cluster.gpus[1:]:
            alone.paths(cluster.gpus[0], gpu)
    except SpecError:
        return False
    return True
