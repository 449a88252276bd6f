"""DeepEP's kernels as it measured them, for :mod:`trine.studies.gpu_measured`: programs, machines, times."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from trine.cluster import load_cluster
from trine.collectives.kernels.moe.options import RANDOM, ROTATED, MoeOptions
from trine.collectives.loadstore import LoadStoreOptions, loadstore_collective

#: GPUs of a node.
NODE = 8
#: Tokens of a rank (DeepEP docs/legacy.md): of a batch in pretraining, and in decoding.
MANY, FEW = 4096, 128
#: Experts of its test of the low-latency kernels (tests/test_low_latency.py of commit de8cfca, whose README has the
#: times); where they do not divide, those of DeepSeek-V3 are taken.
TESTED_EXPERTS = 288
#: Of all ranks together: tokens of the smaller of the two runs that stand for many tokens across nodes.
TOKENS_ACROSS = 8192
#: What a row ran -> collective, algorithm, tokens. Many tokens are drawn alike on all ranks, which folds in a node.
EXPERT_PROGRAMS = {
    f"{algorithm} {op}": (f"moe_{op}", algorithm, MoeOptions(tokens=tokens, draws=draws))
    for algorithm, tokens, draws in (("low-latency", FEW, "random"), ("normal", MANY, ROTATED))
    for op in ("dispatch", "combine")
}


@cache
def expert_time_ps(program: str, cluster: str, gpus: int) -> int:
    """One of EXPERT_PROGRAMS on the first ``gpus`` GPUs of as many nodes as that needs; the L2 is empty.

    Many tokens across nodes are not simulated, as nothing folds there: their time lies on a straight line through those
    of TOKENS_ACROSS / ``gpus`` tokens a rank and of twice as many.
    """
    op, algorithm, moe = EXPERT_PROGRAMS[program]
    if algorithm == "low-latency":
        if TESTED_EXPERTS % gpus == 0:
            moe = replace(moe, experts=TESTED_EXPERTS)
        return _time_ps(op, algorithm, cluster, gpus, moe)
    if gpus <= NODE:
        return _time_ps(op, algorithm, cluster, gpus, moe)
    few = TOKENS_ACROSS // gpus
    first_ps, second_ps = (
        _time_ps(op, algorithm, cluster, gpus, replace(moe, draws=RANDOM, tokens=tokens)) for tokens in (few, 2 * few)
    )
    return second_ps + (second_ps - first_ps) * (moe.tokens - 2 * few) // few


def _time_ps(op: str, algorithm: str, cluster: str, gpus: int, moe: MoeOptions) -> int:
    machine = load_cluster(cluster, gpus=gpus, nodes=-(-gpus // NODE))
    options = LoadStoreOptions(algorithm=algorithm, moe=moe)
    return loadstore_collective(op, None, machine, options=options).times_ps[0]
