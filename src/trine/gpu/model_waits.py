"""How the wavefronts of a GPU wait for semaphores: options that change its model (docs/design/replay.md, ways to wait).

``spin``: the semaphore is read again ``poll`` after each answer that was not enough. ``sleep``: the same, after a pause
of the wavefront's own, for which it gives up its issue slots (AMD: ``s_sleep``). ``mwait``: the wavefront sleeps until
the semaphore's line is written (SyncMon).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trine.errors import InputError, nearest
from trine.evidence import ASSUMED
from trine.gpu.check_model import MAX_SLEEPERS
from trine.gpu.model import GpuModel, Monitor
from trine.units import parse_time

SPIN, MWAIT, SLEEP = "spin", "mwait", "sleep"
SYNCS = (SPIN, MWAIT, SLEEP)

#: The longest s_sleep: 127 x 64 cycles (AMD CDNA 3 ISA reference guide, S_SLEEP).
SLEEP_CYCLES = 127 * 64
#: From a write to the next request of the wavefront that it wakes: once there and back through a crossbar. Assumed: a
#: monitor is in no GPU on the market.
WAKEUP_PS = 100_000

_GIVEN = "given as an option"
#: Of each field that options change: the source of its number.
Sources = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """What was asked for; times as text with a unit or in picoseconds, None: as the model has it."""

    sync: str | None
    poll: str | int | None
    sleep: str | int | None
    capacity: int | None
    wakeup: str | int | None

    def of(self, model: GpuModel) -> GpuModel:
        """The model with this way to wait.

        Raises
        ------
        InputError: a value that cannot be, or cannot matter; names the option.
        """
        if self.sync not in (None, *SYNCS):
            raise InputError(f"unknown --sync {self.sync!r:.80}{nearest(str(self.sync)[:80], SYNCS)}")
        self._refuse_idle(model)
        sources: Sources = {}
        poll_ps = self._poll_ps(model, sources)
        return _said(replace(model, poll_ps=poll_ps, monitor=self._monitor(model, sources)), sources)

    def _refuse_idle(self, model: GpuModel) -> None:
        """Refuse options of one way to wait where it is another."""
        if self.sleep is not None and self.sync != SLEEP:
            raise InputError("--sleep cannot matter without --sync sleep")
        if self.poll is not None and self.sync == SLEEP:
            raise InputError("--poll cannot matter with --sync sleep: the pause is --sleep")
        if self.poll == "none" and self.sync is not None:
            raise InputError(f"--poll none is no way to {self.sync}: the memory would answer when the wait is over")
        watches = self.sync == MWAIT or (self.sync is None and model.monitor is not None)
        for option, value in (("monitor-capacity", self.capacity), ("monitor-wakeup", self.wakeup)):
            if value is not None and not watches:
                raise InputError(f"--{option} cannot matter without --sync mwait")

    def _poll_ps(self, model: GpuModel, sources: Sources) -> int | None:
        if self.sync == SLEEP:
            sources["kernels.poll"] = f"{_GIVEN}: the pause of wavefronts that sleep"
            if self.sleep is not None:
                return time_ps("sleep", self.sleep)
            sources["kernels.poll"] = f"assumed: the longest s_sleep, {SLEEP_CYCLES} cycles"
            return SLEEP_CYCLES * model.cycle_ps
        if self.poll is not None:
            sources["kernels.poll"] = _GIVEN
            return None if self.poll == "none" else time_ps("poll", self.poll)
        if self.sync is not None and model.poll_ps is None:
            raise InputError(
                f"--sync {self.sync} needs --poll: GPU {model.name!r} has no polling interval, its memory answers"
            )
        return model.poll_ps

    def _monitor(self, model: GpuModel, sources: Sources) -> Monitor | None:
        if self.sync in (SPIN, SLEEP):
            return None
        before = model.monitor
        if self.sync is None and before is None:
            return None
        if self.poll == "none":
            raise InputError(f"--poll none: GPU {model.name!r} has a monitor, and who finds its table full polls")
        if before is None:
            sources["monitor.capacity"] = "assumed: room for every wavefront of the GPU"
            sources["monitor.wakeup"] = "assumed: a monitor is in no GPU on the market"
            before = Monitor(capacity=model.num_cus * model.wavefronts_per_cu, wakeup_ps=WAKEUP_PS)
        return replace(before, **self._of_monitor(sources))

    def _of_monitor(self, sources: Sources) -> dict[str, int]:
        found: dict[str, int] = {}
        if self.capacity is not None:
            if isinstance(self.capacity, bool) or not 0 <= self.capacity <= MAX_SLEEPERS:
                raise InputError(f"--monitor-capacity is a number from 0 to {MAX_SLEEPERS}, got {self.capacity}")
            found["capacity"], sources["monitor.capacity"] = int(self.capacity), _GIVEN
        if self.wakeup is not None:
            found["wakeup_ps"], sources["monitor.wakeup"] = time_ps("monitor-wakeup", self.wakeup), _GIVEN
        return found


def time_ps(option: str, value: str | int) -> int:
    """Text with a unit, or picoseconds. Raises InputError naming the option."""
    if isinstance(value, str):
        return parse_time(value, f"--{option}")
    if value < 0:
        raise InputError(f"--{option} is not negative, got {value} ps")
    return value


def _said(model: GpuModel, sources: Sources) -> GpuModel:
    """The model with the evidence and sources of what changed; without those of a monitor that is gone."""
    gone = () if model.monitor is not None else ("monitor.capacity", "monitor.wakeup")
    kept = {path: text for path, text in model.sources.items() if path not in gone}
    evidence = {path: word for path, word in model.evidence.items() if path not in gone}
    return replace(model, sources={**kept, **sources}, evidence={**evidence, **dict.fromkeys(sources, ASSUMED)})
