"""Random small search spaces of ``trine.plan``, and their exhaustive simulation."""

from __future__ import annotations

import random
from typing import NamedTuple

from trine.cluster import load_cluster
from trine.errors import PlanError
from trine.parallel.constraints import LayoutFacts
from trine.parallel.plan import Plan
from trine.search.plan import memory_of
from trine.search.screened import ScreenedSearch
from trine.search.search import Search, workers
from trine.search.space import Layout, Space
from trine.search.worker import Outcome, PackedJob, SearchJob, simulate_layout
from trine.training.options import SimulateOptions
from trine.training.setup import setup_machine, setup_workload

MODELS = ("llama-3.2-1b", "mixtral-8x7b", "llama-3-8b", "llama-3-70b")
SOFTWARE = ("megatron-core", "torchtitan", "nanotron-2024", "internevo", "pytorch-eager", "none")
#: Fields that a space fixes, so that it has few layouts.
FIXED = {
    "tp": (1, 2, 4), "pp": (1, 2, 4), "cp": (1, 2), "micro_batch": (1, 2), "sharding": ("none", "zero1", "fsdp"),
    "recompute": ("none", "selective", "full"), "offload": ("none", "optimizer", "activations"),
    "virtual_stages": (1, 2), "sequence_parallel": (True, False), "ep": (1, 2, 4),
}  # fmt: skip


class SmallSpace(NamedTuple):
    """A search space with its job. memory_bytes: capacity of the GPU."""

    job: SearchJob
    space: Space
    memory_bytes: int
    text: str

    def search(self, top: int = 1) -> Search:
        """Return a finished search in this process."""
        with workers(None, 1, PackedJob(self.job)) as executor:
            search = ScreenedSearch(PackedJob(self.job), self.space, self.memory_bytes, executor, top)
            search.run()
        return search

    def all_layouts(self) -> list[Layout]:
        """Return every layout that meets the rules."""
        families = [layout for family in self.space.families() for layout in family.layouts()]
        layouts = [each for layout in families for each in (layout, *self.space.offloading(layout))]
        return [layout for layout in layouts if not self.space.reason(layout)]


def random_space(seed: int, num_fixed: int = 7) -> SmallSpace:
    """Return a random space: a shortened model on 2 to 16 GPUs with most fields fixed."""
    rng = random.Random(seed)
    gpus, layers = rng.choice((2, 4, 8, 16)), rng.choice((4, 6, 8))
    sequence, software = rng.choice((1024, 4096, 16384)), rng.choice(SOFTWARE)
    batch = gpus * rng.choice((1, 2, 4))
    names = rng.sample(sorted(FIXED), num_fixed)
    fixed = {name: rng.choice(FIXED[name]) for name in names}
    model = f"model:{rng.choice(MODELS)},layers={layers},sequence={sequence}"
    text = f"seed {seed}: {model} on {gpus} GPUs, batch {batch}, {software}, {fixed}"
    options = SimulateOptions(cluster=load_cluster("dgx-h100", gpus=gpus), software=software, compare=False)
    machine = setup_machine(Plan(dp=gpus), options)
    workload, chosen = setup_workload(model, machine, options)
    space = Space(gpus, batch, LayoutFacts(workload), chosen.profile, fixed)
    job = SearchJob(workload=workload, options=options, gpus=gpus)
    return SmallSpace(job, space, memory_of(machine), text)


def is_empty(small: SmallSpace) -> bool:
    """Return whether no layout meets the rules, or the fixed fields contradict each other."""
    try:
        return not small.all_layouts()
    except PlanError:
        return True


def within_limits(results: dict[Layout, Outcome]) -> dict[Layout, Outcome]:
    """Return the layouts that fit with a margin, or those that are tight if no other fits.

    A layout with offload counts only if the same layout lacks a margin without it, as in a search.
    """
    fitting = {layout: each for layout, each in results.items() if each.fits}
    safe = {layout: each for layout, each in fitting.items() if not each.is_tight}
    needed = {layout: each for layout, each in safe.items()
              if layout.offload == "none" or layout._replace(offload="none") not in safe}  # fmt: skip
    return needed or fitting


def outcomes(small: SmallSpace, layouts: list[Layout]) -> dict[Layout, Outcome]:
    """Return the outcome of each layout that can be built."""
    from trine.search.worker import PackedJob

    packed, results = PackedJob(small.job), {}
    for layout in layouts:
        outcome = simulate_layout(packed, small.space.plan(layout))
        if not outcome.refused:
            results[layout] = outcome
    return results
