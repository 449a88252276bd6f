"""Measure one GPU for trine: captures, training steps, operators, launches. Needs torch with CUDA, and transformers.

Usage: PYTHONPATH=src python benchmarks/gpu/measure.py OUT [--seconds N] [--sections NAME ...]

Writes OUT/measured.json after each case, and captures of steps below OUT/captures. A failed case is recorded with its
error. Steps run Hugging Face's LlamaForCausalLM and GPT2LMHeadModel, without dropout, on random tokens.
"""

# ruff: noqa: B023 (each closure runs before the next iteration)
from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
BEGIN = time.monotonic()

#: name -> (family, layers, hidden, heads, KV heads, ffn, vocabulary, tied)
MODELS = {
    "gpt-2": ("gpt2", 12, 768, 12, 12, 3072, 50257, True),
    "gpt-2-medium": ("gpt2", 24, 1024, 16, 16, 4096, 50257, True),
    "gpt-2-xl": ("gpt2", 48, 1600, 25, 25, 6400, 50257, True),
    "llama-3.2-1b": ("llama", 16, 2048, 32, 8, 8192, 128256, True),
    "llama-3.2-3b": ("llama", 28, 3072, 24, 8, 8192, 128256, True),
    "llama-2-7b": ("llama", 32, 4096, 32, 32, 11008, 32000, False),
}
#: model, batch, sequence, precision (bf16: everything in bf16; amp: float32 weights, bf16 autocast), optimizer, mode
STEPS = (
    ("llama-3.2-1b", 1, 2048, "bf16", "foreach", "capture"),
    ("llama-3.2-1b", 4, 2048, "bf16", "foreach", "capture"),
    ("gpt-2", 16, 1024, "amp", "fused", "capture"),
    ("gpt-2", 8, 1024, "bf16", "foreach", "capture"),
    ("llama-3.2-3b", 1, 2048, "bf16", "foreach", "capture"),
    ("gpt-2-xl", 4, 1024, "bf16", "foreach", "eager"),
    ("llama-2-7b", 1, 2048, "bf16", "foreach", "eager"),
    ("llama-3.2-3b", 4, 2048, "bf16", "fused", "eager"),
    ("llama-3.2-1b", 4, 2048, "amp", "fused", "eager"),
    ("gpt-2-medium", 8, 1024, "amp", "fused", "eager"),
    ("llama-3.2-1b", 1, 8192, "bf16", "fused", "eager"),
    ("gpt-2", 16, 1024, "amp", "fused", "compile"),
    ("llama-3.2-1b", 4, 2048, "bf16", "fused", "compile"),
    ("llama-2-7b", 1, 2048, "bf16", "fused", "compile"),
)
#: Run in a second lease: recomputation, FlashAttention-2, and GPT-2 with a fused GELU (benchmarks/models.py).
MORE_STEPS = (
    ("llama-3.2-1b", 4, 2048, "bf16", "fused", "eager"),
    ("llama-3.2-1b", 4, 2048, "bf16", "fused", "flash"),
    ("llama-3.2-1b", 4, 2048, "bf16", "fused", "recompute"),
    ("llama-3.2-3b", 4, 2048, "bf16", "fused", "recompute"),
    ("llama-2-7b", 1, 2048, "bf16", "fused", "recompute"),
    ("nn-gpt-2", 16, 1024, "bf16", "fused", "capture"),
    ("nn-gpt-2", 16, 1024, "bf16", "foreach", "capture"),
    ("nn-gpt-2", 16, 1024, "amp", "fused", "eager"),
    ("nn-gpt-2-padded", 16, 1024, "bf16", "fused", "eager"),
    ("nn-gpt-2-medium", 8, 1024, "bf16", "fused", "eager"),
    ("nn-gpt-2-medium", 8, 1024, "bf16", "foreach", "eager"),
    ("bert-large", 32, 512, "bf16", "fused", "eager"),
    ("bert-large", 32, 512, "amp", "fused", "eager"),
    ("flan-t5-base", 32, 512, "bf16", "fused", "eager"),
)


class Record:
    """Results, written to disk after each case."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds, self.found = folder, seconds, {"cases": []}
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, section: str, name: str, needed: float, work) -> None:
        if time.monotonic() - BEGIN + needed > self.seconds:
            self.add(section, name, {"error": "no time left"})
            return
        start = time.monotonic()
        try:
            found = work()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:400], "where": traceback.format_exc()[-600:]}
        self.add(section, name, {**found, "took_s": round(time.monotonic() - start, 2)})
        gc.collect()
        torch.cuda.empty_cache()

    def add(self, section: str, name: str, found: dict) -> None:
        self.found["cases"].append({"section": section, "name": name, **found})
        (self.folder / "measured.json").write_text(json.dumps(self.found, indent=1) + "\n")
        text = {k: v for k, v in found.items() if k not in ("where", "rows", "kernels", "steps_ms")}
        print(f"{time.monotonic() - BEGIN:6.1f} s {section} {name}: {str(text)[:300]}", flush=True)


def build(name: str, sequence: int):
    import models
    import transformers

    if name.startswith("nn-gpt-2"):
        layers, heads, width = (24, 16, 1024) if "medium" in name else (12, 12, 768)
        return models.Gpt2(layers, heads, width, sequence, 50304 if "padded" in name else 50257)
    if name == "bert-large":
        config = transformers.BertConfig(
            vocab_size=30522, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="sdpa",
        )  # fmt: skip
        return transformers.BertForMaskedLM(config)
    if name == "flan-t5-base":
        config = transformers.T5Config(
            vocab_size=32128, d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, dropout_rate=0,
            feed_forward_proj="gated-gelu", tie_word_embeddings=False, use_cache=False, decoder_start_token_id=0,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(config)
    family, layers, hidden, heads, kv_heads, ffn, vocabulary, tied = MODELS[name]
    if family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=sequence,
            tie_word_embeddings=tied, use_cache=False, attn_implementation="sdpa",
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config)
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_embd=hidden, n_layer=layers, n_head=heads, n_positions=sequence, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def training_step(name: str, batch: int, sequence: int, precision: str, optimizer: str, mode: str):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        with torch.device("cuda"):
            model = build(name, sequence)
    finally:
        torch.set_default_dtype(torch.float32)
    model.train()
    made = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=optimizer == "fused")
    tokens = torch.randint(0, 30000, (batch, sequence), device="cuda")
    run = torch.compile(model) if mode == "compile" else model
    if mode == "recompute":
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp"):
            if name.startswith("nn-"):
                logits = run(tokens)
                loss = F.cross_entropy(logits.float().flatten(0, -2), tokens.flatten())
            elif mode == "flash":
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    loss = run(input_ids=tokens, labels=tokens).loss
            else:
                loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        made.step()
        made.zero_grad()

    return step


def profile_kernels(step) -> dict:
    """Return the kernel times of one step by kernel name (us), and the number of kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as done:
        step()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in done.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name[:90], []).append(event.device_time)
    top = sorted(times.items(), key=lambda pair: -sum(pair[1]))[:40]
    return {"kernel_count": sum(map(len, times.values())), "busy_ms": sum(map(sum, times.values())) / 1e3,
            "kernels": [(name, len(each), round(sum(each), 1)) for name, each in top]}  # fmt: skip


def measure_step(record: Record, name: str, batch: int, sequence: int, precision: str, optimizer: str, mode: str):
    torch.cuda.reset_peak_memory_stats()
    step = training_step(name, batch, sequence, precision, optimizer, mode)
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    times, host = [], []
    for _ in range(12):
        start = time.perf_counter()
        step()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    start = time.perf_counter()
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    apart = 1e3 * (time.perf_counter() - start) / 8
    found = {
        "step_ms": round(statistics.median(times), 3), "steps_ms": [round(each, 3) for each in times],
        "step_ms_in_a_row": round(apart, 3), "host_ms": round(1e3 * statistics.median(host), 3),
        "allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": (lambda free_total: free_total[1] - free_total[0])(torch.cuda.mem_get_info()),
        **profile_kernels(step),
    }  # fmt: skip
    if mode == "capture":
        from trine.workload.tracing.tracer import capture_function

        label = f"{name}-b{batch}-s{sequence}-{precision}"
        capture_function(step, record.folder / "captures" / label, device="cuda", timed=5, overwrite=True)
    return found


def capture_cnn(record: Record, name: str, batch: int) -> dict:
    import models

    from trine.workload.tracing.tracer import capture_function

    def set_up():
        return models.training_step(name, batch, device="cuda", tiny=False)

    torch.cuda.reset_peak_memory_stats()
    target = record.folder / "captures" / f"{name}-b{batch}"
    workload = capture_function(set_up, target, device="cuda", timed=5, overwrite=True)
    return {"step_ms": workload.unprofiled_step_ps / 1e9, "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved()}  # fmt: skip


def timed_us(work, seconds: float = 0.03, flush: torch.Tensor | None = None) -> float:
    """Return the median GPU time of ``work`` in us between CUDA events, with the host's launches queued ahead."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    count = max(5, min(60, int(seconds / max(1e-6, time.perf_counter() - start))))
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    torch.cuda._sleep(10_000_000)
    for before, behind in marks:
        if flush is not None:
            flush.zero_()
        before.record()
        work()
        behind.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(before.elapsed_time(behind) for before, behind in marks)


def products(dtype: str) -> dict:
    """Time GEMMs (m x k by k x n) of transformer shapes, some split: forward and both gradients."""
    sides = ((2048, 2048), (3072, 8192), (4096, 4096), (4096, 14336), (4096, 6144), (14336, 4096), (8192, 8192),
             (8192, 28672), (2048, 128256), (4096, 32000), (1024, 4096), (512, 4096), (1600, 6400))  # fmt: skip
    flush = torch.empty(64 << 20, dtype=torch.int8, device="cuda")
    rows = []
    for tokens, (inputs, outputs) in itertools.product((512, 1000, 2048, 4096, 8192, 16384), sides):
        if tokens * outputs > 2**30:
            continue
        for kind, (m, n, k) in {
            "forward": (tokens, outputs, inputs), "input": (tokens, inputs, outputs),
            "weight": (outputs, inputs, tokens),
        }.items():  # fmt: skip
            if dtype == "float8":
                if m % 16 or n % 16 or k % 16:
                    continue
                a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)
                b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn).t()
                one = torch.ones((), device="cuda")
                took = timed_us(
                    lambda a=a, b=b: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16), flush=flush
                )
            else:
                kept = {"bfloat16": torch.bfloat16, "float32": torch.float32, "tfloat32": torch.float32}[dtype]
                torch.backends.cuda.matmul.allow_tf32 = dtype == "tfloat32"
                a = torch.randn((k, m) if kind == "weight" else (m, k), device="cuda", dtype=kept)
                b = torch.randn((n, k) if kind == "forward" else (k, n), device="cuda", dtype=kept)
                a, b = a.t() if kind == "weight" else a, b.t() if kind == "forward" else b
                took = timed_us(lambda a=a, b=b: torch.mm(a, b), 0.02, flush)
            rows.append((kind, m, n, k, round(took, 2)))
        if dtype in ("float32", "tfloat32") and tokens >= 4096:
            break
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"columns": ["kind", "m", "n", "k", "us"], "rows": rows}


def unaligned(dtype: torch.dtype) -> dict:
    """Time GEMMs with an output, input or token side off a multiple of 16 bytes by each power of two."""
    flush = torch.empty(64 << 20, dtype=torch.int8, device="cuda")
    rows = []
    sides = [(tokens, inputs, 50256 + more) for tokens, inputs in ((2048, 4096), (8192, 768), (16384, 1600))
             for more in (0, 1, 2, 4, 8, 48)]  # fmt: skip
    sides += [(4096, 4096 + more, 4096) for more in (0, 1, 2, 4, 8)]
    sides += [(4096 + more, 4096, 4096) for more in (0, 1, 2, 4, 8)]
    sides += [(1024 + more, 1024 + more, 1024 + more) for more in (0, 1, 2, 4, 8)]
    for tokens, inputs, outputs in sides:
        for kind, (m, n, k) in {
            "forward": (tokens, outputs, inputs), "input": (tokens, inputs, outputs),
            "weight": (outputs, inputs, tokens),
        }.items():  # fmt: skip
            a = torch.randn((k, m) if kind == "weight" else (m, k), device="cuda", dtype=dtype)
            b = torch.randn((n, k) if kind == "forward" else (k, n), device="cuda", dtype=dtype)
            a, b = a.t() if kind == "weight" else a, b.t() if kind == "forward" else b
            rows.append((kind, m, n, k, round(timed_us(lambda: torch.mm(a, b), 0.02, flush), 2)))
    return {"columns": ["kind", "m", "n", "k", "us"], "rows": rows}


def attention() -> dict:
    """Time causal attention with SDPA's FlashAttention and cuDNN kernels, forward and backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rows = []
    shapes = [(b, h, kv, s, d) for s, b in ((1024, 8), (2048, 1), (2048, 4), (4096, 1), (4096, 4), (8192, 1))
              for h, kv, d in ((32, 32, 128), (32, 8, 64), (12, 12, 64), (8, 1, 128), (16, 16, 256))]  # fmt: skip
    for backend, (b, h, kv, s, d) in itertools.product(
        (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION), shapes
    ):
        q = torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(b, kv, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        try:
            with sdpa_kernel(backend):

                def forward(q=q, k=k, v=v, many=h != kv):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=many)

                made = forward()
                grad = torch.randn_like(made)
                ahead = timed_us(forward)
                back = timed_us(lambda made=made, q=q, k=k, v=v, grad=grad: torch.autograd.grad(
                    made, (q, k, v), grad, retain_graph=True))  # fmt: skip
            rows.append((backend.name, b, h, kv, s, d, round(ahead, 2), round(back, 2)))
        except RuntimeError as error:
            rows.append((backend.name, b, h, kv, s, d, str(error)[:80], None))
    return {"columns": ["backend", "batch", "heads", "kv_heads", "sequence", "head_dim", "forward_us", "backward_us"],
            "rows": rows}  # fmt: skip


def pointwise() -> dict:
    """Time memory-bound operators against the elements of their first operand."""
    rows = []
    for elements in (2**14, 2**17, 2**20, 2**22, 2**24, 2**26, 2**28):
        x, y = (torch.randn(elements, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        wide = min(elements, 4096)
        table, weight = x.view(-1, wide), torch.ones(wide, device="cuda", dtype=torch.bfloat16)
        cases = {
            "copy": lambda: y.copy_(x), "add": lambda: x + y, "gelu": lambda: F.gelu(x), "silu": lambda: F.silu(x),
            "to float32": lambda: x.float(), "layer_norm": lambda: F.layer_norm(table, (wide,), weight, weight),
            "rms_norm": lambda: F.rms_norm(table, (wide,), weight), "softmax": lambda: F.softmax(table, -1),
            "sum": lambda: x.sum(), "zero": lambda: y.zero_(), "transpose": lambda: table.t().contiguous(),
            "dropout": lambda: F.dropout(x, 0.1),
        }  # fmt: skip
        for name, work in cases.items():
            rows.append((name, elements, round(timed_us(work), 2)))
    for count, each in ((100, 2**16), (100, 2**22), (300, 2**20), (20, 2**26)):
        for optimizer, dtype in itertools.product(("foreach", "fused"), (torch.float32, torch.bfloat16)):
            weights = [torch.nn.Parameter(torch.randn(each, device="cuda", dtype=dtype)) for _ in range(count)]
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            made = torch.optim.AdamW(weights, fused=optimizer == "fused", foreach=optimizer == "foreach")
            rows.append((f"AdamW {optimizer} {dtype} x {count}", each, round(timed_us(made.step, 0.1), 2)))
    for tokens, vocabulary, dtype in itertools.product((2048, 8192), (32000, 128256), (torch.bfloat16, torch.float32)):
        logits = torch.randn(tokens, vocabulary, device="cuda", dtype=dtype, requires_grad=True)
        target = torch.randint(0, vocabulary, (tokens,), device="cuda")
        loss = F.cross_entropy(logits, target)
        name = f"cross_entropy {vocabulary} {dtype}"
        rows.append((name, tokens, round(timed_us(lambda: F.cross_entropy(logits, target)), 2)))
        rows.append((f"{name} backward", tokens, round(timed_us(lambda: torch.autograd.grad(
            loss, logits, retain_graph=True)), 2)))  # fmt: skip
        for width in (2048, 4096):
            table = torch.randn(vocabulary, width, device="cuda", dtype=dtype, requires_grad=True)
            looked = F.embedding(target, table)
            grad = torch.randn_like(looked)
            rows.append((f"embedding {vocabulary}x{width} {dtype}", tokens, round(timed_us(
                lambda table=table: F.embedding(target, table)), 2)))  # fmt: skip
            rows.append((f"embedding {vocabulary}x{width} {dtype} backward", tokens, round(timed_us(
                lambda looked=looked, table=table, grad=grad: torch.autograd.grad(
                    looked, table, grad, retain_graph=True)), 2)))  # fmt: skip
    return {"columns": ["operator", "elements", "us"], "rows": rows}


def grouped() -> dict:
    """Time a mixture of experts' GEMMs: torch._grouped_mm in bf16, tokens spread evenly over the experts."""
    rows = []
    for experts, (inputs, outputs), tokens in itertools.product(
        (8, 32, 128), ((4096, 14336), (2048, 768), (7168, 2048)), (1024, 8192, 32768)
    ):
        if experts * inputs * outputs > 2**32:
            continue
        a = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(experts, outputs, inputs, device="cuda", dtype=torch.bfloat16).transpose(-2, -1)
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (tokens // experts)
        took = timed_us(lambda a=a, b=b, ends=ends: torch._grouped_mm(a, b, offs=ends), 0.03)
        rows.append((experts, tokens, inputs, outputs, round(took, 2)))
    return {"columns": ["experts", "tokens", "inputs", "outputs", "us"], "rows": rows}


def launches() -> dict:
    """Measure the host time of small operators: the cost of an eager step if the GPU never falls behind."""
    x = torch.randn(64, 64, device="cuda")
    layer, norm = torch.nn.Linear(64, 64, device="cuda"), torch.nn.LayerNorm(64, device="cuda")
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    cases = {"add": lambda: x + x, "mm": lambda: x @ x, "linear": lambda: layer(x), "layer_norm": lambda: norm(x),
             "view": lambda: x.view(-1), "gelu": lambda: F.gelu(x), "add_ with gradient": lambda: w * x,
             "forward and backward of w * x": lambda: (w * x).sum().backward()}  # fmt: skip
    found = {}
    for name, work in cases.items():
        for _ in range(200):
            work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            work()
        found[f"{name}_us"] = round((time.perf_counter() - start) * 1e3, 3)
        torch.cuda.synchronize()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--sections", nargs="+", default=["cnns", "launches", "steps", "operators", "more"])
    given = parser.parse_args()
    record = Record(given.out, given.seconds)
    record.found["machine"] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "sms": torch.cuda.get_device_properties(0).multi_processor_count,
        "when": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    if "cnns" in given.sections:
        for name, batch in itertools.product(("resnet50", "vgg13", "densenet121"), (128, 256)):
            record.run("cnn", f"{name} {batch}", 15, lambda name=name, batch=batch: capture_cnn(record, name, batch))
        for batch in (4, 8):
            record.run("cnn", f"gpt2 {batch}", 10, lambda batch=batch: capture_cnn(record, "gpt2", batch))
    if "launches" in given.sections:
        record.run("launches", "host", 5, launches)
    if "steps" in given.sections:
        for case in STEPS:
            needed = 60 if case[-1] == "compile" else 25
            record.run("step", " ".join(map(str, case)), needed, lambda case=case: measure_step(record, *case))
    if "unaligned" in given.sections:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            record.run("unaligned", str(dtype), 15, lambda dtype=dtype: unaligned(dtype))
        torch.backends.cuda.matmul.allow_tf32 = True
        record.run("unaligned", "tfloat32", 15, lambda: unaligned(torch.float32))
        torch.backends.cuda.matmul.allow_tf32 = False
    if "more-steps" in given.sections:
        for case in MORE_STEPS:
            record.run("step", " ".join(map(str, case)), 25, lambda case=case: measure_step(record, *case))
    if "operators" in given.sections:
        for dtype in ("bfloat16", "float8"):
            record.run("products", dtype, 15, lambda dtype=dtype: products(dtype))
        record.run("attention", "sdpa", 15, attention)
        record.run("pointwise", "memory", 15, pointwise)
    if "more" in given.sections:
        record.run("grouped", "bfloat16", 15, grouped)
        for dtype in ("tfloat32", "float32"):
            record.run("products", dtype, 15, lambda dtype=dtype: products(dtype))


if __name__ == "__main__":
    main()
