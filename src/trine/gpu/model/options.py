"""Options that change the numbers of a GPU model; invalid values and options without effect are refused.

``sync`` sets the way to wait for semaphores (docs/design/replay.md, ways to wait). ``spin``: the wavefront reads the
semaphore again ``poll`` after each failed answer. ``sleep``: the same, after a pause in the wavefront,
without issue slots (AMD: ``s_sleep``). ``mwait``: the wavefront sleeps until the semaphore's line is written (SyncMon).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trine.common.evidence import ASSUMED, MODELLED
from trine.common.units import PS_PER_S, format_bytes, parse_time
from trine.errors import InputError, SpecError, nearest
from trine.gpu.model import (
    BY_GPU,
    BY_PROXY,
    CROSSBAR,
    FAIR,
    FIFO,
    HASHED,
    INTERLEAVED,
    MESH,
    GpuModel,
    Monitor,
    Nic,
    Ports,
    values,
)

# Consistency checks of a GPU model's numbers; errors name the field as files spell it.

#: Limit of every count; more is probably a mistake.
MAX_COUNT = 1 << 14
#: Limits of times and of lines, headers and packets; more is probably a mistake.
MAX_PS = PS_PER_S
MAX_MESSAGE_BYTES = 1 << 20
#: Limit of a monitor table: the number of wavefronts of the largest GPU.
MAX_SLEEPERS = MAX_COUNT * MAX_COUNT
_MAY_BE_ZERO = ("noc.rows", "noc.cols", "dma.header", "monitor.capacity", "cus.issue_seed")
#: Allowed values of text fields.
WORDS = {
    "noc.kind": (MESH, CROSSBAR),
    "ports.choice": (INTERLEAVED, HASHED),
    "ports.arbitration": (FIFO, FAIR),
    "nic.initiator": (BY_GPU, BY_PROXY),
}


def check_model(model: GpuModel, file: object = None) -> GpuModel:
    """Return the model itself if its numbers are consistent.

    Raises SpecError: names file (or the model) and field, and the nearest valid value.
    """
    # later checks divide by numbers checked first
    return _refuse(model, file, (_ranges, _network, _lines, _cache, _monitor))


def check_numbers(model: GpuModel) -> GpuModel:
    """Return the model itself if every number is in range, which any simulation needs.

    Raises SpecError: names the model and the field.
    """
    return _refuse(model, None, (_ranges, _mesh, _monitor))


def _refuse(model: GpuModel, file: object, checks: Sequence[Callable[[GpuModel], Problem]]) -> GpuModel:
    for check in checks:
        problem = check(model)
        if problem is not None:
            field, message = problem
            raise SpecError(message, file=file or f"GPU model {model.name!r}", field=field)
    return model


Problem = tuple[str, str] | None


def _ranges(model: GpuModel) -> Problem:
    for field, value in values(model):
        path = field.path
        if path in WORDS:
            if value not in WORDS[path]:
                return path, f"unknown {path.split('.')[1]} {value!r}{nearest(str(value), WORDS[path])}"
        elif isinstance(value, int) and not isinstance(value, bool):
            lowest = 0 if field.unit == "time" or path in _MAY_BE_ZERO else 1
            highest = _highest(path, field.unit)
            if not lowest <= value <= highest:
                return path, f"must be from {lowest} to {highest}, got {value}"
    return None


def _highest(path: str, unit: str) -> int:
    if unit == "time":
        return MAX_PS
    if path == "l2.capacity":
        return 1 << 40
    if path == "monitor.capacity":
        return MAX_SLEEPERS
    if unit == "bytes":
        return MAX_MESSAGE_BYTES
    if not unit:
        return MAX_COUNT
    return 1 << 62


def _monitor(model: GpuModel) -> Problem:
    """Require a polling interval: acquires that find the table full, and flagged loads, poll."""
    if model.monitor is None or model.poll_ps is not None:
        return None
    return "kernels.poll", "is missing: wavefronts poll if the monitor's table is full"


def _network(model: GpuModel) -> Problem:
    noc = model.noc
    if noc.kind == CROSSBAR:
        for name, size in (("rows", noc.rows), ("cols", noc.cols)):
            if size:
                return f"noc.{name}", f"a crossbar has no {name}; they go with 'kind: mesh'"
        return None
    missing = _mesh(model)
    if missing is not None:
        return missing
    channels, ports = edge_routers(noc.rows, noc.cols)
    return _spread("memory.channels", model.memory.num_channels, channels, "top and bottom row") or _spread(
        "ports.count", model.ports.count, ports, "left and right column"
    )


def _mesh(model: GpuModel) -> Problem:
    noc = model.noc
    if noc.kind == CROSSBAR:
        return None
    for name, size in (("rows", noc.rows), ("cols", noc.cols)):
        if size < 1:
            return f"noc.{name}", "is missing: a mesh has 'rows' and 'cols'"
    if noc.rows * noc.cols > MAX_COUNT:
        return "noc.rows", f"{noc.rows} x {noc.cols} routers are more than {MAX_COUNT}"
    return None


def edge_routers(rows: int, cols: int) -> tuple[int, int]:
    """Return the number of mesh routers with memory channels (top, bottom row), and with ports (left, right column)."""
    return cols * min(rows, 2), rows * min(cols, 2)


def _spread(path: str, count: int, routers: int, network: str) -> Problem:
    """Check that all routers have equally many, or every n-th router has one."""
    if count % routers == 0 or routers % count == 0:
        return None
    fits = [n for n in range(1, count + routers + 1) if n % routers == 0 or routers % n == 0]
    best = min(fits, key=lambda n: (abs(n - count), n))
    return path, f"{count} do not spread evenly over the {routers} routers of {network}; {best} would"


def _lines(model: GpuModel) -> Problem:
    line = model.line_bytes
    for path, size in (
        ("memory.interleave", model.memory.interleave_bytes),
        ("ports.interleave", model.ports.interleave_bytes),
    ):
        if size % line:
            closest = max(1, round(size / line)) * line
            return path, f"{size} B is no multiple of the line of {line} B; {closest} B is"
    return None


def _cache(model: GpuModel) -> Problem:
    if model.l2 is None:
        return None
    step = model.memory.num_channels * model.l2.ways * model.line_bytes
    if model.l2.capacity_bytes % step == 0:
        return None
    closest = max(1, round(model.l2.capacity_bytes / step)) * step
    return "l2.capacity", (
        f"{format_bytes(model.l2.capacity_bytes)} is no whole number of sets of {model.l2.ways} lines of "
        f"{model.line_bytes} B in each of {model.memory.num_channels} slices; {closest} B is"
    )


SPIN, MWAIT, SLEEP = "spin", "mwait", "sleep"
SYNCS = (SPIN, MWAIT, SLEEP)

#: The longest s_sleep: 127 x 64 cycles (AMD CDNA 3 ISA reference guide, S_SLEEP).
SLEEP_CYCLES = 127 * 64
#: Time from a write to the next request of the woken wavefront: one round trip through a crossbar. Assumed: no GPU on
#: the market has a monitor.
WAKEUP_PS = 100_000

_GIVEN = "given as an option"
#: Changed field -> source of its number.
Sources = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Numbers of a GPU model to replace; None keeps the model's number.

    Times (``poll``, ``launch``, ``sleep``, ``wakeup``): text with a unit (``"100 ns"``), or picoseconds.
    ``poll``: time between an answer and the next read; ``"none"``: the memory delays its answer. issue_seed: choose a
    CU's next wavefront at random. sync: ``spin``, ``mwait`` or ``sleep``; ``sleep``: the pause;
    ``monitor_capacity``, ``wakeup``: of the monitor. initiator: ``gpu`` or ``proxy``, of puts to NICs.
    """

    unroll: int | None = None
    max_outstanding: int | None = None
    arbitration: str | None = None
    port_choice: str | None = None
    num_cus: int | None = None
    workgroups_per_cu: int | None = None
    posted_stores: bool | None = None
    issue_seed: int | None = None
    poll: str | int | None = None
    launch: str | int | None = None
    sync: str | None = None
    sleep: str | int | None = None
    monitor_capacity: int | None = None
    wakeup: str | int | None = None
    initiator: str | None = None

    def of(self, model: GpuModel) -> GpuModel:
        """Return the model with these numbers, marked as the user's.

        Raises InputError: an invalid value, or one without effect; names the option.
        """
        sources: Sources = {}
        changed = replace(model, **self._sizes(sources), ports=self._ports(model, sources))
        if self.unroll is not None and self.unroll > changed.max_outstanding:
            raise InputError(
                f"--unroll {self.unroll} cannot matter: a compute unit has {changed.max_outstanding} requests in flight"
            )
        self._check_waits(model)
        parts: dict[str, Any] = {"poll_ps": self._poll_ps(changed, sources), "monitor": self._monitor(changed, sources)}
        parts["nic"] = self._nic(model, sources)
        if self.poll is not None and model.poll_turn_ps:
            parts["poll_turn_ps"], sources["kernels.poll_turn"] = 0, "in the pause that is given as an option"
        return check_model(_with_sources(replace(changed, **parts), sources))

    def _sizes(self, sources: Sources) -> dict[str, Any]:
        """Return new values by the model's attributes."""
        changes: dict[str, Any] = {}
        for option, path, attribute, value in (
            ("unroll", "cus.unroll", "unroll", self.unroll),
            ("max-outstanding", "cus.max_outstanding", "max_outstanding", self.max_outstanding),
            ("num-cus", "cus.count", "num_cus", self.num_cus),
            ("workgroups-per-cu", "cus.workgroups", "workgroups_per_cu", self.workgroups_per_cu),
        ):
            if value is not None:
                if isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
                    raise InputError(f"--{option} is a number from 1 to {MAX_COUNT}, got {value}")
                changes[attribute], sources[path] = int(value), _GIVEN
        if self.issue_seed is not None:
            if isinstance(self.issue_seed, bool) or not 0 <= self.issue_seed <= MAX_COUNT:
                raise InputError(f"--issue-seed is a number from 0 to {MAX_COUNT}, got {self.issue_seed}")
            changes["issue_seed"], sources["cus.issue_seed"] = int(self.issue_seed), _GIVEN
        if self.posted_stores is not None:
            changes["posted_stores"], sources["cus.posted_stores"] = self.posted_stores, _GIVEN
        if self.launch is not None:
            changes["launch_ps"], sources["kernels.launch"] = _time_ps("launch", self.launch), _GIVEN
        return changes

    def _ports(self, model: GpuModel, sources: Sources) -> Ports:
        ports = model.ports
        if self.arbitration is not None:
            ports = replace(ports, arbitration=_word("arbitration", self.arbitration, (FIFO, FAIR)))
            sources["ports.arbitration"] = _GIVEN
        if self.port_choice is not None:
            ports = replace(ports, choice=_word("port-choice", self.port_choice, (INTERLEAVED, HASHED)))
            sources["ports.choice"] = _GIVEN
            if ports.count == 1:
                raise InputError(f"--port-choice cannot matter: {model.name!r} has one port")
        return ports

    def _nic(self, model: GpuModel, sources: Sources) -> Nic | None:
        if self.initiator is None:
            return model.nic
        word = _word("initiator", self.initiator, (BY_GPU, BY_PROXY))
        if model.nic is None:
            raise InputError(f"--initiator cannot matter: GPU {model.name!r} has no NICs")
        sources["nic.initiator"] = _GIVEN
        return replace(model.nic, initiator=word)

    def _check_waits(self, model: GpuModel) -> None:
        """Refuse options that belong to another way to wait."""
        if self.sync is not None:
            _word("sync", self.sync, SYNCS)
        if self.sleep is not None and self.sync != SLEEP:
            raise InputError("--sleep cannot matter without --sync sleep")
        if self.poll is not None and self.sync == SLEEP:
            raise InputError("--poll cannot matter with --sync sleep: the pause is --sleep")
        if self.poll == "none" and self.sync is not None:
            raise InputError(f"--poll none does not go with {self.sync}: the memory would answer after the wait")
        watches = self.sync == MWAIT or (self.sync is None and model.monitor is not None)
        for option, value in (("monitor-capacity", self.monitor_capacity), ("monitor-wakeup", self.wakeup)):
            if value is not None and not watches:
                raise InputError(f"--{option} cannot matter without --sync mwait")

    def _poll_ps(self, model: GpuModel, sources: Sources) -> int | None:
        if self.sync == SLEEP:
            sources["kernels.poll"] = f"{_GIVEN}: the pause of wavefronts that sleep"
            if self.sleep is not None:
                return _time_ps("sleep", self.sleep)
            sources["kernels.poll"] = f"assumed: the longest s_sleep, {SLEEP_CYCLES} cycles"
            return SLEEP_CYCLES * model.cycle_ps
        if self.poll is not None:
            sources["kernels.poll"] = _GIVEN
            return None if self.poll == "none" else _time_ps("poll", self.poll)
        if self.sync is not None and model.poll_ps is None:
            raise InputError(
                f"--sync {self.sync} needs --poll: GPU {model.name!r} has no polling interval, its memory answers"
            )
        return model.poll_ps

    def _monitor(self, model: GpuModel, sources: Sources) -> Monitor | None:
        monitor = model.monitor
        if self.sync in (SPIN, SLEEP) or (self.sync is None and monitor is None):
            return None
        if self.poll == "none":
            raise InputError(f"--poll none: GPU {model.name!r} has a monitor, and who finds its table full polls")
        if monitor is None:
            sources["monitor.capacity"] = "assumed: room for every wavefront of the GPU"
            sources["monitor.wakeup"] = "assumed: a monitor is in no GPU on the market"
            monitor = Monitor(capacity=model.num_cus * model.wavefronts_per_cu, wakeup_ps=WAKEUP_PS)
        capacity = self.monitor_capacity
        if capacity is not None:
            if isinstance(capacity, bool) or not 0 <= capacity <= MAX_SLEEPERS:
                raise InputError(f"--monitor-capacity is a number from 0 to {MAX_SLEEPERS}, got {capacity}")
            monitor, sources["monitor.capacity"] = replace(monitor, capacity=int(capacity)), _GIVEN
        if self.wakeup is not None:
            monitor = replace(monitor, wakeup_ps=_time_ps("monitor-wakeup", self.wakeup))
            sources["monitor.wakeup"] = _GIVEN
        return monitor


def posted_by_proxy(model: GpuModel) -> GpuModel:
    """Return the model with puts to NICs posted by a CPU thread, as in MSCCL++'s port channels."""
    if model.nic is None:
        return model
    source = {"nic.initiator": "MSCCL++: port channels are served by a proxy thread"}
    nic = replace(model.nic, initiator=BY_PROXY)
    return replace(
        model, nic=nic, sources={**model.sources, **source}, evidence={**model.evidence, "nic.initiator": MODELLED}
    )


def _word(option: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise InputError(f"unknown --{option} {value!r:.80}{nearest(str(value)[:80], allowed)}")
    return value


def _time_ps(option: str, value: str | int) -> int:
    """Return picoseconds from text with a unit, or from a number. Raises InputError naming the option."""
    if isinstance(value, str):
        return parse_time(value, f"--{option}")
    if value < 0:
        raise InputError(f"--{option} is not negative, got {value} ps")
    return value


def _with_sources(model: GpuModel, sources: Sources) -> GpuModel:
    """Return the model with evidence and sources of the changes, without entries of a removed monitor."""
    removed = () if model.monitor is not None else ("monitor.capacity", "monitor.wakeup")
    sources_kept = {path: text for path, text in model.sources.items() if path not in removed}
    evidence = {path: word for path, word in model.evidence.items() if path not in removed}
    return replace(model, sources={**sources_kept, **sources}, evidence={**evidence, **dict.fromkeys(sources, ASSUMED)})
