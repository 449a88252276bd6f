"""``trine train --detail``: one kernel of one rank of the step, load by load and store by store."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from trine.cli.output import TIMELINE, show, written
from trine.cli.progress import ProgressLine
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.parallel.plan import Plan
    from trine.results import Result
    from trine.simulation.detail_choice import DetailOptions
    from trine.simulation.detail_result import KernelDetail
    from trine.simulation.options import SimulateOptions


class DetailAnswer:
    """What ``--detail`` says and ``--detail-perfetto`` writes. finished: False where Ctrl-C stopped it."""

    def __init__(self, text: str | None, perfetto: str | None) -> None:
        if text is None and perfetto is not None:
            raise InputError("--detail-perfetto is the timeline of the kernel of --detail, and that was not given")
        self._asked: DetailOptions | None = None
        if text is not None:
            from trine.simulation.detail_choice import parse_detail

            self._asked = parse_detail(text)
        self._perfetto = perfetto
        self._found: KernelDetail | None = None
        self.finished = True

    def check(self, plan: Plan, result: Result) -> None:
        """Refuse a rank, layer, ... that the step does not have, before its answer is printed."""
        if self._asked is None:
            return
        from trine.graph.grid import RankGrid
        from trine.simulation.detail_choice import choose

        try:
            choose(result, RankGrid(plan.axes), self._asked)
        except InputError as error:
            raise InputError(f"--detail, {error}") from None

    def run(self, workload: str, plan: Plan, options: SimulateOptions, result: Result) -> None:
        """Simulate the kernel, if one was asked for. result: of the step, with all ranks."""
        if self._asked is None:
            return
        from trine.simulation.detail import kernel_detail

        with ProgressLine("requests") as progress:
            watched = replace(
                options, progress=progress, on_compile=progress.compiling, on_stage=progress.stage, on_job=None
            )
            try:
                self._found = kernel_detail(workload, plan, self._asked, result, options=watched)
            except KeyboardInterrupt:
                self.finished = False
            except InputError as error:  # whose fields are keys of this option, as other commands' options are
                text = re.sub(r"--(gpu-model|sync|poll)\b", lambda option: option[1].replace("-", "_"), str(error))
                raise InputError(f"--detail, {text}") from None

    def show(self, json: str | None, brief: bool) -> None:
        """Print what was found."""
        if self._found is not None:
            show(self._found.headline if brief else f"\n{self._found.summary()}", json)

    def document(self) -> dict[str, object]:
        """``detail``, if that was asked for."""
        return {} if self._found is None else {"detail": self._found.document()}

    def write(self) -> None:
        """Write the timeline, if that was asked for."""
        if self._found is not None:
            written(self._perfetto, self._found.to_perfetto, TIMELINE)
