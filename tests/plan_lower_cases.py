"""Plans for the load-store level: bundled plans, and a pipeline through scratch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plan_cases import DATA, PLANS

from trine.gpu.plans import load_plan
from trine.gpu.plans.plan import KernelPlan

LOWERED = list(PLANS)
NVLS = [name for name in PLANS if "nvls" in name]
ROUND_BYTES = 1024

Json = dict[str, Any]


def bundled(name: str) -> KernelPlan:
    return load_plan(DATA / name)


def smallest(plan: KernelPlan) -> int:
    """Return the smallest message size of a plan, in bytes."""
    return max(plan.min_bytes, plan.alignment * plan.chunks_of_size)


def pipeline_plan(path: Path, rounds_ahead: int = 2) -> KernelPlan:
    """Return an all-gather of two ranks that goes round by round through the peer's scratch.

    Block 0 puts a round when a semaphore signals room. Block 1 copies it out and signals the sender, and the sender's
    block 2 frees the room.
    """
    path.write_text(json.dumps(_plan([_gpu(rank, rounds_ahead) for rank in range(2)])))
    return load_plan(path)


def _plan(gpus: list[Json]) -> Json:
    flags = {"inplace": False, "reuse_resources": True, "num_threads_per_block": 64}
    return {"name": "rounds", "collective": "allgather", "protocol": "Simple", "gpus": gpus, **flags}


def _gpu(rank: int, rounds_ahead: int) -> Json:
    def data(kind: str, index: int) -> Json:
        return {"type": kind, "index": index, "size": 1}

    def through(name: str, channel: int) -> Json:
        return {"name": name, "channel_type": "memory", "channel_ids": [channel]}

    nop = {"name": "nop"}
    acquire, release = ({"name": name, "semaphore_ids": [0]} for name in ("sem_acquire", "sem_release"))
    target = {"buffer_id": 0, "index": 0, "size": 1}
    put = {"name": "put", "src_buff": [data("i", 0)], "dst_buff": [target], "channel_type": "memory"}
    own = {"name": "copy", "src_buff": [data("i", 0)], "dst_buff": [data("o", rank)]}
    out = {"name": "copy", "src_buff": [data("s", 0)], "dst_buff": [data("o", 1 - rank)]}
    bodies = [
        [acquire, nop, put, nop, through("signal", 0)],
        [through("wait", 0), nop, out, nop, through("signal", 1)],
        [through("wait", 1), release],
    ]
    context = {"unit_size": ROUND_BYTES, "num_chunks": 1}
    loops = [[{"name": "pipeline", "iter_context": context, "ops": body}] for body in bodies]
    loops[2].insert(0, own)
    refs = [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]
    channels = [{"channel_type": "memory", "channel_ids": [0, 1]}]
    return {
        "id": rank,
        "input_chunks": 1,
        "output_chunks": 2,
        "scratch_chunks": 1,
        "channels": [{"channel_type": "memory", "connected_to": [1 - rank, 1 - rank]}],
        "remote_buffers": [{"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}],
        "semaphores": [{"init_value": rounds_ahead}],
        "threadblocks": [
            {"id": n, "ops": ops, "channels": channels, "remote_buffer_refs": refs} for n, ops in enumerate(loops)
        ],
    }
