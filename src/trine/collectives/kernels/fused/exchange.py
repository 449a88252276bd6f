"""The communicating half of fused kernels: flags behind the tiles, waits for those of all peers, and sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.collectives.kernels.fused.compute import RECEIVE, FusedPlan, TileTarget, compute
from trine.collectives.kernels.fused.options import ALL_TO_ALL, TWOSHOT
from trine.collectives.kernels.fused.tiles import strip_shapes
from trine.collectives.kernels.options import JOINT
from trine.gpu.builder import OperandBlock
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

    def operands(self, role: int, distance: Int64 | int, crew: Int64, peer: Int64) -> OperandBlock:
        """At rank + ``distance``, of a crew, for the peer at distance -``peer``."""
        number = self.first + crew * self.each + ((peer - 1) if self.each > 1 else np.zeros_like(peer))
        return OperandBlock(role, distance, self.base + number * self.spacing, semaphore=number)


def exchange(plan: FusedPlan) -> None:
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
        plan.builder.add_block(WAITCNT, group, np.full_like(group, RECEIVE - 1), 0, (), "wait")
    _wait(plan, ready, group, RECEIVE, "wait")
    if not adds_up:
        return
    plan.builder.add_block(BARRIER, group, np.full_like(group, RECEIVE + _SUMS - 1), 0, (), "wait")
    _add_up(plan, slots, output, twoshot)
    if twoshot:
        after = RECEIVE + _DONE
        plan.finish(group, np.full_like(group, after), "signal sums")
        peers = _rotated(plan, crew)
        flag = done.operands(WRITE, peers, crew[:, None], peers)
        plan.builder.add_block(RELEASE, group, np.full_like(group, after + 2), 1, (flag,), "signal sums")
        _wait(plan, done, group, after + 3, "wait for sums")


def _buffers(plan: FusedPlan, adds_up: bool) -> tuple[TileTarget, TileTarget]:
    """Slots for partial results, if they are to be added up, and the output: both in the own memory."""
    options, grid, builder = plan.options, plan.grid, plan.builder
    slot, chunk_bytes = grid.tile_lines * options.line_bytes, grid.chunk_lines * options.line_bytes
    partials = builder.buffer("partials", options.num_ranks * grid.chunk_tiles * slot) if adds_up else 0
    # A reduce-scatter's output is one chunk; those of an all-reduce in two steps and an all-to-all have one a rank.
    many = grid.chunks if options.algorithm or not adds_up else 1
    output = builder.buffer("output", many * chunk_bytes)
    return TileTarget(partials, 0, slot_bytes=slot), TileTarget(output, 0, 0, chunk_bytes if many > 1 else 0)


def _target(plan: FusedPlan, slots: TileTarget, output: TileTarget, adds_up: bool) -> TileTarget:
    """Where workgroups put their tiles: into slots, numbered by distance, or into the outputs of their ranks."""
    if not adds_up:
        return output._replace(distance=plan.tiles.chunk)
    if plan.grid.chunks > 1:
        return slots._replace(distance=plan.tiles.chunk)
    return slots._replace(distance=_everyone(plan, plan.tiles.crew))


def _flags(plan: FusedPlan, phases: int) -> tuple[Flags, Flags]:
    options, builder = plan.options, plan.builder
    each = 1 if options.waits == JOINT else options.num_ranks - 1
    count = plan.grid.crews * each
    base = builder.buffer("flags", phases * count * options.flag_spacing, uncached=True)
    ready = Flags(builder.semaphores(phases * count), each, base, options.flag_spacing)
    return ready, ready._replace(first=ready.first + count)


def _rotated(plan: FusedPlan, crew: Int64) -> Int64:
    """int64[n, peers]: distances of all peers; each crew begins with another, so that not all go to one at once."""
    peers = plan.options.num_ranks - 1
    return 1 + (np.arange(peers, dtype=np.int64) + crew[:, None]) % peers


def _everyone(plan: FusedPlan, crew: Int64) -> Int64:
    """As _rotated, and the own rank behind them."""
    return np.append(_rotated(plan, crew), np.zeros((len(crew), 1), np.int64), axis=1)


def _signal_tiles(plan: FusedPlan, ready: Flags) -> None:
    """Behind a crew's last tile for a rank: one flag to it (or, where all need all tiles, to all peers)."""
    last = plan.tiles.number + plan.grid.crews >= plan.grid.chunk_tiles
    tiles = plan.tiles.where(last & ((plan.tiles.chunk > 0) | (plan.grid.chunks == 1)))
    order = plan.order(tiles.turn, plan.steps + 1, 0)
    plan.finish(tiles.workgroup, order, "signal")
    peers = tiles.chunk[:, None] if plan.grid.chunks > 1 else _rotated(plan, tiles.crew)
    flag = ready.operands(WRITE, peers, tiles.crew[:, None], peers)
    plan.builder.add_block(RELEASE, tiles.workgroup, order + 2, 1, (flag,), "signal")


def _wait(plan: FusedPlan, flags: Flags, group: Int64, order: int, label: str) -> None:
    """One acquire for each peer, one after the other, or one for all."""
    crew = np.arange(plan.grid.crews, dtype=np.int64)
    if flags.each == 1:
        amount = plan.options.num_ranks - 1
        flag = flags.operands(READ, 0, crew, np.ones_like(crew))
        plan.builder.add_block(ACQUIRE, group, np.full_like(group, order), amount, (flag,), label)
        return
    peers = _rotated(plan, crew)
    many = peers.shape[1]
    flag = flags.operands(READ, 0, np.repeat(crew, many), peers.ravel())
    at = order + np.tile(np.arange(many, dtype=np.int64), len(crew))
    plan.builder.add_block(ACQUIRE, np.repeat(group, many), at, 1, (flag,), label)


def _add_up(plan: FusedPlan, slots: TileTarget, output: TileTarget, to_all: bool) -> None:
    """Add up the partial results of all ranks, into the own output, or into those of all."""
    grid, line, pitch = plan.grid, plan.options.line_bytes, plan.result_pitch
    own = plan.tiles.where(plan.tiles.chunk == 0)
    order = RECEIVE + _SUMS + own.number // grid.crews * _PER_TILE
    for shape in strip_shapes(own.tall, own.wide, grid.width):
        which = np.repeat(shape.chosen, shape.strips)
        strip = np.tile(np.arange(shape.strips), len(shape.chosen))
        packed = shape.wide * line
        sources = np.roll(_everyone(plan, own.crew[which]), 1, axis=1)
        slot = slots.base + (sources * grid.chunk_tiles + own.number[which][:, None]) * slots.slot_bytes
        read = OperandBlock(READ, 0, slot + shape.offsets(packed, line)[strip][:, None], shape.step(packed, line))
        there = output.base + own.down[which] * pitch + own.across[which] * line + shape.offsets(pitch, line)[strip]
        targets = _everyone(plan, own.crew[which]) if to_all else 0
        write = OperandBlock(WRITE, targets, there, shape.step(pitch, line), stride=output.stride)
        plan.builder.add_block(
            REDUCE, own.workgroup[which], order[which] + strip, shape.amount, (read, write), "add up"
        )
