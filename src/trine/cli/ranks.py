"""Options of ``trine train`` about ranks: how they are folded, placed, slow, random, repeated and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from trine.errors import InputError

if TYPE_CHECKING:
    from trine.parallel.stragglers import Stragglers

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
SlowOption = Annotated[
    list[str] | None, typer.Option(metavar="rank=17:1.3", help="Slow ranks.", rich_help_panel=_SLOW)
]
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

    def fold(self, num_ranks: int) -> str:
        """``on``, ``off`` or ``verify``. Raises InputError for options that contradict each other or cannot matter."""
        if self.no_fold and self.verify_fold:
            raise InputError("--no-fold and --verify-fold contradict each other: the second runs both ways")
        if (self.no_fold or self.verify_fold) and num_ranks == 1:
            raise InputError(f"{'--no-fold' if self.no_fold else '--verify-fold'} is about several ranks, and there is one")
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

    def check_repeat(self, num_ranks: int) -> None:
        """Raise InputError for repeats that cannot matter."""
        if self.repeat is None:
            return
        if self.repeat < 2:
            raise InputError(f"--repeat compares runs, at least 2; got {self.repeat}")
        if self.jitter is None and num_ranks == 1:
            raise InputError("--repeat needs --jitter here: without it one GPU does the same each time")

    def check_shown(self, num_ranks: int, network: str) -> None:
        """Raise InputError for ranks that do not exist or are shown anyway."""
        from trine.network.models import network_model, why_unfolded

        for number, rank in enumerate(self.show_ranks):
            if not 0 <= rank < num_ranks:
                raise InputError(f"--show-rank {rank}: ranks are 0 to {num_ranks - 1}")
            if rank in self.show_ranks[:number]:
                raise InputError(f"--show-rank {rank} is given twice")
        if not self.show_ranks:
            return
        why = why_unfolded(network_model(network))
        if self.no_fold or self.jitter is not None or why:
            why = why or ("--no-fold was given" if self.no_fold else "jitter makes every rank different")
            raise InputError(f"--show-rank is about runs that fold; this one shows every rank, because {why}")
