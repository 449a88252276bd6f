"""The communicating half of fused kernels: flags behind the tiles, waits for those of all peers, and sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.collectives.kernels.fused_blocks import shapes
from trine.collectives.kernels.fused_compute import compute
from trine.collectives.kernels.fused_options import ALL_TO_ALL, TWOSHOT
from trine.collectives.kernels.fused_plan import RECEIVE, Plan, Target
from trine.collectives.kernels.fused_writer import Part
from trine.collectives.kernels.options import JOINT
from trine.gpu.program import ACQUIRE, BARRIER, READ, REDUCE, RELEASE, WAITCNT, WRITE

#: Orders behind RECEIVE: the sums; the signals behind them.
_SUMS, _DONE = 1 << 20, 1 << 50
_PER_TILE = 1 << 25


class Flags(NamedTuple):
    """``each`` flags of every crew: one for each peer, or one in all; ``spacing`` bytes apart from ``base`` on."""

    first: int
    each: int
    base: int
    spacing: int

    def part(self, role: int, distance: Int64 | int, crew: Int64, peer: Int64) -> Part:
        """At rank + ``distance``, of a crew, for the peer at distance -``peer``."""
        number = self.first + crew * self.each + ((peer - 1) if self.each > 1 else np.zeros_like(peer))
        return Part(role, distance, self.base + number * self.spacing, semaphore=number)


def exchange(plan: Plan) -> None:
    """Compute all tiles, put each where it belongs, and wait until those of all peers are there and added up."""
    twoshot = plan.options.algorithm == TWOSHOT
    ready, done = _flags(plan, 2 if twoshot else 1)
    adds_up = plan.options.kind.op != ALL_TO_ALL
    slots, output = _buffers(plan, adds_up)
    compute(plan, _target(plan, slots, output, adds_up))
    _signal_tiles(plan, ready)
    crew = np.arange(plan.grid.crews, dtype=np.int64)
    group = plan.grid.workgroup(crew, np.zeros_like(crew))
    if adds_up:
        # What this workgroup has put into its own memory must be there for all its wavefronts, too.
        plan.writer.add(WAITCNT, group, np.full_like(group, RECEIVE - 1), 0, (), "wait")
    _wait(plan, ready, group, RECEIVE, "wait")
    if not adds_up:
        return
    plan.writer.add(BARRIER, group, np.full_like(group, RECEIVE + _SUMS - 1), 0, (), "wait")
    _add_up(plan, slots, output, twoshot)
    if twoshot:
        after = RECEIVE + _DONE
        plan.finish(group, np.full_like(group, after), "signal sums")
        peers = _turned(plan, crew)
        part = done.part(WRITE, peers, crew[:, None], peers)
        plan.writer.add(RELEASE, group, np.full_like(group, after + 2), 1, (part,), "signal sums")
        _wait(plan, done, group, after + 3, "wait for sums")


def _buffers(plan: Plan, adds_up: bool) -> tuple[Target, Target]:
    """Slots for partial results, if they are to be added up, and the output: both in the own memory."""
    options, grid, writer = plan.options, plan.grid, plan.writer
    slot, chunk_bytes = grid.tile_lines * options.line_bytes, grid.chunk_lines * options.line_bytes
    partials = writer.buffer("partials", options.num_ranks * grid.chunk_tiles * slot) if adds_up else 0
    # A reduce-scatter's output is one chunk; those of an all-reduce in two steps and an all-to-all have one a rank.
    many = grid.chunks if options.algorithm or not adds_up else 1
    output = writer.buffer("output", many * chunk_bytes)
    return Target(partials, 0, slot_bytes=slot), Target(output, 0, 0, chunk_bytes if many > 1 else 0)


def _target(plan: Plan, slots: Target, output: Target, adds_up: bool) -> Target:
    """Where workgroups put their tiles: into slots, numbered by distance, or into the outputs of their ranks."""
    if not adds_up:
        return output._replace(distance=plan.tiles.chunk)
    if plan.grid.chunks > 1:
        return slots._replace(distance=plan.tiles.chunk)
    return slots._replace(distance=_everyone(plan, plan.tiles.crew))


def _flags(plan: Plan, phases: int) -> tuple[Flags, Flags]:
    options, writer = plan.options, plan.writer
    each = 1 if options.waits == JOINT else options.num_ranks - 1
    count = plan.grid.crews * each
    base = writer.buffer("flags", phases * count * options.flag_spacing, uncached=True)
    writer.num_semaphores += phases * count
    ready = Flags(0, each, base, options.flag_spacing)
    return ready, ready._replace(first=count)


def _turned(plan: Plan, crew: Int64) -> Int64:
    """int64[n, peers]: distances of all peers; each crew begins with another, so that not all go to one at once."""
    peers = plan.options.num_ranks - 1
    return 1 + (np.arange(peers, dtype=np.int64) + crew[:, None]) % peers


def _everyone(plan: Plan, crew: Int64) -> Int64:
    """As _turned, and the own rank behind them."""
    return np.append(_turned(plan, crew), np.zeros((len(crew), 1), np.int64), axis=1)


def _signal_tiles(plan: Plan, ready: Flags) -> None:
    """Behind a crew's last tile for a rank: one flag to it (or, where all need all tiles, to all peers)."""
    last = plan.tiles.number + plan.grid.crews >= plan.grid.chunk_tiles
    tiles = plan.tiles.where(last & ((plan.tiles.chunk > 0) | (plan.grid.chunks == 1)))
    order = plan.order(tiles.turn, plan.steps + 1, 0)
    plan.finish(tiles.workgroup, order, "signal")
    peers = tiles.chunk[:, None] if plan.grid.chunks > 1 else _turned(plan, tiles.crew)
    part = ready.part(WRITE, peers, tiles.crew[:, None], peers)
    plan.writer.add(RELEASE, tiles.workgroup, order + 2, 1, (part,), "signal")


def _wait(plan: Plan, flags: Flags, group: Int64, order: int, label: str) -> None:
    """One acquire for each peer, one after the other, or one for all."""
    crew = np.arange(plan.grid.crews, dtype=np.int64)
    if flags.each == 1:
        amount = plan.options.num_ranks - 1
        part = flags.part(READ, 0, crew, np.ones_like(crew))
        plan.writer.add(ACQUIRE, group, np.full_like(group, order), amount, (part,), label)
        return
    peers = _turned(plan, crew)
    many = peers.shape[1]
    part = flags.part(READ, 0, np.repeat(crew, many), peers.ravel())
    at = order + np.tile(np.arange(many, dtype=np.int64), len(crew))
    plan.writer.add(ACQUIRE, np.repeat(group, many), at, 1, (part,), label)


def _add_up(plan: Plan, slots: Target, output: Target, to_all: bool) -> None:
    """Add up the partial results of all ranks, into the own output, or into those of all."""
    grid, line, pitch = plan.grid, plan.options.line_bytes, plan.result_pitch
    own = plan.tiles.where(plan.tiles.chunk == 0)
    order = RECEIVE + _SUMS + own.number // grid.crews * _PER_TILE
    for shape in shapes(own.tall, own.wide, grid.width):
        which = np.repeat(shape.chosen, shape.strips)
        strip = np.tile(np.arange(shape.strips), len(shape.chosen))
        packed = shape.wide * line
        sources = np.roll(_everyone(plan, own.crew[which]), 1, axis=1)
        slot = slots.base + (sources * grid.chunk_tiles + own.number[which][:, None]) * slots.slot_bytes
        read = Part(READ, 0, slot + shape.offsets(packed, line)[strip][:, None], step=shape.step(packed, line))
        there = output.base + own.down[which] * pitch + own.across[which] * line + shape.offsets(pitch, line)[strip]
        targets = _everyone(plan, own.crew[which]) if to_all else 0
        write = Part(WRITE, targets, there, 0, output.stride, shape.step(pitch, line))
        plan.writer.add(REDUCE, own.workgroup[which], order[which] + strip, shape.amount, (read, write), "add up")
