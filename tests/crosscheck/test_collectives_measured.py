"""Are ring all-reduces on the preset clusters close to measured ones?

Rows: all-reduce of powers of two by 4 GPUs, time in us by size in MiB. The link numbers of the presets were fitted to
these rows, so this guards the fit and what the presets say of it; it is no independent validation.
"""

from __future__ import annotations

import pytest

from trine.cluster import load_cluster
from trine.collectives import make_schedule
from trine.collectives.closed_forms import uncontended_ps

#: github.com/VIA-Research/vTrain trace/a100/AR_GPU4_1M_1024M_LUT (MIT-style licence), 4 of 8 A100
A100 = {4: 77.32, 8: 116.8, 16: 179.6, 32: 284.2, 64: 543.8, 128: 998.6, 256: 1929.0, 512: 3720.0, 1024: 7259.4}
#: github.com/ai-dynamo/aiconfigurator h100_sxm/comm/nccl/2.29.2 (Apache-2.0), 4 of 8 H100, median over data types
H100 = {4: 41.2, 8: 62.435, 16: 104.395, 32: 178.905, 64: 335.58, 128: 620.105, 256: 1194.635, 512: 2313.48}


@pytest.mark.parametrize(
    ("name", "rows", "mean", "largest"), [("a100-nvlink-4", A100, 0.032, 0.109), ("dgx-h100", H100, 0.030, 0.064)]
)
def test_presets_fit_the_rows_that_they_name(name: str, rows: dict[int, float], mean: float, largest: float) -> None:
    cluster = load_cluster(name)
    route = cluster.route(0, 1)
    bytes_per_s = min(cluster.links[link].bytes_per_s for link in route)
    errors = []
    for mebibytes, time_us in rows.items():
        schedule = make_schedule("all_reduce", 4, mebibytes * 2**20)
        predicted_ps = uncontended_ps(schedule, bytes_per_s, cluster.route_latency_ps(route))
        errors.append(abs(predicted_ps / (time_us * 1e6) - 1))
    assert sum(errors) / len(errors) <= mean
    assert max(errors) <= largest
