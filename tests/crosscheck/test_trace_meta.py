"""Is a step recorded on meta tensors read as the same step recorded on a CPU is? They differ in nothing but memory."""

from __future__ import annotations

import pytest

import trine
from trine.workload import compare, describe, load

torch = pytest.importorskip("torch")


class Attention(torch.nn.Module):
    """One layer of a transformer, with views, a residual sum and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(32), torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32, bias=False)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, dim=-1))
        weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


def cnn():
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    return torch.nn.Sequential(*layers, torch.nn.Linear(8 * 15 * 15, 10)), (6, 3, 32, 32), (6,)


def transformer():
    return torch.nn.Sequential(Attention(), Attention(), torch.nn.Linear(32, 10)), (6, 16, 32), (6, 16)


def recorded(make, device, folder):
    model, shape, targets = make()
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x, y = torch.zeros(shape, device=device), torch.zeros(targets, dtype=torch.long, device=device)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()

    step()
    folder.mkdir()
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(folder / "et.json"))
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True, execution_trace_observer=observer) as done:
        step()
    done.export_chrome_trace(str(folder / "kineto.json"))
    return load(folder)


@pytest.mark.parametrize("make", [cnn, transformer])
def test_meta_tensors_are_read_as_a_cpus(make, tmp_path):
    cpu, meta = recorded(make, "cpu", tmp_path / "cpu"), recorded(make, "meta", tmp_path / "meta")
    assert compare(cpu, meta) == ()
    first, second = describe(cpu), describe(meta)
    assert (first.parameter_bytes, first.gradient_bytes) == (second.parameter_bytes, second.gradient_bytes)
    assert first.roles == second.roles
    with pytest.raises(trine.InputError, match="on meta tensors"):
        trine.simulate(meta, trine.Plan(dp=2), cluster="dgx-h100", compute="linear")
    steps = [trine.simulate(w, gpu="h100-sxm", compute="roofline") for w in (cpu, meta)]
    assert steps[0].step_time_ps == steps[1].step_time_ps
