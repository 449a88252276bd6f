"""Do jobs on several racks get segments of equal size, as Slurm and NeMo place them?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from trine.cluster import Cluster, load_cluster
from trine.cluster.segments import segmented_hosts
from trine.errors import SpecError


def gpus_by_rack(cluster: Cluster) -> list[int]:
    """Return the GPUs of each rack, in the order of ranks (a rack of one host is a ``node``)."""
    return list(Counter(str(cluster.devices[gpu].node).partition(".")[0] for gpu in cluster.gpus).values())


@pytest.mark.parametrize("hosts", range(19, 300))
def test_the_default_is_nemos_rule(hosts: int) -> None:
    """The largest divisor of the hosts up to 18 (NVIDIA/NeMo, scripts/performance/executors.py), found by counting."""
    segmented = segmented_hosts(hosts, 18, None, None)
    assert segmented is not None
    assert segmented.segment == max(size for size in range(1, 19) if hosts % size == 0)
    assert sum(segmented.hosts_by_rack) == hosts
    assert max(segmented.hosts_by_rack) <= 18
    assert all(count % segmented.segment == 0 for count in segmented.hosts_by_rack)
    assert segmented.segment < 10 or len(set(segmented.hosts_by_rack)) == 1


@pytest.mark.parametrize(
    ("scale", "racks"),
    [
        ({"nodes": 2, "gpus": 128}, [64, 64]),
        ({"gpus": 128}, [64, 64]),
        ({"nodes": 32, "gpus": 128}, [64, 64]),
        ({"nodes": 8, "gpus": 512}, [64] * 8),
        ({"gpus": 144}, [72, 72]),
        ({"gpus": 160}, [40] * 4),
        ({"nodes": 3, "gpus": 160}, [64, 64, 32]),
        ({"nodes": 4, "gpus": 128}, [32] * 4),
        ({"nodes": 4, "gpus": 128, "segment": 4}, [32] * 4),
        ({"gpus": 128, "segment": 16}, [64, 64]),
        ({"gpus": 160, "segment": 8}, [64, 64, 32]),
        ({"nodes": 40, "gpus": 160, "segment": 8}, [64, 64, 32]),
        ({"gpus": 76}, [72, 4]),
        ({"gpus": 74}, [72, 2]),
        ({"nodes": 20, "gpus": 40}, [20, 20]),
    ],
)
def test_gpus_of_each_rack(scale: dict[str, int], racks: list[int]) -> None:
    cluster = load_cluster("gb200-nvl72", **scale)
    assert gpus_by_rack(cluster) == racks


def test_the_cluster_names_its_segments_and_leaves_out_unused_hosts() -> None:
    cluster = load_cluster("gb200-nvl72", nodes=2, gpus=128)
    assert cluster.name == "2 x gb200-nvl72 (128 GPUs in segments of 64)"
    assert "segments of 16 hosts (64 GPUs)" in cluster.notes
    assert sum(device.kind == "nic" for device in cluster.devices) == 128


def test_a_file_sets_the_usual_segment(tmp_path: Path) -> None:
    file = tmp_path / "halves.yaml"
    file.write_text("base: gb200-nvl72\nsegment: 8\n")
    assert gpus_by_rack(load_cluster(file, gpus=160)) == [64, 64, 32]
    assert gpus_by_rack(load_cluster(file, gpus=160, segment=10)) == [40] * 4
    assert len(load_cluster(file, gpus=12).gpus) == 12
    written = tmp_path / "written.yaml"
    written.write_text(load_cluster(file).to_yaml())
    assert load_cluster(written).segment == 8
    with pytest.raises(SpecError, match=r"segment 8 must divide the job's 20 hosts.*: 1, 2, 4, 5, 10"):
        load_cluster(file, gpus=80)
    file.write_text("base: gb200-nvl72\nsegment: 19\n")
    with pytest.raises(SpecError, match=r"segment 19: .* 18 hosts"):
        load_cluster(file)


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("gb200-nvl72", {"gpus": 128, "segment": 5}, "must divide the job's 32 hosts.*: 1, 2, 4, 8, 16"),
        ("gb200-nvl72", {"gpus": 144, "segment": 36}, "fit a rack of 18"),
        ("gb200-nvl72", {"gpus": 128, "segment": 0}, "segment must be at least 1, got 0"),
        ("gb200-nvl72", {"nodes": 4, "gpus": 128, "segment": 16}, "2 segments of 16 hosts do not spread over 4 racks"),
        ("gb200-nvl72", {"gpus": 64, "segment": 4}, "in one gb200-nvl72"),
        ("gb200-nvl72", {"nodes": 16, "gpus": 64, "segment": 4}, "in one gb200-nvl72"),
        ("gb200-nvl72", {"gpus": 74, "segment": 1}, "74 GPUs are not whole hosts of 4"),
        ("gb200-nvl72", {"nodes": 2, "segment": 18}, "add gpus"),
        ("dgx-h100", {"nodes": 2, "gpus": 16, "segment": 1}, "'dgx-h100' is not one"),
    ],
)
def test_a_segment_without_an_effect_is_an_error(name: str, scale: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_cluster(name, **scale)
