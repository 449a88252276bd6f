"""Any cluster: your own in a dozen lines of YAML, another tool's file, a preset; with links that are slow or down.

data/two-nodes.yaml and data/unequal-nodes.yaml are written by hand; data/h100-2.nccl.xml is what NCCL writes to
NCCL_TOPO_DUMP_FILE and data/h100-8.smi.txt what `nvidia-smi topo -m` prints, both made up for this example. Writes
09_any_cluster.png.
"""

from pathlib import Path

import trine
from trine.cluster.draw.figure import draw_cluster
from trine.collectives.nccl import collective_time
from trine.errors import SpecError
from trine.formats.clusters import read_any

DATA = Path(__file__).parent / "data"


def report(name: str, cluster: trine.Cluster) -> None:
    answer = collective_time("all_reduce", "1 GiB", None, cluster)
    rate = answer.busbw_bytes_per_s / 1e9
    print(f"{name:44} {len(cluster.gpus):3} GPUs {rate:7.1f} GB/s by {answer.algorithm:8}, bounded by {answer.limit}")


def main() -> None:
    mine = DATA / "two-nodes.yaml"
    print("bus bandwidth of an all-reduce of 1 GiB")
    report("two-nodes.yaml", trine.load_cluster(mine))
    report("  one NIC at a quarter of its rate", trine.load_cluster(mine, slow_links=[("nic0-leaf", 0.25)]))
    report("  one NIC down: its GPUs use the other", trine.load_cluster(mine, links_down=["nic0-leaf"]))
    try:
        trine.load_cluster(mine, links_down=["nic0-leaf", "nic1-leaf"])
    except SpecError as error:
        print(f"  both NICs down: {str(error).replace(str(mine), mine.name)}")
    report("NCCL_TOPO_DUMP_FILE", read_any(DATA / "h100-2.nccl.xml"))
    report("nvidia-smi topo -m", read_any(DATA / "h100-8.smi.txt", gpu="h100-sxm"))
    report("unequal-nodes.yaml", trine.load_cluster(DATA / "unequal-nodes.yaml"))
    report("4 x dgx-h100 on its usual fabric", trine.load_cluster("dgx-h100", nodes=4))
    report("  on XDR InfiniBand", trine.load_cluster("dgx-h100", nodes=4, fabric="rail@ib-xdr"))
    draw_cluster(trine.load_cluster(mine), Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
