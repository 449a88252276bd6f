"""Do the pictures of ``compare --plot`` and ``size --plot`` show the numbers of the answer?"""

from __future__ import annotations

import json

from click.testing import CliRunner

from trine.cli.main import app
from trine.decide.cost import Range
from trine.decide.machine_size import MachineSize
from trine.decide.picture import MAX_TERMS, draw_machines, draw_terms
from trine.decide.term import Term

RUNNER = CliRunner()


class Cost:
    """The expected days of a machine type, which is all that the picture reads."""

    def __init__(self, days: float) -> None:
        self.expected_days = Range(days, 0.9 * days, 1.2 * days)


def machine(cluster: str, gpus: int, days: float, late: str = "") -> MachineSize:
    return MachineSize(cluster=cluster, gpu="h100-sxm", num_gpus=gpus, cost=Cost(days), late=late)


def texts(axes) -> list[str]:
    return [each.get_text().strip() for each in axes.texts]


def test_terms_are_paired_bars_the_largest_difference_first():
    terms = [Term("equal", 10**12, 10**12), Term("grows", 10**12, 3 * 10**12), Term("none", 0, 0)]
    (axes,) = draw_terms("a and b", ("A: a", "B: b"), terms).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["grows", "equal"]
    assert [bar.get_width() for bar in axes.patches] == [1.0, 1.0, 3.0, 1.0]
    assert texts(axes) == ["+2 s", "equal"]
    assert axes.get_xlabel().startswith("time (s)")


def test_many_terms_are_those_that_differ_most():
    terms = [Term(f"term {number}", 10**9, 10**9 * (number + 1)) for number in range(20)]
    (axes,) = draw_terms("", ("A", "B"), terms).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [f"term {number}" for number in range(19, 19 - MAX_TERMS, -1)]


def test_answers_without_times_have_an_empty_picture():
    (axes,) = draw_terms("", ("A", "B"), []).axes
    assert len(axes.patches) == 0


def test_machines_stand_at_their_gpus_and_days_and_the_limit_is_a_line():
    machines = [machine("a", 8, 5.0), machine("b", 16, 9.0, late="ends late"), MachineSize(cluster="c", gpu="x")]
    (axes,) = draw_machines("a model", machines, 10.0).axes
    assert texts(axes) == ["a: 5 days (answer)", "b: 9 days", "limit: 10 days"]
    first, second = (container.lines[0] for container in axes.containers)
    assert (first.get_xdata()[0], first.get_ydata()[0]) == (8, 5.0)
    assert first.get_markerfacecolor() != "white"
    assert second.get_markerfacecolor() == "white"
    assert any(list(line.get_ydata()) == [10.0, 10.0] for line in axes.lines)


def test_machines_of_a_budget_have_no_limit_of_days():
    (axes,) = draw_machines("", [machine("a", 8, 5.0)], None).axes
    assert texts(axes) == ["a: 5 days (answer)"]


def test_the_command_draws_two_answers(tmp_path):
    for name, step in (("a", 3.0), ("b", 4.0)):
        content = {
            "schema": "trine/result/1", "step_time_s": step, "compute_s": step - 2, "exposed_communication_s": 1,
            "bubble_s": 0, "idle_s": 1, "plan": {"dp": step},
        }  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    done = RUNNER.invoke(
        app, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--plot", str(tmp_path / "terms.png")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "terms.png").read_bytes().startswith(b"\x89PNG")
