"""``trine software``, ``--software``, and which profile a step has."""

import json

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.errors import InputError, SpecError
from trine.software import known_software, load_software


def asked(*words):
    answer = CliRunner().invoke(app, list(words))
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_profiles_are_listed_and_shown_with_their_sources():
    rows = asked("software", "list", "--json", "-")["software"]
    assert [row["name"] for row in rows] == list(known_software())
    for name in known_software():
        shown = asked("software", "show", name, "--json", "-")
        assert shown["name"] == name
        assert shown["sources"]


@pytest.mark.parametrize("name", known_software())
def test_numbers_of_a_profile_have_sources(name):
    profile = load_software(name)
    groups = {field.split(".")[0] for field in profile.sources}
    assert {"operators", "launch"} <= groups
    assert len(profile.fitted_factors()) <= 3
    assert not profile.step or "step" in groups


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        ({}, "megatron-core"),
        ({"dp": 4}, "megatron-core"),
        ({"dp": 4, "sharding": "fsdp"}, "megatron-core"),
        ({"dp": 4, "sharding": "zero1"}, "megatron-core"),
        ({"tp": 4}, "megatron-core"),
        ({"pp": 2}, "megatron-core"),
    ],
)
def test_the_software_is_the_same_for_every_layout_from_a_name_and_from_a_workload(plan, name):
    made = trine.Plan(**plan)
    cluster = "dgx-h100" if made.num_ranks > 1 else None
    texts = "model:gpt-2-medium,layers=4,sequence=128,batch=4"
    workload = trine.synthesize("gpt-2-medium", layers=4, sequence=128, batch=4)
    results = [trine.simulate(each, made, cluster=cluster, compare=False) for each in (texts, workload)]
    assert [result.plan["software"] for result in results] == [name, name]
    assert results[0].step_time_ps == results[1].step_time_ps
    assert any(row.what == "software" and name in row.detail for row in results[0].evidence)


def test_what_a_workload_was_written_for_counts():
    workload = trine.synthesize("gpt-2-medium", layers=2, sequence=128, software="nanotron-2024")
    assert trine.simulate(workload, compare=False).plan["software"] == "nanotron-2024"
    with pytest.raises(InputError, match="written for 'nanotron-2024'"):
        trine.simulate(workload, software="megatron-core")


def test_recorded_steps_keep_what_was_recorded():
    times = {s: trine.simulate("vgg13-h100-b128", software=s, compare=False).step_time_ps for s in (None, "none")}
    assert times[None] == times["none"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\ndescription: y\nlaunch: {cpu_us: 3}\n", "cpu_us"),
        ("name: x\ndescription: y\noperators: {kernels: {norms: [1, 2]}}\n", "did you mean 'norm'"),
        ("name: x\ndescription: y\nplan: {schedul: 1f1b}\n", "did you mean 'schedule'"),
        ("name: x\ndescription: y\nfactors: {cpu: {value: 2}}\n", "must name the rows"),
        ("name: x\ndescription: y\nlaunch: {queue_limit: -1}\n", "queue_limit"),
    ],
)
def test_a_fault_in_a_file_is_named(tmp_path, text, says):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=says):
        load_software(path)


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(SpecError, match="did you mean 'nanotron-2024'"):
        load_software("nanotron-2042")
