"""Are programs with copied passes and layers equal to programs that are written operator by operator?"""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from long_tests import long

import trine
from trine.cluster import load_cluster
from trine.errors import TrineError
from trine.graph.program import Collective, Job
from trine.parallel import build, contention
from trine.parallel.contention import under_pressure
from trine.parallel.extension import Extension
from trine.parallel.layer_copies import LayerCopies
from trine.parallel.pass_copies import PassCopies
from trine.parallel.program_parts import PassCopy, parts_of
from trine.parallel.stragglers import Jitter, Stragglers
from trine.parallel.template import ProgramTemplate, make_template
from trine.parallel.tensor import SplitCollectives

LLAMA, MOE = "model:llama-3.2-1b,layers=4,sequence=256", "model:mixtral-8x7b,layers=4,sequence=256"
PIPELINE = {"dp": 2, "tp": 2, "pp": 2, "batch": 6, "micro_batch": 1, "schedule": "1f1b"}
REPLICAS = {"dp": 4, "tp": 2, "batch": 6, "micro_batch": 1}
#: Name -> layout, software profile, and whether passes are copied.
CASES: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    "1f1b": (LLAMA, PIPELINE, "none", True),
    "launches, waits in each pass": (LLAMA, PIPELINE, "megatron-core", True),
    "launches, waits in each step": (LLAMA, REPLICAS, "pytorch-eager", True),
    "costs of each micro-batch": (LLAMA, REPLICAS, "torchtitan", True),
    "clocks of collectives' blocks": (LLAMA, PIPELINE, "megatron-core-0.6", False),
    "zero1, prefetch, two steps": (LLAMA, {**REPLICAS, "sharding": "zero1", "prefetch": 1, "steps": 2}, "none", True),
    "zero2": (LLAMA, {**REPLICAS, "sharding": "zero2"}, "none", True),
    "fsdp": (LLAMA, {**REPLICAS, "sharding": "fsdp"}, "none", True),
    "fsdp, kept whole": (LLAMA, {**REPLICAS, "sharding": "fsdp", "reshard": False}, "none", False),
    "interleaved": (LLAMA, {**PIPELINE, "schedule": "interleaved", "virtual_stages": 2}, "megatron-core", True),
    "zb-h1": (LLAMA, {**PIPELINE, "schedule": "zb-h1"}, "none", True),
    "dualpipe": (LLAMA, {**PIPELINE, "schedule": "dualpipe"}, "none", False),
    "gpipe, recomputed": (LLAMA, {**PIPELINE, "schedule": "gpipe", "recompute": "full"}, "none", True),
    "sequence parallelism in pieces": (LLAMA, {**PIPELINE, "sequence_parallel": True, "tp_overlap": 2}, "none", True),
    "userbuffers": (LLAMA, {**PIPELINE, "sequence_parallel": True, "userbuffers": True}, "none", True),
    "context": (LLAMA, {"cp": 2, "batch": 6, "micro_batch": 1}, "none", True),
    "experts": (MOE, {**REPLICAS, "ep": 4}, "none", True),
    "each micro-batch reduced late": (LLAMA, {**REPLICAS, "sync": "each", "dp_overlap": False}, "none", True),
    "optimizer on the host": (LLAMA, {**PIPELINE, "sharding": "zero1", "offload": "optimizer"}, "megatron-core", True),
    "activations on the host": (LLAMA, {**PIPELINE, "offload": "activations"}, "none", False),
}
#: Cases with an extension that does not tell its state between layers.
WITHOUT_LAYERS = {
    "clocks of collectives' blocks", "fsdp", "fsdp, kept whole", "userbuffers", "experts",
    "sequence parallelism in pieces", "optimizer on the host", "activations on the host",
}  # fmt: skip


class Counted:
    """Programs of the latest build, and how many of their passes and layers were copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed, self.copied, self.layers, self.programs = True, 0, 0, ()
        copy, copy_layer, of_stages = PassCopies.copy, LayerCopies.copy, build._of_stages

        def counted(copies: PassCopies, *args: Any) -> bool:
            is_copy = self.allowed and copy(copies, *args)
            self.copied += is_copy
            return is_copy

        def counted_layer(copies: LayerCopies, *args: Any) -> bool:
            is_copy = self.allowed and copy_layer(copies, *args)
            self.layers += is_copy
            return is_copy

        def noted(context: Any, has_host: bool) -> Any:
            job = of_stages(context, has_host)
            evidence = {number: dict(row) for number, row in context.evidence_ps.items()}
            self.programs = (job.programs, job.program_of, job.buckets, evidence)
            return job

        monkeypatch.setattr(PassCopies, "copy", counted)
        monkeypatch.setattr(LayerCopies, "copy", counted_layer)
        monkeypatch.setattr(build, "_of_stages", noted)

    def compare(self, workload: Any, layout: dict[str, Any], software: str, other_gpu: str = "", **options: Any) -> int:
        """Build a job with and without copies, compare all programs, and return the number of copied passes.

        other_gpu: the model of the GPUs of the second half of the ranks.
        """
        plan, both = trine.Plan(**layout), []
        cluster = load_cluster("dgx-h100", nodes=-(-plan.num_ranks // 8))
        if other_gpu:
            others = set(cluster.gpus[plan.num_ranks // 2 :])
            devices = [replace(d, gpu=other_gpu) if i in others else d for i, d in enumerate(cluster.devices)]
            cluster = replace(cluster, devices=tuple(devices))
        for self.allowed in (True, False):
            self.copied = self.copied if both else 0
            self.programs = ()
            trine.simulate(workload, plan, cluster=cluster, software=software, fold="ranks", **options)
            assert self.programs
            both.append(self.programs)
        assert both[0] == both[1]
        return self.copied


@pytest.mark.parametrize("name", CASES)
def test_copied_passes_are_equal_to_written_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, layout, software, is_copied = CASES[name]
    counted = Counted(monkeypatch)
    assert (counted.compare(trine.load(f"{workload},gpu=h100-sxm"), layout, software) > 0) == is_copied
    assert (counted.layers > 0) == (name not in WITHOUT_LAYERS)


TENSOR = {"dp": 2, "tp": 2, "batch": 4, "micro_batch": 1}
JITTER = Stragglers(jitter=Jitter(distribution="normal", spread=0.1))
#: Name -> model, layout, software profile, and options. Their layers differ from those of a dense decoder, or their
#: programs from those of equal GPUs.
OTHERS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "encoder and decoder": ("t5-base,sequence=128", TENSOR, "pytorch-eager", {}),
    "windows in half of the layers": ("gemma-2-9b,layers=6,sequence=256", TENSOR, "none", {}),
    "two kinds of mixers": ("qwen3-next-80b-a3b,layers=8,sequence=256", TENSOR, "none", {}),
    "first layers of recomputed chunks": (
        "gemma-2-9b,layers=6,sequence=64",
        {"pp": 2, "cp": 2, "cp_style": "all-gather", "batch": 4, "micro_batch": 2, "recompute": "full",
         "schedule": "interleaved", "virtual_stages": 2},
        "none", {"stragglers": JITTER},
    ),
    "casts": ("llama-3.2-1b,layers=4,sequence=256,precision=fp8", TENSOR, "megatron-core", {}),
    "adapters": ("llama-3.2-1b,layers=4,sequence=256,trainable=lora:16", TENSOR, "none", {}),
    "layers behind the head": ("deepseek-v3,layers=4,mtp=1,sequence=256", TENSOR, "none", {}),
    "launches of jitter": ("llama-3.2-1b,layers=4,sequence=64", TENSOR, "pytorch-eager", {"stragglers": JITTER}),
    "two GPU models": ("llama-3.2-1b,layers=4,sequence=256", TENSOR, "torchtitan", {"other_gpu": "a100-80gb"}),
    "two sizes of micro-batches": (
        "llama-3.2-1b,layers=4,sequence=256", {**TENSOR, "batch": 5, "micro_batch": 2, "sequence_parallel": True},
        "none", {"other_gpu": "a100-80gb"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_copied_layers_of_other_models_and_machines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, layout, software, options = OTHERS[name]
    counted = Counted(monkeypatch)
    counted.compare(trine.load(f"model:{model},gpu=h100-sxm"), layout, software, **options)
    assert counted.layers


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [30, pytest.param(500, marks=long)])
def test_random_layouts_are_equal(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, rng, found, copied = Counted(monkeypatch), Random(wanted), 0, 0
    workloads = [trine.load(f"{name},gpu=h100-sxm") for name in (LLAMA, MOE)]
    profiles = ("none", "megatron-core", "torchtitan", "pytorch-eager", "nanotron-2024", "megatron-deepspeed")
    while found < wanted:
        size, dp, pp = rng.choice((1, 2)), rng.choice((1, 2, 4)), rng.choice((1, 2, 4))
        layout = {
            "dp": dp, "pp": pp, "tp": rng.choice((1, 2)), "cp": rng.choice((1, 1, 2)), "micro_batch": size,
            "batch": size * rng.choice((3, 6, 8)), "sequence_parallel": rng.random() < 0.4, "steps": rng.choice((1, 2)),
            "recompute": rng.choice(("none", "full", "selective")), "offload": rng.choice(("none", "optimizer")),
        }  # fmt: skip
        if dp > 1:
            layout["sharding"] = rng.choice(("none", "zero1", "zero2", "zero3", "fsdp"))
            layout["sync"] = rng.choice(("last", "each"))
        if pp > 1:
            layout["schedule"] = rng.choice(("1f1b", "gpipe", "zb-h1", "dualpipe"))
        try:
            copied += counted.compare(rng.choice(workloads), layout, rng.choice(profiles))
        except TrineError:
            continue
        found += 1
    assert copied > wanted
    assert counted.layers > wanted


def test_tables_of_copied_passes_are_equal_to_those_of_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressure and tables of a program are equal whether copies of passes repeat arrays or are read step by step."""
    jobs: list[tuple[Job, Job]] = []
    cluster = load_cluster("dgx-h100", nodes=1)

    def both_ways(job: Job, *kernels: Any, of_rank: Any = None) -> Job:
        programs = []
        for program in job.programs:
            programs.append(replace(program, steps=tuple(program.steps), memory=tuple(program.memory)))
        pressed = under_pressure(job, *kernels, of_rank=of_rank)
        jobs.append((pressed, under_pressure(replace(job, programs=tuple(programs)), *kernels, of_rank=of_rank)))
        return pressed

    monkeypatch.setattr(contention, "under_pressure", both_ways)
    for layout, software in ((PIPELINE, "megatron-core"), ({**PIPELINE, "sharding": "zero2"}, "none")):
        trine.simulate(LLAMA + ",gpu=h100-sxm", trine.Plan(**layout), cluster=cluster, software=software)
    assert any(step.pressure_ppm for job, _ in jobs for step in job.programs[0].steps if isinstance(step, Collective))
    for job, plain in jobs:
        assert any(isinstance(part, PassCopy) for program in job.programs for part in parts_of(program.steps))
        assert job == plain
        streams: tuple[dict[str, int], dict[str, int]] = ({}, {})
        for program, other in zip(job.programs, plain.programs, strict=True):
            assert isinstance(other.steps, tuple)
            assert _contents(make_template(program, streams[0])) == _contents(make_template(other, streams[1]))
        assert streams[0] == streams[1]


def _contents(template: ProgramTemplate) -> list[Any]:
    """Return the fields of a template in comparable form, without ``after`` of collectives."""
    contents: list[Any] = []
    for field in fields(template):
        value = getattr(template, field.name)
        if field.name == "edges":
            value = [column.tolist() for column in value]
        elif field.name == "collectives":
            value = [(key, task, step._replace(after=())) for key, (task, step) in value.items()]
        contents.append((value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value)
    return contents


def test_lazy_steps_and_changes_have_the_hash_of_equal_tuples() -> None:
    jobs: list[Job] = []
    trine.simulate(
        LLAMA + ",gpu=h100-sxm", trine.Plan(**PIPELINE), cluster="dgx-h100", software="none", on_job=jobs.append
    )
    for lazy in (jobs[0].programs[0].steps, jobs[0].programs[0].memory):
        assert not isinstance(lazy, tuple)
        assert lazy == tuple(lazy)
        assert hash(lazy) == hash(tuple(lazy))


def test_an_extension_that_cannot_set_its_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SplitCollectives, "set_layer_state", Extension.set_layer_state)
    with pytest.raises(NotImplementedError, match="TensorCollectives has a state between layers"):
        trine.simulate(LLAMA + ",gpu=h100-sxm", trine.Plan(**PIPELINE), cluster="dgx-h100", software="none")
