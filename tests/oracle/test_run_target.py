"""Does one GPU of a fused kernel, cut out by ``run_target``, run the same compiled and in plain Python?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import assert_same
from gpu_replay import assert_same_target, replayed

from trine.gpu.kernels.fused.build import known_fused
from trine.gpu.records import GpuOutcome
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared, seen_alone
from trine.gpu.replay.traffic import make_traffic
from trine.gpu.replayed import run_target, target_system
from trine.gpu.run import GpuRunControl, GpuRunOptions, run_gpus
from trine.gpu.system import kernel_tasks, unfolded


def small(kernel, **options):
    sizes = {"rows": 64, "cols": 64, **({} if kernel.startswith("gemv") else {"inner": 16})}
    return EidolonOptions(kernel=kernel, **sizes, **options)


def outcome_of(work, outside, engine):
    run = run_target(
        work.program,
        work.cluster,
        work.group,
        work.model,
        target=work.target,
        outside=outside,
        control=GpuRunControl(engine=engine),
    )
    return GpuOutcome(run.records, run.gpu, run.finished, None)


CASES = [
    *((kernel, "spin", "ideal") for kernel in known_fused()),
    *((kernel, "mwait", "modelled") for kernel in known_fused()),
    ("gemv-allreduce", "sleep", "modelled"),
]


@pytest.mark.parametrize(("kernel", "sync", "fabric"), CASES)
def test_flags_that_land_when_the_target_waits(kernel, sync, fabric):
    """Requests to peers leave the system without a trace: each engine has its own way to identify their owner."""
    both = []
    for engine in ("reference", "compiled"):
        options = small(kernel, sync=sync, fabric=fabric, engine=engine, wakeup="3 us")
        prepared = Prepared(options)
        incoming = make_traffic(options, prepared.work, prepared.waiting_ps)
        both.append((prepared.waiting_ps, outcome_of(prepared.work, incoming.outside, engine)))
    assert both[0][0] == both[1][0]
    assert_same(both[1][1], both[0][1])
    assert both[0][1].records.end_ps.max() > both[0][0] + 3_000_000


@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize("target", [0, 2])
def test_a_record_gives_the_target_its_times_of_the_run_of_all(target, engine):
    work = Prepared(small("gemm-allreduce", symmetric=True, sync="mwait")).work
    program, group = work.program, work.group
    full = run_gpus(
        program, work.cluster, group, work.model, options=GpuRunOptions(fold="off", engine=engine, record=target)
    )
    alone = run_target(
        program,
        work.cluster,
        group,
        work.model,
        target=target,
        outside=full.arrivals,
        control=GpuRunControl(engine=engine),
    )
    system = unfolded(program, work.cluster, group, work.model, kernel_tasks(program))
    assert_same_target(full, system, target, alone)
    seen = seen_alone(full, target)
    assert seen.end_ps == alone.end_ps
    replayed_gpu = replace(alone.gpu, end_ps=seen.gpu.end_ps)  # writes may arrive after the target has ended
    assert_same(GpuOutcome(seen.records, seen.gpu, True, None), GpuOutcome(alone.records, replayed_gpu, True, None))


def test_the_system_of_a_target_is_the_one_that_tests_cut_out():
    """The other tests of replays use those systems."""
    work = Prepared(small("gemm-alltoall", symmetric=True)).work
    program, group = work.program, work.group
    system = unfolded(program, work.cluster, group, work.model, kernel_tasks(program))
    for rank in (0, 3):
        found = target_system(program, work.cluster, group, work.model, rank, None, None)[0].program
        expected = replayed(system, rank, None).program
        for field in ("kernel_rank", "workgroup_ptr", "op_kind", "operand_ptr", "operand_rank", "operand_address"):
            np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), err_msg=field)
