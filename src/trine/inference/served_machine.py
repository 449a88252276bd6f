"""A machine type of ``trine size --serve``: its copies, their requests per second, and their price."""

from __future__ import annotations

from dataclasses import dataclass

from trine.inference.plan_answer import layout_words, point_words
from trine.inference.screen import number_words, seconds_words
from trine.inference.serving_points import ServingPoint
from trine.results.report import Row

_HOUR_S, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True)
class ServedMachine:
    """A machine type: its copies with the fewest GPUs, or None and the ``problem``.

    tokens_per_s: output tokens per second at the stated rate of requests. dollars_per_gpu_hour: None without a price.
    """

    cluster: str
    point: ServingPoint | None
    problem: str = ""
    tokens_per_s: float = 0.0
    dollars_per_gpu_hour: float | None = None

    @property
    def num_gpus(self) -> int:
        """GPUs of all copies; 0 without an answer."""
        return 0 if self.point is None else self.point.total_gpus

    @property
    def requests_per_s(self) -> float:
        """Requests per second of all copies in a closed loop; 0 without an answer."""
        if self.point is None:
            return 0.0
        return self.point.output_tokens_per_s / self.point.answer.job.output_tokens

    @property
    def dollars_per_hour(self) -> float | None:
        """Price of an hour of all GPUs; None without a price or an answer."""
        if self.dollars_per_gpu_hour is None or self.point is None:
            return None
        return self.num_gpus * self.dollars_per_gpu_hour

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """Price of a million output tokens at the stated rate of requests; None without a price or an answer."""
        if self.dollars_per_hour is None:
            return None
        return self.dollars_per_hour / _HOUR_S / self.tokens_per_s * _MILLION

    @property
    def deployment(self) -> str:
        """Layout, precision and copies in words; empty without an answer."""
        return "" if self.point is None else point_words(self.point)

    def row(self) -> Row:
        """Return the machine as plain data."""
        found: Row = {"cluster": self.cluster, "num_gpus": self.num_gpus, "requests_per_s": self.requests_per_s,
                      "dollars_per_gpu_hour": self.dollars_per_gpu_hour, "dollars_per_hour": self.dollars_per_hour,
                      "dollars_per_million_tokens": self.dollars_per_million_tokens,
                      "problem": self.problem or None}  # fmt: skip
        return {**found, "point": None if self.point is None else self.point.row()}

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        assert self.point is not None
        point = self.point
        found = (
            self.cluster, f"{self.num_gpus:,}", str(point.copies), layout_words(point.answer.job.layout),
            point.answer.precision, f"{point.concurrency:,}", seconds_words(point.ttft_s), seconds_words(point.tpot_s),
            number_words(self.requests_per_s),
        )  # fmt: skip
        if self.dollars_per_hour is None or self.dollars_per_million_tokens is None:
            return found
        return (*found, number_words(self.dollars_per_hour), number_words(self.dollars_per_million_tokens))
