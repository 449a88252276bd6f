"""DeepEP's kernels as it measured them, for :mod:`trine.studies.gpu_measured`: programs, machines, times."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from trine.cluster import load_cluster
from trine.collectives.kernels.moe.options import ROTATED, MoeOptions
from trine.collectives.loadstore import LoadStoreOptions, loadstore_collective

#: GPUs of a node.
NODE = 8
#: Tokens of a rank (DeepEP docs/legacy.md): of a batch in pretraining, and in decoding.
MANY, FEW = 4096, 128
#: Experts of its test of the low-latency kernels (tests/test_low_latency.py of commit de8cfca, whose README has the
#: times); where they do not divide, those of DeepSeek-V3 are taken.
TESTED_EXPERTS = 288
#: What a row ran -> collective, algorithm, tokens. Many tokens are drawn alike on all ranks, which folds.
EXPERT_PROGRAMS = {
    f"{algorithm} {op}": (f"moe_{op}", algorithm, MoeOptions(tokens=tokens, draws=draws))
    for algorithm, tokens, draws in (("low-latency", FEW, "random"), ("normal", MANY, ROTATED))
    for op in ("dispatch", "combine")
}


@cache
def expert_time_ps(program: str, cluster: str, gpus: int) -> int:
    """One of EXPERT_PROGRAMS on the first ``gpus`` GPUs of as many nodes as that needs; the L2 is empty."""
    op, algorithm, moe = EXPERT_PROGRAMS[program]
    if algorithm == "low-latency" and TESTED_EXPERTS % gpus == 0:
        moe = replace(moe, experts=TESTED_EXPERTS)
    machine = load_cluster(cluster, gpus=gpus, nodes=-(-gpus // NODE))
    options = LoadStoreOptions(algorithm=algorithm, moe=moe)
    return loadstore_collective(op, None, machine, options=options).times_ps[0]
