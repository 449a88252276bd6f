"""The plain-Python twin: writes and answers of replayed peers, and the record of arrivals.

A write of a replayed peer (a row of the write tracking table) begins here and continues like any request
(``requests``). See docs/design/replay.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.common.units import transfer_ps
from trine.errors import InputError
from trine.gpu import peers
from trine.gpu.fabric import LaneHop, moved
from trine.gpu.layout import CHANNEL, PORT, Hop
from trine.gpu.peers import IDEAL, Arrivals, PeerWrites
from trine.gpu.program import ACQUIRE, LOAD, RELEASE, STORE
from trine.gpu.reference.events import PACKETS, TABLE
from trine.gpu.reference.interconnect import Interconnect
from trine.gpu.reference.messages import Messages
from trine.gpu.reference.packets import DmaRequest
from trine.gpu.reference.requests import OwnRequest, Request

#: Kinds of requests in records -> in programs.
KINDS = {peers.LOAD: LOAD, peers.STORE: STORE, peers.ACQUIRE: ACQUIRE, peers.RELEASE: RELEASE}
NAMED = {kind: name for name, kind in KINDS.items()}
#: The GPU whose peers are replayed.
TARGET = 0


class RecordedAnswer(NamedTuple):
    """Time of an answer at its GPU's port, and whether it refused a flagged load that came too early."""

    time_ps: int
    is_refused: bool


class ReplayedPeers:
    """The write tracking table, and the peers' answers. put_came: called for each dma of a peer; set before the run."""

    put_came: Callable[[DmaRequest], None]

    def __init__(self, messages: Messages) -> None:
        self.messages, self.interconnect, self.agenda = messages, messages.interconnect, messages.agenda
        self.system, self.model = messages.interconnect.system, messages.model
        self.rank = messages.interconnect.ranks[TARGET]
        self.answers = _answers(self.system.outside) if isinstance(self.system.outside, Arrivals) else None
        self.num_lines = 0

    def begin(self) -> None:
        """Schedule all incoming traffic."""
        table = self.system.outside
        if isinstance(table, Arrivals):
            self._schedule_arrivals(table)
        elif table is not None:
            self._schedule_writes(table)

    def _schedule_arrivals(self, table: Arrivals) -> None:
        columns = (table.time_ps, table.rank, table.place, table.number, table.kind, table.address, table.semaphore)
        rows = zip(*(column.tolist() for column in (*columns, table.amount)), strict=True)
        for i, (time_ps, rank, wave_slot, number, kind, address, semaphore, amount) in enumerate(rows):
            if kind == peers.PUT:
                dma = DmaRequest(
                    begins_ps=0, gpu=-1, rank=rank, wave_slot=wave_slot, number=number, ordinal=-1, peer=self.rank,
                    target=TARGET, num_bytes=0, address=address, semaphore=semaphore, delivered=lambda known_ps: None,
                )  # fmt: skip
                key = (PACKETS, 1, self.interconnect.away(rank, self.rank, self.rank), wave_slot, number, rank, 0)
                self.agenda.at(time_ps, key, partial(self._put_lands, dma, amount))
                continue
            request = self._request(KINDS[kind], rank, address, semaphore, amount)
            request.wave_slot, request.number = wave_slot, number
            self.agenda.at(time_ps, (TABLE, i), partial(self.messages.enter, request, at_port=True))

    def _schedule_writes(self, table: PeerWrites) -> None:
        away = np.array([self.system.distance(peer, self.rank) for peer in table.peer.tolist()], np.int64)
        order = np.lexsort((table.size_bytes, table.value, table.semaphore, table.address, away, table.time_ps))
        depart = partial(self.messages.enter, at_port=False)
        begin = self._land if table.fabric == IDEAL else depart
        for i, entry in enumerate(order.tolist()):
            for request in self._write(table, entry):
                self.agenda.at(int(table.time_ps[entry]), (TABLE, i, request.number), partial(begin, request))

    def _write(self, table: PeerWrites, entry: int) -> Iterable[Request]:
        """Return the requests of a write: one release, or a store for each line."""
        peer, address = int(table.peer[entry]), int(table.address[entry])
        semaphore = int(table.semaphore[entry])
        if semaphore >= 0:
            return [self._request(RELEASE, peer, address, semaphore, int(table.value[entry]))]
        line = self.model.line_bytes
        last = address + int(table.size_bytes[entry]) - 1
        return [self._request(STORE, peer, n * line, -1, 0) for n in range(address // line, last // line + 1)]

    def _request(self, kind: int, rank: int, address: int, semaphore: int, amount: int) -> Request:
        self.num_lines += 1
        return Request(
            kind=kind, wave_slot=0, number=self.num_lines - 1, rank=rank, peer=self.rank, gpu=-1, target=TARGET, cu=-1,
            address=address, semaphore=semaphore, amount=amount,
        )  # fmt: skip

    def _land(self, request: Request) -> None:
        """Apply a request at the memory: a semaphore at once, a line of data among the messages of this instant."""
        memory = self.messages.memories[TARGET]
        if request.semaphore >= 0:
            memory.release(request.semaphore, request.amount, request.address)
            return
        request.is_answered = False
        self.messages.at(self.agenda.now, request, self.rank, partial(memory.reached, request))

    def _put_lands(self, dma: DmaRequest, amount: int) -> None:
        """Complete a dma of a peer's copy engine or NIC: its data has arrived."""
        self.put_came(dma)
        self.messages.memories[TARGET].release(dma.semaphore, amount, dma.address)

    def crossed(self, request: OwnRequest) -> None:
        """Schedule the answer, at the port, to a request that has left the target."""
        if self.answers is None:
            answer = RecordedAnswer(self.agenda.now + _beyond_ps(self.interconnect, request), is_refused=False)
        else:
            answer = self._recorded(self.answers, request.wave_slot, request.ordinal)
        request.was_enough = not answer.is_refused
        self.messages.answer_from_outside(request, answer.time_ps)

    def known_ps(self, dma: DmaRequest) -> int:
        """Return the time at which the wavefront learns that a dma of the target has arrived."""
        assert self.answers is not None
        return self._recorded(self.answers, dma.wave_slot, dma.ordinal).time_ps

    def _recorded(self, answers: dict[tuple[int, int], RecordedAnswer], place: int, ordinal: int) -> RecordedAnswer:
        answer_name = f"answer {ordinal} for place {place} of rank {self.rank}"
        answer = answers.get((place, ordinal))
        if answer is None:
            raise InputError(f"the record has no {answer_name}: it is of another program or model", field="outside")
        if answer.time_ps < self.agenda.now:
            raise InputError(
                f"{answer_name} comes at {answer.time_ps} ps, before the request left at {self.agenda.now} ps: "
                "the record is of another program or model",
                field="outside",
            )
        return answer


def _answers(table: Arrivals) -> dict[tuple[int, int], RecordedAnswer]:
    keys = zip(table.answer_place.tolist(), table.answer_number.tolist(), strict=True)
    values = zip(table.answer_ps.tolist(), table.answer_refused.astype(bool).tolist(), strict=True)
    return {key: RecordedAnswer(*answer) for key, answer in zip(keys, values, strict=True)}


def _beyond_ps(interconnect: Interconnect, request: Request) -> int:
    """Return the uncontended time from behind the first lane to the peer's memory and back to the target's port."""
    model, layout, channel = interconnect.model, interconnect.system.layout, interconnect.channel(request.address)
    _, path = interconnect.fabric_path(request.rank, request.peer, request.address)
    _, path_back = interconnect.fabric_path(request.peer, request.rank, request.address)
    out_bytes = model.header_bytes + (model.line_bytes if request.kind == STORE else 0)
    back_bytes = model.header_bytes + (model.line_bytes if request.kind == LOAD else 0)
    return (
        _lanes_ps(path.hops[1:], out_bytes)
        + _inside_ps(interconnect, layout.path(PORT, path.port_in, CHANNEL, channel), out_bytes)
        + _memory_ps(interconnect, request, channel)
        + _inside_ps(interconnect, layout.path(CHANNEL, channel, PORT, path_back.port_out), back_bytes)
        + _lanes_ps(path_back.hops, back_bytes)
    )


def _lanes_ps(hops: Iterable[LaneHop], num_bytes: int) -> int:
    return sum(transfer_ps(num_bytes, hop.bytes_per_s) + hop.after_ps for hop in hops)


def _inside_ps(interconnect: Interconnect, hops: Iterable[Hop], num_bytes: int) -> int:
    return sum(transfer_ps(num_bytes, interconnect.rates[hop.resource]) + hop.after_ps for hop in hops)


def _memory_ps(interconnect: Interconnect, request: Request, channel: int) -> int:
    """Return the time of an L2 hit at the slice, or of an access to the memory channel."""
    model, layout, rates = interconnect.model, interconnect.system.layout, interconnect.rates
    num_bytes = model.line_bytes if request.is_line else model.header_bytes
    if model.l2 is not None and interconnect.is_cached(request.address):
        return transfer_ps(num_bytes, rates[layout.first_slice + channel]) + model.l2.latency_ps
    return transfer_ps(num_bytes, rates[layout.first_channel + channel]) + model.memory.latency_ps


class ArrivalRecorder:
    """Recorder of the arrivals at the ports of the GPU ``system.record``."""

    def __init__(self, interconnect: Interconnect) -> None:
        self.system, self.agenda, self.gpu = interconnect.system, interconnect.agenda, interconnect.system.record
        self.requests: list[tuple[int, ...]] = []
        self.answers: list[tuple[int, ...]] = []

    def request_came(self, request: Request) -> None:
        # requests that a switch returns to their own GPU are not arrivals from a peer
        if request.target == self.gpu >= 0 and request.rank != request.peer:
            self.requests.append(
                (
                    self.agenda.now,
                    self._sender(request),
                    request.wave_slot,
                    request.number,
                    NAMED[request.kind],
                    request.address,
                    request.semaphore,
                    request.amount if request.semaphore >= 0 else 0,
                )
            )

    def answer_came(self, request: Request) -> None:
        if isinstance(request, OwnRequest) and request.gpu == self.gpu:
            self.answers.append((request.wave_slot, request.ordinal, self.agenda.now, not request.was_enough))

    def put_came(self, dma: DmaRequest) -> None:
        if dma.target == self.gpu >= 0:
            self.requests.append(
                (
                    self.agenda.now,
                    self._sender(dma),
                    dma.wave_slot,
                    dma.number,
                    peers.PUT,
                    dma.address,
                    dma.semaphore,
                    1,
                )
            )

    def put_known(self, dma: DmaRequest, known_ps: int) -> None:
        if dma.gpu == self.gpu:
            self.answers.append((dma.wave_slot, dma.ordinal, known_ps, False))

    def _sender(self, request: Request | DmaRequest) -> int:
        """Return the requester as seen from the GPU; in a folded run the simulated requester stands for that peer."""
        recorded_rank = int(self.system.ranks[self.gpu])
        return moved(self.system.grid, recorded_rank, request.rank, request.peer)

    def arrivals(self) -> Arrivals | None:
        if self.gpu < 0:
            return None
        time_ps, rank, wave_slot, number, kind, address, semaphore, amount = _columns(self.requests, 8)
        answer_slot, answer_number, answer_ps, refused = _columns(self.answers, 4)
        return Arrivals(
            target=int(self.system.ranks[self.gpu]), num_ranks=self.system.num_ranks, time_ps=time_ps,
            rank=rank.astype(np.int32), place=wave_slot.astype(np.int32), number=number.astype(np.int32),
            kind=kind.astype(np.int8), address=address, semaphore=semaphore.astype(np.int32), amount=amount,
            answer_place=answer_slot.astype(np.int32), answer_number=answer_number.astype(np.int32),
            answer_ps=answer_ps, answer_refused=refused.astype(np.int8),
        )  # fmt: skip


def _columns(rows: list[tuple[int, ...]], width: int) -> list[Int64]:
    return [np.ascontiguousarray(column) for column in np.array(rows, np.int64).reshape(-1, width).T]
