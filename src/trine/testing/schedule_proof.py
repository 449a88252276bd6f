"""Proof that a schedule is correct, by symbolic execution: tracks which ranks' data each chunk of each rank holds."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import numpy.typing as npt

from trine.collectives.expand import expand
from trine.collectives.local import local_structures, rank_sends
from trine.collectives.schedule import ExpandedSchedule, RankSends, Schedule, Sends, symmetry_of
from trine.common.arrays import Int64, pointers, row_of, spans
from trine.errors import InputError, nearest

#: [positions, chunks, ranks]: number of times that each rank's data is in each chunk of each rank or switch. Without
#: reduction a chunk has one origin, so the last dimension has one entry: the number of copies of that data.
State = npt.NDArray[np.int32]

#: Contents of a transfer: (chunks, whether the receiver adds them).
Contents = list[tuple[npt.NDArray[np.integer], bool]]

ADDING = ("all_reduce", "reduce_scatter", "reduce", "barrier")
KINDS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "send_recv",
    "shift",
    "barrier",
)
#: Kinds that give each rank a part of the chunks, and kinds that have a block for each pair of ranks.
PARTED = ("reduce_scatter", "all_gather", "gather", "scatter", "shift")
BLOCKED = ("all_to_all", "all_to_all_v")


def check_schedule(schedule: Schedule, orders: int = 3) -> None:
    """Prove that every rank ends with the right data, in several orders that the dependencies allow.

    A transfer reads its chunks when it starts and writes them when it ends; many transfers are in flight at once. The
    check runs the first-come-first-served order and ``orders`` - 1 random, reproducible orders; there ranks also enter
    at any time. In a ``staged`` schedule a transfer reads only data that arrived in earlier steps. A barrier is
    correct if every rank has heard from every other rank, directly or through others.

    Raises InputError for an unknown kind, a number of chunks that does not fit the kind, a dependency cycle, wrong data
    at the end, or a declared symmetry that does not hold.
    """
    if schedule.kind not in KINDS:
        raise InputError(f"cannot check a {schedule.kind!r}{nearest(schedule.kind, KINDS)}")
    _check_chunks(schedule)
    # The claim of symmetry is checked below; the proof does not rest on it.
    expanded = expand(dataclasses.replace(schedule, shift_symmetric=False, symmetry=None))
    check_expanded(schedule, expanded, orders)
    if schedule.shift_symmetric:
        _check_symmetry(schedule)
    if symmetry_of(schedule) is not None:
        check_local(schedule, expanded)


def check_expanded(schedule: Schedule, expanded: ExpandedSchedule, orders: int = 3) -> None:
    """Prove that the transfers ``expanded`` implement ``schedule``; :func:`check_schedule` calls this."""
    contents = [_contents(schedule, expanded, transfer) for transfer in range(expanded.num_transfers)]
    for seed in range(orders):
        memory = _Memory(schedule, expanded, contents)
        _run(memory, random.Random(seed) if seed else None)
        _check_final(schedule, memory.final())


def _title(schedule: Schedule) -> str:
    return f"{schedule.algorithm} {schedule.kind} of {schedule.num_ranks} ranks"


def _check_chunks(schedule: Schedule) -> None:
    """Raise InputError if the number of chunks does not fit the kind."""
    ranks, chunks = schedule.num_ranks, schedule.num_chunks
    if schedule.kind in PARTED and chunks % ranks:
        raise InputError(f"{_title(schedule)}: {chunks} chunks cannot be shared out equally")
    if schedule.kind in BLOCKED and chunks != ranks * ranks:
        raise InputError(f"{_title(schedule)}: {chunks} chunks, not one for each pair of ranks")
    if schedule.kind == "barrier" and chunks != 1:
        raise InputError(f"{_title(schedule)}: {chunks} chunks, a barrier has one")


def _check_symmetry(schedule: Schedule) -> None:
    """Raise InputError unless the sends of every position equal the shifted sends of position 0."""
    shape = schedule.num_ranks, schedule.num_chunks, schedule.root
    if schedule.num_switches or schedule.num_chunks % schedule.num_ranks:
        raise InputError(f"{_title(schedule)}: declares shift_symmetric, but its chunks or switches are not")
    first = schedule.sends_of(0, *shape)
    for position in range(1, schedule.num_ranks):
        if not equal_sends(schedule.sends_of(position, *shape), shifted_sends(schedule, first, position)):
            raise InputError(
                f"{_title(schedule)}: declares shift_symmetric, but the sends of rank {position} differ from the "
                "shifted sends of rank 0"
            )


def shifted_sends(schedule: Schedule, first: Sends, position: int) -> Sends:
    """Return the sends of ``position`` in a ``shift_symmetric`` schedule whose position 0 sends ``first``."""
    part = schedule.num_chunks // schedule.num_ranks
    return dataclasses.replace(
        first,
        peer=(first.peer + position) % schedule.num_ranks,
        chunk=(first.chunk + position * part) % schedule.num_chunks,
    )


def equal_sends(first: Sends, second: Sends) -> bool:
    """Return whether two sets of sends are equal."""
    columns = ((getattr(first, field.name), getattr(second, field.name)) for field in dataclasses.fields(Sends))
    return all((a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in columns)


# -- execution ---------------------------------------------------------------------------------------------------------


def _initial(schedule: Schedule) -> State:
    """Return the data of each rank on entry: all chunks, its own part, or nothing unless root; switches are empty."""
    ranks, chunks = schedule.num_ranks, schedule.num_chunks
    origins = ranks if schedule.kind in ADDING else 1
    state = np.zeros((ranks + schedule.num_switches, chunks, origins), dtype=np.int32)
    if schedule.kind in ADDING:
        for rank in range(ranks):
            state[rank, :, rank] = 1
    elif schedule.kind in ("all_gather", "gather", "shift", *BLOCKED):
        for rank in range(ranks):
            state[rank, _part(schedule, rank)] = 1
    else:
        state[schedule.root] = 1
    return state


def _part(schedule: Schedule, rank: int) -> slice:
    """Return the chunks that a rank owns."""
    size = schedule.num_chunks // schedule.num_ranks
    return slice(rank * size, (rank + 1) * size)


def _contents(schedule: Schedule, expanded: ExpandedSchedule, transfer: int) -> Contents:
    """Return the chunks of a transfer, grouped by whether the receiver adds them."""
    chunk_ranges = expanded.chunk_ranges
    if chunk_ranges is None:
        return [(expanded.chunk[transfer : transfer + 1], bool(expanded.reduce[transfer]))]
    rows = slice(int(chunk_ranges.ptr[transfer]), int(chunk_ranges.ptr[transfer + 1]))
    adds, count = chunk_ranges.reduce[rows], chunk_ranges.count[rows]
    chunks = spans(chunk_ranges.chunk[rows], count) % schedule.num_chunks
    unit_adds = np.repeat(adds, count)
    groups = [(chunks[unit_adds == add], add) for add in (False, True) if (adds == add).any()]
    for chosen, _ in groups:
        if len(set(chosen.tolist())) != len(chosen):
            raise InputError(f"{_title(schedule)}: transfer {transfer} carries a chunk twice")
    return groups


class _Memory:
    """Chunks of all positions, updated by transfers."""

    def __init__(self, schedule: Schedule, expanded: ExpandedSchedule, contents: list[Contents]) -> None:
        self.schedule, self.expanded, self.contents = schedule, expanded, contents
        self.state = _initial(schedule)
        self.arrived: dict[int, list[tuple[int, npt.NDArray[np.integer], bool, State]]] = {}

    def read(self, transfer: int) -> list[State]:
        """Return the data of a transfer that starts now."""
        source = int(self.expanded.src[transfer])
        state: State = self.state[source]
        if self.schedule.staged:
            state = self._state_at(source, int(self.expanded.step[transfer]))
        return [state[chunks].copy() for chunks, _ in self.contents[transfer]]

    def write(self, transfer: int, data: list[State]) -> None:
        """Write the data of a transfer that ends now to its receiver."""
        target, step = int(self.expanded.dst[transfer]), int(self.expanded.step[transfer])
        for (chunks, add), values in zip(self.contents[transfer], data, strict=True):
            if self.schedule.staged:
                self.arrived.setdefault(target, []).append((step, chunks, add, values))
            else:
                self.state[target, chunks] = self.state[target, chunks] + values if add else values

    def _state_at(self, position: int, step: int | None) -> State:
        """Return the chunks of ``position`` after all arrivals of steps before ``step`` (None: of all steps)."""
        state: State = self.state[position].copy()
        for arrival_step, chunks, add, values in sorted(self.arrived.get(position, []), key=lambda one: one[0]):
            if step is None or arrival_step < step:
                state[chunks] = state[chunks] + values if add else values
        return state

    def final(self) -> State:
        if not self.schedule.staged:
            return self.state
        final: State = np.empty_like(self.state)
        for position in range(len(final)):
            final[position] = self._state_at(position, None)
        return final


def _run(memory: _Memory, order: random.Random | None) -> None:
    """Run the transfers, each after its predecessors; ``order`` None ends them first come, first served.

    The entry of rank p counts as event -1 - p, under way from the start.
    """
    expanded = memory.expanded
    waiting = np.diff(expanded.predecessor_ptr) + expanded.entry_src + expanded.entry_dst
    followers_ptr, followers = _followers(expanded)
    under_way: list[tuple[int, list[State]]] = [(-1 - rank, []) for rank in range(memory.schedule.num_ranks)]
    under_way += [(transfer, memory.read(transfer)) for transfer in np.flatnonzero(waiting == 0).tolist()]
    ended = -memory.schedule.num_ranks
    while under_way:
        choice = 0 if order is None else order.randrange(len(under_way))
        under_way[0], under_way[choice] = under_way[choice], under_way[0]
        ending, data = under_way.pop(0)
        ended += 1
        if ending < 0:
            rank = -1 - ending
            starts = expanded.entry_src & (expanded.src == rank) | expanded.entry_dst & (expanded.dst == rank)
            successors = np.flatnonzero(starts)
        else:
            memory.write(ending, data)
            successors = followers[followers_ptr[ending] : followers_ptr[ending + 1]]
        waiting[successors] -= 1
        under_way += [(follower, memory.read(follower)) for follower in successors[waiting[successors] == 0].tolist()]
    if ended < expanded.num_transfers:
        num_waiting = expanded.num_transfers - ended
        raise InputError(f"{_title(memory.schedule)}: {num_waiting} transfers wait for each other")


def _followers(expanded: ExpandedSchedule) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the reversed dependencies in CSR form: the transfers that wait for each transfer."""
    order = np.argsort(expanded.predecessor_idx, kind="stable")
    counts = np.bincount(expanded.predecessor_idx, minlength=expanded.num_transfers)
    return pointers(counts), row_of(expanded.predecessor_ptr)[order]


# -- final check -------------------------------------------------------------------------------------------------------


def _check_final(schedule: Schedule, state: State) -> None:
    """Check that each rank's required chunks contain each contribution exactly once (barrier: at least once)."""
    for rank in range(schedule.num_ranks):
        for chunk in _owned(schedule, rank):
            counts = state[rank, chunk]
            if schedule.kind == "barrier":
                wrong = not (counts > 0).all()
            else:
                wrong = bool((counts != 1).any())
            if wrong and (schedule.chunk_sizes is None or schedule.chunk_sizes[chunk]):
                raise InputError(
                    f"{_title(schedule)}: chunk {chunk} of rank {rank} ends with the data of ranks "
                    f"{_names(schedule, chunk, counts)}, not {_names(schedule, chunk, np.ones_like(counts))}"
                )


def _names(schedule: Schedule, chunk: int, counts: State) -> str:
    """Return the ranks whose data is in a chunk, as text."""
    if len(counts) == 1:
        per_rank = schedule.num_chunks // schedule.num_ranks if schedule.kind in (*PARTED, *BLOCKED) else 0
        origin = schedule.root if schedule.kind == "scatter" or not per_rank else chunk // per_rank
        ranks = {origin: int(counts[0])}
    else:
        ranks = {int(rank): int(counts[rank]) for rank in np.flatnonzero(counts)}
    texts = []
    for rank, count in ranks.items():
        if count:
            texts.append(f"{rank}" if count == 1 else f"{rank} x {count}")
    return ", ".join(texts) or ("none")


def _owned(schedule: Schedule, rank: int) -> range:
    """Return the chunks that must be correct on ``rank`` at the end."""
    if schedule.kind in BLOCKED:
        return range(rank, schedule.num_chunks, schedule.num_ranks)
    if schedule.kind in ("reduce_scatter", "scatter"):
        part = _part(schedule, rank)
        return range(part.start, part.stop)
    if schedule.kind == "shift":
        part = _part(schedule, (rank - 1) % schedule.num_ranks)
        return range(part.start, part.stop)
    if schedule.kind in ("reduce", "gather") and rank != schedule.root:
        return range(0)
    return range(schedule.num_chunks)


def check_local(schedule: Schedule, expanded: ExpandedSchedule) -> None:
    """Compare :func:`rank_sends` of every position, and its structure, with all transfers in ``expanded``.

    Raises InputError if the sends or dependencies of a position differ. ``expanded`` assumes no symmetry, so a
    difference means that the declared symmetry is wrong.
    """
    title = f"{schedule.algorithm} {schedule.kind} of {schedule.num_ranks} ranks"
    num_positions = schedule.num_ranks + schedule.num_switches
    base = np.searchsorted(expanded.src, np.arange(num_positions + 1)).astype(np.int64)
    structures = local_structures(schedule)
    for position in range(num_positions):
        local = rank_sends(schedule, position)
        difference = _difference(local, expanded, base, position, schedule.num_ranks)
        shared = structures.structures[structures.structure_of[position]]
        if not difference and shared.structure_key != local.structure_key:
            difference = "structure"
        if not difference and not np.array_equal(structures.peers_of([position])[0], local.peers):
            difference = "peers"
        if difference:
            stated = "shift_symmetric" if schedule.shift_symmetric else f"symmetry {schedule.symmetry}"
            raise InputError(
                f"{title}: with {stated}, the {difference} of rank {position} would differ from the result of all "
                "ranks' sends"
            )


def _difference(local: RankSends, expanded: ExpandedSchedule, base: Int64, position: int, num_ranks: int) -> str:
    """Return the name of the first difference; "" if both are equal."""
    rows = slice(base[position], base[position + 1])
    pairs: dict[str, tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]] = {}
    if local.num_sends != rows.stop - rows.start:
        return "number of sends"
    pairs["receivers"] = local.peers[local.receiver], expanded.dst[rows]
    for name in ("step", "size_bytes", "entry_src", "entry_dst"):
        pairs[name] = getattr(local, name), getattr(expanded, name)[rows]
    ptr = expanded.predecessor_ptr[rows.start : rows.stop + 1]
    pairs["number of predecessors"] = np.diff(local.predecessor_ptr), np.diff(ptr)
    for name, (column, expected) in pairs.items():
        if not np.array_equal(column, expected):
            return name
    user = row_of(ptr)
    waits = _transfers(local, base, position, local.predecessor_who, local.predecessor_number)
    if not _same_sets(user, waits, expanded.predecessor_idx[ptr[0] : ptr[-1]]):
        return "predecessors"
    ended = _transfers(local, base, position, local.completion_who, local.completion_number)
    completions = expanded.completion_idx[:0]
    if position < num_ranks:
        completions = expanded.completion_idx[expanded.completion_ptr[position] : expanded.completion_ptr[position + 1]]
    return "" if np.array_equal(np.sort(ended), np.sort(completions)) else "completion"


def _transfers(
    local: RankSends, base: Int64, position: int, peer: npt.NDArray[np.int32], number: npt.NDArray[np.int32]
) -> Int64:
    """Return the numbers in the whole schedule of the sends (who, number); -1 if a send does not exist."""
    owner = np.append(local.peers, position)[peer]
    transfer = base[owner] + number
    return np.where(transfer < base[owner + 1], transfer, -1)


def _same_sets(row: Int64, first: Int64, second: npt.NDArray[np.int32]) -> bool:
    """Return whether each row has the same entries, in any order."""
    return np.array_equal(first[np.lexsort((first, row))], second[np.lexsort((second, row))])
