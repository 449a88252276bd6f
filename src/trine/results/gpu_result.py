"""The answer of a load-store run: what happened inside the GPUs, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trine.errors import InputError
from trine.evidence import Evidence
from trine.gpu.model import GpuModel
from trine.gpu.program import DMA, GpuProgram
from trine.gpu.records import GpuRecords
from trine.results import gpu_bottleneck, gpu_document, gpu_metrics, gpu_perfetto, gpu_resources, gpu_summary
from trine.results.gpu_shown import Shown, shown
from trine.units import PS_PER_S

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster

_NOT_MODELLED = "caches other than the L2, address translation, back-pressure, memory refresh and banks, clock changes"
_NO_L2 = (
    "caches (this GPU model has no L2), address translation, back-pressure, memory refresh and banks, clock changes"
)
_DMA = "what copy engines and NICs take of memory channels and of the NoC"


class Folding(Protocol):
    """How ranks were folded: so many GPUs were simulated, each for so many ranks; or why that was not done."""

    @property
    def classes(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def why_unfolded(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class GpuResult:
    """What a load-store run gave.

    program: of all ranks, whichever were simulated. group: the device of each rank in the cluster. bus_factor: busbw /
    algbw of the collective as nccl-tests counts it, None where the program is none. fold: None where that is not known.
    finished: False of a run that was stopped. wall_s: of the simulation, None: not taken. notes: what the user should
    know, beside those of the program.

    Raises
    ------
    InputError: records of another program, cluster or model.
    """

    program: GpuProgram
    model: GpuModel
    cluster: Cluster
    group: Sequence[int]
    records: GpuRecords
    bus_factor: float | None = None
    fold: Folding | None = None
    finished: bool = True
    wall_s: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.group) != self.program.num_ranks:
            raise InputError(f"needs a device a rank: {self.program.num_ranks}, got {len(self.group)}", field="group")
        cus = self.records.state_ps.shape[1]
        if cus != self.model.num_cus:
            raise InputError(f"the records are of GPUs of {cus} CUs, {self.model.name!r} has {self.model.num_cus}")
        shown(self.program, self.records)

    # Time

    @property
    def time_ps(self) -> int:
        """From the start of the run to its end, or to where it was stopped."""
        return self.records.end_ps

    @property
    def time_s(self) -> float:
        return self.time_ps / PS_PER_S

    @property
    def algbw_bytes_per_s(self) -> float | None:
        """Payload / time; None where the program says no payload, and of a run that was stopped."""
        if not self.program.payload_bytes or not self.time_ps or not self.finished:
            return None
        return self.program.payload_bytes * PS_PER_S / self.time_ps

    @property
    def busbw_bytes_per_s(self) -> float | None:
        """algbw times the factor of nccl-tests; None without either."""
        algbw = self.algbw_bytes_per_s
        return None if algbw is None or self.bus_factor is None else algbw * self.bus_factor

    # What follows

    @cached_property
    def shown(self) -> Shown:
        """Which parts of the program the records are of."""
        return shown(self.program, self.records)

    @cached_property
    def window_ps(self) -> tuple[int, int]:
        """From the start of the first workgroup to the end of the last, (0, 0) where none ran."""
        return gpu_metrics.kernel_window(self)

    @cached_property
    def gpus(self) -> tuple[gpu_metrics.GpuUse, ...]:
        """What each simulated GPU did."""
        return gpu_metrics.gpu_uses(self)

    @cached_property
    def kinds(self) -> tuple[gpu_resources.KindUse, ...]:
        """How busy resources are, by what they are."""
        return gpu_resources.kind_uses(self)

    @cached_property
    def links(self) -> tuple[gpu_resources.LinkUse, ...]:
        """How busy the links of the cluster are that were used."""
        return gpu_resources.link_uses(self)

    @cached_property
    def operations(self) -> tuple[gpu_metrics.OperationUse, ...]:
        """Operations by kind and label, those that took most time first."""
        return gpu_metrics.operation_uses(self)

    @cached_property
    def bottleneck(self) -> gpu_bottleneck.Bottleneck:
        """What decides the time."""
        return gpu_bottleneck.find_bottleneck(self)

    def rank(self, rank: int) -> gpu_metrics.GpuUse:
        """What the GPU of a rank did; of a folded run that of the rank that stands for it, which does the same.

        Raises InputError for a rank that the program does not have, or that was replayed.
        """
        return self.gpus[self.gpu_of(rank)]

    def gpu_of(self, rank: int) -> int:
        """Return the number of the simulated GPU that stands for a rank.

        Raises InputError for no such rank, and for a replayed one, which has no inside.
        """
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.program.num_ranks:
            raise InputError(f"there is no rank {rank!r}, ranks are 0 to {self.program.num_ranks - 1}", field="rank")
        found = int(self.records.gpu_of[rank])
        if found < 0:
            ranks = ", ".join(str(each) for each in self.records.ranks.tolist())
            raise InputError(f"rank {rank} was replayed, not simulated; rank {ranks} was", field="rank")
        return found

    @property
    def num_replayed(self) -> int:
        """Ranks of which only what they send to the others exists (docs/design/replay.md)."""
        return int(np.count_nonzero(self.records.gpu_of < 0))

    @property
    def replayed(self) -> str:
        """Say how many peers were replayed, "" where none was."""
        count = self.num_replayed
        return f"{count:,} {'peer' if count == 1 else 'peers'} replayed" if count else ""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Where the numbers of the GPU model and of the cluster come from."""
        model, cluster = self.model, self.cluster
        rows = [
            Evidence(f"GPU {model.name}: {name}", _evidence_of(model, name), model.sources.get(name, ""))
            for name in sorted({*model.evidence, *model.sources})
        ]
        sources = "; ".join(f"{name}: {words}" for name, words in cluster.sources.items())
        return (*rows, Evidence(f"cluster {cluster.name}", cluster.evidence, sources))

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """What the run leaves out."""
        missing = [_NO_L2 if self.model.l2 is None else _NOT_MODELLED, "the host"]
        if np.any(self.program.op_kind == DMA) or self.records.packets.any():
            missing.append(_DMA)
        if self.model.notes:
            missing.append(f"{self.model.name}: {self.model.notes}")
        return tuple(missing)

    # Views

    def summary(self) -> str:
        """Return the result as text of 100 columns."""
        return gpu_summary.summary(self)

    def document(self) -> dict[str, object]:
        """Return the result as plain data, as docs/reference/loadstore-json.md describes it."""
        return gpu_document.document(self)

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`document` to ``path``. Raises InputError where it cannot be written."""
        from trine.spec import write_json

        write_json(path, self.document())

    def to_perfetto(self, path: str | Path) -> tuple[str, ...]:
        """Write a timeline for https://ui.perfetto.dev; return what was left out of it, in words.

        Raises InputError for more workgroups than a timeline can hold.
        """
        return gpu_perfetto.write(self, Path(path))

    def plot_noc(self, path: str | Path, *, rank: int | None = None) -> None:
        """Draw how busy the NoC of a rank's GPU is (PNG, SVG or PDF by the ending of ``path``), by default the first's.

        Raises InputError for no such rank, a replayed one or another ending, MissingExtraError without matplotlib.
        """
        from trine.results.gpu_plot import plot_noc

        plot_noc(self, path, rank=rank)


def _evidence_of(model: GpuModel, name: str) -> str:
    """Return the evidence of a field, else of its group (``cus`` of ``cus.count``), else "assumed"."""
    return model.evidence.get(name) or (_evidence_of(model, name.rpartition(".")[0]) if name else "assumed")
