"""Long collectives at the load-store level: the first parts are run, and the time is extended to the whole message."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trine.gpu.collective.extension import MIN_PARTS, ExtendedTime, extend, part_sizes
from trine.gpu.collective.runs import LoadStoreRow, LoadStoreRuns
from trine.gpu.detail.detail import DetailedKernel, KernelDetail


@dataclass(frozen=True, kw_only=True, slots=True)
class LongDetail:
    """A kernel in detail. extension: from the part in ``detail`` to the whole message; None if ``detail`` is whole."""

    detail: KernelDetail
    extension: ExtendedTime | None

    @property
    def after_last_ps(self) -> int:
        """Time of the whole message, from the arrival of the last rank to the end on the rank."""
        return self.detail.after_last_ps if self.extension is None else self.extension.time_ps


def run_long(kernel: DetailedKernel) -> LongDetail:
    """Run a kernel, or the first parts of a long message, of which the largest is shown in detail.

    Raises KeyboardInterrupt on Ctrl-C before the end, and the errors of ``kernel.answer``.
    """
    size_bytes = kernel.chosen.what.size_bytes
    # The algorithm of the operator level may have rounds; the candidates of the load-store level have none.
    sizes = part_sizes(size_bytes, None)
    if not sizes:
        return LongDetail(detail=kernel.answer(), extension=None)
    name = kernel.part(sizes[0]).fastest_name()
    details: dict[int, KernelDetail] = {}

    def time_at(part_bytes: int) -> int:
        part = kernel.part(part_bytes)
        if part_bytes in sizes[: MIN_PARTS - 1]:  # the next part is the first that can be the last
            return part.after_last_ps(name)
        details[part_bytes] = part.answer(name)
        return details[part_bytes].after_last_ps

    extension = extend(size_bytes, sizes, time_at)
    return LongDetail(detail=details[extension.parts[-1].size_bytes], extension=extension)


@dataclass(frozen=True, kw_only=True, slots=True)
class LongRow:
    """A row of a size. extension: of its time, from the largest part that was run; None if the whole was run."""

    row: LoadStoreRow
    extension: ExtendedTime | None


def row_of_long(runs: LoadStoreRuns, size_bytes: int) -> LongRow:
    """Return the row of a size; of a long message that of its largest part, with the time of the whole message.

    Raises KeyboardInterrupt on Ctrl-C before the end of a part.
    """
    name = runs.programs.names(size_bytes)[0]
    sizes = part_sizes(size_bytes, runs.programs.round_bytes(name, size_bytes))
    if not sizes:
        return LongRow(row=runs.row(size_bytes), extension=None)
    rows: dict[int, LoadStoreRow] = {}

    def time_at(part_bytes: int) -> int:
        row = runs.row(part_bytes, size_bytes)
        if not row.finished:
            raise KeyboardInterrupt
        rows[part_bytes] = row
        return row.time.time_ps

    extension = extend(size_bytes, sizes, time_at)
    row = rows[extension.parts[-1].size_bytes]
    whole = replace(row.time, size_bytes=size_bytes, sent_bytes=size_bytes, time_ps=extension.time_ps)
    whole = replace(whole, low_ps=extension.time_ps, high_ps=extension.time_ps)
    return LongRow(row=replace(row, time=whole), extension=extension)
