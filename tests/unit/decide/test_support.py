"""Does the list hold everything that the registries know, with counts of the measurements that ship with trine?"""

from __future__ import annotations

import re

import pytest

from trine import InputError, support
from trine.cli.application import parses
from trine.cluster.presets import known_clusters, known_gpus
from trine.decide.support import KINDS
from trine.software import known_software
from trine.workload.synthesis.model_names import known_models
from validation.measured import load_measurements


def names(kind: str) -> list[str]:
    return [each.name for each in support().entries if each.kind == kind]


def test_every_preset_is_listed_once() -> None:
    assert names("models") == list(known_models())
    assert names("gpus") == list(known_gpus())
    assert names("clusters") == list(known_clusters())
    assert names("software") == list(known_software())
    assert {"bfloat16", "float8", "float32"} <= set(names("precisions"))


def test_collective_rows_are_those_of_the_validation() -> None:
    counts: dict[str, int] = {}
    for series in load_measurements():
        if series.machine.cluster is not None:
            counts[series.machine.cluster] = counts.get(series.machine.cluster, 0) + len(series.points)
    for name in ("dgx-h100", "dgx-a100", "gb200-nvl72"):
        (entry,) = support(name).entries
        assert entry.rows == counts[name]


def test_published_steps_of_gpus_and_profiles_have_one_sum() -> None:
    for kind in ("gpus", "software"):
        assert (
            sum(each.rows for each in support().entries if each.kind == kind) == 414
        )  # docs/background/training-accuracy.md


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("h100-sxm", "gpus", "GEMM bfloat16"),
        ("NVIDIA H100 80GB HBM3", "gpus", "attention"),
        ("model:llama-3-8b", "models", "published steps of this shape"),
        ("Megatron-Core", "software", "fitted factors: none"),
        ("gb10", "gpus", "scaled by data sheets"),
    ],
)
def test_one_thing(name: str, kind: str, words: str) -> None:
    answer = support(name)
    assert [each.kind for each in answer.entries] == [kind]
    assert words in answer.entries[0].words
    assert answer.entries[0].name in answer.summary()


@pytest.mark.parametrize(("name", "command", "gpus"), [
    ("resnet50", "trine train model:resnet50", 8),
    ("llama-3-8b", "trine plan llama-3-8b", 8),
    ("mixtral-8x7b", "trine plan mixtral-8x7b", 32),
    ("deepseek-v3", "trine plan deepseek-v3", 512),
])  # fmt: skip
def test_the_suggested_machine_holds_the_states_of_the_model(name: str, command: str, gpus: int) -> None:
    text = " ".join(support(name).details().split())
    assert f"next {command} --gpus {gpus} " in text
    parameters = support(name).document()["parameters"] or 0
    assert 18 * parameters < gpus * 80 * 2**30
    assert_parses(text)


def assert_parses(text: str) -> None:
    """Assert that the command line accepts the options of a suggested command."""
    found = re.search(r"next (trine (?:plan|train) \S+(?: --[a-z-]+ [a-z0-9-]+)+)", text)
    assert found is not None
    assert parses(found[1].split()[1:]), found[1]


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'h100-sxm'"):
        support("h100-smx")


def test_one_screen() -> None:
    lines = support().summary().splitlines()
    assert len(lines) <= 24
    assert all(word in "\n".join(lines) for word in ("models", "GPUs", "clusters", "precisions"))
    assert set(KINDS) == {each.kind for each in support().entries}
