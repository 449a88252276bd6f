"""Do workloads captured from real PyTorch steps on the CPU match the model?"""

import gzip
import json
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from trine.errors import InputError, MissingExtraError  # noqa: E402
from trine.workload import load  # noqa: E402
from trine.workload.tracing.files import CAPTURE_FILES  # noqa: E402
from trine.workload.tracing.tracer import capture, capture_function  # noqa: E402

pytestmark = pytest.mark.torch


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10),
    )  # fmt: skip


class Transformer(nn.Module):
    """One pre-norm encoder layer between an embedding and a classifier for every token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, x):
        return self.head(self.layer(self.embedding(x)))


def training_step(kind, batch):
    torch.manual_seed(0)
    model = cnn() if kind == "cnn" else Transformer()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(batch, 3, 14, 14) if kind == "cnn" else torch.randint(0, 50, (batch, 9))
    y = torch.randint(0, 10, (batch,)) if kind == "cnn" else torch.randint(0, 50, (batch * 9,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), y).backward()
        optimizer.step()

    return model, step


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Run PyTorch on one thread: small operators are slower on several, most of all beside other processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def captured(tmp_path_factory, one_thread):
    """Return (kind, batch) -> (model, workload, directory), each captured once."""
    folder = tmp_path_factory.mktemp("captures")
    found = {}
    for kind in ("cnn", "transformer"):
        for batch in (5, 7):  # no dimension of either model is a multiple of both
            model, step = training_step(kind, batch)
            path = folder / f"{kind}-b{batch}"
            found[kind, batch] = (model, capture_function(lambda step=step: step, path, warmup=1, timed=3), path)
    return found


KINDS = pytest.mark.parametrize("kind", ["cnn", "transformer"])


@KINDS
def test_the_pair_and_its_meta_are_there_and_load(captured, kind):
    _, workload, path = captured[kind, 5]
    assert sorted(entry.name for entry in path.iterdir()) == sorted(CAPTURE_FILES)
    assert load(path) == workload
    assert workload.name == f"{kind}-b5"
    assert workload.gpu is None
    assert workload.metadata["versions.torch"] == torch.__version__
    kineto = json.loads(gzip.decompress((path / "kineto.json.gz").read_bytes()))
    assert kineto["host_name"] == kineto["traceName"] == ""


@KINDS
def test_all_three_phases_are_there_in_order(captured, kind):
    _, workload, _ = captured[kind, 5]
    phases = [op.phase for op in workload.operators]
    assert list(dict.fromkeys(phases)) == ["forward", "backward", "optimizer"]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)
    assert all(op.gpu_time_ps > 0 for op in workload.operators)


@KINDS
def test_parameters_are_those_of_the_model(captured, kind):
    model, workload, _ = captured[kind, 5]
    assert sorted(p.size_bytes for p in workload.parameters) == sorted(p.nbytes for p in model.parameters())
    assert all(p.gradient_operator is not None for p in workload.parameters)


@KINDS
def test_the_batch_is_found(captured, kind):
    assert [captured[kind, batch][1].batch for batch in (5, 7)] == [5, 7]


@KINDS
def test_the_step_without_profiler_is_timed(captured, kind):
    _, workload, path = captured[kind, 5]
    steps = json.loads((path / "meta.json").read_text())["unprofiled_steps_ps"]
    assert len(steps) == 3
    assert workload.unprofiled_step_ps == sorted(steps)[1]
    # The profiler slows the step down; its operators cannot take longer than the whole step.
    assert sum(op.gpu_time_ps for op in workload.operators) <= int(workload.metadata["traced_step_ps"])


@KINDS
def test_two_batch_sizes_differ_in_the_batch_alone(captured, kind):
    small, large = captured[kind, 5][1], captured[kind, 7][1]
    assert [(op.name, op.phase) for op in small.operators] == [(op.name, op.phase) for op in large.operators]
    for a, b in zip(small.operators, large.operators, strict=True):
        for side in ("inputs", "outputs"):
            mine = [small.tensors[i] for i in getattr(a, side)]
            theirs = [large.tensors[i] for i in getattr(b, side)]
            assert [t.batch_dims for t in mine] == [t.batch_dims for t in theirs], a.name
            for t, u in zip(mine, theirs, strict=True):
                scaled = tuple(n * 7 // 5 if i in t.batch_dims else n for i, n in enumerate(t.shape))
                assert scaled == u.shape, (a.name, t, u)


def test_an_inference_step_has_no_backward(tmp_path):
    model = cnn().eval()
    x = torch.randn(5, 3, 14, 14)
    with torch.inference_mode():
        workload = capture_function(lambda: model(x), tmp_path / "inference", warmup=1, timed=1)
    assert not workload.is_training


def test_a_function_that_performs_the_step_itself_is_called_once_more(tmp_path):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    calls = []

    def step():
        calls.append(1)
        model(x).sum().backward()

    workload = capture_function(step, tmp_path / "own", warmup=2, timed=3, name="mine")
    assert len(calls) == 1 + 2 + 3 + 2
    assert workload.name == "mine"


def test_the_loop_counts_its_steps(tmp_path):
    step = training_step("cnn", 4)[1]
    with capture(tmp_path / "c", warmup=1, timed=2) as c:
        seen = [step() or number for number in c]
    assert seen == list(range(c.num_steps)) == [0, 1, 2, 3, 4]


class Stop(Exception):
    """Exception raised by a user's step."""


def run_until(path, last, action):
    """Capture a loop of four steps in which ``action`` ends step ``last``; it returns True to break."""
    step = training_step("cnn", 4)[1]
    with capture(path, warmup=1, timed=1) as c:
        for number in c:
            step()
            if number == last and action():
                break


@pytest.mark.parametrize("last", range(4))
def test_a_loop_that_ends_early_is_an_error_and_leaves_nothing(tmp_path, last):
    with pytest.raises(InputError, match=rf"ended in step {last + 1} of 4"):
        run_until(tmp_path / "c", last, lambda: True)
    assert list(tmp_path.iterdir()) == []


def test_a_block_without_its_loop_is_an_error(tmp_path):
    with pytest.raises(InputError, match="ended in step 0 of"), capture(tmp_path / "c"):
        pass


@pytest.mark.parametrize("last", [0, 2, 3])
def test_an_error_of_the_step_passes_and_the_next_capture_works(tmp_path, last):
    def fail():
        raise Stop

    with pytest.raises(Stop):
        run_until(tmp_path / "c", last, fail)
    assert list(tmp_path.iterdir()) == []
    assert capture_function(training_step("cnn", 4)[1], tmp_path / "next", warmup=1, timed=1).batch == 4


def test_a_step_without_operators_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no PyTorch operator"):
        capture_function(lambda: None, tmp_path / "c", warmup=1, timed=1)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_does_other_work_now_and_then_is_refused(tmp_path):
    x = torch.randn(4, 3)
    calls = []

    def step():
        calls.append(x.exp())
        if len(calls) % 2:
            calls[-1].relu()

    with pytest.raises(InputError, match=r"call 2 was '(nothing|aten::relu)', then '(nothing|aten::relu)'"):
        capture_function(step, tmp_path / "c", warmup=1, timed=1)
    assert list(tmp_path.iterdir()) == []


def test_a_second_loop_and_a_loop_outside_are_errors(tmp_path):
    c = capture(tmp_path / "c", warmup=1)
    with pytest.raises(InputError, match="inside its block"):
        next(iter(c))
    with pytest.raises(InputError, match="once"), c:
        assert [next(iter(c)), next(iter(c))] == "never reached"


def test_a_capture_inside_a_profiler_or_an_observer_is_an_error(tmp_path):
    running = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with running, pytest.raises(InputError, match="profiler is running"), capture(tmp_path / "c"):
        pass
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "other.json"))
    try:
        with pytest.raises(InputError, match="another one is registered"):
            capture_function(training_step("cnn", 4)[1], tmp_path / "c", warmup=1, timed=1)
    finally:
        observer.unregister_callback()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "gpu"}, "device"),
        ({"device": "cdua"}, "did you mean 'cuda'"),
        ({"warmup": 0}, "warmup"),
        ({"timed": 0}, "timed"),
        ({"timed": 1.5}, "timed"),
        ({"timed": True}, "timed"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, says):
    with pytest.raises(InputError, match=says):
        capture(tmp_path / "c", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(InputError, match="no CUDA or ROCm GPU"), capture(tmp_path / "c", device="cuda"):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_cuda_capture_synchronises_and_wants_kernels(tmp_path, monkeypatch):
    """The GPU path runs without a GPU: PyTorch reports one, but records only the CPU."""
    waits, asked, profile = [], [], torch.profiler.profile
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    # PyTorch built with CUDA asks the driver here whether a graph is being captured, but no driver exists.
    health_check = "_accelerator_graph_capture_health_check"
    monkeypatch.setattr(torch.optim.Optimizer, health_check, lambda self: None, raising=False)

    def profile_cpu(*, activities, **options):
        asked.extend(activities)
        return profile(activities=activities[:1], **options)

    monkeypatch.setattr(torch.profiler, "profile", profile_cpu)
    with pytest.raises(InputError, match="no GPU kernel ran"):
        capture_function(training_step("cnn", 4)[1], tmp_path / "c", warmup=1, timed=2)
    assert asked == [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    assert len(waits) == 2 * (2 + 1 + 1)  # before and after each of two timed steps, the observed and the profiled one
    assert list(tmp_path.iterdir()) == []


def test_a_taken_path_is_refused_before_any_step(tmp_path):
    (tmp_path / "c").write_text("mine")
    with pytest.raises(InputError, match="not a directory"):
        capture_function(lambda: pytest.fail("the step ran"), tmp_path / "c")
    with pytest.raises(InputError, match="cannot be made"), capture(tmp_path / "c" / "below"):
        pass


def test_overwrite_replaces_a_former_capture(tmp_path):
    for batch in (4, 6):
        step = training_step("cnn", batch)[1]
        workload = capture_function(lambda s=step: s, tmp_path / "c", warmup=1, timed=1, overwrite=batch == 6)
    assert load(tmp_path / "c").batch == workload.batch == 6
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_without_torch_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"trine\[capture\]"), capture(tmp_path / "c"):
        pass
