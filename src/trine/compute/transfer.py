"""Recorded times of one GPU, scaled to another.

If measured tables of both GPUs have the operator's kind (trine.compute.tables.fp32), trine scales its time by the
ratio of the tables' times at its shape. A GPU without a table uses its nearest sibling's, scaled by the data
sheets. If both GPUs would use the same table, or no table has the kind, only the data sheets count: trine assumes
that the operator keeps its ratio to the roofline, except for the fixed part of its time, which stays the same.
Results of this rule are marked as assumed, because efficiency differs between GPUs.
"""

from __future__ import annotations

import math

from trine.cluster.presets import GpuSpec
from trine.common.evidence import ASSUMED, MODELLED, TRANSFERRED
from trine.common.precision import HALVES
from trine.compute.cost import Work
from trine.compute.kinds import family_of, kind_of
from trine.compute.resize import Resized
from trine.compute.roofline import check_peaks, has_tf32_products, least_time_s, precision_of
from trine.graph.workload import Workload

#: Families with tables for 16-bit data types.
_IN_HALF = ("linear", "matmul", "attention")


class Transfer:
    """Scaling of a workload's operator times from ``source``, the recording GPU, to ``target``.

    by: source of the ratios, as text.
    """

    def __init__(self, source: GpuSpec, target: GpuSpec, workload: Workload) -> None:
        from trine.compute.tables.times import SizedTimes

        check_peaks(source)
        check_peaks(target)
        self.source, self.target = source, target
        self._workload = workload
        self._tf32_products = has_tf32_products(workload, source)
        self._halves = SizedTimes(source), SizedTimes(target)
        from trine.compute.tables.convolutions import table_of

        tables = table_of(source), table_of(target)
        self._has_tables = None not in tables and tables[0] != tables[1]
        self.basis = "measured tables of operators, else of their rooflines" if self._has_tables else "their rooflines"
        self.notes: tuple[str, ...] = (
            f"times scaled from {source.name} to {target.name} by the ratio of {self.basis}; products of "
            f"float32 matrices assumed in {'TF32' if self._tf32_products else 'float32'}, convolutions in TF32",
        )

    def time(self, sizes: Resized, amount: Work, ps: int, fixed_ps: float) -> tuple[int, str]:
        """Return the time in ps on the target, and its evidence, for an operator that takes ``ps`` on the source.

        amount: its work. fixed_ps: the part of ``ps`` that does not depend on size.
        """
        precision = precision_of(sizes.operator, self._workload.tensors, self._tf32_products)
        if ps > 0 and precision in HALVES and family_of(kind_of(sizes.operator)) in _IN_HALF:
            halves = [times.time(sizes) for times in self._halves]
            if halves[0] is not None and halves[1] is not None:
                return math.ceil(ps * (halves[1].us / halves[0].us)), TRANSFERRED
        if self._has_tables and ps > 0:
            from trine.compute.tables.fp32_times import operator_time

            before = operator_time(self.source, sizes, amount, precision)
            after = operator_time(self.target, sizes, amount, precision)
            if before is not None and after is not None:
                word = TRANSFERRED if TRANSFERRED in (before.evidence, after.evidence) else MODELLED
                return math.ceil(ps * (after.us / before.us)), word
        return self._by_rooflines(amount, precision, ps, fixed_ps), ASSUMED

    def _by_rooflines(self, amount: Work, precision: str, ps: int, fixed_ps: float) -> int:
        before = least_time_s(self.source, amount, precision)
        after = least_time_s(self.target, amount, precision)
        if before <= 0.0:
            return ps
        fixed = min(float(ps), fixed_ps)
        return math.ceil(fixed + (ps - fixed) * (after / before))
