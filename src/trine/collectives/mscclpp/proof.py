"""Does a plan do what it says? Runs it on symbols, in several orders, and says what the proof rests on."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from trine.collectives.mscclpp.layout import Layout, parts_grid, pipelines, reused_chunk_bytes
from trine.collectives.mscclpp.plan import KernelPlan
from trine.collectives.mscclpp.watch import Watch
from trine.errors import InputError

MAX_ROUNDS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """That every rank holds the right data when all have ended, and that nothing was read too early.

    ``num_runs`` orders were run, over ``num_operations`` operations and ``num_cells`` cells. ``open_ends``: ranks that
    can end before another rank has written their result; whatever runs next on them may read old data. ``notes``: what
    else the plan rests on. A plan is ``complete`` if no rank has an open end.
    """

    plan: str
    collective: str
    num_ranks: int
    num_operations: int
    num_cells: int
    num_runs: int
    open_ends: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.open_ends


def check_plan(plan: KernelPlan, orders: int = 2) -> Proof:
    """Prove that every rank gets the right data, whatever the order in which thread blocks run.

    Parameters
    ----------
    orders: how many random but reproducible orders are run besides the first; they matter only where several thread
        blocks release one semaphore, or use one connection.

    Raises
    ------
    DeadlockError: thread blocks wait for ever; says who for what.
    InputError: a signal without wait, a race, a read of what nobody wrote, or a rank with other data at the end; says
        which, and who is involved. Also where a proof is not possible: custom collectives, or a plan too large.
    """
    layout, notes = proof_layout(plan)
    found, open_ends = dict.fromkeys((*plan.notes, *notes)), dict[int, str]()
    for seed in range(orders + 1):
        watch = Watch(plan, layout, relaxed_counts=True, order=random.Random(seed) if seed else None)
        watch.run()
        found |= dict.fromkeys(watch.notes)
        open_ends = watch.open_ends | open_ends
    strict = Watch(plan, layout, relaxed_counts=False, order=None)
    strict.run()
    found |= dict.fromkeys(strict.notes)
    found |= dict.fromkeys(_relaxed_ends(strict.open_ends, open_ends))
    return Proof(
        plan=plan.name,
        collective=plan.collective,
        num_ranks=plan.num_ranks,
        num_operations=sum(len(block.steps) for block in strict.machine.blocks),
        num_cells=strict.machine.memory.num_cells,
        num_runs=orders + 2,
        open_ends=tuple(f"rank {rank} can end before {place} has written" for rank, place in open_ends.items()),
        notes=tuple(found),
    )


def _relaxed_ends(strict: dict[int, str], open_ends: dict[int, str]) -> list[str]:
    """A note where only relaxed signals tell some rank that its result is there."""
    first = next(((rank, place) for rank, place in strict.items() if rank not in open_ends), None)
    return (
        [] if first is None else [f"only relaxed signals tell rank {first[0]} at its end that {first[1]} has written"]
    )


def proof_layout(plan: KernelPlan) -> tuple[Layout, list[str]]:
    """A grid fine enough for every part of every range, with pipelines of a few rounds, and of more than one turn."""
    parts, loops = parts_grid(plan), pipelines(plan)
    if plan.chunks_of_size == 0:
        raise InputError("its buffers have no chunks", file=plan.file)
    if not loops:
        return Layout(group_chunks=1, group_units=parts), []
    window, largest = reused_chunk_bytes(plan), max(loop.unit_bytes for loop in loops)
    measure = math.gcd(*(loop.unit_bytes for loop in loops), window or 0)
    chunk, notes = 3 * largest, []
    if window is not None and window % largest:
        raise InputError(
            f"rounds of {largest} bytes run over the end of the {window} bytes of scratch that a chunk reuses",
            file=plan.file,
        )
    if window is not None and window // largest <= MAX_ROUNDS:
        chunk = window + 2 * largest
    elif window is not None:
        notes.append(f"the proof stops before scratch is used again, after {window // largest} rounds")
    cells = -(-chunk // measure)
    return Layout(
        group_chunks=1,
        group_units=cells * parts,
        window=None if window is None else window // measure * parts,
        unit_scale=(parts, measure),
    ), notes
