"""Is a step captured on the meta device the step that PyTorch runs on a CPU, and does a full-size model fit?"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.cluster import load_gpu
from trine.compute import Split, kind_of, work
from trine.compute.kinds import family_of
from trine.compute.models import make_compute
from trine.errors import InputError
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Workload
from trine.software.profile import load_software
from trine.workload import describe, load
from trine.workload.on_gpu import on_gpu

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from trine.workload.tracing.model_step import ModelInputs  # noqa: E402
from trine.workload.tracing.tracer import capture_function  # noqa: E402

pytestmark = pytest.mark.torch
HAS_TRANSFORMERS = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('transformers')",
                                      reason="needs Hugging Face's transformers")  # fmt: skip
VOCAB, HIDDEN, HEADS, LAYERS, FFN, TOKENS, BATCH = 101, 32, 4, 2, 48, 20, 3


class Block(nn.Module):
    """A layer of GPT-2: packed projections, fused causal attention, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

    def forward(self, x):
        batch, tokens, _ = x.shape
        parts = self.qkv(self.norms[0](x)).split(HIDDEN, dim=2)
        q, k, v = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Two layers between an embedding and a head that share their weight; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(TOKENS, HIDDEN)
        self.dropout, self.norm = nn.Dropout(0.1), nn.LayerNorm(HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.dropout(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


def gpt():
    return Gpt(), (torch.randint(0, VOCAB, (BATCH, TOKENS)),)


def llama(attention: str, kv_heads: int, **sizes):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "max_position_embeddings": 64,
    }  # fmt: skip
    sizes = small | sizes
    config = LlamaConfig(num_key_value_heads=kv_heads, **sizes)
    config._attn_implementation = attention
    return LlamaForCausalLM(config)


MODELS = {
    "gpt": (gpt, None),
    "llama, eager attention": (
        lambda: llama("eager", 2),
        ModelInputs(batch=BATCH, sequence=TOKENS, optimizer="foreach"),
    ),
    "llama, fused attention": (lambda: llama("sdpa", HEADS), ModelInputs(batch=BATCH, sequence=TOKENS)),
}
NAMES = [pytest.param(name, marks=HAS_TRANSFORMERS) if "llama" in name else name for name in MODELS]


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Return model, device -> workload, each captured once."""
    folder, made = tmp_path_factory.mktemp("captures"), {}

    def get(name: str, device: str) -> Workload:
        function, inputs = MODELS[name]
        if (name, device) not in made:
            steps = {} if device == "meta" else {"warmup": 1, "timed": 1}
            path = folder / f"{len(made)}"
            made[name, device] = capture_function(function, path, device=device, inputs=inputs, **steps)
        return made[name, device]

    return get


#: transformers reads the position ids' values to find packed sequences, which has no counterpart on meta tensors.
_PACKED_CHECK = {"aten::sub", "aten::diff", "aten::ne", "aten::cumsum", "aten::eq", "aten::all"}


def rows(workload: Workload) -> list[tuple[object, ...]]:
    """Return name, phase, tensors and forward operator of each operator with a kernel.

    Left out: the Python numbers that a CPU's trace lists as tensors, an undefined tensor, the check for packed
    sequences, autograd nodes without a call inside, and copies by ``reshape``, whose tensors a CPU's trace hides.
    Attention has a name for each device. A view's gradient that computes has the kernel's name on meta.
    """
    names = {op.id: op.name for op in workload.operators}

    def tensors(ids: tuple[int, ...]) -> tuple[object, ...]:
        each = [workload.tensors[i] for i in ids]
        return tuple((t.shape, t.dtype, t.size_bytes, t.role, t.batch_dims) for t in each if t.shape and t.size_bytes)

    found = []
    for op in workload.operators:
        numbers = {workload.tensors[i].dtype for i in op.outputs}
        is_check = op.name in _PACKED_CHECK and numbers <= {"int64", "bool"}
        if op.attributes.get("kernels") == 0 or not (op.inputs or op.outputs) or is_check:
            continue
        name = op.name.replace("FlashAttentionForCpu", "Attention").replace("EfficientAttention", "Attention")
        inputs, outputs = tensors(op.inputs), tensors(op.outputs)
        if name.endswith("ViewBackward0"):
            name = "aten::add" if len(inputs) > 1 else "aten::clone"
        if op.phase == BACKWARD and name == "aten::clone":
            continue
        if "AttentionBackward" in name:  # the kernels keep different sums and random states
            inputs = inputs[:5]
        if op.phase == BACKWARD:  # an address that a node uses twice looks like two tensors in a CPU's trace
            inputs = tuple(dict.fromkeys(inputs))
        found.append((name, op.phase, inputs, outputs, None if op.forward_id is None else names[op.forward_id]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_operators_shapes_and_bytes_are_those_of_a_cpu(captured, name):
    meta, cpu = captured(name, "meta"), captured(name, "cpu")
    assert [row for row in rows(meta) if row[1] != OPTIMIZER] == [row for row in rows(cpu) if row[1] != OPTIMIZER]
    assert (meta.batch, meta.recorded_on) == (BATCH, "meta tensors")
    assert all(op.gpu_time_ps == 0 for op in meta.operators)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_gradients_and_states_are_those_of_a_cpu(captured, name):
    meta, cpu = captured(name, "meta"), captured(name, "cpu")
    assert [p.size_bytes for p in meta.parameters] == [p.size_bytes for p in cpu.parameters]
    operators = [{op.id: op.name for op in w.operators} for w in (meta, cpu)]
    ends = [[names[p.gradient_operator] for p in w.parameters] for names, w in zip(operators, (meta, cpu), strict=True)]
    assert ends[0] == ends[1]
    first, second = describe(meta), describe(cpu)
    assert (first.parameter_bytes, first.gradient_bytes) == (second.parameter_bytes, second.gradient_bytes)
    sizes = [{row.role: row.size_bytes for row in each.roles} for each in (first, second)]
    assert [s["optimizer_state"] >= 2 * first.parameter_bytes for s in sizes] == [True, True]
    assert sizes[0]["input"] == sizes[1]["input"]


def optimizer(workload: Workload) -> Counter[str]:
    return Counter(op.name for op in workload.operators if op.phase == OPTIMIZER)


def trained(**options):
    """Return the capture of a linear layer whose step is the user's, with torch.optim.AdamW of these options."""
    with trine.capture() as c:
        model = nn.Linear(8, 4).cuda()
        adam = torch.optim.AdamW(model.parameters(), **options)
        for _ in c:
            adam.zero_grad()
            model(torch.randn(5, 8, device="cuda")).sum().backward()
            adam.step()
    return c.workload


def test_the_optimizer_takes_the_form_that_a_gpu_would():
    """torch.optim: foreach by default on a GPU, fused or a loop on request."""
    lists = optimizer(trained())
    assert lists["aten::_foreach_addcdiv_"] == lists["aten::_foreach_lerp_"] == 1
    assert optimizer(trained(foreach=True)) == lists
    assert optimizer(trained(fused=True)) == {"aten::_foreach_add_": 1, "aten::_fused_adamw_": 1}
    loop = optimizer(trained(foreach=False))
    assert loop["aten::addcdiv_"] == 2
    assert not any("foreach" in name for name in loop)


def test_a_fused_step_updates_weights_and_states_once():
    workload = on_gpu(trained(fused=True), None)
    fused = next(op for op in workload.operators if "fused_adamw" in op.name)
    assert Counter(workload.tensors[i].role for i in fused.inputs if workload.tensors[i].shape) == {
        "weight": 2, "gradient": 2, "optimizer_state": 4,
    }  # fmt: skip
    assert fused.attributes["kernels"] == 1


# A full-size model: Llama 3.1 8B, whose config.json has these sizes.

LAYERS_8B, HIDDEN_8B, FFN_8B, VOCAB_8B, HEADS_8B, KV_8B, HEAD_8B, SEQUENCE_8B = (
    32,
    4096,
    14336,
    128256,
    32,
    8,
    128,
    2048,
)
SCRIPT = """
import json, resource, sys, time, torch, transformers
from trine.workload.tracing.model_step import ModelInputs
from trine.workload.tracing.tracer import capture_function
def model():
    config = transformers.LlamaConfig(**sizes)
    return transformers.LlamaForCausalLM(config).bfloat16()
def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
of_8b = json.loads(sys.argv[1])
sizes = of_8b | {"num_hidden_layers": 1}
capture_function(model, sys.argv[2] + "-one-layer", device="meta", inputs=ModelInputs(sequence=2048))
before_kib = peak_kib()
sizes = of_8b
capture_function(model, sys.argv[2], device="meta", inputs=ModelInputs(sequence=2048))
print(before_kib, peak_kib())
"""


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory):
    """Return the workload of Llama 3.1 8B with eager attention at 2,048 tokens, and the memory it adds in KiB.

    The memory is the growth of the process's peak over a capture of one layer of the same model: the size of PyTorch's
    and transformers' libraries depends on their build (CPU or CUDA).
    """
    path = tmp_path_factory.mktemp("8b") / "llama-8b"
    sizes = {
        "vocab_size": VOCAB_8B, "hidden_size": HIDDEN_8B, "intermediate_size": FFN_8B, "num_hidden_layers": LAYERS_8B,
        "num_attention_heads": HEADS_8B, "num_key_value_heads": KV_8B, "attn_implementation": "eager",
    }  # fmt: skip
    command = [sys.executable, "-c", SCRIPT, json.dumps(sizes), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # another process: its own peak memory
    before_kib, after_kib = map(int, done.stdout.split()[-2:])
    return load(path), after_kib - before_kib


def flops(workload: Workload, phase: str) -> int:
    """Return the FLOPs of the matrix products of a phase."""
    products = ("linear", "matmul", "attention")
    ops = [op for op in workload.operators if op.phase == phase and family_of(kind_of(op)) in products]
    return sum(work(op, workload).flops for op in ops)


@HAS_TRANSFORMERS
def test_llama_8b_has_its_parameters_and_flops(llama_8b):
    """Counts: transformers' class; forward FLOPs: PyTorch's counter, 32,938,104,193,024 (data/models/published.csv)."""
    workload, _ = llama_8b
    q_and_out, k_and_v = 2 * HIDDEN_8B**2, 2 * HIDDEN_8B * KV_8B * HEAD_8B
    of_layer = q_and_out + k_and_v + 3 * HIDDEN_8B * FFN_8B
    embedding, norms = VOCAB_8B * HIDDEN_8B, (2 * LAYERS_8B + 1) * HIDDEN_8B
    parameters = sum(math.prod(workload.tensors[p.weight].shape) for p in workload.parameters)
    assert parameters == 2 * embedding + LAYERS_8B * of_layer + norms == 8_030_261_248
    products = 2 * SEQUENCE_8B * (LAYERS_8B * of_layer + embedding)
    scores = LAYERS_8B * 2 * 2 * SEQUENCE_8B**2 * HEADS_8B * HEAD_8B  # q by k, and their softmax by v
    angles = 2 * SEQUENCE_8B * HEAD_8B // 2  # transformers 5.5 multiplies positions and frequencies as matrices
    assert products + scores == 32_938_104_193_024
    assert flops(workload, FORWARD) - products - scores in (0, angles)
    assert flops(workload, BACKWARD) == 2 * (products + scores)


@HAS_TRANSFORMERS
def test_llama_8b_takes_no_memory(llama_8b):
    """Its weights alone are 16 GB; the record of 5,000 operators takes some ten MB."""
    workload, added_kib = llama_8b
    assert sum(p.size_bytes for p in workload.parameters) == 2 * 8_030_261_248
    assert added_kib * 1024 < 0.2e9


@HAS_TRANSFORMERS
def test_the_modules_name_the_layers(llama_8b):
    workload, _ = llama_8b
    layers = {op.layer for op in workload.operators}
    assert "model.layers.31.mlp.down_proj.linear.224" in layers
    assert "lm_head.linear.225" in layers
    backward = next(op for op in workload.operators if op.name.endswith("MmBackward0"))
    assert backward.layer == "lm_head.linear.225"


@HAS_TRANSFORMERS
def test_a_step_is_close_to_that_of_the_synthesised_model(tmp_path):
    """Two layers of Llama 3 8B in bfloat16 with fused attention on an H100, without the optimizer.

    Products and attention are the same. trine's own model takes its norms and rotations from measured passes, whose
    kernels read strided tensors; the captured ones run at the rate of contiguous tensors.
    """
    sizes = {
        "vocab_size": VOCAB_8B, "hidden_size": HIDDEN_8B, "intermediate_size": FFN_8B, "num_attention_heads": HEADS_8B,
        "num_hidden_layers": 2, "max_position_embeddings": 8192,
    }  # fmt: skip
    made = capture_function(
        lambda: llama("sdpa", KV_8B, **sizes).bfloat16(), tmp_path / "llama", device="meta",
        inputs=ModelInputs(sequence=SEQUENCE_8B),
    )  # fmt: skip
    own = trine.synthesize("llama-3-8b", layers=2, sequence=SEQUENCE_8B, software="pytorch-eager")
    seconds = [passes_ps(workload) / 1e12 for workload in (made, own)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.06)


def passes_ps(workload: Workload) -> int:
    """Return the time of the forward and backward operators on an H100."""
    workload = on_gpu(workload, load_software("pytorch-eager"))
    model = make_compute("tables", workload, target=load_gpu("h100-sxm"))
    split = Split(batch=workload.batch)
    return sum(model.duration(op, split).ps for op in workload.operators if op.phase != OPTIMIZER)


@HAS_TRANSFORMERS
@pytest.mark.parametrize(
    "plan",
    [
        {"dp": 8},
        {"dp": 4, "tp": 2},
        {"dp": 4, "pp": 2},
        {"dp": 8, "sharding": "fsdp"},
        {"dp": 8, "recompute": "full"},
    ],
    ids=str,
)
def test_every_layout_runs(captured, plan):
    for name in ("llama, fused attention", "llama, eager attention"):
        result = trine.simulate(
            captured(name, "meta"), trine.Plan(**plan), cluster="dgx-h100", software="pytorch-eager"
        )
        assert result.step_time_ps > 0


@HAS_TRANSFORMERS
def test_experts_have_the_flops_of_the_routed_tokens(tmp_path):
    """PyTorch's own counter misses grouped products: tokens x experts of a token x three matrices."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    sizes = ModelInputs(batch=BATCH, sequence=TOKENS)
    workload = capture_function(
        lambda: MixtralForCausalLM(config).bfloat16(), tmp_path / "moe", device="meta", inputs=sizes
    )
    grouped = [op for op in workload.operators if "grouped" in op.name and op.phase == FORWARD]
    assert sum(work(op, workload).flops for op in grouped) == LAYERS * 2 * (BATCH * TOKENS) * 2 * 3 * HIDDEN * FFN


# The user's own code.


def test_a_block_without_a_loop_is_recorded_as_a_whole(tmp_path):
    with torch.device("meta"):
        model, x = nn.Linear(3, 2), torch.zeros(4, 3)
    with trine.capture(tmp_path / "one", device="meta", name="mine") as c:
        model(x).sum().backward()
    assert [op.name for op in c.workload.operators if op.attributes.get("kernels") != 0][:2] == [
        "aten::linear",
        "aten::sum",
    ]
    assert c.workload == load(tmp_path / "one")
    assert (c.workload.name, c.workload.batch) == ("mine", 4)


def test_a_later_capture_finds_pytorch_as_it_was():
    before = (torch.autocast.__enter__, torch.optim.AdamW([torch.zeros(2, requires_grad=True)]).defaults)
    trained()
    assert torch.zeros(2).device.type == "cpu"
    assert torch.autocast.__enter__ is before[0]
    with pytest.raises(RuntimeError, match="boom"), trine.capture():
        raise RuntimeError("boom")
    assert torch.zeros(2, device="cpu").sum().item() == 0


def test_code_for_a_gpu_runs_as_it_is():
    """Devices by name, moved data, autocast and a compiled model."""
    with trine.capture() as c:
        model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16)).to("cuda"), backend="eager")
        adam = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in c:
            x = torch.randn(4, 8).cuda()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
            adam.step()
    ops = {op.name.rpartition(": ")[2]: op for op in c.workload.operators if op.attributes.get("kernels") != 0}
    dtypes = {name: c.workload.tensors[op.inputs[0]].dtype for name, op in ops.items() if op.inputs}
    assert dtypes["aten::linear"] == "bfloat16"
    assert dtypes["aten::layer_norm"] == "float32"
    assert dtypes["aten::_fused_adamw_"] == "float32"
    assert ops["aten::linear"].layer.startswith(("0.", "_orig_mod.0."))


def test_autocast_casts_what_a_cpu_casts(tmp_path):
    """The lists of a CPU and of a GPU agree on products."""
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.zeros(5, 8)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().mean()
        loss.backward()

    cpu = capture_function(step, tmp_path / "cpu", device="cpu", warmup=1, timed=1)
    with trine.capture() as c:
        model.to_empty(device="meta")
        x = torch.zeros(5, 8)
        for _ in c:
            step()
    for workload in (cpu, c.workload):
        gradients = [op for op in workload.operators if op.name.endswith("AddmmBackward0")]
        assert [workload.tensors[op.inputs[0]].dtype for op in gradients] == ["bfloat16", "bfloat16"]
        assert [workload.tensors[op.outputs[0]].dtype for op in gradients] == ["bfloat16", "bfloat16"]


def test_checkpointed_layers_run_twice():
    from torch.utils.checkpoint import checkpoint

    def kernels(is_checkpointed: bool) -> int:
        with trine.capture() as c:
            layer, x = nn.Sequential(nn.Linear(8, 16), nn.GELU()), torch.zeros(4, 8, requires_grad=True)
            for _ in c:
                y = checkpoint(layer, x, use_reentrant=False) if is_checkpointed else layer(x)
                y.sum().backward()
        return sum(int(str(op.attributes.get("kernels", 1))) for op in c.workload.operators)

    assert kernels(True) - kernels(False) == 1  # the linear layer; the GELU's output is not needed again


def item_of_a_loss():
    model = nn.Linear(3, 2)

    def step():
        loss = model(torch.zeros(4, 3)).sum()
        if loss.item() > 3:  # this line is named
            loss.backward()

    return step


def picks_by_mask():
    x = torch.zeros(4, 3)
    return lambda: x[x > 0]  # this line is named


def reads_in_numpy():
    x = torch.zeros(4, 3)
    return lambda: (x + 1).numpy()  # this line is named


NEEDS_VALUES = [(item_of_a_loss, "aten::item"), (picks_by_mask, "aten::index"), (reads_in_numpy, "numpy")]


@pytest.mark.parametrize(("function", "operator"), NEEDS_VALUES)
def test_a_step_that_needs_values_is_refused_by_operator_and_line(tmp_path, function, operator):
    source = Path(__file__).read_text().splitlines()
    lines = [
        number for number, line in enumerate(source, 1) if "this line is named" in line and "for number" not in line
    ]
    line = next(n for n in lines if n > function.__code__.co_firstlineno)
    with pytest.raises(
        InputError, match=rf"test_meta_capture\.py:{line}: {operator} needs the values of a tensor"
    ) as error:
        capture_function(function, tmp_path / "c", device="meta")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_data_left_on_the_cpu_are_refused(tmp_path):
    numpy = pytest.importorskip("numpy")
    data = numpy.zeros((4, 3), numpy.float32)
    with pytest.raises(InputError, match="aten::addmm has a tensor on the CPU and one on meta"):
        capture_function(lambda: lambda: nn.Linear(3, 2)(torch.from_numpy(data)), tmp_path / "c", device="meta")


class Silent(nn.Module):
    """A model that returns no loss."""

    def forward(self, x):
        return x + 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: None, "ran no PyTorch operator"),
        (object, "returns a object: it must return a step"),
        (Silent, "Silent is no transformers model with token ids and a loss"),
        (lambda: (nn.Linear(2, 2), torch.zeros(1, 2)), "Linear returns no loss"),
        (lambda: (nn.Linear(2, 2), object()), "a model and a object: the model's inputs must be a dict or a tuple"),
    ],
)
def test_a_function_that_returns_no_step_is_refused(tmp_path, function, says):
    with pytest.raises(InputError, match=says):
        capture_function(function, tmp_path / "c", device="meta")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "meta", "warmup": 2}, "warmup: has no effect with device meta"),
        ({"device": "meta", "timed": 2}, "timed: has no effect with device meta"),
        ({"device": "mtea"}, "did you mean 'meta'"),
        ({"device": "cpu"}, "path: a capture on 'cpu' writes files"),
    ],
)
def test_options_that_fit_no_capture_are_refused(tmp_path, options, says):
    path = None if options["device"] == "cpu" else tmp_path / "c"
    with pytest.raises(InputError, match=says):
        trine.capture(path, **options)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [({"batch": 0}, "batch"), ({"sequence": 1}, "sequence"), ({"optimizer": "fusd"}, "did you mean 'fused'")],
)
def test_sizes_out_of_range_are_refused(sizes, says):
    with pytest.raises(InputError, match=says):
        ModelInputs(**sizes)


def test_sizes_without_a_model_are_refused(tmp_path):
    with pytest.raises(InputError, match="returns a step, not a model"):
        capture_function(item_of_a_loss, tmp_path / "c", device="meta", inputs=ModelInputs())
    with pytest.raises(InputError, match="returns the model's inputs"):
        capture_function(gpt, tmp_path / "c", device="meta", inputs=ModelInputs(batch=2))


def test_a_second_capture_needs_overwrite(tmp_path):
    capture_function(gpt, tmp_path / "c", device="meta")
    with pytest.raises(InputError, match="overwrite"):
        capture_function(gpt, tmp_path / "c", device="meta")
    capture_function(gpt, tmp_path / "c", device="meta", overwrite=True)
    assert [file.name for file in (tmp_path / "c").iterdir()] == ["step.trine.json.gz"]


def test_the_same_step_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        capture_function(gpt, tmp_path / name, device="meta", name="gpt")
    first, second = (tmp_path / name / "step.trine.json.gz" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


USER_FILE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def model():
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                        num_attention_heads=2))
"""


@HAS_TRANSFORMERS
@pytest.mark.parametrize(
    ("option", "value", "key"),
    [("--batch", "3", "batch"), ("--sequence", "24", "roles"), ("--optimizer", "foreach", "operators")],
)
def test_each_option_of_the_command_matters(tmp_path, option, value, key):
    (tmp_path / "user.py").write_text(USER_FILE)
    answers = []
    for number, extra in enumerate(([], [option, value])):
        out, trace = tmp_path / f"{number}.json", tmp_path / f"trace{number}"
        command = [
            "trace",
            "capture",
            f"{tmp_path}/user.py:model",
            "--device",
            "meta",
            *extra,
            "-o",
            trace,
            "--json",
            out,
        ]
        done = CliRunner().invoke(app, [str(each) for each in command])
        assert done.exit_code == 0, done.stderr
        answers.append(json.loads(out.read_text()))
    assert answers[0][key] != answers[1][key]


def test_numbers_in_a_call_become_attributes():
    with trine.capture() as c:
        x = torch.zeros(2, 3, 8, 8)
        for _ in c:
            F.conv2d(x, torch.zeros(4, 3, 3, 3), stride=2, padding=1)
    (op,) = [op for op in c.workload.operators if op.name == "aten::conv2d"]
    assert (op.attributes["stride"], op.attributes["padding"], op.attributes["groups"]) == ((2, 2), (1, 1), 1)


def test_operators_of_several_kernels_move_the_bytes_of_all():
    """The gradient of x ** 2, ``grad * (2 * x ** 1)``, has three kernels, which move 2, 2 and 3 tensors; it lists 5."""
    with trine.capture() as c:
        x = torch.zeros(64, 32, requires_grad=True)
        for _ in c:
            y = x.pow(2)
            (y + y.view(64, 32).exp()).sum().backward()
    ops = {op.name.rpartition(": ")[2]: op for op in c.workload.operators if op.phase == BACKWARD}
    assert ops["PowBackward0"].attributes["kernels"] == 3
    assert ops["PowBackward0"].attributes["passes"] == pytest.approx(7 / 5, abs=1e-3)
    assert work(ops["PowBackward0"], c.workload).bytes == pytest.approx(7 * 4 * 64 * 32, rel=1e-3)
    added = ops["aten::add"]  # the gradients of both uses of y: two tensors read, one written
    assert work(added, c.workload).bytes == 3 * 4 * 64 * 32
