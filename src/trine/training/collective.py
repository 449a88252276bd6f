"""Ask about one collective, folded where its messages are simulated: what :func:`trine.collective` is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trine.cluster.cluster import Cluster
from trine.collectives import query
from trine.collectives.options import CollectiveOptions
from trine.collectives.result import CollectiveResult
from trine.common.arguments import named_arguments
from trine.common.observer import OnCompile, Progress, observing
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.collectives.message_level import ScheduleRunner
    from trine.collectives.schedules.direct import Matrix
    from trine.collectives.sizes import Sizes

FOLDING = ("on", "off", "verify")


@named_arguments
def collective(
    op: str,
    sizes: Sizes,
    cluster: Cluster | str | os.PathLike[str],
    group: Sequence[int] | None = None,
    *,
    options: CollectiveOptions | None = None,
    network: str | None = None,
    explain: bool = False,
    matrix: Matrix | None = None,
    fold: str = "on",
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
) -> CollectiveResult:
    """Predict a collective for several sizes.

    Parameters
    ----------
    op, sizes: bytes as nccl-tests counts them, or texts as of ``--size``.
    cluster: or its name. group: positions in ``cluster.gpus``; None: all.
    options: how it is run. An algorithm that the library has not (``halving-doubling``, a plan file, ...) and the
        protocol ``none`` are simulated step by step.
    network: ``fair``, ``equal``, ``fifo`` or ``circuit`` simulates every message on the links, whatever the algorithm.
    explain: also work out the alternatives.
    matrix: of all_to_all_v, bytes from each rank (row) to each rank; the size is the largest sum of a row.
    fold: ``on`` simulates many messages of ranks that behave alike once, ``off`` each by itself, ``verify`` both, and
        compares. The answer is the same.
    progress, on_compile: as of :func:`trine.engine.run`.

    Raises
    ------
    InputError: what does not exist, does not fit or makes no difference.
    SimulationError: ``verify`` finds a difference.
    """
    if fold not in FOLDING:
        raise InputError(f"unknown folding {fold!r:.80}{nearest(str(fold)[:80], FOLDING)}", field="fold")
    load_runner = {"on": _folded, "off": query.unfolded, "verify": _both}[fold]
    with observing(progress=progress, on_compile=on_compile):
        answer = query.collective(
            op, sizes, cluster, group, options=options, network=network, explain=explain, matrix=matrix,
            load_runner=load_runner,
        )  # fmt: skip
    if fold != "on" and answer.network is None:
        raise InputError("is about runs of every message: give a network", field="fold")
    return answer


def _folded() -> ScheduleRunner:
    from trine.folding.collective import run_folded

    return run_folded


def _both() -> ScheduleRunner:
    from trine.folding.collective import run_both

    return run_both
