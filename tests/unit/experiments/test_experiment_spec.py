"""Does a specification number its points as documented, and refuse contradictions?"""

from __future__ import annotations

from itertools import product

import pytest

from trine.errors import InputError
from trine.experiments.spec import ExperimentSpec, SearchSpec, Shard, StoredFile, read_experiment, spec_of
from trine.experiments.worker import failed_entry


def spec(**changes):
    return ExperimentSpec(**{"command": "q", "vary": {"a": "1..3", "b": "x,y"}, "question": "m:f", **changes})


def test_points_are_the_product_with_the_last_field_fastest():
    made = spec()
    assert [made.fields_of(i) for i in range(made.size)] == [{"a": a, "b": b} for a, b in product((1, 2, 3), "xy")]


def test_samples_are_the_same_at_every_point_of_the_grid():
    made = spec(vary={"a": "1..3", "r": "uniform(0.0..1.0)"}, samples=5, seed=7)
    rows = [made.fields_of(i) for i in range(made.size)]
    assert made.size == 15
    assert [list(row) for row in rows] == [["a", "r"]] * 15
    assert [row["r"] for row in rows[:5]] == [row["r"] for row in rows[10:]]
    assert len({row["r"] for row in rows}) == 5
    assert spec(vary=made.vary, samples=5, seed=8).fields_of(0)["r"] != rows[0]["r"]


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_shards_part_the_points(count):
    made = spec(vary={"a": "1..23"})
    shards = [list(made.points(Shard(i, count))) for i in range(count)]
    assert sorted(point for shard in shards for point in shard) == list(range(23))


def test_the_document_reads_back_with_the_same_fingerprint():
    made = spec(vary={"a": "1..3", "r": "log(1..9)"}, search=SearchSpec(trials=5, minimise="y"))
    again = spec_of(made.document(), "e", StoredFile)
    assert again.text == made.text
    assert again.id == made.id != spec().id
    assert spec(vary={"b": "x,y", "a": "1..3"}).id != spec().id  # the order numbers the points


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"settings": {"a": 1}}, "^a: is both set and varied"),
        ({"vary": {"r": "uniform(0.0..1.0)"}}, "^r: is random: add samples"),
        ({"samples": 3}, "^samples: samples needs a random field"),
        ({"vary": {"r": "uniform(0.0..1.0)"}, "search": SearchSpec(trials=3)}, "minimise or maximise"),
        ({"vary": {"r": "uniform(0.0..1.0)"}, "samples": 3, "search": SearchSpec(trials=3, minimise="y")}, "keep one"),
        ({"vary": dict.fromkeys("abcd", "1..1000")}, "at most 1,000,000,000"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(changes, problem):
    with pytest.raises(InputError, match=problem):
        spec(**changes)


@pytest.mark.parametrize("text", ["1", "2/2", "-1/2", "a/b", "0/0", "1/2/3"])
def test_wrong_shards_are_refused(text):
    with pytest.raises(InputError, match="shard"):
        Shard.parse(text)


def test_an_experiment_file_names_file_field_and_nearest_name(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text("command: train\nvery: {tp: [1, 2]}\n")
    with pytest.raises(InputError, match=r"e\.yaml: .*'very'.*did you mean 'vary'"):
        read_experiment(path)
    path.write_text("command: train\nvary: {tp: [1, 1]}\n")
    with pytest.raises(InputError, match=r"e\.yaml: tp: has the value 1 twice"):
        read_experiment(path)


def test_files_named_by_values_and_settings_belong_to_the_experiment(tmp_path):
    varied, fixed = (tmp_path / name for name in ("a.yaml", "b.yaml"))
    for path in (varied, fixed):
        path.write_text("one")
    made = spec(vary={"a": [str(varied), "x"]}, settings={"b": str(fixed)})
    before = made.with_inputs()
    assert sorted(before.inputs) == sorted(map(str, (varied, fixed)))
    for path in (varied, fixed):
        path.write_text("two")
        after = made.with_inputs()
        assert after.inputs[str(path)] != before.inputs[str(path)]
        assert after.id != before.id
        before = after


def test_the_key_of_a_point_depends_on_the_content_of_its_files(tmp_path):
    path = tmp_path / "a.yaml"
    keys = []
    for text in ("one", "two"):
        path.write_text(text)
        made = spec(vary={"a": [str(path)]}).with_inputs()
        keys.append(failed_entry(made, 0, made.fields_of(0), "")["key"])
    assert keys[0] != keys[1]
