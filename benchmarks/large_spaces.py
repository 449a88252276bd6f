"""Check that no random layout of a large search space beats the first layout of ``trine plan``.

    python benchmarks/large_spaces.py [--spaces N] [--members N] [--seed N]

For each space: one search, then random members that meet the rules. A member whose lower bound of time exceeds the
first layout's step cannot be faster, and one whose lower bound of memory exceeds the GPU does not fit; neither is
simulated. The others are simulated. As in the search, a layout with offload takes part only if the same layout does not
fit without it, and a layout without a margin of memory does not count. A random layout with experts on several ranks
has a random combination of the switches that the software offers, or none. Prints how many members were simulated, how
many fit, and how much faster the fastest is than the first layout. Exits with 1 if one is more than 2 % faster.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from trine.cluster import load_cluster
from trine.compute.origin import known_gpu
from trine.parallel.constraints import LayoutFacts
from trine.parallel.plan import Plan
from trine.results.text import aligned
from trine.search.plan import memory_of
from trine.search.report import words
from trine.search.screened import ScreenedSearch
from trine.search.search import Search, workers
from trine.search.space import Layout, Space
from trine.search.switches import switch_settings, switched
from trine.search.ties import RESOLUTION
from trine.search.worker import PackedJob, SearchJob, simulate_layout
from trine.training.options import SimulateOptions
from trine.training.setup import setup_machine, setup_workload

#: Model, GPUs, machine and global batch of each space; each has more than 1,000 layouts.
SPACES = (
    ("llama-3-8b", 64, "dgx-h100", 256),
    ("llama-2-13b", 64, "dgx-a100", 512),
    ("llama-3-70b", 64, "dgx-h100", 256),
    ("mixtral-8x7b", 64, "dgx-h100", 256),
    ("llama-2-70b", 256, "dgx-h100", 1024),
    ("gpt-3-175b", 128, "dgx-h100", 256),
    ("bloom-176b", 384, "dgx-h100", 2048),
    ("gpt-oss-20b", 16, "dgx-h100", 128),
    ("llama-3-405b", 576, "dgx-h100", 252),
    ("deepseek-v3", 512, "dgx-h100", 2048),
)


class Member(NamedTuple):
    """A random layout that fits with a margin, and its step in ps."""

    layout: Layout
    step_ps: int


def random_layouts(space: Space, number: int, rng: random.Random) -> list[Layout]:
    """Return random layouts that meet the rules, offload included; every layout of the space is equally likely."""
    families = space.families()
    weights = [family.num_layouts for family in families]
    found: dict[Layout, None] = {}
    for _ in range(100 * number):
        if len(found) == number:
            break
        family = rng.choices(families, weights)[0]
        layout = rng.choice(list(family.layouts()))._replace(offload=rng.choice(family.offload))
        layout = switched(layout, rng.choice([{}, *space.switches]), space) or layout
        if not space.reason(layout):
            found[layout] = None
    return list(found)


def fitting(search: Search, layouts: Sequence[Layout], limit_ps: int) -> tuple[list[Member], int]:
    """Return the layouts that may be faster than ``limit_ps`` and fit with a margin; and how many were simulated."""
    members, simulated = [], 0
    for layout in layouts:
        time_ps = search.bounds(layout)[0]
        if time_ps > limit_ps or search.allocated(layout) > search.capacity:
            continue
        plain = layout._replace(offload="none")
        if layout.offload != "none" and is_safe(search, plain):
            continue
        simulated += 1
        outcome = simulate_layout(search.packed, search.space.plan(layout))
        if outcome.fits and not outcome.is_tight:
            members.append(Member(layout, outcome.step_ps))
    return members, simulated


def is_safe(search: Search, layout: Layout) -> bool:
    """Return whether a layout fits with a margin."""
    if search.space.reason(layout) or search.allocated(layout) > search.capacity:
        return False
    outcome = simulate_layout(search.packed, search.space.plan(layout))
    return outcome.fits and not outcome.is_tight


def compared(model: str, gpus: int, machine: str, batch: int, members: int, seed: int) -> tuple[list[str], bool]:
    """Return the row of a space, and whether no random member is more than RESOLUTION faster than the first layout."""
    began = time.process_time()
    options = SimulateOptions(cluster=load_cluster(machine, gpus=gpus), compare=False)
    parts = setup_machine(Plan(dp=gpus), options)
    workload, chosen = setup_workload(f"model:{model}", parts, options)
    packed = PackedJob(SearchJob(workload=workload, options=options, gpus=gpus))
    domain = len(options.cluster.gpus) if gpus <= 8 else 8  # type: ignore[union-attr]
    switches = switch_settings(chosen.profile, workload, {}, known_gpu(parts.target))
    space = Space(gpus, batch, LayoutFacts(workload), chosen.profile, {}, domain, switches=switches)
    with workers(None, 1, packed) as executor:
        search = ScreenedSearch(packed, space, memory_of(parts), executor, 1)
        search.run()
        first = search.ranked[0]
        found, simulated = fitting(search, random_layouts(space, members, random.Random(seed)), first.outcome.step_ps)
    best = min(found, key=lambda member: member.step_ps, default=None)
    faster = 0.0 if best is None else 1 - best.step_ps / first.outcome.step_ps
    row = [f"{model} on {gpus}", f"{search.num_layouts:,}", f"{first.outcome.step_ps / 1e12:.3f} s", str(members),
           str(simulated), str(len(found)), f"{100 * faster:+.1f} %", "" if best is None else words(best.layout),
           f"{time.process_time() - began:.0f} s"]  # fmt: skip
    return row, faster <= RESOLUTION


def main() -> None:
    """Print one row for each space."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=int, default=len(SPACES), help="search the first N spaces")
    parser.add_argument("--members", type=int, default=300, help="draw N random layouts of each space")
    parser.add_argument("--seed", type=int, default=35)
    given = parser.parse_args()
    heads = ["space", "layouts", "first", "members", "simulated", "fit", "faster", "fastest member", "CPU"]
    rows, are_good = [heads], True
    for number, space in enumerate(SPACES[: given.spaces]):
        row, is_good = compared(*space, given.members, given.seed + number)
        print("  ".join(row), file=sys.stderr, flush=True)
        rows.append(row)
        are_good = are_good and is_good
    print(*aligned([tuple(row) for row in rows], 1, left=1), sep="\n")
    sys.exit(0 if are_good else 1)


if __name__ == "__main__":
    main()
