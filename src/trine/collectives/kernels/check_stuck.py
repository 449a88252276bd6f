"""Says who waits for whom where the check of a GPU program cannot go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.collectives.kernels.check_parts import Wavefront
from trine.errors import DeadlockError
from trine.gpu.program import ACQUIRE, BARRIER

if TYPE_CHECKING:
    from trine.collectives.kernels.check_run import Run


def deadlock(run: Run, waiting: list[Wavefront]) -> DeadlockError:
    """The error that names wavefronts, those first that the others of their workgroup wait for."""
    stuck = [wave for wave in waiting if not wave.done]
    stuck.sort(key=lambda wave: (run.ops[wave.next].kind == BARRIER, wave.number, wave.actor))
    shown = [_waits_for(run, wave) for wave in stuck[:8]]
    more = f"; and {len(stuck) - 8} more wavefronts" if len(stuck) > 8 else ""
    return DeadlockError(f"{run.program.name}: wavefronts wait for ever: {'; '.join(shown)}{more}")


def _waits_for(run: Run, wave: Wavefront) -> str:
    op, place = run.ops[wave.next], run.words.at(wave)
    if op.kind == BARRIER:
        late = [other.number for other in run.groups[wave.workgroup] if not other.arrived]
        return f"{place} waits for wavefronts {', '.join(str(n) for n in late)} of its workgroup"
    if op.kind == ACQUIRE:
        needs, semaphores = op.amount, [(wave.rank, op.reads[0].semaphore)]
    else:
        line = wave.number + wave.line * wave.of
        needs, semaphores = 1, [(operand.rank, operand.semaphore + line) for operand in op.flagged_reads]
    rank, number = next((key for key in semaphores if run.semaphore(*key).count < needs), semaphores[0])
    pending = {w.workgroup: w.next for w in run.wavefronts if w.number == 0}
    return (
        f"{place} waits for semaphore {number} of rank {rank}, which has {run.semaphore(rank, number).count} of "
        f"{needs}: {run.words.releaser(rank, number, run.ops, pending)}"
    )
