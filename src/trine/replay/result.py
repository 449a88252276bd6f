"""The answer of a replay: what waiting took of the one GPU that was simulated, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from trine.evidence import Evidence
from trine.gpu.derived import flag_read_ps
from trine.gpu.outside import IDEAL
from trine.gpu.program import ACQUIRE
from trine.gpu.records import SEMAPHORE
from trine.gpu.run import GpuRun
from trine.replay import views
from trine.replay.incoming import Incoming
from trine.replay.options import EidolonOptions
from trine.replay.workload import Workload
from trine.results.gpu_result import GpuResult
from trine.units import PS_PER_S

_PEERS = "what peers do beside writing, and that they would wait for the target"
_IDEAL = "links and ports on the way of the peers' writes, which begin at the target's memory (--fabric modelled)"


@dataclass(frozen=True, kw_only=True, eq=False)
class EidolonResult:
    """What a replay gave. inside: the one GPU, as the load-store level shows it. end_ps: when its last kernel ended.

    wall_s: of all, engine_s: of it the simulation; with the beginning that it shares with other runs, if it does.
    """

    options: EidolonOptions
    work: Workload
    incoming: Incoming
    inside: GpuResult
    end_ps: int
    wall_s: float
    engine_s: float

    @staticmethod
    def of(
        options: EidolonOptions, work: Workload, incoming: Incoming, run: GpuRun, *, wall_s: float, engine_s: float
    ) -> EidolonResult:
        """Wrap a run."""
        inside = GpuResult(
            program=work.program, model=work.model, cluster=work.cluster, group=work.group, records=run.gpu,
            finished=run.finished, wall_s=engine_s, notes=(*work.warnings, *incoming.warnings),
        )  # fmt: skip
        return EidolonResult(
            options=options, work=work, incoming=incoming, inside=inside, end_ps=run.end_ps, wall_s=wall_s,
            engine_s=engine_s,
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        return self.inside.finished

    @property
    def time_s(self) -> float:
        """From the start to the end of the last kernel."""
        return self.end_ps / PS_PER_S

    # Reads and writes

    @property
    def flag_reads(self) -> int:
        """Acquires and flagged loads, each repetition one."""
        return self.inside.gpus[0].flag_reads

    @property
    def non_flag_reads(self) -> int:
        """All other loads, in lines."""
        return self.inside.gpus[0].non_flag_reads

    @property
    def writes_delivered(self) -> int:
        """Writes of peers, data and flags, up to the end of the last kernel."""
        return int(np.count_nonzero(self.incoming.time_ps <= self.end_ps))

    @property
    def writes_late(self) -> int:
        """Writes of peers that came when the last kernel had ended."""
        return len(self.incoming.time_ps) - self.writes_delivered

    # Waiting

    @cached_property
    def waiting_wavefronts(self) -> int:
        """Wavefronts that acquire: the first of each workgroup that does."""
        return len(self.work.waiting_workgroups)

    @cached_property
    def wait_total_ps(self) -> int:
        """Time of all wavefronts at acquires and flagged loads, summed up."""
        return int(self.inside.records.state_ps[:, :, SEMAPHORE].sum())

    @property
    def wait_ps(self) -> int | None:
        """Mean of the waiting wavefronts; None where none acquires."""
        return self.wait_total_ps // self.waiting_wavefronts if self.waiting_wavefronts else None

    @cached_property
    def waits_from_ps(self) -> int | None:
        """When the last workgroup began to wait; None where one never did."""
        start = self.acquires_ps[:, 0]
        return int(start.max()) if len(start) and (start >= 0).all() else None

    @cached_property
    def acquires_ps(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """int64[waiting wavefronts, 2]: start of the first acquire of each, end of the last; -1: never."""
        shown, program, records = self.inside.shown, self.work.program, self.inside.records
        rows = np.flatnonzero(program.op_kind[shown.op] == ACQUIRE)
        if not len(rows):
            return np.zeros((0, 2), np.int64)
        first = np.append(True, np.diff(shown.op_row[rows]) != 0)
        last = np.append(first[1:], True)
        return np.stack([records.op_start_ps[rows[first]], records.op_end_ps[rows[last]]], axis=1)

    @cached_property
    def polling_interval_ps(self) -> int | None:
        """Time between two reads of one spinning wavefront with nothing else going on; None: the memory answers."""
        model = self.work.model
        if model.poll_ps is None:
            return None
        return model.poll_ps + flag_read_ps(model, uncached=self._flags_are_uncached)

    @property
    def spin_reads_per_s(self) -> float | None:
        """Flag reads that spinning costs, of all waiting wavefronts: how steeply they grow with the wake-up time."""
        interval = self.polling_interval_ps
        return None if not interval else self.waiting_wavefronts * PS_PER_S / interval

    @property
    def _flags_are_uncached(self) -> bool:
        program = self.work.program
        spans = [(b.base, b.base + b.size_bytes) for b in program.buffers if b.uncached]
        operands = program.operand_ptr[:-1][program.op_kind == ACQUIRE]
        address = program.operand_address[operands]
        return bool(all(any(low <= one < high for low, high in spans) for one in np.unique(address).tolist()))

    # How it is known

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Where the numbers of the model, the cluster and the peers' writes come from."""
        detail = self.incoming.origin
        if self.incoming.fabric == IDEAL:
            detail += "; they begin at the target's memory"
        return (Evidence("writes of peers", self.incoming.evidence, detail), *self.inside.evidence)

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """What the replay leaves out, beside what the load-store level does."""
        ideal = (_IDEAL,) if self.incoming.fabric == IDEAL else ()
        return (_PEERS, *ideal, *self.inside.not_modelled)

    @property
    def warnings(self) -> tuple[str, ...]:
        late = self.writes_late
        after = (f"{late:,} writes of peers come after the last kernel has ended",) if late and self.finished else ()
        unlike = self.work.non_flag_reads
        short: tuple[str, ...] = ()
        if unlike is not None and self.finished and self.non_flag_reads != unlike:
            short = (
                f"{self.non_flag_reads:,} reads of data, and the data flow asks for {unlike:,}: please report this",
            )
        return (*self.work.warnings, *self.incoming.warnings, *after, *short)

    # Views

    def summary(self) -> str:
        """The result as text of 100 columns."""
        return views.summary(self)

    def document(self) -> dict[str, object]:
        """The result as plain data (docs/reference/eidolon-json.md)."""
        return views.document(self)

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`document`."""
        from trine.spec import write_json

        write_json(path, self.document())

    def to_perfetto(self, path: str | Path) -> tuple[str, ...]:
        """Write a timeline of the target for https://ui.perfetto.dev; return what was left out of it, in words."""
        return self.inside.to_perfetto(path)

    def plot(self, path: str | Path) -> None:
        """Draw how many wavefronts wait, and when writes land (PNG, SVG or PDF).

        Raises InputError for another ending, MissingExtraError without matplotlib.
        """
        from trine.replay.plot import plot_waiting

        plot_waiting(self, path)
