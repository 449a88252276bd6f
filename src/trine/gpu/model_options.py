"""Options that change the numbers of a GPU model; what cannot be or cannot matter is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trine.errors import InputError, nearest
from trine.evidence import ASSUMED
from trine.gpu.check_model import MAX_COUNT, check_model
from trine.gpu.model import FAIR, FIFO, HASHED, INTERLEAVED, GpuModel, Ports
from trine.gpu.model_waits import Waits, time_ps


def with_options(
    model: GpuModel,
    *,
    unroll: int | None = None,
    max_outstanding: int | None = None,
    arbitration: str | None = None,
    port_choice: str | None = None,
    num_cus: int | None = None,
    workgroups_per_cu: int | None = None,
    posted_stores: bool | None = None,
    poll: str | int | None = None,
    launch: str | int | None = None,
    sync: str | None = None,
    sleep: str | int | None = None,
    monitor_capacity: int | None = None,
    wakeup: str | int | None = None,
) -> GpuModel:
    """The model with some numbers replaced; None leaves one as it is.

    Times (``poll``, ``launch``, ``sleep``, ``wakeup``): text with a unit (``"100 ns"``), or picoseconds.
    ``poll="none"``: the memory answers. sync: how wavefronts wait for semaphores, ``spin``, ``mwait`` or ``sleep``
    (:mod:`trine.gpu.model_waits`); ``sleep``: the pause; ``monitor_capacity``, ``wakeup``: of the monitor.

    Raises
    ------
    InputError: a value that cannot be, or cannot matter; names the option.
    """
    changes: dict[str, tuple[str, Any]] = {}
    counts = {
        "unroll": ("cus.unroll", "unroll", unroll),
        "max-outstanding": ("cus.max_outstanding", "max_outstanding", max_outstanding),
        "num-cus": ("cus.count", "num_cus", num_cus),
        "workgroups-per-cu": ("cus.workgroups", "workgroups_per_cu", workgroups_per_cu),
    }
    for option, (path, attribute, value) in counts.items():
        if value is not None:
            changes[attribute] = path, _count(option, value)
    if posted_stores is not None:
        changes["posted_stores"] = "cus.posted_stores", posted_stores
    if launch is not None:
        changes["launch_ps"] = "kernels.launch", time_ps("launch", launch)
    ports, port_paths = _port_options(model, arbitration, port_choice)
    waits = Waits(sync=sync, poll=poll, sleep=sleep, capacity=monitor_capacity, wakeup=wakeup)
    changed = replace(model, ports=ports, **{name: value for name, (_, value) in changes.items()})
    if unroll is not None and unroll > changed.max_outstanding:
        raise InputError(
            f"--unroll {unroll} cannot matter: a compute unit has {changed.max_outstanding} requests in flight"
        )
    return check_model(waits.of(_said(changed, [path for path, _ in changes.values()] + port_paths)))


def _count(option: str, value: int) -> int:
    if isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise InputError(f"--{option} is a number from 1 to {MAX_COUNT}, got {value}")
    return int(value)


def _port_options(model: GpuModel, arbitration: str | None, choice: str | None) -> tuple[Ports, list[str]]:
    """The ports as asked for, and the paths of what was given."""
    ports, paths = model.ports, []
    if arbitration is not None:
        ports = replace(ports, arbitration=_word("arbitration", arbitration, (FIFO, FAIR)))
        paths.append("ports.arbitration")
    if choice is not None:
        ports = replace(ports, choice=_word("port-choice", choice, (INTERLEAVED, HASHED)))
        paths.append("ports.choice")
        if ports.count == 1:
            raise InputError(f"--port-choice cannot matter: {model.name!r} has one port")
    return ports, paths


def _word(option: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise InputError(f"unknown --{option} {value!r:.80}{nearest(value[:80], known)}")
    return value


def _said(model: GpuModel, paths: Sequence[str]) -> GpuModel:
    """The model with these fields marked as what the user said."""
    return replace(
        model,
        evidence={**model.evidence, **dict.fromkeys(paths, ASSUMED)},
        sources={**model.sources, **dict.fromkeys(paths, "given as an option")},
    )
