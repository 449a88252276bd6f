"""Consistency checks of a GPU model's numbers; errors name the field as files spell it."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_bytes
from trine.errors import SpecError, nearest
from trine.gpu.model import BY_GPU, BY_PROXY, CROSSBAR, FAIR, FIFO, HASHED, INTERLEAVED, MESH, GpuModel, values

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
    source = file or f"GPU model {model.name!r}"
    for check in (_ranges, _network, _lines, _cache, _monitor):  # later ones divide by numbers checked first
        problem = check(model)
        if problem is not None:
            field, message = problem
            raise SpecError(message, file=source, field=field)
    return model


def check_numbers(model: GpuModel) -> GpuModel:
    """Return the model itself if every number is in range, which any simulation needs.

    Raises SpecError: names the model and the field.
    """
    for check in (_ranges, _mesh, _monitor):
        problem = check(model)
        if problem is not None:
            field, message = problem
            raise SpecError(message, file=f"GPU model {model.name!r}", field=field)
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
    return MAX_MESSAGE_BYTES if unit == "bytes" else MAX_COUNT if not unit else 1 << 62


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
