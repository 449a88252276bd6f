"""Studies of one step beside its answer: ``--tokens``, ``--price`` and ``--sensitivity``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from trine.cli.options import OUTPUT, Option
from trine.cli.output import Section, show, to_terminal
from trine.cli.parameters import Given
from trine.cli.progress import RowsLine
from trine.decide.failures import Failures
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cli.output import StepRequest
    from trine.decide.cost import Price, RunCost
    from trine.decide.sensitivity import Sensitivity
    from trine.results import Result
    from trine.results.report import Row

TOKENS = Annotated[str | None, Option("Train on this many tokens, such as 1.4T: days, GPU-hours, energy.", "N", OUTPUT)]
PRICE = Annotated[str | None, Option("Set dollars per GPU-hour, or a dated file; with --tokens.", "USD|FILE", OUTPUT)]
SENSITIVITY = Annotated[bool, Option("Rank the inputs by their effect within their likely ranges.", panel=OUTPUT)]


class CostAnswer(Section):
    """Output of ``--tokens`` and ``--price``: the cost of the whole run."""

    def __init__(self, tokens: str | None, price: str | None, failures: Given[Failures]) -> None:
        about_runs = [*(["price"] if price is not None else []), *failures.values]
        if about_runs and tokens is None:
            raise InputError(f"--{about_runs[0].replace('_', '-')} is about a whole run: add --tokens N")
        self._failures = failures.make()
        self._tokens: int | float | None = None
        self._price: Price | None = None
        if tokens is not None:  # wrong values are refused before the simulation
            from trine.decide.cost import parse_amount, read_price

            self._tokens = parse_amount(tokens, "tokens")
            self._price = None if price is None else read_price(price)
        self._cost: RunCost | None = None

    @property
    def num_lines(self) -> int:
        """Lines that the cost takes of the screen."""
        if self._tokens is None:
            return 0
        from trine.decide.cost import COST_LINES

        return COST_LINES

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Compute the cost."""
        if self._tokens is not None:
            from trine.decide.cost import run_cost

            self._cost = run_cost(result, self._tokens, self._price, self._failures)

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Print the cost."""
        if self._cost is None:
            return
        with to_terminal(json):
            show(self._cost.line() if brief else "\n".join(self._cost.text()), json)

    def document(self) -> Row:
        """Return ``cost``."""
        return {} if self._cost is None else {"cost": self._cost.document()}


class SensitivityAnswer(Section):
    """Output of ``--sensitivity``, below the step's headline."""

    def __init__(self, is_wanted: bool, repeat: int | None, overlap: str | None) -> None:
        if is_wanted and (repeat is not None or overlap == "range"):
            raise InputError("--sensitivity varies one run: it does not go with --repeat or --overlap range")
        self._is_wanted = is_wanted
        self._sensitivity: Sensitivity | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the option was given."""
        return self._is_wanted

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Run the step at both ends of each input's range."""
        if self._is_wanted:
            from trine.decide.sensitivity import sensitivity

            workload, plan, options = step
            with RowsLine("inputs varied") as line:
                self._sensitivity = sensitivity(workload, plan, base=result, on_run=line.rows, options=options)

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Print the ranking."""
        if self._sensitivity is not None:
            with to_terminal(json):
                show(self._sensitivity.headline if brief else f"\n{self._sensitivity.summary()}", json)

    def document(self) -> Row:
        """Return ``sensitivity``."""
        return {} if self._sensitivity is None else {"sensitivity": self._sensitivity.document()}
