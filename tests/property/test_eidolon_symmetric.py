"""Do arrivals recorded from symmetric peers equal those recorded in a full run of all ranks?"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from trine import build_topology
from trine.errors import InputError
from trine.gpu.kernels.fused.build import build_fused
from trine.gpu.model.files import load_gpu_model
from trine.gpu.peers import Arrivals
from trine.gpu.replay.arrivals import load_arrivals, save_arrivals
from trine.gpu.replayed import run_target
from trine.gpu.run import GpuRunOptions, run_gpus


def built(ranks, name="gemv-allreduce", **how):
    return build_fused(name, ranks, rows=512, cols=64, **how).program


def machine(ranks):
    cluster = build_topology("full", "50 GB/s", "300 ns", ranks)
    return cluster, list(cluster.gpus), load_gpu_model("eidola")


@pytest.mark.parametrize("ranks", [2, 4])
def test_symmetric_peers_are_those_of_a_run_of_all(ranks, tmp_path):
    program, (cluster, group, model) = built(ranks), machine(ranks)
    folded = run_gpus(program, cluster, group, model, options=GpuRunOptions(record=ranks - 1))
    assert folded.fold.classes == 1
    found = folded.arrivals
    expected = run_gpus(program, cluster, group, model, options=GpuRunOptions(fold="off", record=found.target)).arrivals
    assert len(found.time_ps)
    assert len(found.answer_ps)
    save_arrivals(tmp_path / "record.npz", found)
    again = load_arrivals(tmp_path / "record.npz")
    for field in fields(Arrivals):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name
        assert np.array_equal(getattr(again, field.name), getattr(expected, field.name)), field.name


@pytest.mark.parametrize("target", [0, 3])
def test_a_target_among_symmetric_peers_has_the_times_of_a_run_of_all(target):
    program, (cluster, group, model) = built(4), machine(4)
    found = run_gpus(program, cluster, group, model, options=GpuRunOptions(record=target)).arrivals
    alone = run_target(program, cluster, group, model, target=found.target, outside=found)
    whole = run_gpus(program, cluster, group, model, options=GpuRunOptions(fold="off"))
    mine = np.flatnonzero(program.kernel_rank == target)  # all ranks are alike
    groups = np.concatenate([np.arange(*program.kernel_ptr[kernel : kernel + 2]) for kernel in mine])
    assert np.array_equal(alone.gpu.workgroup_start_ps, whole.gpu.workgroup_start_ps[groups])
    assert np.array_equal(alone.gpu.workgroup_end_ps, whole.gpu.workgroup_end_ps[groups])
    assert alone.gpu.loads[0] == whole.gpu.loads[target]
    assert alone.gpu.polls[0] == whole.gpu.polls[target]


def test_an_unknown_target_is_refused():
    cluster, group, model = machine(2)
    with pytest.raises(InputError, match="record: rank 2 is not one of 2"):
        run_gpus(built(2), cluster, group, model, options=GpuRunOptions(record=2))
