"""Are files that users write read strictly, with errors that say where and what?"""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.common import spec
from trine.common.schema import Duration, Spec
from trine.errors import SpecError


class Wheel(Spec):
    latency: Duration


class Cart(Spec):
    name: str
    wheels: list[Wheel]


def read(tmp_path: Path, text: str, name: str = "cart.yaml") -> Cart:
    path = tmp_path / name
    path.write_text(text)
    return spec.read_spec(path, Cart)


def test_yaml_and_json_are_read(tmp_path: Path) -> None:
    cart = read(tmp_path, "name: a\nwheels: [{latency: 1 us}]")
    assert cart.wheels[0].latency == 10**6
    assert read(tmp_path, '{"name": "a",\n\t"wheels": [{"latency": "1 us"}]}', "cart.json") == cart


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: a\nwheels: [{latency: 1 us, latncy: 2}]",
            r"cart.yaml: wheels\[0\]: unknown key 'latncy'; did you mean 'lat",
        ),
        ("name: a\nwheels: [{latency: 1}]", r"wheels\[0\]\.latency: a time needs a unit"),
        ("name: a\nwheels: [{}]", r"wheels\[0\]\.latency: is missing"),
        ("name: 3\nwheels: []", "name: should be a valid string, got 3"),
        ("name: a\nwheels: 5", "wheels: should be a valid list, got 5"),
        ("- a", "must be a mapping, got"),
        ("", "must be a mapping, got None"),
        ("name: a\nname: b\nwheels: []", "cart.yaml:2: the key 'name' is given twice"),
        ("name: [&a x, *a]\nwheels: []", "cart.yaml:1: aliases"),
        ("name: " + "[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("name: {[1]: 2}", "a key must be text"),
        ("name: [", "cart.yaml:"),
        ("name: !!python/object:os.system x\nwheels: []", "could not determine a constructor"),
        ("name: \x07", "not valid YAML|control characters"),
    ],
)
def test_faults_in_yaml_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "a", "name": "b"}', "the key 'name' is given twice"),
        ('{"name": NaN}', "'NaN' is not a number"),
        ('{"name":\n oops}', "cart.json:2: not valid JSON"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
        ("1" * 5000, "not valid JSON"),
    ],
)
def test_faults_in_json_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(tmp_path, text, "cart.json")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: cannot be read: No such file"):
        spec.read_spec(tmp_path / "none.yaml", Cart)
    with pytest.raises(SpecError, match="cannot be read"):
        spec.read_spec(tmp_path, Cart)
    (tmp_path / "bytes.yaml").write_bytes(b"name: \xff")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        spec.read_spec(tmp_path / "bytes.yaml", Cart)
    with pytest.raises(SpecError, match="larger than 3 bytes"):
        spec.read_text(tmp_path / "bytes.yaml", max_bytes=3)


def test_fingerprint_ignores_the_order_of_keys_only() -> None:
    assert spec.fingerprint({"a": 1, "b": [1, 2]}) == spec.fingerprint({"b": [1, 2], "a": 1})
    assert spec.fingerprint({"a": 1, "b": [1, 2]}) != spec.fingerprint({"a": 1, "b": [2, 1]})
