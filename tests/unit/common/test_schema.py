"""Are mappings of files checked against their class: accepted values, errors with their text, and output?"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pytest

from trine.common.schema import AfterValidator, BeforeValidator, Fault, Field, Spec, make_spec
from trine.common.spec import check
from trine.errors import SpecError


def _doubled(value: Any) -> Any:
    return value * 2


def _even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


class Inner(Spec):
    size: Annotated[int, Field(ge=1, le=1 << 50)]
    kind: Literal["ring", "tree"] = "ring"


class First(Spec):
    first: int = 0


class Outer(First, Inner):
    """Class with two bases; fields of the last base come first."""

    source: Annotated[str, AfterValidator(str.strip)] = Field(alias="from")
    inner: Inner | None = None
    many: list[Inner] = Field(default_factory=list)
    named: dict[Literal["a", "b"], float] = Field(default_factory=dict)
    either: bool | int | str = False
    twice: Annotated[int, BeforeValidator(_doubled), AfterValidator(_even)] = 2
    loose: float | None = Field(default=None, ge=1, strict=False)
    finite: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    few: list[int] | None = Field(default=None, min_length=1, max_length=2)
    word: str = Field(default="", max_length=3)

    def _check(self) -> None:
        if self.either == "never":
            raise ValueError("either is never never")


GIVEN = {"size": 1, "from": " here "}


def test_what_is_given_and_what_is_not() -> None:
    made = Outer.model_validate({**GIVEN, "inner": {"size": 2, "kind": "tree"}, "named": {"b": 3}, "loose": "2.5"})
    assert (made.source, made.first, made.inner, made.many) == ("here", 0, Inner(size=2, kind="tree"), [])
    assert made.named == {"b": 3.0}
    assert isinstance(made.named["b"], float)
    assert (made.loose, made.twice) == (2.5, 2)
    assert Outer.model_validate({**GIVEN, "twice": 3}).twice == 6
    assert made.fields_set == {"size", "source", "inner", "named", "loose"}
    assert list(Outer.model_fields)[:4] == ["size", "kind", "first", "source"]
    assert Outer.model_validate(GIVEN).many is not Outer.model_validate(GIVEN).many


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"siz": 1}, None, "unknown key 'siz'; did you mean 'size'"),
        ({"source": "x"}, None, "unknown key 'source'"),
        ({"size": True}, "size", "should be a valid integer, got True"),
        ({"size": 1.0}, "size", "should be a valid integer, got 1.0"),
        ({"size": 0}, "size", "should be greater than or equal to 1, got 0"),
        ({"size": 1 << 51}, "size", f"should be less than or equal to {1 << 50}, got {1 << 51}"),
        ({"kind": "rong"}, "kind", "should be 'ring' or 'tree', got 'rong'"),
        ({"from": 3}, "from", "should be a valid string, got 3"),
        ({"inner": 3}, "inner", "must be a mapping, got 3"),
        ({"many": {}}, "many", "should be a valid list, got {}"),
        ({"many": [{"size": 1}, {}]}, "many[1].size", "is missing"),
        ({"named": {"c": 1}}, "named.c.[key]", "should be 'a' or 'b', got 'c'"),
        ({"named": {"a": "1"}}, "named.a", "should be a valid number, got '1'"),
        ({"named": {"a": False}}, "named.a", "should be a valid number, got False"),
        ({"either": 1.5}, "either", "should be a valid boolean, got 1.5"),
        ({"either": "never"}, None, "either is never never"),
        ({"twice": 0.5}, "twice", "should be a valid integer, got 1.0"),
        ({"loose": "much"}, "loose", "should be a valid number, got 'much'"),
        ({"loose": "0.5"}, "loose", "should be greater than or equal to 1, got '0.5'"),
        ({"finite": math.inf}, "finite", "should be a finite number, got inf"),
        ({"few": []}, "few", "list should have at least 1 item after validation, not 0, got []"),
        ({"few": [1, 2, 3]}, "few", "list should have at most 2 items after validation, not 3, got [1, 2, 3]"),
        ({"word": "long"}, "word", "string should have at most 3 characters, got 'long'"),
    ],
)
def test_what_is_wrong_and_where(changed: dict[str, Any], field: str | None, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(Outer, {**GIVEN, **changed}, "file.yaml")
    assert words in str(caught.value)
    assert caught.value.field == field


def test_the_first_fault_in_the_order_of_fields_is_said() -> None:
    with pytest.raises(Fault, match="is missing") as caught:
        Outer.model_validate({"from": 3, "first": "x"})
    assert caught.value.path == "size"


def test_plain_data_comes_out_again() -> None:
    made = Outer.model_validate({**GIVEN, "inner": {"size": 2}, "first": 0})
    assert Outer.model_validate({"from": "here", **made.model_dump({"source", "twice"})}) == made
    assert made.model_dump(exclude_unset=True) == {"size": 1, "first": 0, "source": "here", "inner": {"size": 2}}
    assert made.model_dump(exclude_defaults=True) == {"size": 1, "source": "here", "inner": {"size": 2}}
    assert "loose" not in made.model_dump(exclude_none=True)
    assert Inner(size=1).model_dump_json() == '{"size":1,"kind":"ring"}'


def test_copies_differ_in_what_is_replaced_and_nothing_is_changed_in_place() -> None:
    made = Inner(size=1)
    copy = made.model_copy({"kind": "tree"})
    assert (made.kind, copy.kind, copy.fields_set) == ("ring", "tree", {"size", "kind"})
    assert {made, Inner(size=1)} == {made}
    assert made != copy
    with pytest.raises(AttributeError, match="frozen"):
        made.size = 2  # type: ignore[misc]
    assert repr(made) == "Inner(size=1, kind='ring')"


def test_classes_from_tables() -> None:
    made = make_spec("Made", First, {"size": (Annotated[int, Field(ge=1)] | None, ...), "inner": (Inner | None, None)})
    assert made.model_validate({"size": None}).model_dump() == {"first": 0, "size": None, "inner": None}
    with pytest.raises(Fault, match="is missing"):
        made.model_validate({})
