"""Load-store results made by hand: two GPUs of a 2 x 3 mesh or a crossbar, with explicit records."""

from dataclasses import replace

import numpy as np

from trine.cluster import Cluster
from trine.cluster.parts import Device, Link
from trine.gpu.layout import layout_of
from trine.gpu.model import CROSSBAR, L2, MESH, GpuModel, MemorySystem, Noc, Ports
from trine.gpu.program import ACQUIRE, BARRIER, COPY, READ, WAITCNT, WRITE, GpuProgram
from trine.gpu.records import GpuRecords
from trine.gpu.results.result import GpuResult

US = 1_000_000


def model(kind=MESH, **changes):
    noc = Noc(kind=kind, bytes_per_s=10**11, hop_ps=1000, rows=2, cols=3)
    if kind == CROSSBAR:
        noc = replace(noc, rows=0, cols=0)
    values = {
        "name": "toy",
        "cycle_ps": 1000,
        "num_cus": 8,
        "workgroups_per_cu": 2,
        "wavefronts_per_cu": 4,
        "line_bytes": 128,
        "header_bytes": 16,
        "unroll": 4,
        "max_outstanding": 64,
        "issue_cycles": 1,
        "reduce_bytes_per_cycle": 128,
        "posted_stores": True,
        "noc": noc,
        "memory": MemorySystem(num_channels=6, bytes_per_s=10**11, latency_ps=100_000, interleave_bytes=256),
        "ports": Ports(count=4, latency_ps=0, interleave_bytes=256),
        "launch_ps": 2 * US,
        "dispatch_ps": 0,
        "barrier_ps": 1000,
        "dma_ps": 1000,
        "packet_bytes": 4096,
        "packet_header_bytes": 64,
        "evidence": {"cus": "assumed", "memory": "measured"},
        "sources": {"cus.count": "a round number", "memory": "a data sheet"},
    }
    return GpuModel(**{**values, **changes})


SLICES = L2(capacity_bytes=1 << 20, ways=8, bytes_per_s=2 * 10**11, latency_ps=20_000)


def cluster():
    """Return two GPUs joined by two links each way."""
    devices = tuple(Device(name=f"gpu{i}") for i in range(2))
    numbers = {"bytes_per_s": 10**10, "latency_ps": 500_000}
    links = [
        Link(name=f"gpu{a}->gpu{1 - a}" + ("#2" if k else ""), source=a, target=1 - a, **numbers)
        for a in range(2)
        for k in range(2)
    ]
    return Cluster(name="pair", devices=devices, links=tuple(links))


def program(payload_bytes=4096):
    """Return a kernel per rank: two workgroups of two wavefronts copy 16 lines from the peer, wait, and acquire."""
    kinds = [COPY, WAITCNT, ACQUIRE, BARRIER]
    peer = [1, 1, 0, 0]
    rows = [(READ, peer[wg], 0, -1) for wg in range(4)]
    operands, ptr = [], [0]
    for wg in range(4):
        own = wg // 2
        for kind in kinds:
            if kind == COPY:
                operands += [(READ, rows[wg][1], 0, -1), (WRITE, own, 8192, -1)]
            elif kind == ACQUIRE:
                operands.append((READ, own, 0, wg % 2))
            ptr.append(len(operands))
    role, rank, address, semaphore = (np.array(column) for column in zip(*operands, strict=True))
    return GpuProgram(
        name="toy get",
        num_ranks=2,
        kernel_rank=np.array([0, 1], np.int32),
        kernel_wavefronts=np.array([2, 2], np.int32),
        kernel_ptr=np.array([0, 2, 4]),
        workgroup_ptr=np.arange(0, 17, 4),
        op_kind=np.array(kinds * 4, np.int8),
        op_amount=np.array([16, 0, 1, 0] * 4),
        op_unroll=np.zeros(16, np.int32),
        op_label=np.array([0, -1, 1, -1] * 4, np.int32),
        operand_ptr=np.array(ptr),
        operand_role=role.astype(np.int8),
        operand_rank=rank.astype(np.int32),
        operand_address=address,
        operand_step=np.full(len(operands), 128, np.int32),
        operand_semaphore=semaphore.astype(np.int32),
        semaphores=np.zeros((2, 2), np.int32),
        kernel_names=("get", "get"),
        labels=("from the peer", "peer done"),
        payload_bytes=payload_bytes,
        notes=("made by hand",),
    )


def records(gpu_model, ranks=(0, 1), **changes):
    """Return records: 2 us launch, workgroups from 2 to 10 us on CUs 0 and 1; one column per simulated GPU."""
    gpus, names = len(ranks), layout_of(gpu_model).names
    num = len(names.names)
    state = np.zeros((gpus, 8, 5), np.int64)
    state[:, :2] = [1 * US, 1 * US, 10 * US, 3 * US, 1 * US]
    data, busy = np.zeros((gpus, num), np.int64), np.zeros((gpus, num), np.int64)
    data[:, names.names.index("cu0.out")], busy[:, names.names.index("cu0.out")] = 16, US
    link = names.names.index("router0->router1" if "router0->router1" in names.names else "port0.in")
    data[:, link], busy[:, link] = 32, 3 * US
    channel = names.names.index("channel5")
    data[:, channel], busy[:, channel] = 32, 2 * US
    copy_end = 7 * US
    one = [2 * US, copy_end, copy_end, 8 * US]
    until = [copy_end, copy_end, 9 * US, 10 * US]
    lanes = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    values = {
        "ranks": np.array(ranks, np.int32),
        "gpu_of": np.array(ranks if gpus == 2 else [0, 0], np.int32),
        "workgroup_start_ps": np.full(2 * gpus, 2 * US),
        "workgroup_end_ps": np.full(2 * gpus, 10 * US),
        "workgroup_cu": np.array([0, 1] * gpus, np.int32),
        "op_start_ps": np.array(one * 2 * gpus),
        "op_end_ps": np.array(until * 2 * gpus),
        "state_ps": state,
        "resource_data": data,
        "resource_control": data // 2,
        "resource_busy_ps": busy,
        "lane_link": np.array([link for link, _ in lanes], np.int32),
        "lane_number": np.array([lane for _, lane in lanes], np.int32),
        "lane_data": np.array([16, 16, 0, 32, 0]),
        "lane_control": np.array([4, 4, 8, 8, 0]),
        "lane_busy_ps": np.array([4 * US, 2 * US, US, 5 * US, 0]),
        "loads": np.full(gpus, 32),
        "stores": np.full(gpus, 32),
        "acquires": np.full(gpus, 2),
        "releases": np.zeros(gpus, np.int64),
        "polls": np.zeros(gpus, np.int64),
        "load_latency_ps": np.full(gpus, 32 * 2 * US),
        "packets": np.zeros(gpus, np.int64),
        "l2_hits": np.full(gpus, 48 if gpu_model.l2 else 0),
        "l2_misses": np.full(gpus, 16 if gpu_model.l2 else 0),
        "flagged_loads": np.zeros(gpus, np.int64),
        "wakeups": np.zeros(gpus, np.int64),
        "spurious_wakeups": np.zeros(gpus, np.int64),
        "monitor_full": np.zeros(gpus, np.int64),
        "resources": names,
        "end_ps": 10 * US,
        "num_events": 999,
        "engine": "by hand",
    }
    return GpuRecords(**{**values, **changes})


def result(gpu_model=None, ranks=(0, 1), *, records_changes=None, **changes):
    gpu_model = gpu_model or model()
    values = {
        "program": program(),
        "model": gpu_model,
        "cluster": cluster(),
        "group": (0, 1),
        "records": records(gpu_model, ranks, **(records_changes or {})),
        "bus_factor": 0.5,
    }
    return GpuResult(**{**values, **changes})


def replayed(gpu_model=None, **changes):
    """Return a result with rank 1 simulated and rank 0 replayed."""
    return result(gpu_model, (1,), records_changes={"gpu_of": np.array([-1, 0], np.int32)}, **changes)
