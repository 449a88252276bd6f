"""Inside the GPU: an all-gather written load by load, by putting and by getting, on four GPUs; and a deadlock.

Each GPU has 64 KiB. Putting, it stores them at the others and tells each; getting, it hears from each that it has begun,
loads its part, and tells it. `trine kernel run FILE` does the same with a file.
"""

import trine
from trine.errors import DeadlockError
from trine.gpu.presets import load_gpu_model
from trine.gpu.run import run_gpus
from trine.gpu.text import parse_program

GPUS = 4
HEAD = """
program 'all-gather'
buffer input 64 KiB
buffer output 64 KiB * ranks
semaphores 2 * ranks * 8
payload 64 KiB * ranks
kernel gather ranks all wavefronts 8
workgroups 8
"""
MEET = """
  for d in 1..ranks-1
    release rank+d sem SEM
  end
  for d in 1..ranks-1
    acquire sem SEM
  end
"""
PUT = """
  for d in 1..ranks-1
    put 8 KiB own:input + 8 KiB * wg -> rank+d:output + 64 KiB * rank + 8 KiB * wg
  end
  waitcnt 0
  barrier
"""
GET = """
  barrier
  for d in 1..ranks-1
    get 8 KiB rank+d:input + 8 KiB * wg -> own:output + 64 KiB * ((rank + d) % ranks) + 8 KiB * wg
  end
  waitcnt 0
  barrier
"""
FIRST, SECOND = (MEET.replace("SEM", f"d + ranks * (wg + {8 * half})") for half in (0, 1))

cluster = trine.load_cluster("astra3-generic", gpus=GPUS)
model = load_gpu_model("astra3-generic")


def run(operations):
    program = parse_program(HEAD + operations, num_ranks=GPUS)
    return run_gpus(program, cluster, cluster.gpus, model)


print(f"{'':4} {'time':>9}  {'compute':>8} {'issue':>6} {'memory':>7} {'semaphore':>10} {'barrier':>8}")
for name, operations in (("put", PUT + FIRST), ("get", FIRST + GET + SECOND)):
    done = run(operations)
    times = done.gpu.state_ps.sum(axis=(0, 1))
    shares = "  ".join(f"{100 * part / times.sum():5.1f} %" for part in times)
    print(f"{name:4} {done.end_ps / 1e6:6.3f} us  {shares}")

try:
    run(PUT + FIRST.replace("release rank+d", "release rank+1"))
except DeadlockError as error:
    print("\nWith every release sent to the next GPU:")
    print("\n".join(str(error).splitlines()[:4]))
