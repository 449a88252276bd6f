"""Does the memory model come close to the recording of PyTorch's allocator?"""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

import trine
from trine.compute import launch_costs
from trine.workload import load

RAW = Path(__file__).parent.parent / "data" / "vgg13-raw-b512"


def recorded_bytes() -> list[tuple[int, int]]:
    """Return (bytes of the change, bytes in use after it) of every GPU allocation, in order of time."""
    path = next((RAW / "profiler").iterdir())
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    memory = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 1]
    memory.sort(key=lambda e: e["ts"])
    return [(e["args"]["Bytes"], e["args"]["Total Allocated"]) for e in memory]


def peak_without_workspaces(changes: list[tuple[int, int]]) -> int:
    """Return the peak without blocks freed by the very next change: the workspaces of convolutions."""
    peak = 0
    for (size, total), (following, _) in pairwise(changes):
        if size > 0 and following != -size:
            peak = max(peak, total)
    return peak


def test_vgg13_at_batch_512_peaks_where_the_allocator_did():
    changes = recorded_bytes()
    peak = trine.simulate(str(RAW)).memory_peak_bytes
    without = peak_without_workspaces(changes)
    print(f"modelled {peak / 2**30:.2f} GiB; recorded {without / 2**30:.2f} GiB without workspaces")
    assert peak == pytest.approx(without, rel=0.03)
    assert peak == pytest.approx(max(total for _, total in changes), rel=0.06)


def test_the_other_batch_predicts_it_too():
    without = peak_without_workspaces(recorded_bytes())
    peak = trine.simulate("vgg13-h100-b128", trine.Plan(batch=512)).memory_peak_bytes
    assert peak == pytest.approx(without, rel=0.03)


def test_gaps_between_kernels_explain_the_recorded_span():
    """The profiler recorded 347.021 ms from the first kernel to the end of the last; kernels alone take 346.366 ms.

    The launches take less time than the kernels, so they add only the first operator's.
    """
    kernels_and_gaps = trine.simulate(str(RAW), cpu=False).step_time_ps
    print(f"{kernels_and_gaps / 347.021e9 - 1:+.3%}")
    assert kernels_and_gaps == pytest.approx(347.021e9, rel=1e-4)
    first_launch = launch_costs(load(RAW)).cost_ps[0]
    assert trine.simulate(str(RAW), cpu=True).step_time_ps == kernels_and_gaps + first_launch
