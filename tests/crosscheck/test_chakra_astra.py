"""Do ASTRA-sim's traces take the same time on our fifo network as in ASTRA-sim, if both do the same?

Its micro-benchmarks of 1 MiB, read from their .et files, against its results with one chunk. Its system layer's
additions to a collective's messages become software before each message: the end-point delay, and the reduction
(only the reduce-scatter half of an all-reduce reduces, so each message gets half). All other differences are in
tests/crosscheck/test_astra_sim.py and docs/formats/chakra.md.
"""

from __future__ import annotations

from math import floor

import pytest
from astra_rows import rows
from chakra_files import DATA

from trine.cluster import build_topology
from trine.formats.chakra import read_chakra, simulate_chakra

ALGORITHMS = {"ring": "ring", "direct": "direct", "halvingDoubling": "halving-doubling"}
TOPOLOGIES = {"Ring": "ring", "Switch": "switch", "FullyConnected": "full"}
NS = 1000


def comparable(row):
    """Return whether a row has one chunk of 1 MiB and an algorithm of ours (its ring all-to-all and tree differ)."""
    setting = row.setting
    if (setting.chunks, setting.size_bytes, setting.queues, setting.rendezvous) != (1, 2**20, 1, False):
        return False
    if not (DATA / "microbenchmarks" / setting.collective).is_dir() or "group" in row.note:
        return False
    return setting.algorithm in ALGORITHMS and (setting.collective, setting.algorithm) != ("all_to_all", "ring")


def tolerance(setting):
    """Return the tolerance, 0.1 %, except for known differences."""
    if setting.algorithm == "halvingDoubling" and setting.topology == "Ring":
        return None  # its partners come nearest first, ours farthest: other links are shared
    if setting.algorithm == "halvingDoubling" and setting.collective != "all_gather":
        return 0.02  # it charges the reduction of the next, smaller message
    if setting.algorithm == "direct" and setting.topology == "Ring":
        return 0.02  # the order of messages that queue for a link
    return 0.001


ROWS = [row for row in rows(aware=True) if comparable(row)]


def test_there_are_rows_to_compare():
    assert len(ROWS) == 40
    assert sum(tolerance(row.setting) == 0.001 for row in ROWS) == 25


@pytest.mark.parametrize("row", [row for row in ROWS if tolerance(row.setting)], ids=lambda row: f"line {row.line}")
def test_micro_benchmarks_take_astra_sims_time(row):
    setting = row.setting
    place = DATA / "microbenchmarks" / setting.collective / f"{setting.ranks}npus_1MB" / setting.collective
    trace = read_chakra(place, algorithms={setting.collective: ALGORITHMS[setting.algorithm]})
    bandwidth = f"{round(setting.gib_per_s * 2**30) / 1e9:.9f} GB/s"
    latency = f"{setting.latency_ns} ns"
    cluster = build_topology(TOPOLOGIES[setting.topology], bandwidth, latency, setting.ranks)
    software_ps = round((setting.endpoint_ns + reduction_ns(setting)) * NS)
    result = simulate_chakra(
        trace, cluster, network="fifo", collective_costs=lambda kind, size, ranks, name: (name, software_ps)
    )
    found_ns = result.end_time_ps / NS + setting.endpoint_ns  # a phase begins with this delay
    assert found_ns == pytest.approx(row.cycles_ns, rel=tolerance(setting))


def reduction_ns(setting):
    """Return the reduction time of each message, on average over its steps."""
    share = {"all_reduce": 0.5, "reduce_scatter": 1.0}.get(setting.collective, 0.0)
    if setting.reduce_ns is not None:
        return share * setting.reduce_ns
    if setting.memory_gb_per_s is None:
        return 0.0
    return share * 3 * floor(setting.size_bytes // setting.ranks / setting.memory_gb_per_s)


def test_its_custom_collective_takes_its_time():
    """Sends, receives and reductions of 7 us, rank by rank; no end-point delay and no other reduction."""
    trace = read_chakra(DATA / "custom_ring_allreduce_8npus_1MB" / "custom_allreduce")
    cluster = build_topology("ring", f"{50 * 2**30 / 1e9:.9f} GB/s", "500 ns", 8)
    result = simulate_chakra(trace, cluster, network="fifo")
    (row,) = [row for row in rows(aware=True) if row.setting.algorithm == "custom:msccl ring .et"]
    assert row.cycles_ns == 90_174
    assert result.end_time_ps / NS == pytest.approx(row.cycles_ns, rel=1e-4)
