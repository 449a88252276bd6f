"""Every layout and load of a small served model, by ``trine.infer``: the twin of the searches of plan and size."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import trine
from trine.errors import InputError

LENGTHS = {"input_tokens": 512, "output_tokens": 32}
LOADS = sorted({round(2 ** (step / 4)) for step in range(41)})


@dataclass(frozen=True)
class Point:
    """A layout at a load. rate: output tokens/s of one copy of ``gpus`` GPUs."""

    layout: tuple[int, int, int, int]
    gpus: int
    requests: int
    ttft_s: float
    tpot_s: float
    rate: float


@functools.cache
def all_points(model: str, cluster: str, engine: str, precision: str, most_gpus: int) -> tuple[Point, ...]:
    """Return all points whose requests do not queue, on copies of 1, 2, 4, ... GPUs."""
    found = []
    ways = [2**power for power in range(most_gpus.bit_length())]
    for tp in ways:
        for pp in ways:
            for dp in ways:
                for ep in ways:
                    if tp * pp * dp <= most_gpus and ep in (1, tp * dp) and (dp == 1 or "a3b" in model):
                        found += layout_points(model, cluster, engine, precision, (tp, pp, ep, dp))
    return tuple(found)


def layout_points(
    model: str, cluster: str, engine: str, precision: str, layout: tuple[int, int, int, int]
) -> list[Point]:
    """Return the points of one layout."""
    tp, pp, ep, dp = layout
    found = []
    for load in LOADS:
        requests = load * pp * dp
        try:
            answer = trine.infer(
                model, cluster, tp=tp, pp=pp, ep=ep, attention_dp=dp, engine=engine, precision=precision,
                concurrency=requests, **LENGTHS,
            )  # fmt: skip
        except InputError:
            return []
        most = answer.largest_concurrency // (pp * dp) * pp * dp
        if answer.queues or requests > most:
            break
        found.append(
            Point(layout, answer.gpus, requests, answer.ttft_s.value, answer.tpot_s.value,
                  answer.output_tokens_per_s.value)
        )  # fmt: skip
    return found
