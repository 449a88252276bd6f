"""Options of ``trine train`` about ranks: how they are folded, placed, slow, random, repeated and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cli.overlap import OverlapAnswer
    from trine.parallel.plan import Plan
    from trine.parallel.stragglers import Stragglers
    from trine.results import Result
    from trine.studies.ensemble import StepEnsemble

_RANKS, _SLOW = "Ranks", "Slow ranks and chance"

NoFoldOption = Annotated[
    bool, typer.Option("--no-fold", help="Simulate every rank, also those that behave alike.", rich_help_panel=_RANKS)
]
VerifyFoldOption = Annotated[
    bool,
    typer.Option("--verify-fold", help="Simulate folded and unfolded; compare every task.", rich_help_panel=_RANKS),
]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        metavar="packed|round-robin|random:SEED|FILE", help="Which GPU a rank is on [packed].", rich_help_panel=_RANKS
    ),
]
ShowRankOption = Annotated[
    list[int] | None,
    typer.Option(metavar="R", help="Answer for these ranks, again for others.", rich_help_panel=_RANKS),
]
SlowOption = Annotated[list[str] | None, typer.Option(metavar="rank=17:1.3", help="Slow ranks.", rich_help_panel=_SLOW)]
JitterOption = Annotated[
    str | None, typer.Option(metavar="normal:5%", help="Random durations of operators.", rich_help_panel=_SLOW)
]
JitterPerOption = Annotated[
    str | None,
    typer.Option(metavar="operator|step", help="What draws a factor of its own [operator].", rich_help_panel=_SLOW),
]
SeedOption = Annotated[int | None, typer.Option(help="Of what is random [0].", rich_help_panel=_SLOW)]
RepeatOption = Annotated[
    int | None, typer.Option(help="Run so many seeds; say how times spread.", rich_help_panel=_SLOW)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOptions:
    """As given: None, False or () where one was not."""

    no_fold: bool = False
    verify_fold: bool = False
    show_ranks: tuple[int, ...] = ()
    slow: tuple[str, ...] = ()
    jitter: str | None = None
    jitter_per: str | None = None
    seed: int | None = None
    repeat: int | None = None

    def checked(self, num_ranks: int) -> str:
        """How to fold: ``on``, ``off`` or ``verify``.

        Raises InputError for options that contradict each other, name what does not exist, or cannot matter.
        """
        self.stragglers()
        self._check_repeat(num_ranks)
        self._check_shown(num_ranks)
        return self._fold(num_ranks)

    def _fold(self, num_ranks: int) -> str:
        if self.no_fold and self.verify_fold:
            raise InputError("--no-fold and --verify-fold contradict each other: the second runs both ways")
        if (self.no_fold or self.verify_fold) and num_ranks == 1:
            option = "--no-fold" if self.no_fold else "--verify-fold"
            raise InputError(f"{option} is about several ranks, and there is one")
        if self.verify_fold and self.repeat is not None:
            raise InputError("--verify-fold checks one run: it does not go with --repeat")
        return "off" if self.no_fold else "verify" if self.verify_fold else "on"

    def stragglers(self) -> Stragglers | None:
        """Slow ranks and jitter; None where there are none. Raises InputError for options that cannot matter."""
        from trine.parallel.stragglers import PER, Stragglers, parse_jitter, parse_slow

        if self.jitter is None and self.jitter_per is not None:
            raise InputError("--jitter-per says what draws the factors of --jitter, which was not given")
        if self.jitter is None and self.seed is not None and self.repeat is None:
            raise InputError("--seed matters to --jitter and --repeat only")
        if not self.slow and self.jitter is None:
            return None
        return Stragglers(
            slow=parse_slow(self.slow),
            jitter=None if self.jitter is None else parse_jitter(self.jitter),
            per=PER[0] if self.jitter_per is None else self.jitter_per.lower(),
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
        for number, rank in enumerate(self.show_ranks):
            if not 0 <= rank < num_ranks:
                raise InputError(f"--show-rank {rank}: ranks are 0 to {num_ranks - 1}")
            if rank in self.show_ranks[:number]:
                raise InputError(f"--show-rank {rank} is given twice")


class RankAnswer:
    """The answer of ``overlap``, or of an ensemble, for the ranks that are to be shown."""

    def __init__(self, overlap: OverlapAnswer, options: RankOptions) -> None:
        if overlap.is_range and options.repeat is not None:
            raise InputError("--repeat and --overlap range are two studies: ask for one at a time")
        self._overlap, self._options = overlap, options
        self._ensemble: StepEnsemble | None = None

    def simulate(self, workload: str, plan: Plan, **options: Any) -> Result:
        """What :func:`trine.simulate` answers; of repeated runs the first."""
        from trine.studies.ensemble import step_ensemble

        stragglers, repeat = self._options.stragglers(), self._options.repeat
        if repeat is None:
            result = self._overlap.simulate(workload, plan, stragglers=stragglers, **options)
        else:
            self._ensemble = step_ensemble(
                workload, plan, repeats=repeat, stragglers=stragglers, first_seed=self._options.seed or 0, **options
            )
            result = self._ensemble.result
        return result.of_ranks(self._options.show_ranks) if self._options.show_ranks else result

    @property
    def finished(self) -> bool:
        """False: Ctrl-C came before the last of repeated runs."""
        return self._ensemble is None or self._ensemble.runs.finished

    def summary(self, result: Result) -> str:
        """The result's summary, below what the ensemble says."""
        text = self._overlap.summary(result)
        return text if self._ensemble is None else f"{self._ensemble.summary()}\n{text}"

    def document(self, result: Result) -> dict[str, object]:
        """The result's keys, with the ensemble."""
        content = self._overlap.document(result)
        return content if self._ensemble is None else {**content, "ensemble": self._ensemble.document()}
