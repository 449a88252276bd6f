"""Does a replay say when the record that it replays is of another program, GPU model or cluster?"""

from dataclasses import replace
from pathlib import Path

import pytest

from trine.eidolon.arrivals import load_arrivals, save_arrivals
from trine.eidolon.options import EidolonOptions
from trine.eidolon.origin import PARTS, differing
from trine.eidolon.record import record_run
from trine.eidolon.run import run_eidolon
from trine.errors import SpecError
from trine.model.outside import Arrivals

SMALL = {"rows": 128, "cols": 1024, "peers": 2}


@pytest.fixture(scope="module")
def arrivals() -> Arrivals:
    return record_run(EidolonOptions(**SMALL)).arrivals


def warnings(record: Arrivals, **changes: object) -> list[str]:
    result = run_eidolon(EidolonOptions(**(SMALL | changes), arrivals=record))
    return [text for text in result.warnings if "is of another" in text]


def test_the_same_run_is_replayed_without_a_word(arrivals: Arrivals) -> None:
    assert warnings(arrivals) == []


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"cols": 512}, "program"), ({"sync": "mwait"}, "GPU model"), ({"poll": "1 us"}, "GPU model")],
)
def test_another_program_or_model_is_named(arrivals: Arrivals, changes: dict[str, object], part: str) -> None:
    assert warnings(arrivals, **changes) == [
        f"the record is of another {part}: its peers write when they did there"
    ]  # fmt: skip


def test_a_record_that_does_not_say_is_not_judged(arrivals: Arrivals) -> None:
    assert warnings(replace(arrivals, origin=""), cols=512) == []


def test_files_keep_the_origin(arrivals: Arrivals, tmp_path: Path) -> None:
    path = tmp_path / "record.npz"
    save_arrivals(path, arrivals)
    assert load_arrivals(path).origin == arrivals.origin != ""
    assert len(arrivals.origin.split()) == len(PARTS)
    save_arrivals(path, replace(arrivals, origin="of my own"))
    with pytest.raises(SpecError, match="origin: must be three fingerprints"):
        load_arrivals(path)


def test_each_part_is_compared_by_itself() -> None:
    assert differing("a b c", "a x y") == ("GPU model", "cluster")
    assert differing("", "a b c") == ()
