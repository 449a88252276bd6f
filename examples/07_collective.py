"""How long does an all-reduce take on one DGX H100, what does NCCL choose, and where does each microsecond go?

First `trine collective all_reduce --size 1K:1G:x4 --cluster dgx-h100 --explain --plot 07_collective.png`,
then predictions in a loop, as a compiler would request them. Writes 07_collective.png.
"""

from pathlib import Path

import trine
from trine.collectives.nccl import collective_time
from trine.collectives.query import collective
from trine.collectives.sizes import parse_sizes


def main() -> None:
    cluster = trine.load_cluster("dgx-h100")
    answer = collective("all_reduce", parse_sizes("1K:1G:x4"), cluster, explain=True)
    print(answer.table())
    print(answer.explain())
    answer.plot(str(Path(__file__).with_suffix(".png")))

    print("\none all_reduce of 64 MiB, or a reduce_scatter and an all_gather, on 2 to 8 GPUs (us):")
    for num_gpus in (2, 4, 8):
        whole, *halves = (
            collective_time(op, "64 MiB", num_gpus, cluster).time_ps / 1e6
            for op in ("all_reduce", "reduce_scatter", "all_gather")
        )
        print(f"{num_gpus} GPUs  {whole:7.1f}  {halves[0]:7.1f} + {halves[1]:7.1f} = {sum(halves):7.1f}")


if __name__ == "__main__":
    main()
