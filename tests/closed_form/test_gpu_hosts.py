"""Do loads from and stores to host memory take the times of their hops, and are unsupported uses refused?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import NS, Case, Programmer, read, read_flagged, small_model, write, write_flagged
from gpu_hosts import DRAM, PCIE, hosted_cluster

from trine.cluster import load_cluster
from trine.common.units import transfer_ps
from trine.errors import InputError
from trine.gpu.folding import fold_system
from trine.gpu.join import PlacedProgram, join_programs
from trine.gpu.layout import CU, PORT, layout_of
from trine.gpu.model.files import load_gpu_model
from trine.gpu.program import same_program
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.system import host_group
from trine.gpu.text import format_program, parse_program
from trine.gpu.validate import find_fault

LINE, HEADER = 128, 16


@pytest.fixture(params=["reference", "compiled"])
def engine(request):
    return request.param


def hosted(programmer, model=None, num_gpus=2):
    """Return a case of ``programmer``'s program whose last rank is the host."""
    program = replace(programmer.build(), num_hosts=1)
    return Case(program, model or small_model(), hosted_cluster(num_gpus), [*range(num_gpus), num_gpus + 1])


def inside_ps(model, source, target, num_bytes):
    layout = layout_of(model)
    return sum(
        transfer_ps(num_bytes, int(layout.bytes_per_s[hop.resource])) + hop.after_ps
        for hop in layout.path(source, 0, target, 0)
    )


def links_ps(num_bytes):
    return sum(transfer_ps(num_bytes, rate) + latency for rate, latency in (PCIE, DRAM))


@pytest.mark.parametrize("poll_ps", [None, 0])
def test_a_load_crosses_gpu_pcie_and_memory_and_comes_back(engine, poll_ps):
    """A host has no internal hops: the link to its memory carries the memory's rate and latency."""
    programmer = Programmer(3, 1)
    programmer.kernel(0, 1, 1)
    programmer.load(1, read(2)).wait()
    model = small_model(poll_ps=poll_ps)
    found = hosted(programmer, model).simulate(engine).gpu
    ports = 2 * model.ports.latency_ps  # out at the first link, in at the last
    there = inside_ps(model, CU, PORT, HEADER) + links_ps(HEADER)
    back = links_ps(HEADER + LINE) + inside_ps(model, PORT, CU, HEADER + LINE)
    assert int(found.op_end_ps[1] - found.op_start_ps[0]) == there + back + 2 * ports
    assert len(found.ranks) == 3 or found.loads.tolist()[:2] == [1, 0]


def test_a_store_is_over_when_it_has_left_and_brings_no_answer(engine):
    programmer = Programmer(3, 1)
    programmer.kernel(0, 1, 1)
    programmer.store(1, write(2)).wait()
    case = hosted(programmer)
    run = run_gpus(case.program, case.cluster, case.group, case.model, options=GpuRunOptions(engine=engine))
    left = inside_ps(case.model, CU, PORT, HEADER + LINE) + transfer_ps(HEADER + LINE, PCIE[0])
    assert int(run.gpu.op_end_ps[1] - run.gpu.op_start_ps[0]) == left
    names = [case.cluster.links[link].name for link in run.gpu.lane_link.tolist()]
    sent = {name: count for name, count in zip(names, run.gpu.lane_data.tolist(), strict=True) if count}
    assert sent == {"0->2": 1, "2->3": 1}
    assert run.gpu.lane_control.sum() == 0


def test_stores_that_are_not_posted_wait_for_their_answer(engine):
    programmer = Programmer(3, 1)
    programmer.kernel(0, 1, 1)
    programmer.store(1, write(2)).wait()
    found = hosted(programmer, small_model(posted_stores=False)).simulate(engine).gpu
    assert int(found.op_end_ps[1] - found.op_start_ps[0]) > 2 * (PCIE[1] + DRAM[1])
    assert found.lane_control.sum() == 2


def test_a_flag_in_the_host_hands_a_line_from_one_gpu_to_the_other(engine):
    """LL over SHM: the reader polls over PCIe, so flagged loads are all its polls plus the two that succeed."""
    programmer = Programmer(3, 2)
    programmer.kernel(0, 1, 1)
    programmer.delay(10_000).store(1, write_flagged(2, 0)).release(2, 1)
    programmer.kernel(1, 1, 1)
    programmer.load(1, read_flagged(2, 0)).load(1, read_flagged(2, 1)).wait()
    found = hosted(programmer, small_model(poll_ps=0)).simulate(engine).gpu
    stored, done = int(found.op_start_ps[1]), int(found.op_end_ps[5])
    assert stored + 2 * (PCIE[1] + DRAM[1]) < done
    assert found.polls[1] > 2
    assert found.flagged_loads[1] == found.polls[1] + 2


def test_what_waits_for_a_host_for_ever_is_named(engine):
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1, 1)
    programmer.load(1, read_flagged(1, 0)).wait()
    case = hosted(programmer, num_gpus=1)
    with pytest.raises(Exception, match="semaphore 0 of rank 1, which has 0 and needs 1"):
        case.simulate(engine)


def test_two_gpus_share_the_link_of_their_hosts_memory():
    """Each link to the CPU carries 20 GB/s, the memory's link 24 GB/s: two GPUs together wait for the memory."""
    ends, model = [], small_model(max_outstanding=512)
    for ranks in ((0,), (0, 1)):
        programmer = Programmer(3, 1)
        for rank in ranks:
            programmer.kernel(rank, 4, 1)
            programmer.load(512, read(2, 1 << 16), unroll=64).wait()
        program = replace(programmer.build(), num_hosts=1)
        cluster = hosted_cluster(2, dram=(24 * 10**9, 30 * NS))
        ends.append(run_gpus(program, cluster, [0, 1, 3], model).end_ps - model.launch_ps)
    assert ends[0] > 512 * (LINE + HEADER) / 20e9 * 1e12
    assert 1024 * (LINE + HEADER) / 24e9 * 1e12 < ends[1] < 1.25 * 1024 * (LINE + HEADER) / 24e9 * 1e12


def test_text_says_how_many_hosts_there_are():
    text = """program handed
ranks 2
hosts 1
buffer mail 4 KiB
semaphores 32
initially rank 2 sem 3 = 1
kernel ranks all wavefronts 2
  store 8 lines -> rank (ranks):mail flagged sem 0
  load 8 lines rank 2:mail flagged sem 0
"""
    program = parse_program(text)
    assert (program.num_ranks, program.num_hosts, program.num_gpus) == (3, 1, 2)
    assert program.kernel_rank.tolist() == [0, 1]
    assert program.operand_rank.tolist() == [2, 2, 2, 2]
    assert program.semaphores[2, 3] == 1
    assert same_program(program, parse_program(format_program(program)))
    assert not same_program(program, replace(program, num_hosts=0))


def test_groups_are_gpus_and_the_hosts_near_them():
    program = replace(Programmer(4).build(), num_hosts=1)
    cluster = load_cluster("rtx3090-pcie")
    assert [cluster.devices[i].name for i in host_group(cluster, program)] == ["gpu0", "gpu1", "gpu2", "dram"]
    with pytest.raises(InputError, match="has 3 of 3 GPUs, and they have 1 of 2 hosts"):
        host_group(cluster, replace(Programmer(5).build(), num_hosts=2))


def test_what_hosts_do_not_do_is_refused():
    programmer = Programmer(3, 1)
    programmer.kernel(1, 1, 1)
    programmer.load(1, read(2)).wait()
    case = hosted(programmer)
    with pytest.raises(InputError, match="device 3 of cluster 'hosted' is no GPU"):
        run_gpus(case.program, case.cluster, [0, 3, 1], case.model)
    with pytest.raises(InputError, match="device 1 of cluster 'hosted' is no host"):
        run_gpus(case.program, hosted_cluster(3), [0, 2, 1], case.model)
    with pytest.raises(InputError, match="loads from host memory are not recorded"):
        run_gpus(case.program, case.cluster, case.group, case.model, options=GpuRunOptions(record=1))
    with pytest.raises(InputError, match="hosts are not joined"):
        join_programs([PlacedProgram(program=case.program, ranks=(0, 1, 2))], 3)
    assert "hosts run no kernels" in find_fault(replace(case.program, num_hosts=2)).message
    assert "cannot be hosts" in find_fault(replace(case.program, num_hosts=3)).message
    folded, why = fold_system(case.system())
    assert folded is None
    assert "memory of a host" in why


def test_other_gpus_are_not_reached_through_a_host():
    programmer = Programmer(3, 1)
    programmer.kernel(0, 1, 1)
    programmer.load(1, read(1)).wait()
    program = replace(programmer.build(), num_hosts=1)
    cluster, model = load_cluster("rtx3090-pcie"), load_gpu_model("rtx3090")
    with pytest.raises(InputError, match="loads and stores cannot cross"):
        run_gpus(program, cluster, host_group(cluster, program), model)
    assert np.array_equal(program.kernel_rank, [0])
