"""Are the golden answers (README.md) unchanged, bit for bit? Would the tests notice a change?"""

from __future__ import annotations

import copy
import json

import ask
import pytest

QUESTIONS = ask.questions()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize(
    "question",
    [pytest.param(each, id=each.id, marks=() if each.is_quick else pytest.mark.slow) for each in QUESTIONS],
)
def test_the_answer_is_unchanged(question, folder):
    different = ask.changes(question, ask.answer(question, folder))
    assert not different, f"trine {question.line}\n" + "\n".join(different)


def test_every_recorded_answer_has_its_question():
    for path in ask.RECORDED.glob("*.json"):
        asked = {each.name for each in QUESTIONS if each.group == path.stem}
        assert set(ask.recorded(path.stem)) == asked, path.name


def test_every_group_is_asked_a_little_in_make_test():
    quick = {each.group for each in QUESTIONS if each.is_quick}
    assert {each.group for each in QUESTIONS if not each.group.startswith("options")} == quick


def numbers(value, path=()):
    """Yield the paths of the numbers and hashes in an answer."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*path, key))
    else:
        yield path


@pytest.mark.parametrize("question", QUESTIONS[:: len(QUESTIONS) // 8], ids=lambda each: each.id)
def test_each_changed_value_is_reported(question):
    """A number off by one unit, a hash or word with one more character: each is reported by its keys."""
    kept = ask.recorded(question.group)[question.name]
    for path in numbers(kept):
        changed = copy.deepcopy(kept)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        old = inner[path[-1]]
        inner[path[-1]] = f"{old}." if isinstance(old, str) else not old if isinstance(old, bool) else (old or 0) + 1
        (only,) = ask.changes(question, changed)
        assert str(path[-1]) in only.partition(": ")[0]
        assert json.dumps(old)[:200] in only


def test_a_missing_and_an_added_key_are_reported():
    question = QUESTIONS[0]
    kept = ask.recorded(question.group)[question.name]
    assert ask.changes(question, {}) != []
    assert ask.changes(question, kept | {"more": 1}) == ['more: "(none)" -> 1']
    assert ask.changes(question, kept) == []


def test_a_wrong_answer_of_the_simulator_is_reported(folder, monkeypatch):
    """End to end: the step time that the command prints is off by one unit in the last place."""
    question = next(each for each in QUESTIONS if each.id == "train: one gpu")
    right = ask.adapter.command

    def wrong(words):
        said = right(words)
        answer = json.loads(said.stdout)
        answer["step_time_s"] *= 1 + 2**-52
        return said._replace(stdout=json.dumps(answer))

    ask.made_before(folder)
    monkeypatch.setattr(ask.adapter, "command", wrong)
    (only,) = ask.changes(question, ask.answer(question, folder))
    assert only.startswith("json.step_time_s: ")
