"""Measure power and clocks of one GPU under steady load at its default limit. Needs torch with CUDA, pynvml.

Usage: PYTHONPATH=src python benchmarks/gpu/power.py OUT [--seconds N] [--sections NAME ...] [--hold S] [--dry]

Each case runs for 0.7 s, then for ``--hold`` seconds, while a thread reads NVML every 10 ms. Mean power is the
difference of the energy counter. Nothing here changes a setting of the GPU. The ``grid`` section occupies a number of
SMs with one kernel: below the limit the clock stays at its maximum, so power extrapolates to all SMs at that clock, and
the clock at the limit gives a point of the curve of power against clock.

Writes OUT/power.csv, OUT/ramp.csv (samples of some cases) and OUT/captures. ``--dry`` runs tiny cases on a CPU.
"""

# ruff: noqa: B023 (each closure runs before the next iteration)
from __future__ import annotations

import argparse
import csv
import gc
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
BEGIN = time.monotonic()
SECTIONS = ("idle", "products", "data", "grid", "memory", "attention", "other", "steps", "captures")
COLUMNS = (
    "gpu", "section", "case", "data", "call_us", "tflops", "gb_per_s", "energy_w", "mean_w", "max_w", "sm_mhz",
    "sm_min_mhz", "sm_max_mhz", "mem_mhz", "capped", "thermal", "temperature_c", "window_s", "samples",
)  # fmt: skip
POWER_CAP, THERMAL = 0x4 | 0x80, 0x20 | 0x40


class NoGpu:
    """Readings of a machine without NVML, for --dry."""

    name, limits = "none", "none"

    def read(self):
        return 0.0, 0, 0, 0, 0

    def energy_j(self) -> float:
        return 0.0


class Nvml:
    """Readings of GPU 0."""

    def __init__(self) -> None:
        import pynvml

        self.nvml = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.name = str(pynvml.nvmlDeviceGetName(self.handle))
        low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self.handle)
        now = pynvml.nvmlDeviceGetPowerManagementLimit(self.handle)
        clocks = [pynvml.nvmlDeviceGetMaxClockInfo(self.handle, kind) for kind in (1, 2)]
        self.limits = f"limit {now / 1e3} W ({low / 1e3} to {high / 1e3}), max clocks {clocks} MHz"

    def read(self):
        nvml = self.nvml
        value = nvml.nvmlDeviceGetFieldValues(self.handle, [186])[0]  # NVML_FI_DEV_POWER_INSTANT
        power = value.value.uiVal / 1e3 if value.nvmlReturn == 0 else nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
        return (
            power, nvml.nvmlDeviceGetClockInfo(self.handle, 1), nvml.nvmlDeviceGetClockInfo(self.handle, 2),
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle),
            nvml.nvmlDeviceGetTemperature(self.handle, 0),
        )  # fmt: skip

    def energy_j(self) -> float:
        return self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1e3


class Sampler(threading.Thread):
    """Read the GPU every 10 ms until stopped: rows of (seconds, W, SM MHz, memory MHz, reasons, degrees C)."""

    def __init__(self, gpu) -> None:
        super().__init__(daemon=True)
        self.gpu, self.rows, self.going = gpu, [], True

    def run(self) -> None:
        while self.going:
            start = time.monotonic()
            self.rows.append((start, *self.gpu.read()))
            time.sleep(max(0.0, 0.01 - (time.monotonic() - start)))


class Bench:
    """Runs cases and writes a row for each."""

    def __init__(self, options, gpu) -> None:
        self.options, self.gpu, self.device = options, gpu, "cpu" if options.dry else "cuda"
        options.out.mkdir(parents=True, exist_ok=True)
        self.file = (options.out / "power.csv").open("w", newline="")
        self.table = csv.writer(self.file)
        self.table.writerow(COLUMNS)
        self.ramps = csv.writer((options.out / "ramp.csv").open("w", newline=""))
        self.ramps.writerow(("case", "data", "seconds", "power_w", "sm_mhz", "mem_mhz", "reasons"))

    def sync(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def case(self, section, name, data, set_up, flops=0.0, moved=0.0, ramp=False, needed=4.0) -> None:
        """Run ``set_up()``, which returns a callable, and record its steady power, clocks and time."""
        if section not in self.options.sections:
            return
        if time.monotonic() - BEGIN + needed > self.options.seconds:
            print(f"no time left for {section} {name} {data}", flush=True)
            return
        try:
            self.measure(section, name, data, set_up(), flops, moved, ramp)
        except Exception as error:
            print(f"{section} {name} {data}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def loop(self, work, seconds: float) -> tuple[int, float]:
        """Keep the GPU busy for ``seconds``, with two batches of 25 ms in flight; return calls and seconds."""
        work()
        self.sync()
        start = time.monotonic()
        work()
        self.sync()
        count = max(1, min(5000, int(0.025 / max(1e-6, time.monotonic() - start))))
        begin, calls, flight = time.monotonic(), 0, []
        while time.monotonic() - begin < seconds:
            for _ in range(count):
                work()
            calls += count
            if self.device == "cuda":
                event = torch.cuda.Event()
                event.record()
                flight.append(event)
                if len(flight) > 2:
                    flight.pop(0).synchronize()
        self.sync()
        return calls, time.monotonic() - begin

    def measure(self, section, name, data, work, flops, moved, ramp) -> None:
        sampler = Sampler(self.gpu)
        if ramp:
            time.sleep(0.5)
            sampler.start()
        began = time.monotonic()
        if work is not None:
            self.loop(work, self.options.hold * 0.3)
        if not ramp:
            sampler.start()
        mark, energy = time.monotonic(), self.gpu.energy_j()
        if work is None:
            time.sleep(self.options.hold)
            calls, took = 0, self.options.hold
        else:
            calls, took = self.loop(work, self.options.hold)
        joules, window = self.gpu.energy_j() - energy, time.monotonic() - mark
        sampler.going = False
        sampler.join()
        call_s = took / calls if calls else 0.0
        kept = [row for row in sampler.rows if row[0] >= mark + 0.1]
        watts, sm, mem = ([row[i] for row in kept] for i in (1, 2, 3))
        share = lambda bits: round(statistics.mean(bool(row[4] & bits) for row in kept), 3)  # noqa: E731
        row = (
            self.gpu.name, section, name, data, round(1e6 * call_s, 2),
            round(flops / call_s / 1e12, 1) if flops and call_s else "",
            round(moved / call_s / 1e9, 1) if moved and call_s else "",
            round(joules / window, 1), round(statistics.mean(watts), 1), round(max(watts), 1),
            round(statistics.mean(sm), 1), min(sm), max(sm), round(statistics.mean(mem)),
            share(POWER_CAP), share(THERMAL), kept[-1][5], round(window, 2), len(kept),
        )  # fmt: skip
        self.table.writerow(row)
        self.file.flush()
        print(f"{time.monotonic() - BEGIN:6.1f} s {' '.join(map(str, row[1:]))}", flush=True)
        if ramp:
            for each in sampler.rows:
                self.ramps.writerow((name, data, f"{each[0] - began:.3f}", each[1], each[2], each[3], each[4]))


def fill(shape, data: str, device: str, dtype=torch.bfloat16) -> torch.Tensor:
    """Return a tensor of normal numbers, zeros, ones, or normal numbers with a part set to zero ("0.25 kept")."""
    if data == "zeros":
        return torch.zeros(shape, device=device, dtype=dtype)
    if data == "ones":
        return torch.ones(shape, device=device, dtype=dtype)
    made = torch.randn(shape, device=device, dtype=torch.float32 if device == "cpu" else dtype)
    if data == "signs":
        made = made.sign()
    elif data == "uniform":
        made = torch.rand(shape, device=device, dtype=made.dtype)
    elif data.endswith("kept"):
        made *= torch.rand(shape, device=device) < float(data.split()[0])
    return made.to(dtype)


def products(bench: Bench) -> None:
    device, dry = bench.device, bench.options.dry

    def product(m, n, k, data, dtype=torch.bfloat16):
        def set_up():
            torch.backends.cuda.matmul.allow_tf32 = True
            a, b = fill((m, k), data, device, dtype), fill((k, n), data, device, dtype)
            out = torch.empty((m, n), device=device, dtype=dtype)
            return lambda: torch.mm(a, b, out=out)

        return set_up

    def eight_bit(n, data):
        def set_up():
            a, b = (fill((n, n), data, device).to(torch.float8_e4m3fn) for _ in range(2))
            one, other = torch.ones((), device=device), b.t()
            return lambda: torch._scaled_mm(a, other, one, one, out_dtype=torch.bfloat16)

        return set_up

    big = 64 if dry else 8192
    for n in (64,) if dry else (8192, 16384, 4096, 2048, 1024):
        for data in ("normal", "zeros"):
            bench.case("products", f"bf16 {n}x{n}x{n}", data, product(n, n, n, data), 2.0 * n**3, 0,
                       ramp=n == big)  # fmt: skip
    for m, n, k in () if dry else ((8192, 14336, 4096), (8192, 4096, 14336), (2048, 4096, 4096), (8192, 128256, 2048)):
        bench.case("products", f"bf16 {m}x{n}x{k}", "normal", product(m, n, k, "normal"), 2.0 * m * n * k)
    for data in ("0.75 kept", "0.5 kept", "0.25 kept", "0.1 kept", "ones", "signs", "uniform"):
        bench.case("data", f"bf16 {big}x{big}x{big}", data, product(big, big, big, data), 2.0 * big**3)
    for label, dtype, n in (("fp16", torch.float16, 8192), ("tf32", torch.float32, 8192)):
        size = 64 if dry else n
        bench.case("other", f"{label} {size}x{size}x{size}", "normal", product(size, size, size, "normal", dtype),
                   2.0 * size**3)  # fmt: skip
    for n, data in ((64, "normal"),) if dry else ((8192, "normal"), (8192, "zeros"), (16384, "normal")):
        bench.case("other", f"fp8 {n}x{n}x{n}", data, eight_bit(n, data), 2.0 * n**3)


def grid(bench: Bench) -> None:
    """Run one persistent kernel of products on a number of SMs."""
    if "grid" not in bench.options.sections or bench.options.dry:
        return
    from power_kernel import limited_product

    n = 8192
    for data in ("normal", "zeros"):
        a, b = fill((n, n), data, "cuda"), fill((n, n), data, "cuda")
        for programs in (132, 116, 99, 83, 66, 33, 8):
            bench.case("grid", f"{programs} SMs", data, lambda p=programs: limited_product(a, b, p), 2.0 * n**3)


def memory(bench: Bench) -> None:
    device, dry = bench.device, bench.options.dry
    elements, width = (2**14 if dry else 2**30), 128 if dry else 4096

    def move(data: str) -> None:
        x, y = (fill((elements,), data, device) for _ in range(2))
        small, other = x[: elements // 128], y[: elements // 128]
        table, weight = x.view(-1, width), torch.ones(width, device=device, dtype=torch.bfloat16)
        part = table[: len(table) // 4]
        cases = {
            "copy": (lambda: y.copy_(x), 4), "copy in L2": (lambda: other.copy_(small), 4 / 128),
            "add": (lambda: torch.add(x, y, out=y), 6), "read": (lambda: x.sum(), 2), "write": (lambda: y.zero_(), 2),
            "gelu": (lambda: F.gelu(part), 1), "rms_norm": (lambda: F.rms_norm(part, (width,), weight), 1),
            "layer_norm": (lambda: F.layer_norm(part, (width,), weight, weight), 1),
            "softmax": (lambda: F.softmax(part, -1), 1), "transpose": (lambda: part.t().contiguous(), 1),
        }  # fmt: skip
        for name, (work, bytes_each) in cases.items():
            if data == "normal" or name in ("copy", "copy in L2", "add", "rms_norm"):
                bench.case("memory", name, data, lambda work=work: work, 0, bytes_each * elements)

    for data in ("normal", "zeros"):
        move(data)
    count, each = 4 if dry else 24, 2**10 if dry else 2**25

    def adamw():
        weights = [torch.nn.Parameter(torch.randn(each, device=device)) for _ in range(count)]
        for one in weights:
            one.grad = torch.randn_like(one)
        return torch.optim.AdamW(weights, fused=True).step

    bench.case("memory", "AdamW fused float32", "normal", adamw, 0, 28.0 * count * each)


def attention(bench: Bench) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    device, dry = bench.device, bench.options.dry
    for head in (128, 64):
        b, h, s, d = (1, 2, 16, 8) if dry else (4, 32 * 128 // head, 4096, head)
        flops = 2.0 * b * h * s * s * d  # causal: half of two products
        for backend in (SDPBackend.MATH,) if dry else (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

            def inputs():
                return [torch.randn(b, h, s, d, device=device, dtype=torch.bfloat16, requires_grad=True)
                        for _ in range(3)]  # fmt: skip

            def ahead():
                q, k, v = inputs()

                def work():
                    with sdpa_kernel(backend):
                        F.scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=True)

                return work

            def back():
                q, k, v = inputs()
                with sdpa_kernel(backend):
                    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                grad = torch.randn_like(made)
                return lambda: torch.autograd.grad(made, (q, k, v), grad, retain_graph=True)

            label = f"{backend.name.split('_')[0].lower()} head {head}"
            bench.case("attention", f"{label} forward", "normal", ahead, flops)
            bench.case("attention", f"{label} backward", "normal", back, 2.5 * flops)


def steps(bench: Bench) -> None:
    if bench.options.dry:
        import models

        bench.case("steps", "gpt2", "tiny", lambda: models.training_step("gpt2", 4, tiny=True))
        return
    import measure
    import models

    for case in (
        ("llama-3.2-1b", 4, 2048, "bf16", "fused", "eager"),
        ("nn-gpt-2-padded", 16, 1024, "bf16", "fused", "eager"),
        ("llama-3.2-1b", 4, 2048, "bf16", "fused", "recompute"),
        ("nn-gpt-2-medium", 8, 1024, "bf16", "foreach", "eager"),
        ("bert-large", 32, 512, "bf16", "fused", "eager"),
        ("llama-3.2-3b", 4, 2048, "bf16", "fused", "recompute"),
    ):
        bench.case("steps", " ".join(map(str, case)), "tokens", lambda case=case: measure.training_step(*case),
                   needed=10)  # fmt: skip
    for name, batch in (("resnet50", 256), ("densenet121", 128)):

        def network(name=name, batch=batch):
            return models.training_step(name, batch, device="cuda")

        bench.case("steps", f"{name} {batch} fp32 adam", "normal", network, needed=12)


def captures(bench: Bench) -> None:
    if "captures" not in bench.options.sections:
        return
    import models

    from trine.workload.tracing.tracer import capture_function

    for name, batch in (("gpt2", 8), ("gpt2", 4), ("densenet121", 128), ("densenet121", 256)):
        if time.monotonic() - BEGIN + 15 > bench.options.seconds:
            return
        size = 4 if bench.options.dry else batch
        try:
            found = capture_function(
                lambda: models.training_step(name, size, device=bench.device, tiny=bench.options.dry),
                bench.options.out / "captures" / f"{name}-b{batch}", device=bench.device, timed=5, overwrite=True,
            )  # fmt: skip
            print(f"{time.monotonic() - BEGIN:6.1f} s capture {name} {batch}: {found.unprofiled_step_ps / 1e9} ms",
                  flush=True)  # fmt: skip
        except Exception as error:
            print(f"capture {name} {batch}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--hold", type=float, default=2.2)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    gpu = NoGpu() if options.dry else Nvml()
    print(gpu.name, gpu.limits, torch.__version__, flush=True)
    bench = Bench(options, gpu)
    if not options.dry:
        torch.zeros(1, device="cuda")
    bench.case("idle", "before any work", "", lambda: None)
    products(bench)
    bench.case("idle", "after work", "", lambda: None)
    memory(bench)
    grid(bench)
    attention(bench)
    steps(bench)
    captures(bench)


if __name__ == "__main__":
    main()
