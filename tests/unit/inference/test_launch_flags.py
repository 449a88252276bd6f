"""Launch commands have options and values that the engines' servers parse (tests/data/serving/server_flags.yaml)."""

import re
from pathlib import Path

import pytest

from trine.common.spec import load_mapping
from trine.inference.launch_commands import known_launchers

KNOWN = load_mapping(Path(__file__).parents[2] / "data" / "serving" / "server_flags.yaml")


def test_every_engine_has_a_list_with_its_source():
    assert KNOWN.keys() == known_launchers().keys()
    for engine in KNOWN.values():
        assert "/" in engine["source"]
        assert len(engine["flags"]) >= 8


@pytest.mark.parametrize("engine", known_launchers())
def test_the_server_parses_every_option(engine):
    rules, flags = known_launchers()[engine], KNOWN[engine]["flags"]
    written = {row.name for row in rules.rows} | set(re.findall(r"--[\w-]+", rules.command))
    assert written == set(flags)


@pytest.mark.parametrize("engine", known_launchers())
def test_fixed_values_are_among_those_of_the_server(engine):
    rules, accepted = known_launchers()[engine], KNOWN[engine]["values"]
    for row in rules.rows:
        for value in row.values.values():
            assert value is True or value in accepted[row.name]
    for value in rules.quantization.values():
        assert value in accepted["--quantization"]
