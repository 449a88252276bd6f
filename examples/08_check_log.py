"""Is this machine as fast as it should be? A healthy and a sick log of nccl-tests against the prediction.

The logs in data/ were written for this example in nccl-tests' format. The times of h100-8.log are measurements that
others published (it names them); h100-8-sick.log has them multiplied by what trine predicts that half of one GPU's
NVLinks cost. `trine check data/h100-8-sick.log --cluster dgx-h100` prints the whole table. Writes 08_check_log.png.
"""

from pathlib import Path

import trine
from trine.collectives.sizes import format_size
from trine.studies.check import check_log
from trine.studies.nccl_tests import read_log

DATA = Path(__file__).parent / "data"


def main() -> None:
    cluster = trine.load_cluster("dgx-h100")
    for name in ("h100-8.log", "h100-8-sick.log"):
        check = check_log(read_log(DATA / name), cluster)
        print(f"{name}: {check.log.op} of {check.log.num_ranks} GPUs, {check.options.launch}")
        print(f"{'size':>6} {'measured us':>12} {'expected us':>24}")
        for row in check.rows[::4]:
            low, high = row.predicted.low_ps / 1e6, row.predicted.high_ps / 1e6
            band = f"{low:.2f} to {high:.2f}"
            print(f"{format_size(row.size_bytes):>6} {row.measured_ps / 1e6:12.2f} {band:>24} {row.state}")
        if check.suspicious_from is None:
            print("healthy\n")
            continue
        print(f"suspicious from {format_size(check.suspicious_from)}; what fits best, as the error that it leaves:")
        for cause, residual in check.residuals[:3]:
            print(f"  {residual:.2f}  {cause}")
        if check.cause is not None:
            print(f"advice: {check.cause.advice}")
        check.plot(str(Path(__file__).with_suffix(".png")))


if __name__ == "__main__":
    main()
