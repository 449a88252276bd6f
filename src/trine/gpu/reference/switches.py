"""The plain-Python twin: a multimem request; a switch copies it for each member and adds up the answers.

The request goes up to the switch; a copy goes down to each member's memory, and up again; after the last one the
answer goes down. All of them use one spoke of each GPU (gpu/fabric.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from trine.gpu.fabric import Spoke, path_of_address
from trine.gpu.layout import CHANNEL, CU, PORT
from trine.gpu.reference.events import Action
from trine.gpu.reference.interconnect import Interconnect, MessagePath, PathEnd
from trine.gpu.reference.messages import Messages, MessageTrip
from trine.gpu.reference.requests import OwnRequest, Request, Transport
from trine.gpu.reference.shared import TwinOperand


def send_to_members(request: OwnRequest, operand: TwinOperand, messages: Messages) -> None:
    """Issue a request of a multimem operand now."""
    SwitchedRequest(request, operand, messages).set_out()


class SwitchedRequest:
    """A request in a switch. left: number of missing answers; latest_ps: arrival of the last known answer."""

    def __init__(self, request: OwnRequest, operand: TwinOperand, messages: Messages) -> None:
        self.request, self.operand, self.messages = request, operand, messages
        ports, fabric = messages.model.ports, messages.interconnect.system.fabric
        of_rank = fabric.spokes([member.peer for member in operand.members])
        own_spokes = of_rank[request.rank]
        number = path_of_address(request.address, ports.interleave_bytes, ports.choice, len(own_spokes))
        self.own_spoke = own_spokes[number]
        self.spokes = {rank: spokes[number] for rank, spokes in of_rank.items()}
        self.num_left, self.latest_ps = len(operand.members), 0

    def set_out(self) -> None:
        """Send the request from the CU up to the switch."""
        request, interconnect = self.request, self.messages.interconnect
        cu = PathEnd(request.gpu, request.rank, CU, request.cu)
        port = cu._replace(kind=PORT, number=self.own_spoke.port_out)
        path = _up(interconnect, cu, port, self.own_spoke)
        trip = _SwitchTrip(self.messages, request, is_answer=False, path=path)
        trip.arrives = self._copy
        trip.go(0, self.messages.agenda.now, None)

    def _copy(self, time_ps: int) -> None:
        """Send a copy to each member."""
        request = self.request
        of_line = request.semaphore - self.operand.semaphore  # of a flagged line, relative to the first line
        for member in self.operand.members:
            copy = MemberRequest(
                kind=request.kind, wave_slot=request.wave_slot, rank=request.rank, peer=member.peer, gpu=request.gpu,
                target=member.rank, cu=request.cu, address=member.address + request.address - self.operand.address,
                semaphore=member.semaphore + of_line, amount=request.amount, number=request.number,
                adds=self.operand.adds, of=self,
            )  # fmt: skip
            copy.go_down(self.messages, time_ps)

    def answered_by(self, time_ps: int) -> None:
        """Count the answer of one more member, at the switch at ``time_ps``; after the last one, answer the request."""
        self.num_left -= 1
        self.latest_ps = max(self.latest_ps, time_ps)
        if self.num_left == 0:
            cu = PathEnd(self.request.gpu, self.request.rank, CU, self.request.cu)
            port = cu._replace(kind=PORT, number=self.own_spoke.port_in)
            path = _down(self.messages.interconnect, port, cu, self.own_spoke)
            trip = MessageTrip(self.messages, self.request, is_answer=True, path=path)
            trip.go(0, self.latest_ps, self.request.answered)


@dataclass(slots=True, eq=False, kw_only=True)
class MemberRequest(Request):
    """The copy of a request for one member."""

    of: SwitchedRequest = field(repr=False)

    def go_down(self, messages: Messages, time_ps: int) -> None:
        """Send the copy, at the switch at ``time_ps``, to the member's memory."""
        spoke, memory = self.of.spokes[self.peer], self._memory(messages)
        path = _down(messages.interconnect, memory._replace(kind=PORT, number=spoke.port_in), memory, spoke)
        trip = MessageTrip(messages, self, is_answer=False, path=path)
        trip.go(0, time_ps, partial(messages.memories[self.target].reached, self))

    def go_back(self, messages: Transport) -> None:
        """Send the answer from the member's memory to the switch now, and not to the CU."""
        own = self.of.messages
        spoke, memory = self.of.spokes[self.peer], self._memory(own)
        path = _up(own.interconnect, memory, memory._replace(kind=PORT, number=spoke.port_out), spoke)
        trip = _SwitchTrip(own, self, is_answer=True, path=path)
        trip.arrives = self.of.answered_by
        trip.go(0, own.agenda.now, None)

    def _memory(self, messages: Messages) -> PathEnd:
        return PathEnd(self.target, self.peer, CHANNEL, messages.interconnect.channel(self.address))


class _SwitchTrip(MessageTrip):
    """A trip that ends at a switch; ``arrives`` gets the arrival time in advance, as no event happens there."""

    arrives: Callable[[int], None]

    def at_end(self, time_ps: int, then: Action | None) -> None:
        self.arrives(time_ps)


def _up(interconnect: Interconnect, source: PathEnd, port: PathEnd, spoke: Spoke) -> MessagePath:
    """Return the path from inside a GPU to the switch."""
    noc_lanes = interconnect.within(source, port)
    return MessagePath((*noc_lanes, interconnect.lane(spoke.up)), len(noc_lanes))


def _down(interconnect: Interconnect, port: PathEnd, target: PathEnd, spoke: Spoke) -> MessagePath:
    """Return the path from the switch to inside a GPU."""
    return MessagePath((interconnect.lane(spoke.down), *interconnect.within(port, target)), 0, 1)
