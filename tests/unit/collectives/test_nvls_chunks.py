"""In-network reduction with NCCL's two sizes of chunks."""

import pytest

from trine.cluster import load_cluster
from trine.collectives.nccl.costs import LARGE_CHUNKS, NVLS_CHANNELS, NVLS_CHUNK_BYTES, NVLS_CHUNK_US
from trine.collectives.nccl.predict import Collectives
from trine.collectives.options import CollectiveOptions
from trine.errors import InputError

GIB = 1 << 30
PAIR = ("nvls", "simple")
#: GB/s of 8 GPUs at 8 GiB: measured/series.csv, b200-8-aws, b300-8-oci and h200-8.
MEASURED = [("hgx-b200", 838.0), ("hgx-b300", 834.9), ("hgx-h200", 473.1)]


@pytest.mark.parametrize(("cluster", "measured"), MEASURED)
def test_large_messages_reach_the_measured_bandwidth(cluster, measured):
    answer = Collectives(load_cluster(cluster)).predict("all_reduce", 8 * GIB)
    busbw = answer.size_bytes * answer.bus_factor / answer.time_ps * 1e3
    assert busbw == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("cluster", "generation"), [("dgx-h100", "hopper"), ("hgx-b200", "blackwell")])
def test_a_chunk_of_twice_the_size_saves_one_agreement_per_chunk(cluster, generation):
    collectives, chunks = Collectives(load_cluster(cluster)), NVLS_CHANNELS[generation] * 8 * NVLS_CHUNK_BYTES
    below, above = 32 * chunks, 16 * LARGE_CHUNKS * chunks
    rate = below / collectives.cost("all_reduce", below, PAIR).bytes_us
    assert above / rate - collectives.cost("all_reduce", above, PAIR).bytes_us == pytest.approx(
        above / chunks * NVLS_CHUNK_US
    )


#: GB/s of 8 B200 of AWS, whose plug-in sets chunks of 512 KiB: measured/series.csv, b200-8-aws-torch.
AWS = [(2, 735.0), (4, 740.6), (8, 839.1), (16, 845.7)]


@pytest.mark.parametrize(("gib", "measured"), AWS)
def test_chunks_of_awss_plug_in_reach_the_measured_bandwidth(gib, measured):
    """The cost of a chunk comes from 8 H200; only the size of the chunk is AWS's."""
    collectives = Collectives(load_cluster("hgx-b200"), options=CollectiveOptions(nvls_chunk=512 << 10))
    answer = collectives.predict("all_reduce", gib * GIB)
    assert answer.size_bytes * answer.bus_factor / answer.time_ps * 1e3 == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("chunk", [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20])
def test_each_chunk_costs_one_agreement_of_the_ranks(chunk):
    """In closed form: the time of the bytes with chunks of 64 KiB, and the chunks more or fewer than with those."""
    small, channels, ranks = 64 << 10, 24, 8
    cluster = load_cluster("hgx-b200")

    def bytes_us(size, nvls_chunk):
        collectives = Collectives(cluster, options=CollectiveOptions(nvls_chunk=nvls_chunk))
        return collectives.cost("all_reduce", size, PAIR).bytes_us

    first = LARGE_CHUNKS * channels * ranks * chunk if chunk > small else 0
    size = 4 * first or GIB
    chunks = size / (channels * ranks * small) - size / (channels * ranks * chunk)
    assert bytes_us(size, small) - bytes_us(size, chunk) == pytest.approx(chunks * NVLS_CHUNK_US)
    if first:
        assert bytes_us(first - 1, chunk) == bytes_us(first - 1, small)


@pytest.mark.parametrize("chunk", [(16 << 10) - 1, (4 << 20) + 1])
def test_chunks_beyond_nccls_buffers_are_refused(chunk):
    with pytest.raises(InputError, match=r"nvls_chunk: must be 16K to 4M, got \d+"):
        Collectives(load_cluster("hgx-b200"), options=CollectiveOptions(nvls_chunk=chunk))


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
