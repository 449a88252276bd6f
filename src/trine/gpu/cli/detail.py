"""``trine train --detail``: one kernel of a step, load by load."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trine.cli.output import TIMELINE, Section, show, written
from trine.cli.progress import watched
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cli.output import StepRequest
    from trine.gpu.detail.choice import DetailOptions
    from trine.gpu.detail.detail import KernelDetail
    from trine.results import Result


class DetailAnswer(Section):
    """Output of ``--detail`` (one kernel of one rank, load by load) and ``--detail-perfetto``."""

    def __init__(self, text: str | None, perfetto: str | None) -> None:
        if text is None and perfetto is not None:
            raise InputError("--detail-perfetto is the timeline of the kernel of --detail, and that was not given")
        self._options: DetailOptions | None = None
        if text is not None:
            from trine.gpu.detail.choice import parse_detail

            self._options = parse_detail(text)
        self._perfetto = perfetto
        self._kernel: KernelDetail | None = None

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Reject a rank, layer, ... that the step does not have."""
        if self._options is None:
            return
        from trine.gpu.detail.choice import choose
        from trine.graph.grid import RankGrid

        try:
            choose(result, RankGrid(step[1].axes), self._options)
        except InputError as error:
            raise InputError(f"--detail, {error}") from None

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Simulate the kernel and print its result, if requested. result: of the step, with all ranks."""
        if self._options is None:
            return
        from trine.gpu.detail.detail import kernel_detail

        workload, plan, options = step

        with watched("requests"):
            try:
                self._kernel = kernel_detail(workload, plan, self._options, result, options=options)
            except KeyboardInterrupt:
                self.finished = False
            except InputError as error:  # its fields are options of other commands, but keys of --detail here
                text = re.sub(r"--(gpu-model|sync|poll)\b", lambda option: option[1].replace("-", "_"), str(error))
                raise InputError(f"--detail, {text}") from None
        if self._kernel is not None:
            show(self._kernel.headline if brief else f"\n{self._kernel.summary()}", json)

    def document(self) -> dict[str, object]:
        """Return ``detail``, if requested."""
        return {} if self._kernel is None else {"detail": self._kernel.document()}

    def write(self) -> None:
        """Write the timeline, if requested."""
        if self._kernel is not None:
            written(self._perfetto, self._kernel.to_perfetto, TIMELINE)
