"""Equivalence classes of groups of ranks: groups of one class agree in all that a collective's time depends on.

Two groups are equivalent if a renaming of nodes, leaf switches and pods takes one to the other, rank for rank: nodes
of one class (links, their numbers, NICs), the same GPU of them, the same order of the GPUs, and routes that meet on as
many links. The time of a class is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trine.arrays import Bool, Int64
from trine.cluster.cluster import Cluster
from trine.cluster.data import HASH, RAIL, SHORTEST, SPLIT
from trine.cluster.routing.batch_routing import BatchRoutes


@dataclass(frozen=True, eq=False)
class EquivalenceClasses:
    """Equivalence classes of groups on one cluster."""

    cluster: Cluster

    def named(self, groups: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], list[int], list[bytes]]:
        """(class: int32[groups], one group of each class, a name of each class).

        Groups of one size and class have the same name, whichever groups they are asked for with.

        groups: int64[groups, ranks], positions in ``cluster.gpus``. Where the cluster is not known to be made of nodes,
        or a link of the fabric is unlike the others, groups that use them are classes of their own.
        """
        gpus = self._gpus[groups]
        known: dict[bytes, int] = {}
        class_of = np.array([known.setdefault(row.tobytes(), len(known)) for row in self._rows(gpus)], np.int32)
        return class_of, np.unique(class_of, return_index=True)[1].tolist(), list(known)

    @cached_property
    def _gpus(self) -> Int64:
        return np.array(self.cluster.gpus, np.int64)

    def _rows(self, gpus: Int64) -> npt.NDArray[np.int32]:
        """int32[groups, ...]: equal for groups of one class."""
        bulk, node_make = self.cluster.node_classes.bulk, self.cluster.node_classes.node_make
        if bulk is None or node_make is None:
            return gpus.astype(np.int32)
        block, copy, local = (part.reshape(gpus.shape) for part in bulk.layout.places(gpus.ravel()))
        node = np.array([each.first for each in bulk.layout.blocks])[block] + copy
        closed = np.array([each.is_closed for each in bulk.nodes])[block[:, :1]]
        outside = ~((node == node[:, :1]).all(axis=1, keepdims=True) & closed)
        fabric, single = self._fabric(bulk, gpus, outside)
        own = single | ~np.array([each.is_uniform for each in bulk.nodes])[block].all(axis=1, keepdims=True)
        order = np.argsort(np.argsort(gpus, axis=1), axis=1)
        columns = [node_make[gpus], local, first_places(node), order, *fabric, np.where(own, gpus + 1, 0)]
        return np.concatenate(columns, axis=1).astype(np.int32)

    def _fabric(self, bulk: BatchRoutes, gpus: Int64, outside: Bool) -> tuple[list[Int64], Bool]:
        """(what the groups show of the fabric, bool[groups, 1]: those unlike all others). ``outside``: who uses it."""
        clos = bulk.clos
        if clos is None or not clos.is_even:
            return [], outside
        nics = bulk.nics_of(gpus.ravel()).reshape(gpus.shape)
        ports = np.maximum(nics, 0)
        leaf = clos.leaf[ports]
        lost = (nics < 0) | (clos.up[ports] < 0) | (clos.down[ports] < 0)
        apart = ~(leaf == leaf[:, :1]).all(axis=1, keepdims=True)
        odd = apart & clos.is_odd(leaf, self.cluster.link_table.number)
        if bulk.policy in (HASH, SPLIT) and clos.chooses:
            odd |= apart
        columns = [first_places(leaf)]
        if clos.num_pods > 1:
            columns.append(first_places(clos.pod(leaf)))
        if bulk.policy != SHORTEST and clos.chooses:
            above, core = clos.dealt(ports)
            columns += [first_places(above), first_places(core)] if bulk.policy not in (HASH, SPLIT) else []
        if bulk.policy == RAIL:
            columns.append(first_places(self._leaves_of_hosts[gpus].reshape(len(gpus), -1)))
        return [np.where(outside, column, 0) for column in columns], outside & (odd | lost).any(axis=1, keepdims=True)

    @cached_property
    def _leaves_of_hosts(self) -> Int64:
        """int64[devices, ...]: the leaves of all NICs in the host of each GPU, by which it may send; -1: none."""
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
        found = np.full((len(self.cluster.devices), table.shape[1]), -1, np.int32)
        found[gpus] = table[hosts]
        return found.astype(np.int64)


def first_places(rows: Int64) -> Int64:
    """int64, as ``rows`` (two dimensions): for each entry where in its row the same number is found first."""
    size = int(rows.max(initial=0)) + 2
    key = np.arange(len(rows))[:, None] * size + rows + 1
    _, first, which = np.unique(key.ravel(), return_index=True, return_inverse=True)
    found: Int64 = first[which].reshape(rows.shape) - np.arange(len(rows))[:, None] * rows.shape[1]
    return found
