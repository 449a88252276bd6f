"""Are a run's records unchanged? Golden files hold records, never text; running this file rewrites them."""

from pathlib import Path

import numpy as np
import pytest

import trine

FOLDER = Path(__file__).parent
PLANS = {
    "ddp": trine.Plan(dp=4),
    "pipeline": trine.Plan(pp=4, micro_batch=32, schedule="1f1b"),
    "hybrid": trine.Plan(dp=2, tp=2, pp=2, micro_batch=64),
}
COLUMNS = ("kind", "rank", "ready_ps", "start_ps", "end_ps", "size_bytes")


def table(name: str) -> dict[str, np.ndarray]:
    cluster = trine.build_topology("torus:2x4", "50 GB/s", "1 us", 8)
    result = trine.simulate("vgg13-h100-b128", PLANS[name], cluster=cluster)
    graph, records = result.graph, result.records
    return {column: getattr(graph if hasattr(graph, column) else records, column) for column in COLUMNS}


@pytest.mark.parametrize("name", PLANS)
def test_records_are_unchanged(name):
    golden = np.load(FOLDER / f"{name}.npz")
    now = table(name)
    for column in COLUMNS:
        assert np.array_equal(golden[column], now[column]), f"{name}: {column} changed"


if __name__ == "__main__":
    for name in PLANS:
        np.savez_compressed(FOLDER / f"{name}.npz", **table(name))
