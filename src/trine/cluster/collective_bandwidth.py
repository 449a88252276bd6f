"""Bandwidth per collective: the bus bandwidth that a machine's collectives reach, as its owner measured it.

Links have one bandwidth for all collectives. Some fabrics carry an all_gather slower than an all_reduce, which decides
between layouts. A cluster file may therefore give the bus bandwidth of each collective over all GPUs of some nodes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from trine.common.units import format_bandwidth, format_bytes

#: Collectives that may have a bandwidth of their own; messages to single peers follow the links.
BANDWIDTH_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
#: Size of the measurement, and the number of nodes from which a single number holds.
USUAL_SIZE_BYTES, FROM_NODES = 2**30, 2

#: Bus bandwidth by number of nodes: (nodes, bytes/s), in ascending order.
Curve = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveBandwidth:
    """Bus bandwidths of collectives, as nccl-tests counts them, over all GPUs of some nodes (racks of NVL72 machines).

    curves: by collective. size_bytes: of the measured collectives. gpus_per_node: GPUs of a node that took part.
    evidence: of the numbers.
    """

    curves: tuple[tuple[str, Curve], ...]
    size_bytes: int = USUAL_SIZE_BYTES
    gpus_per_node: int
    evidence: str = "assumed"

    def at(self, op: str, nodes: int) -> float | None:
        """Return the bus bandwidth of ``op`` over ``nodes`` nodes in bytes/s, or None if the links' bandwidth holds.

        Between two given numbers of nodes it follows a power law; beyond the largest it stays. Below the smallest the
        links' bandwidth holds.
        """
        curve = dict(self.curves).get(op, ())
        if not curve or nodes < curve[0][0]:
            return None
        if nodes >= curve[-1][0]:
            return float(curve[-1][1])
        (low, low_rate), (high, high_rate) = next((a, b) for a, b in pairwise(curve) if a[0] <= nodes < b[0])
        share = math.log(nodes / low) / math.log(high / low)
        return float(low_rate * (high_rate / low_rate) ** share)

    def evidence_at(self, op: str, nodes: int) -> str:
        """Return the evidence over ``nodes`` nodes: weaker between and beyond the given numbers of nodes."""
        numbers = [each for each, _ in dict(self.curves).get(op, ())]
        place = bisect_left(numbers, nodes)
        if (place < len(numbers) and numbers[place] == nodes) or self.evidence != "measured":
            return self.evidence
        return "interpolated" if place < len(numbers) else "assumed"

    def words(self, ops: Iterable[str] | None = None) -> str:
        """Return the bandwidths in words; ops: of these collectives only."""
        curves = [(op, curve) for op, curve in self.curves if ops is None or op in set(ops)]
        texts = []
        for op, curve in curves:
            ends = dict.fromkeys((curve[0], curve[-1]))
            rates = " to ".join(f"{format_bandwidth(rate)} on {nodes}" for nodes, rate in ends)
            texts.append(f"{op} {rates} node{'' if curve[-1][0] == 1 else 's'}")
        return f"{', '.join(texts)} at {format_bytes(self.size_bytes)}"
