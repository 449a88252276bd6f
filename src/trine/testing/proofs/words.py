"""What the check of a GPU program says: which wavefront, which operation, which bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trine.gpu.program import OP_NAMES, GpuProgram
from trine.testing.proofs.actors import DecodedOp, ProofWavefront, releases
from trine.testing.proofs.memory import Cells, Race, buffer_of


class ProofWords:
    """Names for actors and places.

    actors: (rank, workgroup, wavefront, of) of wavefronts; ports: actor -> (rank, peer).
    """

    def __init__(
        self,
        program: GpuProgram,
        cells: Cells,
        actors: Sequence[tuple[int, int, int, int]],
        ports: Mapping[int, tuple[int, int]],
        first_entry: int,
    ) -> None:
        self.program, self.cells, self.actors, self.ports, self.first_entry = program, cells, actors, ports, first_entry

    def at(self, wave: ProofWavefront) -> str:
        """A wavefront where it is."""
        return self.actor(wave.actor, wave.epoch)

    def actor(self, actor: int, epoch: int) -> str:
        """Who did what: operation ``epoch`` (from 1) of an actor."""
        if actor >= self.first_entry:
            return f"rank {actor - self.first_entry}, as it enters with its input,"
        if actor in self.ports:
            rank, peer = self.ports[actor]
            return f"copy {epoch} of the copy engine of rank {rank} to rank {peer}"
        rank, workgroup, number, _ = self.actors[actor]
        op = int(self.program.workgroup_ptr[workgroup]) + epoch - 1
        return f"rank {rank} {self.workgroup(workgroup)} wavefront {number} {self.operation(op, epoch - 1)}"

    def workgroup(self, workgroup: int) -> str:
        """A workgroup by its number in its kernel."""
        kernel = int((self.program.kernel_ptr[1:] <= workgroup).sum())
        number = workgroup - int(self.program.kernel_ptr[kernel])
        rank = self.program.kernel_rank[kernel]
        if int((self.program.kernel_rank == rank).sum()) == 1:
            return f"workgroup {number}"
        name = self.program.kernel_names[kernel] if kernel < len(self.program.kernel_names) else str(kernel)
        return f"kernel {name!r} workgroup {number}"

    def operation(self, op: int, number: int) -> str:
        kind, label = OP_NAMES[self.program.op_kind[op]], int(self.program.op_label[op])
        return f"operation {number} ({kind}{f', {self.program.labels[label]!r}' if label >= 0 else ''})"

    def place(self, cell: int) -> str:
        """A cell for people."""
        rank, address = self.cells.place(cell)
        buffer = buffer_of(self.program, address)
        where = f"address {address}" if buffer is None else f"byte {address - buffer.base} of the {buffer.name}"
        return f"{where} of rank {rank}"

    def race(self, wave: ProofWavefront, race: Race) -> str:
        place = self.place(race.cell)
        start = f"{self.program.name}: {self.at(wave)} {race.does} {place}"
        if race.actor < 0:
            return f"{start}, where nobody has written"
        if race.actor >= self.first_entry:
            return f"{start} before it knows that rank {race.actor - self.first_entry} is there with its input"
        done = "written" if race.what == "write" else "read"
        own = self.actors[race.actor][1] == wave.workgroup if race.actor < len(self.actors) else False
        hint = " (waitcnt 0, and a barrier between wavefronts)" if own else ""
        return f"{start}, but nothing says that {self.actor(race.actor, race.epoch)} has {done} it{hint}"

    def releaser(
        self, rank: int, number: int, ops: Sequence[DecodedOp], pending: Mapping[int, int] | None = None
    ) -> str:
        """Who releases a semaphore: at all, or of what is to come (``pending``: workgroup -> its next operation)."""
        for actor, (_, workgroup, wavefront, _) in enumerate(self.actors):
            first, last = (int(i) for i in self.program.workgroup_ptr[workgroup : workgroup + 2])
            now = first if pending is None else pending[workgroup]
            for op in range(now, last) if wavefront == 0 else ():
                if releases(ops[op], rank, number):
                    who = self.actor(actor, op - first + 1)
                    at = f", but is at {self.operation(now, now - first)}" if pending is not None and op > now else ""
                    return f"{who} {'releases' if pending is None else 'would release'} it{at}"
        return "nobody releases it" if pending is None else "nobody is left to release it"
