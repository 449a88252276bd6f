"""Compute and communication on the same compute units: Chakra traces load by load, against the operator level.

Each of four GPUs has two independent nodes: 5 us of compute that moves 10 MiB, and an all-reduce of 1 MiB by 32
workgroups. Their interference depends on the placement of the compute kernel on the GPU's 128 compute units (at most
8 workgroups each), and on the node that starts first.
"""

import tempfile
from pathlib import Path

from trine import load_cluster
from trine.formats.chakra import read_chakra, simulate_chakra
from trine.formats.chakra.schema import COMM_COLL, COMP, classes
from trine.formats.chakra.template import framed
from trine.gpu.chakra.kernels import KernelChoices
from trine.gpu.chakra.run import simulate_chakra_loadstore

GPUS = 4
COMPUTE = ("compute", COMP, 5, {"tensor_size": 10 << 20})
ALL_REDUCE = ("all-reduce", COMM_COLL, 0, {"comm_type": 0, "comm_size": 1 << 20})

cluster = load_cluster("astra3-generic", gpus=GPUS)


def trace_of(*nodes):
    """Return traces with these nodes on all ranks; among nodes ready at once, the first starts first."""
    messages = [classes().metadata(version="0.0.4")]
    for number, (name, kind, micros, attributes) in enumerate(nodes, 1):
        message = classes().node(id=number, name=name, type=kind, duration_micros=micros)
        for key, value in attributes.items():
            message.attr.add(name=key, int64_val=value)
        messages.append(message)
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(GPUS):
            content = b"".join(framed(message.SerializeToString()) for message in messages)
            (Path(folder) / f"job.{rank}.et").write_bytes(content)
        return read_chakra(Path(folder) / "job")


def times(result):
    """Return the time of each kind of node in us, by name: from its first start to its last end on any rank."""
    table, found = result.record_table, {}
    rows = zip(table.text("name"), table.columns["start_ps"].tolist(), table.columns["end_ps"].tolist(), strict=True)
    for name, start, end in rows:
        first, last = found.get(name, (start, end))
        found[name] = min(first, start), max(last, end)
    return {"all-reduce" if name == "all_reduce" else name: (b - a) / 1e6 for name, (a, b) in found.items()}


def run(*nodes, workgroups=None):
    return simulate_chakra_loadstore(trace_of(*nodes), cluster, kernels=KernelChoices(compute_workgroups=workgroups))


operator = simulate_chakra(trace_of(COMPUTE, ALL_REDUCE), cluster)
print("operator level:", ", ".join(f"{name} {us:.2f} us" for name, us in times(operator).items()), end="")
print(f", step {operator.step_time_ps / 1e6:.2f} us\n")

GROUPS = (64, 128, 1024)
alone = {workgroups: times(run(COMPUTE, workgroups=workgroups))["compute"] for workgroups in GROUPS}
lonely = times(run(ALL_REDUCE))["all-reduce"]
print("load-store level, us        compute              all-reduce")
print("compute workgroups   alone  together       alone  together    step")
for first in (COMPUTE, ALL_REDUCE):
    print(f"{first[0]} is there first")
    second = ALL_REDUCE if first is COMPUTE else COMPUTE
    for workgroups in GROUPS:
        both = run(first, second, workgroups=workgroups)
        us = times(both)
        print(
            f"{workgroups:18}  {alone[workgroups]:6.2f}  {us['compute']:8.2f}"
            f"      {lonely:6.2f}  {us['all-reduce']:8.2f}  {both.step_time_ps / 1e6:6.2f}"
        )
