"""Inside the GPU: an all-gather written load by load, by putting and by getting, on four GPUs; and a deadlock.

Each GPU has 64 KiB. Putting, it stores them at the others and tells each; getting, it hears from each that it has
begun, loads its part, and tells it. `trine kernel run FILE` does the same with a file.
"""

import trine
from trine.errors import DeadlockError
from trine.gpu.model.files import load_gpu_model
from trine.gpu.run import run_gpus
from trine.gpu.text import parse_program

GPUS = 4
HEAD = """
program gather
buffer input 64 KiB
buffer output 64 KiB * ranks
semaphores ranks * 16
payload 64 KiB * ranks
kernel gather ranks all wavefronts 8
workgroups 8
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
TELL = """
  for d in 1..ranks-1
    release rank+d sem d + ranks * (wg + FIRST)
  end
"""
HEAR = """
  for d in 1..ranks-1
    acquire sem d + ranks * (wg + FIRST)
  end
"""
BEGIN, END = (TELL + HEAR).replace("FIRST", "0"), (TELL + HEAR).replace("FIRST", "8")

cluster = trine.load_cluster("astra3-generic", gpus=GPUS)
model = load_gpu_model("astra3-generic")


def run(operations):
    return run_gpus(parse_program(HEAD + operations, num_ranks=GPUS), cluster, cluster.gpus, model)


print(f"{'':4} {'time':>9}  {'compute':>7}  {'issue':>7}  {'memory':>7}  {'semaphore':>9}  {'barrier':>7}")
for name, operations in (("put", PUT + END), ("get", BEGIN + GET + END)):
    done = run(operations)
    times = done.gpu.state_ps.sum(axis=(0, 1))
    compute, issue, memory, semaphore, barrier = (f"{100 * part / times.sum():.1f} %" for part in times)
    print(f"{name:4} {done.end_ps / 1e6:6.3f} us  {compute:>7}  {issue:>7}  {memory:>7}  {semaphore:>9}  {barrier:>7}")

try:
    run(PUT + (HEAR + TELL).replace("FIRST", "0"))
except DeadlockError as error:
    print("\nEveryone hears before it tells:")
    print("\n".join(str(error).splitlines()[:4]))
