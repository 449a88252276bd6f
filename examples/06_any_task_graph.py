"""No trace, no parallelism: your own tasks on your own links, and who waits for whom."""

import trine

MS, MB = 10**9, 10**6

cluster = trine.build_topology("full", "50 GB/s", "1 us", 3)
graph = trine.TaskGraphBuilder(cluster.link_bytes_per_s, cluster.link_latency_ps, rank_names=["a", "b", "c"])
work = [graph.compute(rank, "compute", (2 + rank) * MS, name=f"work on {'abc'[rank]}") for rank in range(3)]
send = [
    graph.transfer(rank, 0, cluster.route(rank, 0), 100 * MB, after=[work[rank]], name=f"send {'abc'[rank]} -> a")
    for rank in (1, 2)
]
first = graph.join([work[0], *send], need=2, rank=0, name="two of three are enough")
graph.compute(0, "compute", 1 * MS, after=[first], name="go on")
tasks = graph.build()
records = trine.run(tasks)
for name, start, end in zip(tasks.task_names, records.start_ps, records.end_ps, strict=True):
    print(f"{name:26} {start / MS:8.3f} ms  to {end / MS:8.3f} ms")
