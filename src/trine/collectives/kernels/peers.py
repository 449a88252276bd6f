"""All-gather and all-to-all in which each workgroup serves one peer; with fewer workgroups than peers, several.

Workgroup g serves the peer at distance g % (ranks - 1) + 1, so that several of them share a peer's lines. It signals
its peer alone, and waits for its peer alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trine.collectives.kernels.draft import Draft, Workgroup
from trine.collectives.kernels.options import JOINT, KernelOptions
from trine.gpu.program import GpuProgram


def all_gather_put(options: KernelOptions) -> GpuProgram:
    """Each workgroup writes its slice of the input into the output of its peer, and signals it."""
    return _put("all_gather/peer-put", options, own_chunks=1)


def all_to_all_put(options: KernelOptions) -> GpuProgram:
    """The same, each pair of ranks with a chunk of its own."""
    return _put("all_to_all/peer-put", options, own_chunks=options.num_ranks)


def all_gather_get(options: KernelOptions) -> GpuProgram:
    """When its peer is ready, each workgroup reads its slice of the peer's input, and tells it when it has."""
    return _get("all_gather/peer-get", options, own_chunks=1)


def all_to_all_get(options: KernelOptions) -> GpuProgram:
    """The same, each pair of ranks with a chunk of its own."""
    return _get("all_to_all/peer-get", options, own_chunks=options.num_ranks)


def _put(name: str, options: KernelOptions, own_chunks: int) -> GpuProgram:
    draft, ranks = Draft(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", own_chunks, lines), draft.data("output", ranks, lines)
    slots = draft.slots("packets", ranks - 1, lines) if options.flagged else None
    at_start, at_end = options.syncs("none")
    ready, done = _Signals(draft, at_start), _Signals(draft, at_end)
    handover = _Signals(draft, not options.flagged)
    for work in _works(draft, lines):
        _meet(ready, work)
        for group, d in work.remote:
            target = group.write(result, d) if slots is None else group.write(slots, d, d - 1)
            group.copy(group.read(source, chunk=d if own_chunks > 1 else 0), target, label="put")
        for group in work.own:
            group.copy(group.read(source), group.write(result), label="copy")
        handover.send(work, "signal")
        handover.wait(work, "wait")
        if slots is not None:
            for group, d in work.remote:
                group.copy(group.read(slots, chunk=d - 1), group.write(result, chunk=-d), label="unpack")
        _part(done, work)
    return draft.program()


def _get(name: str, options: KernelOptions, own_chunks: int) -> GpuProgram:
    draft, ranks = Draft(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", own_chunks, lines), draft.data("output", ranks, lines)
    at_start, at_end = options.syncs("both")
    ready, done = _Signals(draft, at_start), _Signals(draft, at_end)
    for work in _works(draft, lines):
        _meet(ready, work)
        for group, d in work.remote:
            group.copy(group.read(source, d), group.write(result, chunk=d), label="get")
        for group in work.own:
            group.copy(group.read(source), group.write(result), label="copy")
        _part(done, work)
    return draft.program()


class _Work(NamedTuple):
    """What one workgroup does: slices of peers' chunks, each with the peer's distance, and at most one of the own."""

    remote: tuple[tuple[Workgroup, int], ...]
    own: tuple[Workgroup, ...]

    @property
    def distances(self) -> list[int]:
        return [d for _, d in self.remote]


def _works(draft: Draft, lines: int) -> Iterator[_Work]:
    """The workgroups, with what each does; one that has nothing gets no operations."""
    count, peers = draft.options.workgroups, draft.options.num_ranks - 1
    for number in range(count):
        distances: Sequence[int] = range(number + 1, peers + 1, count)
        share, shares = 0, 1
        if count >= peers:
            distances = (number % peers + 1,)
            share, shares = number // peers, (count - number % peers + peers - 1) // peers
        first, some = _slice(lines, share, shares)
        own_first, own = _slice(lines, number, count)
        yield _Work(
            remote=tuple((Workgroup(draft, number, first, some), d) for d in distances if some),
            own=(Workgroup(draft, number, own_first, own),) if own else (),
        )
        draft.end_workgroup()


def _slice(lines: int, number: int, of: int) -> tuple[int, int]:
    """(first, lines) of one of ``of`` slices; the first ones have a line more where they do not divide."""
    each, more = divmod(lines, of)
    return number * each + min(number, more), each + (number < more)


class _Signals:
    """From workgroup to workgroup of the same number: on one semaphore, or on one for each peer that it serves."""

    def __init__(self, draft: Draft, used: bool) -> None:
        options = draft.options
        most = -(-(options.num_ranks - 1) // options.workgroups)
        self.joint = options.waits == JOINT or most == 1
        self.semaphores = draft.signals(1 if self.joint else most) if used else None

    def send(self, work: _Work, label: str, way: int = 1) -> None:
        """To rank + d (``way`` -1: rank - d), when what has been read and written so far is done."""
        if self.semaphores is not None and work.remote:
            group = work.remote[0][0]
            if way > 0:
                group.finish(label)
            targets = [(way * d, 0 if self.joint else i) for i, d in enumerate(work.distances)]
            group.signal(self.semaphores, targets, label)

    def wait(self, work: _Work, label: str) -> None:
        if self.semaphores is None or not work.remote:
            return
        group = work.remote[0][0]
        if self.joint:
            group.wait(self.semaphores, 0, len(work.remote), label)
            return
        for i in range(len(work.remote)):
            group.wait(self.semaphores, i, 1, label)


def _meet(ready: _Signals, work: _Work) -> None:
    """Before remote reads and writes: tell those that will come to the own memory, wait for the own peers."""
    ready.send(work, "ready", way=-1)
    ready.wait(work, "wait until ready")
    if ready.semaphores is not None and work.remote:
        work.remote[0][0].barrier("wait until ready")


def _part(done: _Signals, work: _Work) -> None:
    """At the end: nobody leaves while its memory is needed."""
    done.send(work, "done")
    done.wait(work, "wait until done")
