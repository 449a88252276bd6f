"""Does a damaged trace or dump end in an answer or in one line, never in another error?"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from run_traces import dump, entry, two_ranks

from trine.errors import InputError
from trine.runs.comparison import compare_measured
from trine.runs.folder import check_folder

ODD = (
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    -0.0,
    1e300,
    "",
    "x",
    "<script>",
    "\u202e" * 50,
    [],
    {},
    [[]],
    [1, 2],
    {"a": 1},
    "1" * 9999,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside lists and objects."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, inner in items:
        found += [(*path, key), *places(inner, (*path, key))]
    return found


def damaged(content: Any, chance: random.Random) -> Any:
    """Return the content with one to three values replaced or removed."""
    content = copy.deepcopy(content)
    for _ in range(chance.randrange(1, 4)):
        all_places = places(content)
        if not all_places:
            break
        *outer, key = chance.choice(all_places)
        inside = content
        for each in outer:
            inside = inside[each]
        if chance.random() < 0.2:
            del inside[key]
        else:
            inside[key] = chance.choice(ODD)
    return content


def outcome(function: Any, *paths: Path) -> str:
    try:
        answer = function(*paths)
    except InputError as error:
        words = str(error)
        return words if "\n" not in words else ""
    json.dumps(answer.document(), allow_nan=False)
    return str(answer.summary() + answer.details() + answer.headline)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_traces(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = two_ranks()
    path = tmp_path / "rank1.json"
    (tmp_path / "rank0.json").write_text(json.dumps(whole[0]))
    for _ in range(60):
        path.write_text(json.dumps(damaged(whole[1], chance)))
        assert outcome(check_folder, tmp_path)
        assert outcome(compare_measured, tmp_path / "rank0.json", path)


@pytest.mark.parametrize("seed", range(2))
def test_damaged_dumps(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = dump([entry(1), entry(2, "started")])
    (tmp_path / "rank0.json").write_text(json.dumps(whole))
    for _ in range(80):
        (tmp_path / "rank1.json").write_text(json.dumps(damaged(whole, chance)))
        assert outcome(check_folder, tmp_path)


def test_damaged_bytes(tmp_path: Path) -> None:
    chance = random.Random(3)
    whole = json.dumps(two_ranks()[0]).encode()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(data))
            data[place : place + chance.randrange(3)] = bytes(chance.randrange(256) for _ in range(chance.randrange(3)))
        (tmp_path / "rank0.json").write_bytes(bytes(data))
        assert outcome(check_folder, tmp_path)
