"""Expert dispatch and combine, load by load: DeepEP's two kinds of kernels on eight H800, and popular experts.

Simulates both kinds for DeepSeek-V3, 8 of 256 experts per token, as in `trine collective moe_dispatch --cluster
hgx-h800 --fidelity loadstore --draws rotated --tokens N`. Then adds random draws, experts of unequal popularity, and
the same skew in a plain all-to-all. How it works: docs/background/gpu-kernels.md. Comparison to DeepEP's published
times: docs/background/gpu-models.md.
"""

from __future__ import annotations

import trine
from trine.collectives.sizes import shared_matrix

CLUSTER = trine.load_cluster("hgx-h800")
RANKS = len(CLUSTER.gpus)
TOKENS, FEW, MIB = (8, 32, 128), 8, 1 << 20
DRAWS = {
    "as rank 0 does, seen from each (rotated)": {"draws": "rotated"},
    "each for itself, all experts alike": {},
    "each for itself, expert n as likely as 1/n": {"expert_imbalance": "zipf:1"},
}
POWERS = {"even": 0.0, "zipf:0.5": 0.5, "zipf:1": 1.0}


def main() -> None:
    print("                low-latency kernels      normal kernels")
    print("tokens a rank   dispatch    combine   dispatch    combine")
    for tokens in TOKENS:
        asked = trine.MoeOptions(tokens=tokens, draws="rotated")
        times = [
            answer(op, algorithm=algorithm, moe=asked).times_ps[0]
            for algorithm in ("low-latency", "normal")
            for op in ("moe_dispatch", "moe_combine")
        ]
        print(f"{tokens:13}" + "".join(f"{time_ps / 1e6:8.2f} us" for time_ps in times))

    print(f"\nlow-latency dispatch of {FEW} tokens; experts drawn         time   simulated")
    for name, draws in DRAWS.items():
        row = answer("moe_dispatch", algorithm="low-latency", moe=trine.MoeOptions(tokens=FEW, **draws)).rows[0]
        print(f"{name:46} {row.time.time_ps / 1e6:8.2f} us   {row.simulated} of {RANKS} GPUs")

    rate = next(link for link in CLUSTER.links if link.name == "nvswitch->gpu0").peak_bytes_per_s
    print(f"\nall_to_all_v, 1 MiB of each rank       time   rank 0 gets   at {rate / 1e9:.0f} GB/s")
    for name, power in POWERS.items():
        matrix = shared_matrix(MIB, [(rank + 1) ** -power for rank in range(RANKS)])
        found = answer("all_to_all_v", matrix=matrix)
        received = sum(row[0] for row in matrix[1:])
        print(f"{name:32} {found.times_ps[0] / 1e6:8.2f} us {received / MIB:9.2f} MiB {received / rate * 1e6:10.2f} us")
    print()
    print("\n".join(line for line in found.details().splitlines() if line.startswith("evidence")))


def answer(op: str, **options: object) -> trine.gpu.collective.LoadStoreCollectiveResult:
    return trine.loadstore_collective(op, None, CLUSTER, options=trine.LoadStoreOptions(**options))


if __name__ == "__main__":
    main()
