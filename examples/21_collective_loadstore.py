"""One collective at two levels, the sources of the difference, and a training step with load-store costs.

Same as `trine collective all_reduce --cluster dgx-h100 --gpus 4 --size 4K,256K --compare-fidelity`,
`trine collective all_reduce --cluster dgx-h100 --gpus 4 --size 1K,16K,256K --fidelity loadstore`, and
`trine train ... --collective-costs loadstore`.
"""

import trine
from trine import LoadStoreCosts, LoadStoreOptions

cluster = trine.load_cluster("dgx-h100", gpus=4)

print("NCCL's formula, and the time of a kernel of loads and stores:\n")
print(trine.compare_fidelity("all_reduce", [4 << 10, 256 << 10], cluster).table())

print("\nThe same kernel with flags in its lines in place of semaphores (LL), and as a ring:\n")
sizes = [1 << 10, 16 << 10, 256 << 10]
for options in (LoadStoreOptions(protocol="ll"), LoadStoreOptions(algorithm="ring")):
    print(trine.loadstore_collective("all_reduce", sizes, cluster, options=options).table())

print("\nVGG-13 on two GPUs, tensor parallelism, batch 1: time of a step and of its communication")
plan = trine.Plan(tp=2, batch=1)
costs = {"links": "links", "library": "library", "loadstore": LoadStoreCosts(cluster)}
for name, what in costs.items():
    result = trine.simulate("vgg13-h100-b128", plan, cluster=cluster, collective_costs=what, cpu=False)
    print(f"  {name:9} {result.step_time_ps / 1e9:7.3f} ms, {result.communication_s * 1e3:6.3f} ms of collectives")
print(f"  load-store runs: {costs['loadstore'].durations.num_runs}; kept on disk with --collective-costs loadstore")
