"""Does tools/loaded.py count what an answer loads?"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from loaded import QUESTIONS, loaded_by

pytestmark = pytest.mark.slow


def test_a_collective_loads_less_than_a_step():
    step, collective = (loaded_by(QUESTIONS[name]) for name in ("train of a trace", "collective"))
    assert 0 < collective.files < step.files
    assert 10_000 < collective.lines < step.lines


def test_a_wrong_command_is_an_error():
    with pytest.raises(Exception, match="non-zero exit status"):
        loaded_by("collective no_such_operation --cluster dgx-h100")
