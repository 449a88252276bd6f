"""Circuit switching: ranks without links between them set up a circuit before they send, and keep it while they can.

The rules follow TrioSim's model of Passage, a photonic interposer (ISCA'25, section 7.1), with the details in
docs/background/photonic.md. This module defines the interface and the choice of the idle circuit to tear down.
engine/circuits.py is the readable definition of the rest, _circuits.py its compiled form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from trine.cluster.cluster import Cluster
from trine.cluster.parts import Circuits
from trine.engine.models import CIRCUIT, FairSharing, Network
from trine.errors import InputError, SpecError

#: TrioSim's case study (ISCA'25, section 7.1): 20 ms, 8 links, "484 GB/s across 8 links", interpreted as the sum.
PASSAGE = Circuits(setup_ps=20 * 10**9, ports=8, bytes_per_s=60_500_000_000, latency_ps=0)


class IdleCircuit(NamedTuple):
    """A circuit that could be torn down, unused since ``since_ps``, when the transfer ``last_task`` ended.

    If several transfers ended then, ``last_task`` is the highest number.
    """

    since_ps: int
    last_task: int


@runtime_checkable
class CircuitModel(Protocol):
    """Interface of a network model with circuits: its name, its numbers, and the choice of the circuit to tear down.

    The engine calls ``victim`` when a rank needs a port but circuits hold all its ports. ``idle`` lists the circuits
    that no transfer uses, at least one, in ascending order of the tuples, whatever their peers. ``victim`` returns the
    position of the circuit to tear down, which may depend only on ``idle``. ``rates`` works as in
    :class:`trine.engine.models.NetworkModel`, for transfers over links: host copies, and ranks joined by links.
    """

    name: str
    circuits: Circuits

    def rates(self, routes: Sequence[Sequence[int]], capacity: Sequence[int]) -> Sequence[float]: ...

    def victim(self, idle: Sequence[IdleCircuit]) -> int: ...


class CircuitSwitching(FairSharing):
    """Circuit model that tears down the circuit idle longest; a tie goes to the lowest last task.

    Transfers over links share them max-min fairly. The default is TrioSim's case study.
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
    """Return the default network: ``circuit`` for a cluster with circuits, else ``fair``."""
    return "fair" if cluster is None or cluster.circuits is None else CIRCUIT


def network_on(cluster: Cluster | None, network: str | Network | None) -> str | Network:
    """Return the network to run on ``cluster``: ``network`` or the default, with the cluster's circuits if any.

    Raises
    ------
    InputError: a circuit network on a cluster without circuits, or the reverse.
    """
    model = usual_network(cluster) if network is None else network
    asks = model == CIRCUIT or isinstance(model, CircuitModel)
    circuits = None if cluster is None else cluster.circuits
    name = model if isinstance(model, str) else getattr(model, "name", None)
    if not isinstance(name, str):
        raise InputError(f"must be the name of a network model, or one, got {network!r:.80}", field="network")
    if circuits is None or cluster is None:
        if not asks:
            return model
        problem = "no machine was described" if cluster is None else f"cluster {cluster.name!r} has none"
        raise InputError(
            f"the network {name!r} is about circuits, and {problem}: a block 'circuits:' in the cluster file or the "
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
    if model == CIRCUIT:
        return CircuitSwitching(circuits)
    if isinstance(model, CircuitModel) and model.circuits != circuits:
        raise InputError(
            f"the network has {model.circuits.describe()}, the cluster {cluster.name!r} {circuits.describe()}: give "
            "the model the cluster's",
            field="network",
        )
    return model


def _links_join_all(cluster: Cluster) -> bool:
    """Return whether the first GPU reaches all others over links."""
    without_circuits = replace(cluster, circuits=None)
    try:
        for gpu in cluster.gpus[1:]:
            without_circuits.paths(cluster.gpus[0], gpu)
    except SpecError:
        return False
    return True
