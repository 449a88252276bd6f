"""Times that a host measures by its own clock for a loop of kernel launches, without waiting for the GPU at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

#: Launches in the queue; one more makes the host wait (forums.developer.nvidia.com/t/68937: about 1000).
QUEUE_DEPTH = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCall:
    """A call: ``host_ps`` on the host, ``launches`` kernels and copies put into the queue, ``gpu_ps`` on the GPU."""

    host_ps: int
    launches: int
    gpu_ps: int


def host_times_ps(phases: Sequence[HostCall], calls: int, depth: int = QUEUE_DEPTH) -> tuple[int, ...]:
    """Return the host's time per call in each phase, ps: ``calls`` equal calls per phase, one phase after the other.

    The host continues once its launches are in the queue. So a GPU-bound phase leaves a full queue to the next phase,
    which pays for it: the host does not wait for the GPU between phases.
    """
    now_ps = gpu_ps = 0
    queue: deque[tuple[int, int]] = deque()  # end of a queued call, its launches
    length = 0
    times = []
    for call in phases:
        begin_ps = now_ps
        for _ in range(calls):
            now_ps += call.host_ps
            while queue and (queue[0][0] <= now_ps or length + call.launches > depth):
                over_ps, launches = queue.popleft()
                now_ps, length = max(now_ps, over_ps), length - launches
            gpu_ps = max(gpu_ps, now_ps) + call.gpu_ps
            queue.append((gpu_ps, call.launches))
            length += call.launches
        times.append((now_ps - begin_ps) // calls)
    return tuple(times)
