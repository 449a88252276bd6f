"""One kernel of a training step, load by load: which GPU it waits for, and the cost of waiting, awake or asleep.

Llama 3 8B, tensor parallel over eight H100s; one of them is slower by a factor of 1.1. The step is simulated at the
operator level. The first all-reduce of layer 3's gradients is then simulated again at the load-store level, with each
GPU arriving at its time in the step. Guide: docs/guides/eidolons.md.
"""

from __future__ import annotations

import trine
from trine.parallel.stragglers import parse_slow

MODEL, PLAN, SLOW = "model:llama-3-8b,layers=4,sequence=1024", trine.Plan(tp=8), 5
HOW = {"cluster": "dgx-h100", "stragglers": trine.Stragglers(slow=parse_slow([f"rank={SLOW}:1.1"]))}


def main() -> None:
    step = trine.simulate(MODEL, PLAN, **HOW)
    print(step.headline, end="\n\n")
    found = trine.kernel_detail(MODEL, PLAN, trine.DetailOptions(rank=0, layer=3, phase="backward"), step, **HOW)
    print(found.chosen.what.words)
    print("seen by   comes after  operator level  load by load   waits  flag reads  asleep  most for")
    show(found)
    show(trine.kernel_detail(MODEL, PLAN, trine.DetailOptions(rank=SLOW, layer=3, phase="backward"), step, **HOW))
    print()
    print("\n".join(found.details().splitlines()[5:18]))


def show(found: trine.gpu.detail.detail.KernelDetail) -> None:
    awake, asleep = found.waits
    most = max(found.peers, key=lambda peer: peer.waits_ended_ps)
    print(
        f"rank {found.chosen.rank} {found.late_ps / 1e6:11.2f} us {found.operator_ps / 1e6:12.2f} us "
        f"{found.time_ps / 1e6:10.2f} us {awake.wait_ps / 1e6:7.2f} {awake.flag_reads:11,} {asleep.flag_reads:7,}  "
        f"rank {most.rank}"
    )


if __name__ == "__main__":
    main()
