"""Do the notebooks run, with each last value shown as a notebook shows it?"""

import ast
import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    document = json.loads(path.read_text())
    assert document["nbformat"] == 4
    assert all(cell["outputs"] == [] for cell in document["cells"] if cell["cell_type"] == "code"), "clear the outputs"
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def run(cell: str, names: dict) -> object:
    """Run a cell as a notebook does; return the value of its last expression, None without one."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["60_training_step", "61_choose_a_layout", "62_serve_a_model"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, capsys):
    names: dict = {}
    shown = [value for value in (run(cell, names) for cell in code_cells(path)) if value is not None]
    pages = [value._repr_html_() or "" for value in shown if hasattr(value, "_repr_html_")]  # "": figures
    assert pages[0]
    assert all("<script>alert" not in page for page in pages)
    if path.stem == "60_training_step":
        assert 'src="data:image/png;base64,' in pages[0]
        assert pages[-1].startswith('<iframe sandbox="allow-scripts"')
