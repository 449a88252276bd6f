"""Compare the layouts that experts published with the first layout of ``trine plan``.

    python benchmarks/published_layouts.py [NAME ...]

Each of 13 published jobs is searched with its own layout as ``given``: the layouts of NVIDIA's recipes (dg1 to dg15 of
presets/measured/training/tuned.csv, each layout once), of BLOOM on 384 A100 80 GB (Le Scao et al., 2022, section 4.2)
and of OPT-175B on 992 (Zhang et al., 2022, section 2.4: FSDP with tp 8). Prints the step of both layouts, how much
longer the published one takes, the term that differs most, and the CPU time of the search. Exits with 1 if a published
layout is not valid for trine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import trine
from trine.cluster import Cluster, load_cluster
from trine.errors import TrineError
from trine.results.text import aligned
from trine.search.report import words
from trine.software import load_software
from trine.software.profile import Software
from trine.workload.synthesis.model import synthesize
from trine.workload.synthesis.model_files import load_model
from validation.training_rows import TrainingRow, load_rows

#: Rows of tuned.csv with a layout that no earlier row has.
RECIPES = ("dg1", "dg3", "dg5", "dg6", "dg7", "dg9", "dg10", "dg11", "dg12", "dg14", "dg15")
#: Published layouts within this share of the first are as good as it.
GOOD = 0.05
A100 = "a100-80gb"


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """A job and the layout that its authors ran."""

    name: str
    model: Any
    software: Software
    cluster: Cluster
    gpus: int
    global_batch: int
    layout: dict[str, Any]


def recipe(row: TrainingRow) -> PublishedJob:
    """Return the job of a row of tuned.csv."""
    software, plan = row.profile(), row.plan()
    model = synthesize(row.transformer(), gpu=row.gpu, dtype=row.dtype, software=software)
    names = ("dp", "tp", "pp", "cp", "virtual_stages", "micro_batch", "sequence_parallel", "recompute", "sharding")
    layout = {name: getattr(plan, name) for name in names}
    gpus = plan.dp * plan.tp * plan.pp * plan.cp
    return PublishedJob(row.name, model, software, row.load_cluster(), gpus, row.whole("global_batch"), layout)


def on_a100(name: str, model: str, gpus: int, batch: int, software: str, layout: dict[str, Any]) -> PublishedJob:
    """Return a job on nodes of eight A100 80 GB."""
    profile = load_software(software)
    nodes = load_cluster("dgx-a100", nodes=gpus // 8)
    devices = tuple(replace(device, gpu=device.gpu and A100) for device in nodes.devices)
    workload = synthesize(load_model(model), gpu=A100, dtype="bf16", software=profile)
    return PublishedJob(name, workload, profile, replace(nodes, devices=devices), gpus, batch, layout)


def published_jobs() -> Iterator[PublishedJob]:
    """Yield all jobs."""
    rows = {row.name: row for row in load_rows()}
    for name in RECIPES:
        yield recipe(rows[name])
    bloom = {"dp": 8, "tp": 4, "pp": 12, "micro_batch": 2, "sharding": "zero1", "recompute": "full"}
    yield on_a100("bloom", "bloom-176b", 384, 2048, "megatron-deepspeed", bloom)
    opt = {"dp": 124, "tp": 8, "pp": 1, "micro_batch": 8, "sharding": "fsdp", "recompute": "full"}
    yield on_a100("opt", "opt-175b", 992, 992, "megatron-core", opt)


def compared(job: PublishedJob) -> tuple[list[str], bool]:
    """Return the row of a job, and whether its published layout is valid."""
    began = time.process_time()
    try:
        answer = trine.plan(job.model, gpus=job.gpus, cluster=job.cluster, global_batch=job.global_batch,
                            software=job.software, given=job.layout, workers=1)  # fmt: skip
    except TrineError as error:
        return [job.name, "-", "-", "-", str(error)[:80], f"{time.process_time() - began:.0f} s"], False
    cpu_s = time.process_time() - began
    first, given = answer.ranked[0], answer.given
    assert given is not None
    longer = given.outcome.step_ps / first.outcome.step_ps - 1
    terms = {
        name: getattr(given.outcome, name) - getattr(first.outcome, name)
        for name in ("compute_ps", "exposed_ps", "bubble_ps", "idle_ps")
    }
    term = max(terms, key=lambda name: abs(terms[name]))
    seconds = (f"{ranked.outcome.step_ps / 1e12:.3f} s" for ranked in (given, first))
    why = f"{term.removesuffix('_ps')} {terms[term] / 1e12:+.3f} s; first: {words(first.layout)}"
    return [job.name, *seconds, f"{100 * longer:+.1f} %", why, f"{cpu_s:.0f} s"], True


def main() -> None:
    """Print the table."""
    names, rows, good, refused = set(sys.argv[1:]), [], 0, 0
    for job in published_jobs():
        if names and job.name not in names:
            continue
        row, is_valid = compared(job)
        rows.append(row)
        refused += not is_valid
        good += is_valid and float(row[3].split()[0]) <= 100 * GOOD
        print("  ".join(row), file=sys.stderr, flush=True)
    heads = ("job", "published", "first", "longer", "largest difference", "CPU")
    print(*aligned([heads, *(tuple(row) for row in rows)], 1, left=6), sep="\n")
    print(f"{good} of {len(rows)} within {100 * GOOD:.0f} % of the first; {refused} not valid")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
