"""JSON and text of a load-store result."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from envelope import opened
from gpu_results import SLICES, model, replayed, result

from trine.gpu.model import CROSSBAR, Monitor

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "loadstore-json.md"


def test_document_is_json_and_every_key_is_documented(tmp_path):
    found = result(fold=SimpleNamespace(classes=2, group_size=1, why_unfolded="gpu0 is slower"))
    found.to_json(tmp_path / "out.json")
    content = opened((tmp_path / "out.json").read_text(), None, "loadstore")
    assert content == json.loads(json.dumps(found.document()))
    words = set(re.findall(r"`([a-z0-9_]+)`", PAGE.read_text()))
    assert keys(content) - words == set()


def keys(content):
    """All keys of all objects, at any depth."""
    if isinstance(content, list):
        return set().union(*map(keys, content)) if content else set()
    if isinstance(content, dict):
        return set(content).union(*map(keys, content.values()))
    return set()


def test_numbers_of_the_document():
    content = result(ranks=(0,), finished=True).document()
    assert (content["time_s"], content["kernels_begin_s"], content["kernels_end_s"]) == (1e-5, 2e-6, 1e-5)
    assert content["gpus"][0]["ranks_alike"] == 2
    assert sum(state["share_ppm"] for state in content["wavefronts"].values()) == 10**6
    assert content["wavefronts"]["memory"] == {"time_s": 2e-5, "share_ppm": 625_000}
    assert [row["cu"] for row in content["cus"]] == [0, 1]
    assert content["links"][0]["utilisation"] == 0.3
    assert content["lanes"][3] == {
        "link": "gpu1->gpu0", "lane": 0, "busy_s": 5e-6, "utilisation": 0.5, "data_messages": 32, "control_messages": 8,
    }  # fmt: skip
    resources = content["resources"]
    number = resources["names"].index("channel5")
    assert resources["gpus"][0]["utilisation"][number] == 0.2
    assert not any("edge" in name for name in resources["names"])
    assert content["folding"] is None


def test_partial_results_say_so():
    content = result(finished=False).document()
    assert content["finished"] is False
    assert content["algbw_bytes_per_s"] is None


def test_evidence_of_a_part_is_that_of_its_group():
    rows = {item["what"]: item for item in result().document()["evidence"]}
    assert rows["GPU toy: cus.count"] == {"what": "GPU toy: cus.count", "kind": "assumed", "detail": "a round number"}
    assert rows["GPU toy: memory"]["kind"] == "measured"
    assert rows["cluster pair"]["kind"] == "assumed"


@pytest.mark.parametrize("gpu", [model(), model(CROSSBAR, l2=SLICES)])
def test_summary_fits_a_terminal_and_says_what_matters(gpu):
    found = result(gpu, wall_s=0.25)
    lines = found.summary().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert lines[0] == "toy get: 2 ranks of toy on pair, 4 KiB"
    assert "time         10 us   algbw 409.6 MB/s; busbw 204.8 MB/s" in lines
    text = "\n".join(lines)
    for part in (
        "compute     6.3 %",
        "issue       6.3 %",
        "memory     62.5 %",
        "semaphore  18.7 %",
        "barrier     6.2 %",
    ):
        assert part in text
    assert any(line.startswith("bottleneck   latency bound: ") for line in lines)
    assert "simulated    2 of 2 GPUs, 999 events" in lines


@pytest.mark.parametrize("gpu", [model(), model(CROSSBAR, l2=SLICES)])
def test_details_have_all_numbers(gpu):
    lines = result(gpu, wall_s=0.25).details().splitlines()
    assert max(map(len, lines)) <= 100
    assert "time  10 us  of 4 KiB  algbw 409.6 MB/s  busbw 204.8 MB/s" in lines
    assert "wavefronts  compute 6.3 %, issue 6.3 %, memory 62.5 %, semaphore 18.7 %, barrier 6.2 %" in lines
    assert ("L2  128 accesses, 75.0 % hit" in lines) == (gpu.l2 is not None)
    assert lines[-1].startswith("simulated 2 of 2 GPUs, 999 events in 250 ms by trine ")


def test_summary_and_document_of_a_target_whose_peer_was_replayed():
    fold = SimpleNamespace(classes=1, group_size=1, why_unfolded="only rank 1 is simulated")
    found = replayed(model(poll_ps=0, monitor=Monitor(capacity=3, wakeup_ps=0)), fold=fold)
    assert found.summary().startswith("toy get: 2 ranks of toy on pair, 1 peer replayed, 4 KiB\n")
    assert "fold" not in found.summary()
    assert re.search(r"^simulated +1 of 2 GPUs \(1 peer replayed\), 999 events$", found.summary(), re.M)
    lines = found.details().splitlines()
    assert lines[0] == "toy get: 2 ranks of toy on pair, 1 peer replayed"
    assert "flag reads 2, other reads 32; wake-ups 0, spurious 0, found the monitor full 0" in lines
    assert not any("fold" in line for line in lines)
    assert lines[-1].startswith("simulated 1 of 2 GPUs (1 peer replayed), 999 events")
    assert "flag reads 2, other reads 32" in replayed().details().splitlines()
    content = found.document()
    assert (content["ranks"], content["ranks_replayed"]) == (2, 1)
    assert [gpu["rank"] for gpu in content["gpus"]] == [1]
    assert (content["gpus"][0]["flag_reads"], content["gpus"][0]["non_flag_reads"]) == (2, 32)
    assert "flag reads" not in result().details()
    assert result().document()["ranks_replayed"] == 0


def test_details_say_how_ranks_were_folded():
    folded = result(ranks=(0,), fold=SimpleNamespace(classes=1, group_size=2, why_unfolded=None))
    assert "folded: both ranks are identical: simulated one of them" in folded.details().splitlines()
    alone = result(fold=SimpleNamespace(classes=2, group_size=1, why_unfolded="link gpu0->gpu1 is slower"))
    assert "all 2 GPUs simulated: link gpu0->gpu1 is slower" in alone.details()
