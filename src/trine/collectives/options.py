"""Request and answer of one collective, as frozen data."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trine.common.arguments import named_arguments, option
from trine.common.shown import OneLine
from trine.errors import InputError

AUTO = "auto"
#: Kernel launch: one process a GPU (torchrun, mpirun), one process for all GPUs, or a CUDA/HIP graph.
LAUNCHES = ("process-per-gpu", "single-process", "graph")
#: ``none``: the bare schedule on the links, without library costs.
PROTOCOLS = ("ll", "ll128", "simple", "none")
_PLAN_ENDINGS = (".json", ".xml")


def is_plan(algorithm: str) -> bool:
    """Return whether an algorithm is the path of an execution plan (MSCCL++, MSCCL)."""
    return algorithm.lower().endswith(_PLAN_ENDINGS) or os.sep in algorithm


def refuse_unneeded_proof(algorithm: str, no_proof: bool) -> None:
    """Raise InputError for a request about the proof of an algorithm that is no plan and needs none."""
    if no_proof and not is_plan(algorithm):
        raise InputError(f"is about plans (JSON, XML), not about the algorithm {algorithm!r:.80}", field="no_proof")


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveOptions(OneLine):
    """Options of a collective; ``auto`` leaves the choice to the library.

    ``library``: ``nccl``, ``rccl`` or ``auto`` (by the GPUs). ``algorithm``: ``ring``, ``tree``, ``nvls``, ... .
    ``protocol``: one of PROTOCOLS. ``min_channels``, ``max_channels``: as NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS.
    ``launch``: one of LAUNCHES. ``nvls``: False forbids in-network reduction (NCCL_NVLS_ENABLE=0), True demands it
    (NCCL_ALGO=NVLS,NVLSTree), None lets the library choose. ``nvls_chunk``: bytes, as NCCL_NVLS_CHUNKSIZE, which AWS's
    plug-in sets to 512 KiB; None: NCCL's 128 KiB. ``no_proof``: a plan that cannot be proven correct runs,
    with a warning.

    Raises InputError for ``no_proof`` with an algorithm that is no plan.
    """

    library: str = option(AUTO, "Choose the collective library.")
    algorithm: str = option(AUTO, "Choose the algorithm: auto, ring, tree, ..., or a plan (JSON, XML).")
    protocol: str = option(AUTO, "Choose the protocol; none: bare links.")
    launch: str = option("process-per-gpu", "Choose how processes launch kernels.")
    nvls: bool | None = option(None, "Require or forbid NVLS.")
    min_channels: int | None = option(None, "Set the minimum of channels (NCCL_MIN_NCHANNELS).")
    max_channels: int | None = option(None, "Set the maximum of channels (NCCL_MAX_NCHANNELS).")
    nvls_chunk: int | None = option(None, "Set the largest chunk of NVLS (NCCL_NVLS_CHUNKSIZE), such as 512K.")
    no_proof: bool = option(False, "Run a plan that trine cannot prove correct.")

    def __post_init__(self) -> None:
        refuse_unneeded_proof(self.algorithm, self.no_proof)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimePart:
    """A part of a collective's time: ``name`` (``launch``, ``latency``, ``bandwidth``, ...) and its reason."""

    name: str
    time_ps: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTime(OneLine):
    """The time of one collective of one size; parts add up to ``time_ps``. Ordered by it; ``float()`` is in seconds.

    ``size_bytes``: the requested size; ``sent_bytes``: rounded as in nccl-tests to whole elements per rank. ``low_ps``
    and ``high_ps``: the band that should hold 80 % of measurements. ``channels``: 0 if not applicable. ``bus_factor``:
    busbw / algbw as nccl-tests defines it. ``evidence``: measured, interpolated, modelled or assumed. ``limit``: the
    link or resource that bounds it at this size. ``notes``: effects that are not modelled, one per line.
    """

    op: str
    size_bytes: int
    sent_bytes: int
    num_ranks: int
    time_ps: int
    low_ps: int
    high_ps: int
    algorithm: str
    protocol: str
    channels: int
    bus_factor: float
    evidence: str
    limit: str
    parts: tuple[TimePart, ...] = ()
    notes: tuple[str, ...] = ()

    def __float__(self) -> float:
        """Return the time in seconds."""
        return self.time_ps / 1e12

    def __lt__(self, other: CollectiveTime) -> bool:
        return self.time_ps < other.time_ps

    def __le__(self, other: CollectiveTime) -> bool:
        return self.time_ps <= other.time_ps

    def __gt__(self, other: CollectiveTime) -> bool:
        return self.time_ps > other.time_ps

    def __ge__(self, other: CollectiveTime) -> bool:
        return self.time_ps >= other.time_ps

    @property
    def algbw_bytes_per_s(self) -> float:
        """Bytes sent / time, like algbw in nccl-tests."""
        return self.sent_bytes * 1e12 / self.time_ps if self.time_ps else 0.0

    @property
    def busbw_bytes_per_s(self) -> float:
        """Bus bandwidth, like busbw in nccl-tests."""
        return self.algbw_bytes_per_s * self.bus_factor
