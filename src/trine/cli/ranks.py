"""Rank options of ``trine train``, and its answer, including studies of several runs (seeds, overlap)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.common.arguments import option
from trine.errors import InputError
from trine.results.text import MAX_LINES

if TYPE_CHECKING:
    from trine.parallel.plan import Plan
    from trine.parallel.stragglers import Stragglers
    from trine.results import Result
    from trine.training.ensemble import StepEnsemble
    from trine.training.options import SimulateOptions
    from trine.training.overlap import OverlapRange

RANGE = "range"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOptions:
    """The rank options as given; None, False or () if not given."""

    no_fold: bool = option(False, "Simulate every rank, also identical ones.")
    verify_fold: bool = option(False, "Simulate folded and unfolded; compare every task.")
    show_rank: tuple[int, ...] = option((), "Report these ranks.")
    slow: tuple[str, ...] = option((), "Slow ranks down.")
    jitter: str | None = option(None, "Randomise the durations of operators.")
    jitter_per: str | None = option(None, "Use one random factor per operator or per step [operator].")
    seed: int | None = option(None, "Set the random seed [0].")
    repeat: int | None = option(None, "Run N seeds; report the spread of times.")

    def checked(self, num_ranks: int) -> str:
        """Check the options and return the folding mode: ``on``, ``off`` or ``verify``.

        Raises InputError for options that contradict each other, name unknown ranks, or have no effect.
        """
        self.stragglers()
        self._check_repeat(num_ranks)
        self._check_shown(num_ranks)
        return self._fold(num_ranks)

    def _fold(self, num_ranks: int) -> str:
        if self.no_fold and self.verify_fold:
            raise InputError("--no-fold and --verify-fold contradict each other: the second runs both ways")
        if (self.no_fold or self.verify_fold) and num_ranks == 1:
            given = "--no-fold" if self.no_fold else "--verify-fold"
            raise InputError(f"{given} is about several ranks, and there is one")
        if self.verify_fold and self.repeat is not None:
            raise InputError("--verify-fold checks one run: it does not go with --repeat")
        return "off" if self.no_fold else "verify" if self.verify_fold else "on"

    def stragglers(self) -> Stragglers | None:
        """Return slow ranks and jitter, or None without either. Raise InputError for options without effect."""
        from trine.parallel.stragglers import PER, Stragglers, parse_jitter, parse_slow

        if self.jitter is None and self.jitter_per is not None:
            raise InputError("--jitter-per needs --jitter")
        if self.jitter is None and self.seed is not None and self.repeat is None:
            raise InputError("--seed matters to --jitter and --repeat only")
        if not self.slow and self.jitter is None:
            return None
        return Stragglers(
            slow=parse_slow(self.slow),
            jitter=None if self.jitter is None else parse_jitter(self.jitter),
            per=PER[0] if self.jitter_per is None else self.jitter_per,
            seed=self.seed or 0,
        )

    def _check_repeat(self, num_ranks: int) -> None:
        if self.repeat is None:
            return
        if self.repeat < 2:
            raise InputError(f"--repeat compares runs, at least 2; got {self.repeat}")
        if self.jitter is None and num_ranks == 1:
            raise InputError("--repeat needs --jitter here: without it one GPU does the same each time")

    def _check_shown(self, num_ranks: int) -> None:
        for number, rank in enumerate(self.show_rank):
            if not 0 <= rank < num_ranks:
                raise InputError(f"--show-rank {rank}: ranks are 0 to {num_ranks - 1}")
            if rank in self.show_rank[:number]:
                raise InputError(f"--show-rank {rank} is given twice")


class TrainAnswer:
    """The answer of ``trine train``: one run, ``--overlap range`` (which shows the modelled run), or an ensemble.

    whole: the result with all its ranks.
    """

    whole: Result

    def __init__(self, overlap: str | None, options: RankOptions) -> None:
        self._is_range, self._options = overlap == RANGE, options
        if self._is_range and options.repeat is not None:
            raise InputError("--repeat and --overlap range are two studies: ask for one at a time")
        self._range: OverlapRange | None = None
        self._ensemble: StepEnsemble | None = None

    def simulate(self, workload: str, plan: Plan, how: SimulateOptions) -> Result:
        """Return the result of :func:`trine.simulate`; with ``--repeat``, the first run's."""
        repeat, shown = self._options.repeat, self._options.show_rank
        if repeat is not None:
            from trine.training.ensemble import step_ensemble

            self._ensemble = step_ensemble(
                workload, plan, repeats=repeat, first_seed=self._options.seed or 0, options=how
            )
            result = self._ensemble.result
        elif self._is_range:
            from trine.training.overlap import overlap_range

            self._range = overlap_range(workload, plan, options=how)
            result = self._range.modelled
        else:
            from trine.training import simulate

            result = simulate(workload, plan, options=how)
        self.whole = result
        return result.of_ranks(shown) if shown else result

    @property
    def finished(self) -> bool:
        """False if Ctrl-C stopped the repeated runs early."""
        return self._ensemble is None or self._ensemble.runs.finished

    def text(self, result: Result, details: bool) -> str:
        """Return the result as text, below the range or the ensemble."""
        from trine.results.summary import screen

        studies = [each for each in (self._ensemble, self._range) if each is not None]
        if details:
            return "\n".join([*(each.details() for each in studies), result.details()])
        above = [line for each in studies for line in each.summary().splitlines()]
        return "\n".join([*above, screen(result).text(MAX_LINES - len(above))])

    def headline(self, result: Result) -> str:
        """Return the headline of the ensemble or the range, or else of the result."""
        study = self._ensemble or self._range
        return result.headline if study is None else study.headline

    def document(self, result: Result) -> dict[str, object]:
        """Return the result's JSON document, with the range or the ensemble."""
        content = result.document()
        if self._range is not None:
            content["overlap"] = self._range.document()
        return content if self._ensemble is None else {**content, "ensemble": self._ensemble.document()}
