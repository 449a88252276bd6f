"""Whose times a trace's are: on which machine they may stand, and for which GPU others are predicted.

Recorded times hold for the GPU that they were recorded on. On a machine whose GPUs are named they are used where the
trace names the same GPU; for another one the user says what is meant, a prediction or the recorded times. A trace that
names no GPU is believed only where the machine names none either. Times of a CPU are no GPU's: only the shapes count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.compute.origin import known_gpu, no_gpu_times, short_name
from trine.errors import InputError
from trine.model.workload import SYNTHESISED, Workload

if TYPE_CHECKING:
    from trine.cluster import Cluster

Int64 = npt.NDArray[np.int64]


def gpus_under(machine: Cluster | None, places: Int64) -> tuple[str | None, ...]:
    """The GPU models that ranks at these places of the cluster run on, each once; None for GPUs without a name."""
    if machine is None:
        return ()
    table = machine.device_table
    used = table.kind[np.asarray(machine.gpus, np.int64)[places]]
    names = (table.kinds[kind].gpu for kind in dict.fromkeys(used.tolist()))
    return tuple(dict.fromkeys(None if name is None else short_name(name) for name in names))


def first_known(here: tuple[str | None, ...]) -> str | None:
    """The first of these GPUs that trine has a data sheet of."""
    return next((name for name in here if known_gpu(name) is not None), None)


def predicted_gpu(workload: Workload, compute: str, gpu: str | None, here: tuple[str | None, ...]) -> str | None:
    """The GPU that operator times are predicted for; None where those of the trace stand.

    compute: name of the compute model. gpu: the GPU that the user asks for. here: those of the machine, see
    :func:`gpus_under`. Raises InputError where the trace's times are not those of the machine's GPUs and nobody said
    what is meant; what a compute model itself has no use for, it refuses (:func:`trine.compute.make_compute`).
    """
    from trine.compute import uses_recorded_times

    if uses_recorded_times(compute) and not workload.has_gpu_times:
        raise InputError(no_gpu_times(workload, gpu if gpu is not None else first_known(here)))
    if gpu is not None or workload.format == SYNTHESISED:
        return gpu
    if not uses_recorded_times(compute):
        return _gpu_of_shapes(workload, here)
    named = [name for name in here if name is not None]
    if not named:
        return None
    if workload.gpu is None:
        raise InputError(
            f"the trace {workload.name!r} does not say on which GPU it was recorded, and the cluster's GPUs are "
            f"{' and '.join(named)}: --trace-gpu NAME says it, --compute roofline predicts from the shapes alone"
        )
    if short_name(workload.gpu) not in named:
        raise InputError(_of_another_gpu(workload.name, workload.gpu, named))
    return None


def gpu_of_times(workload: Workload, predicted: str | None) -> str | None:
    """The GPU that operator times are of in the end, by trine's name; None where nobody knows."""
    name = predicted if predicted is not None else workload.gpu
    return None if name is None else short_name(name)


def _gpu_of_shapes(workload: Workload, here: tuple[str | None, ...]) -> str | None:
    named = [name for name in here if name is not None]
    if not named:
        return None
    known = first_known(here)
    if known is None and (workload.gpu is None or short_name(workload.gpu) not in named):
        raise InputError(f"trine has no data sheet of the cluster's {named[0]}: --gpu NAME predicts for a GPU of those")
    return known


def _of_another_gpu(trace: str, gpu: str, named: list[str]) -> str:
    text = f"the trace {trace!r} was recorded on {gpu}, and the cluster's GPUs are {' and '.join(named)}: "
    ways = []
    if (there := first_known(tuple(named))) is not None and known_gpu(gpu) is not None:
        ways.append(f"--gpu {there} predicts for them")
    if (own := known_gpu(gpu)) is not None:
        ways.append(f"--gpu {own.name} keeps the recorded times")
    else:
        ways.append("trine has no data sheet of the trace's GPU, and --trace-gpu NAME takes a known one in its place")
    return text + ", ".join(ways)


def gpu_warnings(times_of: str | None, whose: str, here: tuple[str | None, ...]) -> list[str]:
    """Warn where ranks sit on GPUs that operator times are not of. ``times_of``: GPU of the times; ``whose``: words."""
    found, known = [], [name for name in here if name is not None and known_gpu(name) is not None]
    if len(known) > 1:
        found.append(f"the cluster mixes {', '.join(known)}: every rank is given the operator times of one GPU")
    timed = known_gpu(times_of)
    if timed is not None and known and timed.name not in known:
        found.append(
            f"operator times are those of the {timed.name} {whose}, but the cluster's GPUs are {known[0]}: "
            f"--gpu {known[0]} predicts for them"
        )
    return found
