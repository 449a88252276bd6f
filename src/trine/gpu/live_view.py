"""A running load-store simulation as plain data, for the live page."""

from __future__ import annotations

from typing import Any

import numpy as np

import trine.gpu._state as S
from trine.gpu.program import OP_NAMES
from trine.gpu.start import GpuState
from trine.gpu.stuck import waiting_wavefronts
from trine.gpu.system import GpuSystem

#: Most wavefronts and semaphores in a view.
SHOWN = 8
#: Activities of wavefronts in words.
DOING = {
    S.WAVE_NEW: "starting",
    S.WAVE_QUEUED: "waiting to issue",
    S.WAVE_FULL: "waiting for a request slot",
    S.WAVE_COUNTING: "waiting for lines",
    S.WAVE_DRAINING: "waiting for writes to land",
    S.WAVE_ACQUIRING: "waiting for a semaphore",
    S.WAVE_AT_BARRIER: "at a barrier",
    S.WAVE_COMPUTING: "computing",
    S.WAVE_PAUSED: "in a fence or delay",
}
#: States in which a wavefront waits for others.
WAITING = (S.WAVE_FULL, S.WAVE_COUNTING, S.WAVE_DRAINING, S.WAVE_ACQUIRING, S.WAVE_AT_BARRIER)


def view_of_gpus(state: GpuState, system: GpuSystem, rank: int) -> dict[str, Any]:
    """Return the state of a run: wavefronts by activity, the longest waits, and the compute units of one rank.

    rank: whose compute units to list; -1: of no rank.
    """
    waves, clock = state.tables.machine.waves, state.clock
    doing = waves["doing"]
    counts = {words: int((doing == code).sum()) for code, words in DOING.items()}
    waiting = np.flatnonzero(np.isin(doing, WAITING))
    since = state.tables.machine.wave_times["since_ps"][waiting]
    longest = waiting[np.argsort(since, kind="stable")[:SHOWN]]
    rows = []
    for slot, wave in zip(longest.tolist(), waiting_wavefronts(state, system, longest.tolist()), strict=True):
        rows.append({
            "who": f"workgroup {wave.workgroup}, wavefront {wave.wavefront}",
            "at": _operation(system, wave.op),
            "for": wave.waits_for,
            "since_ps": int(clock.now) - int(state.tables.machine.wave_times["since_ps"][slot]),
        })  # fmt: skip
    held = counts[DOING[S.WAVE_ACQUIRING]] + counts[DOING[S.WAVE_AT_BARRIER]]
    view: dict[str, Any] = {
        "level": "load-store",
        "now_ps": int(clock.now),
        "events": int(clock.num_events),
        "ended": int(clock.num_issued),
        "ranks": system.num_ranks,
        "wavefronts": {words: count for words, count in counts.items() if count},
        "waiting": rows,
        "stalled": 0 < held == sum(counts.values()),
    }
    if 0 <= rank < system.num_ranks and int(system.gpu_of[rank]) >= 0:
        view["units"] = _units(state, int(system.gpu_of[rank]), system)
    return view


def _operation(system: GpuSystem, op: int) -> str:
    """Return the name of an operation; its end if all operations are over."""
    kinds = system.program.op_kind
    return OP_NAMES[int(kinds[op])] if 0 <= op < len(kinds) else "the end"


def _units(state: GpuState, gpu: int, system: GpuSystem) -> list[dict[str, Any]]:
    """Return the compute units of a simulated GPU that hold wavefronts, and how many do what; alike ones in one row."""
    waves = state.tables.machine.waves
    units = len(state.tables.machine.cus) // system.num_gpus
    mine = np.flatnonzero((waves["doing"] != S.WAVE_GONE) & (waves["cu"] // units == gpu))
    rows: dict[int, dict[str, int]] = {}
    for slot in mine.tolist():
        words = DOING.get(int(waves["doing"][slot]), "ended")
        row = rows.setdefault(int(waves["cu"][slot]) % units, {})
        row[words] = row.get(words, 0) + 1
    found: list[dict[str, Any]] = []
    for unit, row in sorted(rows.items()):
        if found and found[-1]["wavefronts"] == row and found[-1]["last"] == unit - 1:
            found[-1]["last"] = unit
        else:
            found.append({"first": unit, "last": unit, "wavefronts": row})
    return found
