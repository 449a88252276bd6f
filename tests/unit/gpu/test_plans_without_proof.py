"""Does a plan whose proof fails run on request, at both levels, with a warning that gives the reason?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from plan_cases import DATA

from trine.cli.main import app
from trine.collectives.options import CollectiveOptions
from trine.errors import DeadlockError, InputError
from trine.gpu.collective import LoadStoreOptions
from trine.gpu.plans import load_checked

PLAN = DATA / "v2_HEAD_allreduce_allpairs_4gpu.json"
LEVELS = ([], ["--fidelity", "loadstore"])


def broken(folder: Path, place: int) -> str:
    """The plan without an operation of the first thread block; 3 and 9 are waits, 1 is a signal."""
    plan = json.loads(PLAN.read_text())
    del plan["gpus"][0]["threadblocks"][0]["ops"][place]
    (folder / "plan.json").write_text(json.dumps(plan))
    return str(folder / "plan.json")


def ask(path: str, *options: str) -> Result:
    command = ["collective", "all_reduce", "--cluster", "dgx-h100", "--gpus", "4", "--size", "64K", "--algorithm", path]
    return CliRunner().invoke(app, [*command, *options])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("place", "reason"), [(3, "race: GPU 0"), (9, "leaves 1 signal(s) of rank 1")])
def test_the_reason_is_a_warning_instead_of_an_error(place: int, reason: str, level: list[str], tmp_path: Path) -> None:
    path = broken(tmp_path, place)
    refused, done = ask(path, *level), ask(path, "--no-proof", *level)
    assert (refused.exit_code, done.exit_code) == (2, 0), done.output
    assert "--no-proof runs the plan without a proof" in " ".join(refused.output.split())
    assert reason in " ".join(refused.output.split())
    words = " ".join(done.output.replace("\n#", "\n").split())
    assert "the plan is not proven correct, and its result may be wrong" in words
    assert reason in words


@pytest.mark.parametrize("level", LEVELS)
def test_a_proven_plan_answers_alike_without_a_warning(level: list[str]) -> None:
    asked, proven = ask(str(PLAN), "--no-proof", *level), ask(str(PLAN), *level)
    assert asked.stdout == proven.stdout  # stderr has progress after two seconds
    assert asked.exit_code == 0
    assert "not proven" not in asked.output


def test_a_plan_that_cannot_end_stays_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeadlockError):
        load_checked(broken(tmp_path, 1), no_proof=True)


def test_only_plans_have_a_proof() -> None:
    for options in (CollectiveOptions, LoadStoreOptions):
        with pytest.raises(InputError, match="no_proof: is about plans"):
            options(algorithm="ring", no_proof=True)
    assert "--no-proof: is about plans" in ask("ring", "--no-proof").output
