"""Layers of each stage as typed: ``--stage-layers 0,1*126,0``."""

import pytest

from trine.cli.conversions import layer_counts_of
from trine.errors import PlanError


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1,3", (1, 3)), ("0,2*3,1", (0, 2, 2, 2, 1)), ("4*1", (4,)), ("0*2", (0, 0))],
)
def test_a_star_repeats_a_count(text: str, counts: tuple[int, ...]) -> None:
    assert layer_counts_of(text) == counts


@pytest.mark.parametrize("text", ["2*0", "x", "1*", "*2", "1*99999999"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="--stage-layers takes whole numbers"):
        layer_counts_of(text)
