"""ASTRA-sim's workloads: a job written as Chakra traces, read back, and simulated again to the picosecond."""

import tempfile
from pathlib import Path

import trine
from trine.formats.chakra import read_chakra, simulate_chakra, trace_job, write_chakra
from trine.formats.chakra.description import description, description_text

plan = trine.Plan(dp=4, tp=2, pp=2, micro_batch=32, schedule="1f1b", tp_style="megatron", inputs="none")
cluster = trine.build_topology("switch", "100 GB/s", "1 us", plan.num_ranks)

with tempfile.TemporaryDirectory() as folder:
    written = []
    job = trine.simulate(
        "vgg13-h100-b128",
        plan,
        cluster=cluster,
        on_job=lambda programs: written.append(write_chakra(programs, Path(folder) / "vgg13")),
    )
    files = written[0]
    print(f"{files.num_ranks} traces, {files.num_nodes} nodes, {files.num_bytes / 1e6:.1f} MB")
    print(f"process groups: {files.groups.name}")
    for note in files.notes:
        print(f"note: {note}")
    print()

    trace = read_chakra(Path(folder) / "vgg13")
    print(description_text({**description(trace), "prefix": "vgg13"}))
    print()
    replayed = simulate_chakra(trace, cluster)
    print(f"step from the operator trace  {job.end_time_ps} ps")
    print(f"step from the Chakra traces   {replayed.end_time_ps} ps")
    print(f"programs for {trace.num_ranks} ranks: {len(trace_job(trace)[0].programs)}")
