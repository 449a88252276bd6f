"""The shares of latencies in a time: what lies on the longest chain counts, what does not, does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.cluster import load_cluster
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import load_gpu_model


def test_a_put_launches_once_crosses_and_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from gpu_latency_shares import LATENCIES, LINK, latency_shares

    cluster, model = load_cluster("dgx-h100"), load_gpu_model("h100-sxm")
    program = build_kernel("all_gather", 2, 256, algorithm="put", workgroups=1, wavefronts=1, bookkeeping=True)
    whole_ps, shares = latency_shares(program, cluster, range(2), model)
    found = {share.name: share for share in shares}
    assert tuple(found) == LATENCIES
    assert found["kernels.launch"].times == found["kernels.fence"].times == 1
    assert found["kernels.launch"].share == pytest.approx(model.launch_ps / whole_ps)
    assert found["memory.latency"].times == 0  # the L2 is warm
    # The data, the signal, and the acknowledgement of each: a kernel ends when all it has sent is there.
    assert found[LINK].times == 4
    assert 0.5 < sum(share.share for share in shares) < 1
