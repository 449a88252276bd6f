"""ResNet-50 with DDP on 16 384 H100s, joined by a switch: all links as they should be, some slow, one dead.

All ranks of a library's collective wait for its slowest message, so that a slow link makes a few kinds of ranks and
not 16 384: each answer is exact. Message by message (``algorithm``) a ring tells all ranks apart: there is an estimate.
"""

from __future__ import annotations

import trine

GPUS = 16_384
SLOW = [("node5.pcie0->node5.nic0", 0.5), ("node77.pcie1->node77.nic3", 0.5), ("node900.nic6->node900.pcie3", 0.7)]
MACHINES: dict[str, dict[str, object]] = {
    "as it should be": {},
    "one NIC at half speed": {"slow_links": SLOW[:1]},
    "three slow NICs": {"slow_links": SLOW},
    "a dead NIC": {"links_down": [SLOW[0][0]]},
}


def run(gpus: int, links: dict[str, object], **fields: object) -> trine.Result:
    """One step on ``gpus`` GPUs, some of whose links are slow or dead."""
    cluster = trine.load_cluster("dgx-h100", nodes=gpus // 8, fabric="switch", **links)
    plan = trine.Plan(dp=gpus, buffers="none", inputs="none", **fields)
    return trine.simulate("resnet50-h100-b128", plan, cluster=cluster)


def main() -> None:
    print(f"{GPUS} GPUs               step    exposed  classes    tasks")
    for name, links in MACHINES.items():
        result = run(GPUS, links)
        stages = result.scope.stages
        counts = f"{max(s.num_classes for s in stages):8} {max(s.num_tasks for s in stages):8,}"
        print(f"{name:22} {result.step_time_s * 1e3:5.2f} ms {result.exposed_communication_s * 1e3:6.2f} ms {counts}")
    ring = run(4096, {"slow_links": [("node5.pcie3->node5.nic7", 0.5)]}, algorithm=(("all_reduce", "ring"),))
    low, high = (f"{end_ps / 1e9:.2f} ms" for end_ps in ring.scope.estimate_ps)
    print(f"\n4096 GPUs, one NIC at half speed, rings message by message: about {low} to {high}")


if __name__ == "__main__":
    main()
