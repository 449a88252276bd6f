"""List the functions that a workload, a plan, a micro-batch and a message pass on their way through one answer.

    python tools/walk.py [--write]

One training step and one collective run under a profile of calls. A function is listed if one of its arguments is the
object itself, or, for a micro-batch and a message, equals its size, which no other number of the job equals. Names are
in the order of their first calls. ``--write`` renews docs/design/walks.md. Fewer functions are easier to follow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import trine
from trine.compute.resize import Split
from trine.graph.workload import Workload
from trine.parallel.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/design/walks.md"
PACKAGE = Path(trine.__file__).parent
#: Samples of a micro-batch and bytes of a message: numbers that nothing else in these answers equals.
SAMPLES, MESSAGE_BYTES = 13, 1_000_003 * 8
JOB = 'trine.simulate("model:llama-3-8b", plan=Plan(dp=2, tp=2, pp=2, batch=52, micro_batch=13), cluster="dgx-h100")'
COLLECTIVE = f'trine.collective("all_reduce", sizes=[{MESSAGE_BYTES}], cluster="dgx-h100")'
HEAD = """# Walks through the code

The functions of `src/trine` that an object passes on its way through one answer, in the order of their first calls.
`python tools/walk.py --write` renews this page after changes; fewer functions are easier to follow.
"""


def step() -> None:
    """Simulate a small step with all three usual forms of parallelism."""
    plan = Plan(dp=2, tp=2, pp=2, batch=4 * SAMPLES, micro_batch=SAMPLES)
    trine.simulate("model:llama-3-8b", plan=plan, cluster="dgx-h100")


def collective() -> None:
    """Predict one all-reduce of :data:`MESSAGE_BYTES`."""
    trine.collective("all_reduce", sizes=[MESSAGE_BYTES], cluster="dgx-h100")


def is_workload(value: object) -> bool:
    """Return whether an argument is the workload."""
    return isinstance(value, Workload)


def is_plan(value: object) -> bool:
    """Return whether an argument is the plan."""
    return isinstance(value, Plan)


def is_micro_batch(value: object) -> bool:
    """Return whether an argument has the size of a micro-batch, or is a split of one."""
    if isinstance(value, Split):
        return value.batch == SAMPLES
    return type(value) is int and value == SAMPLES


def is_message(value: object) -> bool:
    """Return whether an argument is the message's size, or a list of it."""
    if isinstance(value, list | tuple):
        return MESSAGE_BYTES in value
    return type(value) is int and value == MESSAGE_BYTES


def walk(answer: Callable[[], None], is_followed: Callable[[Any], bool]) -> list[str]:
    """Return the functions that the followed object passes, ``file: function``, in the order of their first calls."""
    passed: dict[str, None] = {}

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<") or not code.co_filename.startswith(str(PACKAGE)):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(is_followed(frame.f_locals.get(name)) for name in names):
            passed[f"`{Path(code.co_filename).relative_to(PACKAGE)}`: `{code.co_qualname}`"] = None

    answer()  # compiled kernels and kept tables would hide calls of a first run
    sys.setprofile(called)
    try:
        answer()
    finally:
        sys.setprofile(None)
    return list(passed)


def page() -> str:
    """Return the text of docs/design/walks.md."""
    walks = (
        ("The workload", JOB, walk(step, is_workload)),
        ("The plan", JOB, walk(step, is_plan)),
        ("One micro-batch", JOB, walk(step, is_micro_batch)),
        ("One message", COLLECTIVE, walk(collective, is_message)),
    )
    lines = [HEAD]
    for title, call, functions in walks:
        lines += [f"## {title}: {len(functions)} functions", "", f"    {call}", ""]
        lines += [*(f"{number}. {name}" for number, name in enumerate(functions, 1)), ""]
    return "\n".join(lines)


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description="List the functions that an object passes in one answer.")
    parser.add_argument("--write", action="store_true", help="renew docs/design/walks.md")
    text = page()
    if parser.parse_args().write:
        PAGE.write_text(text)
        return
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
