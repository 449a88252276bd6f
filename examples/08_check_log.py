"""Is this machine as fast as it should be? A healthy and a sick log of nccl-tests against the prediction.

Both were measured by CSCS on the same two nodes of four GH200; for gh200-8-tcp.log the network plug-in was switched
off, so that NCCL talked TCP. trine's library parameters were fitted without them. The logs in data/ hold these times in
nccl-tests' format, with their source. `trine check data/gh200-8-tcp.log --cluster gh200-node` prints the whole table.
Writes 08_check_log.png.
"""

import math
from pathlib import Path

import trine
from trine.check.compare import check_log
from trine.check.nccl_tests import read_log
from trine.collectives.sizes import format_size

DATA = Path(__file__).parent / "data"


def main() -> None:
    cluster = trine.load_cluster("gh200-node", nodes=2)
    for name in ("gh200-8.log", "gh200-8-tcp.log"):
        check = check_log(read_log(DATA / name), cluster)
        print(f"{name}: {check.log.op} of {check.log.num_ranks} GPUs, {check.options.launch}")
        print(f"{'size':>6} {'measured us':>12} {'expected us':>24}")
        for row in check.rows[::4]:
            low, high = row.predicted.low_ps / 1e6, row.predicted.high_ps / 1e6
            band = f"{low:.2f} to {high:.2f}"
            print(f"{format_size(row.size_bytes):>6} {row.measured_ps / 1e6:12.2f} {band:>24} {row.state}")
        print(check.verdict())
        if check.causes:
            print("nearest, by the factor that each leaves (root mean square):")
            for each in sorted(check.causes, key=lambda each: each.left)[:3]:
                print(f"  {math.exp(each.left):.1f}  {each.cause.name}: {each.cause.advice}")
            check.plot(str(Path(__file__).with_suffix(".png")))
        print()


if __name__ == "__main__":
    main()
