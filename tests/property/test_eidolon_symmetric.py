"""Is what comes to a rank from peers that do as it does the same as in a run of all of them?"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from trine import build_topology
from trine.collectives.kernels.fused import build_fused
from trine.eidolon.arrivals import load_arrivals, save_arrivals
from trine.eidolon.derived import symmetric_arrivals
from trine.errors import InputError
from trine.gpu.presets import load_gpu_model
from trine.gpu.run import run_gpus
from trine.model.outside import Arrivals


def built(ranks, name="gemv-allreduce", **how):
    return build_fused(name, ranks, rows=512, cols=64, **how).program


def machine(ranks):
    cluster = build_topology("full", "50 GB/s", "300 ns", ranks)
    return cluster, list(cluster.gpus), load_gpu_model("eidola")


@pytest.mark.parametrize("ranks", [2, 4])
def test_symmetric_peers_are_those_of_a_run_of_all(ranks, tmp_path):
    program, (cluster, group, model) = built(ranks), machine(ranks)
    found = symmetric_arrivals(program, cluster, group, model)
    expected = run_gpus(program, cluster, group, model, fold="off", record=found.target).arrivals
    assert len(found.time_ps) and len(found.answer_ps)
    save_arrivals(tmp_path / "record.npz", found)
    again = load_arrivals(tmp_path / "record.npz")
    for field in fields(Arrivals):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name
        assert np.array_equal(getattr(again, field.name), getattr(expected, field.name)), field.name


def test_what_is_not_symmetric_is_refused():
    cluster = build_topology("tree:2", "50 GB/s", "300 ns", 3)
    model = load_gpu_model("eidola")
    with pytest.raises(InputError, match="the ranks of 'gemv-allreduce.* are not symmetric: .*; record a run of all"):
        symmetric_arrivals(built(3), cluster, list(cluster.gpus), model)


def test_a_program_of_one_rank_says_nothing_of_the_others():
    cluster, group, model = machine(4)
    with pytest.raises(InputError, match="needs the kernels of all ranks: build the program without only_rank"):
        symmetric_arrivals(built(4, only_rank=0), cluster, group, model)
