"""The answer of a load-store run: what happened inside the GPUs, in every form that people and programs read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.gpu.results.bottleneck import Bottleneck, find_bottleneck
from trine.gpu.results.resources import ResourceUses
from trine.results.report import Report, Row, Table, Timeline


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GpuResult(ResourceUses, Report):
    """Result of a load-store run."""

    SCHEMA: ClassVar[str] = "loadstore"

    @cached_property
    def bottleneck(self) -> Bottleneck:
        """What decides the time."""
        return find_bottleneck(self)

    @property
    def headline(self) -> str:
        """Program, ranks, time and bandwidth."""
        program, rate = self.program, self.busbw_bytes_per_s
        payload = f", {format_bytes(program.payload_bytes)}" if program.payload_bytes else ""
        bandwidth = f", busbw {format_bandwidth(rate)}" if rate is not None else ""
        ending = "" if self.finished else ", stopped"
        return (
            f"{program.name}: {format_time(self.time_ps)} on {program.num_gpus:,} x {self.model.name}"
            + payload
            + bandwidth
            + ending
        )

    def summary(self) -> str:
        """Return the answer on one screen."""
        from trine.gpu.results import summary

        return summary.screen(self, self.bottleneck).text()

    def details(self) -> str:
        """Return everything as text."""
        from trine.gpu.results import summary

        return summary.use_vendor_terms(summary.details(self, self.bottleneck), self.model.name)

    def document(self) -> Row:
        """Return the result as plain data, as docs/reference/loadstore-json.md describes it."""
        from trine.gpu.results import document

        return document.document(self, self.bottleneck)

    def tables(self) -> dict[str, Table]:
        """Return GPUs, CUs, kinds of resources, links, lanes and operations."""
        from trine.gpu.results import document

        return document.tables(self)

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``noc``: how busy the NoC of the GPU of ``rank`` is, by default of the first that was simulated."""
        from trine.gpu.results import plot

        return {"noc": partial(plot.noc, self)}

    def timeline(self) -> Timeline:
        """Return what workgroups do. Raises InputError for more workgroups than a timeline can hold."""
        from trine.gpu.results import timeline

        return timeline.timeline(self)
