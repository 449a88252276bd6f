"""What do the large questions cost as whole processes: CPU seconds, wall seconds, peak GiB, and the target of each?

Run: python benchmarks/bench_targets.py [NAME ...]
Kernels are warm, except in the rows "first ...", which have an empty cache; Python's bytecode is always kept, as after
an installation. A row is stopped after LIMIT_S seconds.
benchmarks/bench_time_folding.py has the steps of many micro-batches, and benchmarks/bench_experiments.py the sweeps.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 600
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
H100 = "--cluster dgx-h100"
LLAMA_8B = f"train llama-3-8b --tp 8 --pp 4 --schedule 1f1b --batch 8 --micro-batch 1 --inputs none {H100} --brief"
DIFFERENT = (
    f"train llama-3-8b --dp 128 --tp 8 --pp 4 --schedule 1f1b --batch 4 --micro-batch 1 {H100} --nodes 512 --brief"
)
LLAMA_70B = f"train model:llama-3-70b --dp 4 --tp 8 --pp 8 --schedule 1f1b --micro-batch 1 {H100} --nodes 32 --brief"
COLLECTIVES = (
    "import trine\n"
    "for i in range(500):\n"
    "    trine.collective(('all_reduce', 'all_gather', 'reduce_scatter')[i % 3], [1024 * (i + 1)], 'dgx-h100')"
)
#: Name -> command, and its target: CPU s (wall s for plan) and GiB; None: no target for the memory.
ROWS: dict[str, tuple[str, float, float | None]] = {
    "70B, 16 micro-batches": (f"{LLAMA_70B} --batch 16", 1, None),
    "70B, 1,024 micro-batches": (f"{LLAMA_70B} --batch 1024", 1.5, 0.4),
    "70B, 4,096 micro-batches": (f"{LLAMA_70B} --batch 4096", 1.5, 0.4),
    "405B, 16,384 GPUs, rails": (
        f"train llama-3-405b --dp 128 --tp 8 --pp 16 --schedule 1f1b --batch 64 --micro-batch 1 {H100} --nodes 2048 "
        "--fabric rail --brief", 6, None,
    ),
    "8B, 131,072 GPUs, rails": (f"{LLAMA_8B} --dp 4096 --nodes 16384 --fabric rail", 6, None),
    "8B, 1,048,576 GPUs, switch": (f"{LLAMA_8B} --dp 32768 --nodes 131072 --fabric switch", 15, 2),
    "4,096 ranks, random placement": (f"{DIFFERENT} --placement random:1", 40, 4),
    "4,096 ranks, jitter": (f"{DIFFERENT} --jitter normal:5%", 40, 4),
    "500 collectives": (COLLECTIVES, 1, None),
    "ring of 4,096, every message": (
        "collective all_reduce --size 1G --topology ring --gpus 4096 --bandwidth '50 GB/s' --latency '1 us' "
        "--algorithm ring --network fair --no-fold --brief", 15, 3,
    ),
    "first collective --fidelity loadstore": (
        f"collective all_reduce --size 64K {H100} --fidelity loadstore --brief", 5, None,
    ),
    "first eidolon": ("eidolon run gemv-allreduce --brief", 5, None),
    "plan 70B, 256 GPUs": (f"plan llama-3-70b --gpus 256 {H100} --global-batch 1024 --brief", 10, None),
    "first plan 70B, 256 GPUs": (f"plan llama-3-70b --gpus 256 {H100} --global-batch 1024 --brief", 20, None),
    "plan 70B, 1,024 GPUs": (f"plan llama-3-70b --gpus 1024 {H100} --global-batch 1024 --brief", 30, None),
    "plan mixtral-8x7b, 256 GPUs": (f"plan mixtral-8x7b --gpus 256 {H100} --global-batch 1024 --brief", 30, None),
}  # fmt: skip


def measure(name: str, command: str) -> tuple[float, float, float, int]:
    """Run one row; return CPU s, wall s, peak GiB and the exit status (minus the signal that stopped it)."""
    arguments = ["-c", command] if command.startswith("import") else ["-m", "trine", *shlex.split(command)]
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as errors:
        environment = ENVIRONMENT | ({"XDG_CACHE_HOME": empty} if name.startswith("first") else {})
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(LIMIT_S)
        _, status, usage = os.wait4(process.pid, 0)
        signal.alarm(0)
        wall_s = time.perf_counter() - begun
        code = os.waitstatus_to_exitcode(status)
        if code > 0:
            errors.seek(0)
            print(errors.read().decode().strip().splitlines()[-1])
    return usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss / 2**20, code


def main() -> None:
    wanted = sys.argv[1:] or list(ROWS)
    measure("bytecode and kernels", ROWS[wanted[0]][0])
    print(f"{'':38} {'CPU s':>7} {'wall s':>7} {'GiB':>6}   target")
    for name in wanted:
        command, target_s, target_gib = ROWS[name]
        cpu_s, wall_s, gib, code = measure(name, command)
        memory = "" if target_gib is None else f", {target_gib:g} GiB"
        note = "" if code == 0 else f"   stopped with {code}"
        print(f"{name:38} {cpu_s:7.1f} {wall_s:7.1f} {gib:6.2f}   {target_s:g} s{memory}{note}", flush=True)


if __name__ == "__main__":
    main()
