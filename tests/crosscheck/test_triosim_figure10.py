"""Do more micro-batches make small models slower if one Python process launches for all stages (TrioSim, figure 10)?

The paper measured ``torch.distributed.pipeline.sync.Pipe`` on A100: one process, a thread for each stage. The command
is the one of docs/background/software.md, whose figures it also checks.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.compute.launch import launch_costs, software_launches
from trine.software import load_software
from trine.workload import load

PAGE = Path(__file__).parents[2] / "docs" / "background" / "software.md"
CAPTURE = Path(__file__).parents[1] / "data" / "h100" / "llama-3.2-1b-b1-s2048-bf16"
PROFILE, STAGES = "torch-pipeline-2024", 4


def step_ms(software: str, micro_batches: int, model: str = "densenet169") -> float:
    """Return the step's time on four A100 at batch 128, by the page's command."""
    words = f"train model:{model} --gpu a100-80gb --cluster a100-nvlink-4 --pp {STAGES} --batch 128 --inputs none"
    words += f" --micro-batch {128 // micro_batches} --schedule gpipe --software {software} --json -"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    return 1e3 * float(json.loads(done.stdout)["step_time_s"])


@pytest.mark.slow
def test_densenet_takes_longer_with_four_micro_batches_than_with_two() -> None:
    """The paper: roughly 1.4 times as long; with a process for each stage it is shorter."""
    rows = {software: [step_ms(software, n) for n in (2, 4)] for software in (PROFILE, "pytorch-eager")}
    page = PAGE.read_text()
    for name, (two, four) in rows.items():
        print(f"{name}: {two:.1f} ms, {four:.1f} ms, ratio {four / two:.2f}")
        assert f"| {two:.1f} ms | {four:.1f} ms | {four / two:.2f} |" in page
    two, four = rows[PROFILE]
    assert 1.2 < four / two < 1.6
    two, four = rows["pytorch-eager"]
    assert four < two


def test_launches_of_one_process_take_as_many_times_as_stages() -> None:
    workload, profile = trine.synthesize("resnet18", software=PROFILE), load_software(PROFILE)
    alone, four = (software_launches(workload, profile, stages=stages) for stages in (1, STAGES))
    assert four.cost_ps == tuple(STAGES * cost for cost in alone.cost_ps)
    assert four.message_ps == STAGES * alone.message_ps
    assert "one process launches for 4 stages" in four.notes[0]
    eager = load_software("pytorch-eager")
    assert software_launches(workload, eager, stages=STAGES) == software_launches(workload, eager)


def test_the_launch_cost_is_the_captures() -> None:
    """A step without the profiler that waits for the CPU: Llama 3.2 1B at batch 1 on our H100."""
    step = load(CAPTURE)
    kernels = sum(len(op.kernel_times_ps) for op in step.operators)
    each_us = sum(launch_costs(step).cost_ps) / kernels / 1e6
    print(f"{each_us:.1f} us for each of {kernels} kernels")
    assert load_software(PROFILE).launch.cpu_us_per_kernel == pytest.approx(each_us, rel=0.03)


def test_another_schedule_or_form_of_parallelism_is_refused() -> None:
    cluster, workload = trine.load_cluster("a100-nvlink-4"), trine.synthesize("resnet18", gpu="a100-80gb")
    plan = trine.Plan(pp=2, batch=8, micro_batch=4, schedule="1f1b", inputs="none")
    with pytest.raises(trine.PlanError, match="all micro-batches run forward before the first backward pass"):
        trine.simulate(workload, plan, cluster=cluster, software=PROFILE, compare=False)
    with pytest.raises(trine.PlanError, match="divides no layer"):
        trine.simulate(
            workload, replace(plan, schedule="gpipe", tp=2), cluster=cluster, software=PROFILE, compare=False
        )
