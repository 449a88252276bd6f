"""What a host measures that starts kernels in a loop, by its own clock, and does not wait for the GPU at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

#: Launches that wait for the GPU; one more makes the host wait (forums.developer.nvidia.com/t/68937: about 1000).
QUEUE_DEPTH = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCall:
    """A call: ``host_ps`` of the host, ``launches`` kernels and copies put into the queue, ``gpu_ps`` of the GPU."""

    host_ps: int
    launches: int
    gpu_ps: int


def host_times_ps(phases: Sequence[HostCall], calls: int, depth: int = QUEUE_DEPTH) -> tuple[int, ...]:
    """What the host sees of each phase, ps a call: ``calls`` of the same, one phase behind the other.

    The host goes on when its launches are in the queue. So a phase that the GPU bounds leaves a full queue to the next
    one, which pays for it: nobody waits for the GPU between phases.
    """
    now_ps = gpu_ps = 0
    queue: deque[tuple[int, int]] = deque()  # when a call in the queue is over, its launches
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
