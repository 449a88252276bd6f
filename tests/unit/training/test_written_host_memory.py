"""Do a job's own programs hold as much in host memory as programs that are written to tell it?"""

from __future__ import annotations

import pytest

import trine
from trine.cluster import load_cluster
from trine.parallel.plan import Plan
from trine.training import host_memory
from trine.training.run import simulate

#: Software, and fields of a plan.
JOBS = (
    ("megatron-core", {"dp": 4, "tp": 2, "offload": "optimizer", "sharding": "zero1"}),
    ("megatron-core", {"dp": 4, "pp": 2, "schedule": "1f1b", "offload": "optimizer", "sharding": "zero1"}),
    (
        "megatron-core",
        {"dp": 2, "tp": 2, "pp": 2, "schedule": "interleaved", "virtual_stages": 2, "offload": "optimizer"},
    ),
    ("nanotron-2024", {"dp": 2, "pp": 4, "schedule": "1f1b", "offload": "activations"}),
    ("nanotron-2024", {"dp": 8, "offload": "activations"}),
)  # fmt: skip


@pytest.mark.parametrize(("software", "fields"), JOBS)
@pytest.mark.parametrize("micro_batches", [4, 40])
def test_the_programs_of_a_run_tell_its_host_memory(software, fields, micro_batches, monkeypatch):
    asked, write = [], host_memory._bytes_per_stage
    monkeypatch.setattr(host_memory, "_bytes_per_stage", lambda setup: asked.append(setup) or write(setup))
    plan = Plan(**fields, batch=micro_batches, micro_batch=1)
    job = {"cluster": load_cluster("dgx-h100"), "software": software}
    workload = trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=8)
    told = simulate(workload, plan, **job).host_memory
    is_told = not asked
    monkeypatch.setattr("trine.training.run.written_host_bytes", lambda *_: None)
    written = simulate(workload, plan, **job).host_memory
    assert told == written
    assert written.bytes_per_host > 0
    assert is_told or fields["offload"] == "activations"  # these may need more micro-batches than a folded run has
