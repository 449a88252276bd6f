"""package.module:function and file.py:function: loading the function, and the error for each mistake."""

import sys

import pytest

from trine.errors import InputError
from trine.workload.tracing.target import load_function


@pytest.fixture(autouse=True)
def same_imports_afterwards(monkeypatch):
    """Undo the imports of load_function, which keeps its module and folder loaded, as running a script does."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in [name for name in sys.modules if name not in before]:
        del sys.modules[name]


def script(tmp_path, text, name="user_steps_a.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_function_of_a_file(tmp_path):
    path = script(tmp_path, "def step():\n    return 'ran'\n")
    assert load_function(f"{path}:step")() == "ran"


def test_a_file_may_import_its_neighbour_and_hold_dataclasses(tmp_path):
    script(tmp_path, "ANSWER = 42\n", "user_steps_neighbour.py")
    path = script(
        tmp_path,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from user_steps_neighbour import ANSWER\n"
        "@dataclass\nclass Config:\n    x: int = ANSWER\n"
        "def step():\n    return Config().x\n",
    )
    assert load_function(f"{path}:step")() == 42


def test_a_function_of_a_module_in_the_current_directory(tmp_path, monkeypatch):
    script(tmp_path, "def step():\n    return 'ran'\n", "user_steps_b.py")
    monkeypatch.chdir(tmp_path)
    assert load_function("user_steps_b:step")() == "ran"


@pytest.mark.parametrize(
    "target", ["", "step", ":step", "mod:", "mod:a b", "mod:1", "a..b:step", "a b:step", "-x:step"]
)
def test_a_malformed_target_is_refused(target):
    with pytest.raises(InputError, match="target"):
        load_function(target)


def test_an_absent_file_and_module_are_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.py: no such file"):
        load_function(f"{tmp_path}/absent.py:step")
    with pytest.raises(InputError, match="no_such_module_of_trine: cannot be imported: ModuleNotFoundError"):
        load_function("no_such_module_of_trine:step")


def test_a_path_without_py_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"must end in \.py"):
        load_function(f"{script(tmp_path, 'x = 1', 'steps.txt')}:step")


@pytest.mark.parametrize("text", ["import no_such_module_of_trine", "def broken(:", "1/0", "x = int('a')"])
def test_a_file_that_fails_is_one_error_and_is_not_left_imported(tmp_path, text):
    path = script(tmp_path, text, "user_steps_broken.py")
    with pytest.raises(InputError, match=r"user_steps_broken\.py: cannot be imported"):
        load_function(f"{path}:step")
    assert "user_steps_broken" not in sys.modules


def test_a_misspelt_function_gets_the_nearest_name(tmp_path):
    path = script(tmp_path, "def train_step():\n    pass\n")
    with pytest.raises(InputError, match="did you mean 'train_step'"):
        load_function(f"{path}:trainstep")


def test_a_value_and_a_function_with_arguments_are_refused(tmp_path):
    path = script(tmp_path, "batch = 4\ndef step(batch):\n    pass\n")
    with pytest.raises(InputError, match="'batch' is a int, not a function"):
        load_function(f"{path}:batch")
    with pytest.raises(InputError, match="without arguments: missing a required argument: 'batch'"):
        load_function(f"{path}:step")
