"""Does a run resumed at the target's wait equal a run from the start in plain Python?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import assert_same

from trine.errors import InputError
from trine.gpu.kernels.fused.build import known_fused
from trine.gpu.records import GpuOutcome
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared
from trine.gpu.replay.traffic import make_traffic
from trine.gpu.replayed import run_target
from trine.gpu.run import GpuRunControl

CASES = [
    *((kernel, "spin", "ideal", wakeup) for kernel in known_fused() for wakeup in ("3 us", "0 us")),
    *((kernel, "mwait", "modelled", wakeup) for kernel in known_fused() for wakeup in ("3 us", "1 ps")),
    ("gemv-allreduce", "sleep", "modelled", "0 us"),
]


def small(kernel, **options):
    sizes = {"rows": 64, "cols": 64, **({} if kernel.startswith("gemv") else {"inner": 16})}
    return EidolonOptions(kernel=kernel, **sizes, **options)


def from_the_start(prepared, options, engine):
    work = prepared.work
    incoming = make_traffic(options, work, prepared.waiting_ps)
    run = run_target(
        work.program,
        work.cluster,
        work.group,
        work.model,
        target=work.target,
        outside=incoming.outside,
        control=GpuRunControl(engine=engine),
    )
    return GpuOutcome(run.records, run.gpu, run.finished), incoming.outside


def going_on(prepared, outside):
    run = prepared.waiting().run(outside)
    return GpuOutcome(run.records, run.gpu, run.finished)


@pytest.mark.parametrize(("kernel", "sync", "fabric", "wakeup"), CASES)
def test_going_on_is_the_same_as_the_twin_from_the_start(kernel, sync, fabric, wakeup):
    options = small(kernel, sync=sync, fabric=fabric, wakeup=wakeup)
    prepared = Prepared(options)
    assert prepared.waiting_ps == Prepared(replace(options, engine="reference")).waiting_ps
    slow, outside = from_the_start(prepared, options, "reference")
    assert_same(going_on(prepared, outside), slow)


@pytest.mark.parametrize("sync", ["spin", "mwait", "sleep"])
@pytest.mark.parametrize(("fabric", "peers"), [("ideal", 3), ("modelled", 12)])
def test_runs_that_go_on_leave_each_other_alone(sync, fabric, peers):
    """Slots and lanes are in use when the target waits, and it has more peers than lanes."""
    base = EidolonOptions(rows=256, cols=256, tile=(16, 256), flags="single", peers=peers, sync=sync, fabric=fabric)
    prepared = Prepared(base)
    for wakeup in ("20 us", "1 us", "20 us", "0 us", "7 us"):
        whole, outside = from_the_start(prepared, replace(base, wakeup=wakeup), "compiled")
        part = going_on(prepared, outside)
        assert_same(part, whole)
        assert part.gpu.num_events == whole.gpu.num_events


def test_flags_may_come_one_by_one():
    base = EidolonOptions(rows=256, cols=64, distribution="exponential(4 us)", seed=3, straggler={2: "5 us"})
    prepared = Prepared(base)
    whole, outside = from_the_start(prepared, base, "reference")
    assert len(np.unique(outside.time_ps)) > 3
    assert_same(going_on(prepared, outside), whole)


def test_writes_of_other_peers_are_refused():
    """Routes exist only for the announced peers."""
    prepared = Prepared(small("gemv-allreduce"))
    _, outside = from_the_start(prepared, prepared.options, "compiled")
    for wrong in (replace(outside, peer=np.ones_like(outside.peer)), replace(outside, fabric="modelled")):
        with pytest.raises(InputError, match="other peers, or over another fabric"):
            prepared.waiting().run(wrong)
    with pytest.raises(InputError, match="a record's arrivals do not count from the target's wait"):
        Prepared(small("gemm-alltoall", symmetric=True)).waiting()
