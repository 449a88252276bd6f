"""Do CUDA graphs replace the launches of what they capture, and do they never make a step slower?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import trine
from trine.cluster import load_cluster
from trine.compute.graphs import captured_operators
from trine.compute.launch import software_launches
from trine.errors import InputError
from trine.graph.workload import OPTIMIZER, Workload
from trine.software.profile import GRAPHS, Software, load_software, with_graphs

LAYERS = 2
PROFILE = load_software("megatron-bridge")


def mixture(profile: Software, sequence: int = 256) -> Workload:
    return trine.synthesize("qwen3-30b-a3b", gpu="h100-sxm", layers=LAYERS, sequence=sequence, software=profile)


def launches_of_passes(graphs: Sequence[str]) -> float:
    """Return the kernels that the thread launches in the passes of a step, without those of each expert."""
    profile = with_graphs(PROFILE, graphs)
    workload = mixture(profile)
    launches = software_launches(workload, profile).launches()
    return sum(each.kernels for op, each in zip(workload.operators, launches, strict=True) if op.phase != OPTIMIZER)


@pytest.mark.parametrize(("graphs", "removed"), [
    # router: norm 1, product 1, softmax 1, top-k 9 are one graph forward; backward top-k 5, softmax 1, product 2,
    # its sum 1, norm 2 and the residual's sum 1 are another one: 24 launches become 2
    (["router"], 24 - 2),
    # attention: norm 1, qkv 1, rotary with head norms 2, core 2, out 1 and residual 1; backward out 2, core 4,
    # rotary 3, qkv 2, norm 2 and the sum 1: 22 launches become 2
    (["attention"], 22 - 2),
    (["attention", "router"], 22 + 24 - 2),  # adjacent, so still one graph for each pass
])  # fmt: skip
def test_launches_that_graphs_remove(graphs: list[str], removed: int) -> None:
    assert launches_of_passes([]) - launches_of_passes(graphs) == LAYERS * removed


def test_a_graph_of_the_step_leaves_the_optimizers_launches() -> None:
    assert launches_of_passes(["step"]) == 0
    profile = with_graphs(PROFILE, ["step"])
    workload = mixture(profile)
    costs = software_launches(workload, profile)
    assert (costs.communication_ps, costs.message_ps, costs.tensor_ps) == (0, 0, 0)
    ahead = software_launches(mixture(PROFILE), PROFILE)
    of_optimizer = [number for number, op in enumerate(workload.operators) if op.phase == OPTIMIZER]
    assert [costs.cost_ps[n] for n in of_optimizer] == [ahead.cost_ps[n] for n in of_optimizer]


def test_whole_layers_are_one_graph_for_each_pass() -> None:
    workload = mixture(PROFILE)
    captured = captured_operators(workload, ["layers"])
    assert sum(captured.values()) == 2 * LAYERS
    outside = {op.layer for op in workload.operators if op.phase != OPTIMIZER and op.id not in captured}
    assert outside == {"embedding", "final_norm", "head", "loss"}


def test_more_in_graphs_never_takes_more_time() -> None:
    """Property: a job that launches bound gets faster with each further captured part, and never slower."""
    times = []
    for graphs in ([], ["router"], ["attention", "router"], ["layers"], ["step"]):
        profile = with_graphs(PROFILE, graphs)
        plan = trine.Plan(dp=8, ep=8, batch=4, micro_batch=1, sharding="zero1", inputs="none")
        result = trine.simulate(mixture(profile), plan, cluster=load_cluster("dgx-h100"), software=profile)
        times.append(result.step_time_s)
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.6 * times[0]  # what remains is launches of the optimizer and exchanges


def test_the_passes_of_one_graph_take_the_time_of_their_kernels() -> None:
    """Closed form: on one GPU, two graphs of a step whose launches bound differ by the kernels alone."""
    profile = with_graphs(load_software("megatron-core"), ["step"])
    times = {}
    for layers in (2, 4):
        workload = trine.synthesize("llama-3.2-1b", gpu="h100-sxm", layers=layers, sequence=128, software=profile)
        plan = trine.Plan(batch=4, micro_batch=1, inputs="none")
        result = trine.simulate(workload, plan, software=profile, gpu="h100-sxm")
        kernels_ps = sum(op.gpu_time_ps for op in workload.operators if op.phase != OPTIMIZER)
        once_ps = sum(op.gpu_time_ps for op in workload.operators if op.phase == OPTIMIZER)
        times[layers] = result.step_time_s, (4 * kernels_ps + once_ps) / 1e12
    gains = [times[4][column] - times[2][column] for column in (0, 1)]
    assert gains[0] == pytest.approx(gains[1], rel=1e-6)


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(InputError, match="router"):
        with_graphs(PROFILE, ["ruter"])
    assert set(GRAPHS) == {"attention", "router", "layers", "step"}
