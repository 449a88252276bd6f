import json

import pytest
from envelope import opened
from results_graphs import full_result, overlap, result

from trine.errors import InputError
from trine.results import Evidence
from trine.results.report import ENVELOPE

ENDS = ("", "_low", "_high")
STABLE_KEYS = {
    "step_time_s", "compute_s", "communication_s", "exposed_communication_s", "bubble_s", "idle_s", "slowest_rank",
    "memory_peak_bytes", "memory_rank", "memory_verdict", "collectives", "evidence", "warnings", "not_modelled",
    "simulator", "plan", "inputs", "terms", "step_ends_s",
    "ranks", "layers", "operators", "phases", "stages", "links", "memory", "host_memory", "critical_path", "energy",
    "folding",
    "step_time_low_s", "step_time_high_s", "step_time_band",
    *(f"{what}{end}_per_s{per}" for what in ("samples", "tokens") for end in ENDS for per in ("", "_per_gpu")),
    *(f"{what}_flops{end}_per_s_per_gpu" for what in ("model", "hardware") for end in ENDS),
    *(f"{what}{end}" for what in ("mfu", "hfu") for end in ENDS),
    "mfu_definition",
}  # fmt: skip


def test_json_has_the_stable_keys_and_the_values_of_the_slowest_rank(tmp_path):
    path = tmp_path / "result.json"
    content = full_result().to_json(path)
    assert set(opened(path.read_text(), None, "result")) == STABLE_KEYS
    assert set(content) == {*STABLE_KEYS, *ENVELOPE}
    assert json.loads(path.read_text()) == content
    assert (content["step_time_s"], content["compute_s"], content["idle_s"]) == (1e-10, 7e-11, 1e-11)
    assert content["simulator"] == {
        "version": "0.1.0", "wall_s": 0.25, "events": 12, "ranks_simulated": 2, "engine": "hand", "network": "fair",
    }  # fmt: skip
    (collective,) = content["collectives"]
    assert (collective["kind"], collective["bytes"], collective["count"], collective["group_size"]) == (
        "broadcast", 40, 1, 2,
    )  # fmt: skip
    assert content["evidence"][1] == {"what": "links", "kind": "assumed"}
    assert [row["verdict"] for row in content["memory"]] == ["does not fit", "fits"]


def test_seconds_print_as_exact_decimals():
    graph, run = overlap()
    run.end_ps[4] = 94_038_123_457
    assert json.dumps(result(graph, run).to_json()["step_time_s"]) == "0.094038123457"


def test_a_run_without_memory_says_so():
    content = result(*overlap()).to_json()
    assert content["memory_peak_bytes"] is None
    assert content["memory"] == []


def test_summary_puts_the_biggest_part_first_and_fits_a_screen():
    lines = full_result().summary().splitlines()
    assert lines[0] == "toy on 2 x GPU: dp 2"
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    first = lines.index(next(line for line in lines if "time of rank 0" in line)) + 1
    assert [line.split()[0] for line in lines[first : first + 3]] == ["compute", "exposed", "idle"]
    assert any(line.split()[:3] == ["step", "100", "ps"] for line in lines)
    assert any(line.startswith("memory ") and "DOES NOT FIT: " in line for line in lines)
    assert any(line.split(maxsplit=1) == ["warning", "the cluster has no name"] for line in lines)


def test_details_put_the_biggest_part_first_and_have_everything():
    lines = full_result().details().splitlines()
    assert lines[0] == "step time  100 ps"
    first = lines.index("time of rank 0, the slowest of 2") + 1
    assert [line.split()[0] for line in lines[first : first + 3]] == ["compute", "exposed", "idle"]
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for part in ("DOES NOT FIT", "not modelled: kernel interference", "warning: the cluster has no name", "measured:"):
        assert part in text


def test_long_names_keep_their_end_within_the_width():
    found = full_result()
    long = "x" * 300
    graph = found.graph
    renamed = result(
        type(graph)(**{f: getattr(graph, f) for f in graph.__dataclass_fields__ if f != "operator_names"},
                    operator_names=(long, "linear")), found.records)  # fmt: skip
    for text in (renamed.summary(), renamed.details()):
        assert max(map(len, text.splitlines())) <= 100


def test_wrong_evidence_is_refused_with_the_nearest_kind():
    with pytest.raises(InputError, match="did you mean 'measured'"):
        Evidence("operator time", "mesured")
    with pytest.raises(InputError, match="between 0 and 1"):
        Evidence("operator time", "measured", share=1.5)


def test_capacities_must_be_one_a_rank():
    with pytest.raises(InputError, match="one entry a rank: 2, got 1"):
        result(*overlap(), memory_capacity_bytes=(5,))


def test_details_have_long_evidence_in_full_and_the_summary_fits_a_screen():
    found = full_result()
    story = "said at length " * 40
    found = result(found.graph, found.records, evidence=(Evidence("links", "assumed", story),))
    assert f"assumed: links: {story.strip()}" in " ".join(found.details().split())
    assert len(found.summary().splitlines()) <= 24
    assert "..." not in found.summary() + found.details()
    assert found.to_json()["evidence"][0]["detail"] == story
