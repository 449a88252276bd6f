"""In-network reduction with NCCL's two sizes of chunks."""

import pytest

from trine.cluster import load_cluster
from trine.collectives.nccl.costs import LARGE_CHUNKS, NVLS_CHANNELS, NVLS_CHUNK_BYTES, NVLS_CHUNK_US
from trine.collectives.nccl.predict import Collectives

GIB = 1 << 30
PAIR = ("nvls", "simple")
#: GB/s of 8 GPUs at 8 GiB: measured/series.csv, b200-8-aws, b300-8-oci and h200-8.
MEASURED = [("hgx-b200", 838.0), ("hgx-b300", 834.9), ("hgx-h200", 473.1)]


@pytest.mark.parametrize(("cluster", "measured"), MEASURED)
def test_large_messages_reach_the_measured_bandwidth(cluster, measured):
    answer = Collectives(load_cluster(cluster)).predict("all_reduce", 8 * GIB)
    busbw = answer.size_bytes * answer.bus_factor / answer.time_ps * 1e3
    print(cluster, round(busbw, 1), measured)
    assert busbw == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("cluster", "generation"), [("dgx-h100", "hopper"), ("hgx-b200", "blackwell")])
def test_a_chunk_of_twice_the_size_saves_one_agreement_per_chunk(cluster, generation):
    collectives, chunks = Collectives(load_cluster(cluster)), NVLS_CHANNELS[generation] * 8 * NVLS_CHUNK_BYTES
    below, above = 32 * chunks, 16 * LARGE_CHUNKS * chunks
    rate = below / collectives.cost("all_reduce", below, PAIR).bytes_us
    assert above / rate - collectives.cost("all_reduce", above, PAIR).bytes_us == pytest.approx(
        above / chunks * NVLS_CHUNK_US
    )


@pytest.mark.parametrize(("gpus", "measured"), [(5, 414.2), (6, 435.6), (7, 460.0)])
def test_smaller_groups_reach_the_measured_bandwidth(gpus, measured):
    """8 GiB on some GPUs of a node: measured/series.csv, h200-8."""
    answer = Collectives(load_cluster("hgx-h200"), range(gpus)).predict("all_reduce", 8 * GIB)
    assert answer.size_bytes * answer.bus_factor / answer.time_ps * 1e3 == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("cluster", ["dgx-h100", "hgx-b200"])
def test_larger_messages_never_take_less_time(cluster):
    collectives = Collectives(load_cluster(cluster))
    times = [collectives.cost("all_reduce", step * GIB // 16, PAIR).total_us for step in range(1, 64)]
    assert times == sorted(times)
