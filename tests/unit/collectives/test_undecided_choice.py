"""Which algorithm NCCL takes where no measurement decides, and what the range then says."""

import pytest

from trine.cluster import load_cluster
from trine.collectives.nccl.predict import MEASURED_NODES, SCALE_DOUBT, Collectives

MIB = 1 << 20
#: Two nodes of eight A100 with four HDR NICs each: github.com/NVIDIA/nccl-tests, issue 152 (message in MiB, GB/s).
MEASURED_BUSBW = {32: 82.15, 64: 92.04, 128: 93.25, 256: 88.84, 512: 89.29, 1024: 89.52}
FOUR_NICS = """
name: a100-4nic
library: nccl
evidence: assumed
fabric: {kind: rail, link: ib-hdr, radix: 40}
devices:
- {name: gpu, count: 8, gpu: a100-80gb, node: node0}
- {name: nvswitch, kind: switch, node: node0}
- {name: pcie, count: 4, kind: switch, node: node0}
- {name: nic, count: 4, kind: nic, node: node0, rail: 0}
links:
- {from: gpu0..7, to: nvswitch, link: nvlink3, lanes: 12, duplex: true}
- {from: gpu0..7, to: pcie0..3, pairs: true, link: pcie4, duplex: true}
- {from: nic0..3, to: pcie0..3, pairs: true, link: pcie4, duplex: true}
"""


@pytest.fixture(scope="module")
def four_nics(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "a100-4nic.yaml"
    path.write_text(FOUR_NICS)
    return Collectives(load_cluster(str(path), nodes=2))


def busbw(answer):
    return answer.size_bytes * answer.bus_factor / answer.time_ps * 1e3


def test_nodes_with_few_nics_take_rings(four_nics):
    for size, measured in MEASURED_BUSBW.items():
        answer = four_nics.predict("all_reduce", size * MIB)
        assert answer.algorithm == "ring"
        assert busbw(answer) == pytest.approx(measured, rel=0.15), size


def test_the_range_spans_the_algorithm_that_trine_would_take(four_nics):
    for size in MEASURED_BUSBW:
        answer = four_nics.predict("all_reduce", size * MIB)
        fastest = four_nics.alternatives("all_reduce", size * MIB)[0]
        assert fastest.algorithm == "tree"
        assert answer.low_ps < fastest.time_ps < answer.time_ps < answer.high_ps
        assert any("ring/simple; tree/" in note and "spans both" in note for note in answer.notes)


def test_bus_bandwidth_never_falls_with_the_size(four_nics):
    rates = [busbw(four_nics.predict("all_reduce", 1 << octave)) for octave in range(10, 31)]
    assert rates == sorted(rates)


def test_a_measured_choice_has_no_second_algorithm():
    answer = Collectives(load_cluster("dgx-h100", nodes=2)).predict("all_reduce", 64 * MIB)
    assert not any("spans both" in note for note in answer.notes)


def test_groups_beyond_the_measured_ones_have_a_wider_range():
    few, many = (Collectives(load_cluster("dgx-h100", nodes=n)) for n in (MEASURED_NODES, 4 * MEASURED_NODES))
    few_answer, answer = (each.predict("all_reduce", 1 << 30) for each in (few, many))
    width = answer.high_ps / answer.time_ps / (few_answer.high_ps / few_answer.time_ps)
    assert width == pytest.approx(SCALE_DOUBT**2, rel=1e-6)
    assert answer.low_ps / answer.time_ps == pytest.approx(few_answer.low_ps / few_answer.time_ps, rel=1e-6)
    assert any("bounds large messages" in note for note in many.notes("all_reduce"))
    assert not any("bounds large messages" in note for note in few.notes("all_reduce"))
