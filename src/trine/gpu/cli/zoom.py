"""``trine train --zoom``: a collective or operator of a step at the load-store level, beside the operator level."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trine.cli.output import Section, show
from trine.cli.progress import watched
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.cli.output import StepRequest
    from trine.gpu.detail.operator_zoom import OperatorZoom
    from trine.gpu.detail.two_times import ZoomResult
    from trine.results import Result


class ZoomAnswer(Section):
    """Output of ``--zoom NAME``."""

    def __init__(self, word: str | None) -> None:
        self._word = None if word is None else word.strip()
        if self._word == "":
            raise InputError("--zoom needs a name, such as --zoom largest, --zoom all_reduce or --zoom gemm")
        self._zoomed: ZoomResult | OperatorZoom | None = None
        self._is_operator = False

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Reject a collective or operator that the step does not have."""
        if self._word is None:
            return
        from trine.gpu.detail.operator_choice import OPERATOR_WORDS, names_operator
        from trine.gpu.detail.zoom import choose_zoom
        from trine.gpu.kernels.build import known_kernels
        from trine.graph.grid import RankGrid

        self._is_operator = names_operator(result, self._word)
        if self._is_operator:
            return
        try:
            choose_zoom(result, RankGrid(step[1].axes), self._word)
        except InputError as error:
            first = self._word.split(",")[0].strip()
            hint = "" if known_kernels(first) else nearest(first, OPERATOR_WORDS, is_listed=True)
            if hint and ("," in self._word or "did you mean" not in str(error)):  # collectives have no commas
                raise InputError(f"--zoom, no collective or operator is called {first[:80]!r}{hint}") from None
            raise InputError(f"--zoom, {error}") from None

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Simulate the collective and print both times, if requested. result: of the step, with all ranks."""
        if self._word is None:
            return
        from trine.gpu.detail.operator_zoom import zoom_operator
        from trine.gpu.detail.two_times import zoom

        workload, plan, options = step
        simulate = zoom_operator if self._is_operator else zoom
        with watched("requests"):
            try:
                self._zoomed = simulate(workload, plan, self._word, result, options=options)
            except KeyboardInterrupt:
                self.finished = False
            except InputError as error:  # its fields are options of other commands
                text = re.sub(r"--(gpu-model|sync|poll)\b", lambda option: option[1].replace("-", "_"), str(error))
                raise InputError(f"--zoom, {text}") from None
        if self._zoomed is not None:
            show(self._zoomed.headline if brief else f"\n{self._zoomed.summary()}", json)

    def document(self) -> dict[str, object]:
        """Return ``zoom`` or ``operator_zoom``, if requested."""
        return {} if self._zoomed is None else {self._zoomed.SCHEMA.replace("-", "_"): self._zoomed.document()}
