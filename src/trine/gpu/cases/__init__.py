"""The case studies of ASTRA-sim 3.0 (arXiv 2606.10440), done again on the load-store level; one on real machines."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from trine.errors import InputError, nearest
from trine.gpu.cases.case import CaseStudy
from trine.gpu.cases.runs import OnRun, telling

__all__ = ["CASES", "CaseStudy", "run_case"]

#: name -> (function that runs it, its question), in the paper's order
CASES: dict[str, tuple[str, str]] = {
    "reduce-scatter": ("scale_up:reduce_scatter", "case 1: does a reduce-scatter get or put?"),
    "all-gather": ("scale_up:all_gather", "case 2: does an all-gather get or put, and what does fair arbitration do?"),
    "unrolling": ("scale_up:unrolling", "case 3: what does loop unrolling do for an all-to-all?"),
    "outstanding": ("scale_up:outstanding", "case 4: how many requests does a compute unit need in flight?"),
    "cost": ("runs:cost", "case 5: what does a simulation cost, by bytes and GPUs?"),
    "clos": ("scale_out:clos", "case 6: a ring all-reduce on a two-tier Clos, packet by packet"),
    "ll-simple": ("protocols:ll_simple", "smallest size at which Simple beats LL, by link latency and bandwidth"),
    "packets": (
        "protocols:packets",
        "the same on 8 H100 and H200, by MSCCL++'s kernels, against what libraries choose",
    ),
}


def run_case(name: str, on_run: OnRun | None = None) -> CaseStudy:
    """Run one study, with the sizes of its example. on_run: called with a sentence after each of its runs.

    Raises
    ------
    InputError: unknown name; names the nearest.
    """
    if name not in CASES:
        raise InputError(f"no study {name!r:.80}{nearest(name[:80], CASES)}", field="study")
    module, function = CASES[name][0].split(":")
    run: Callable[[], CaseStudy] = getattr(import_module(f"{__name__}.{module}"), function)
    with telling(on_run):
        return run()
