"""Does a plausible but wrong command line get a sentence that is true, and a remedy that works?"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.main import app

FOUR = "node: {preset: dgx-h100, count: 4}\nfabric: {kind: rail, link: ib-ndr}\n"
PLAIN = (
    "devices: [{name: gpu, count: 4, gpu: h100-sxm, node: n0}, {name: sw, kind: switch, node: n0}]\n"
    "links:\n- {from: gpu0..3, to: sw, link: nvlink4, duplex: true}\n"
)
REDUCE = "collective all_reduce --size 1M"
TRAIN = "train vgg13-h100-b128 --parallel ddp"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "four.yaml").write_text(FOUR)
    (tmp_path / "plain.yaml").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, shlex.split(line))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # machines whose nodes are joined already, or cannot be
        (f"{REDUCE} --cluster four.yaml --nodes 32", "'four' is 4 nodes that are joined already, and --nodes joins"),
        (f"{REDUCE} --cluster four.yaml --nodes 2", "; --gpus 16 takes its first 2 nodes"),
        (f"{REDUCE} --cluster four.yaml --nodes 1", "; --gpus 8 takes its first node"),
        (f"{REDUCE} --cluster four.yaml --gpus 64", "'four' has 32 GPUs, not 64: its 4 nodes are joined"),
        (f"{REDUCE} --cluster four.yaml --fabric clos", "are joined already, so that --fabric clos joins nothing"),
        ("cluster show four.yaml --nodes 32", "'four' is 4 nodes that are joined already"),
        (f"{REDUCE} --cluster plain.yaml --nodes 2", "'plain' has no NICs, so that no fabric can join 2 of it"),
        (f"{REDUCE} --cluster eidola --gpus 512", "'eidola' has no NICs, so that no fabric can join 2 of it"),
        (f"{REDUCE} --cluster dgx-h100 --nodes 2 --gpus 32", "with 8 each: 4 of them have 32 GPUs"),
        (f"{REDUCE} --cluster dgx-h100 --fabric clos", "joins nodes, but there is one: add --nodes N"),
        (f"{REDUCE} --cluster dgx-h100 --nodes 2 --fabric none", "no link leads from one node to another"),
        (f"{REDUCE} --cluster dgx-h100 --nodes 2 --fabric clos@ib-ndr:2", "as in 'clos:2@ib-ndr'"),
        (f"{TRAIN} --cluster four.yaml --gpus 64", "has 32: its 4 nodes are joined already"),
        (f"{TRAIN} --cluster plain.yaml --gpus 8", "has 4: it has no NICs"),
        (f"{TRAIN} --gpus 16 --nodes 2", "--nodes is about the machine, and none was described: give --cluster"),
        ("cluster show", "name a cluster, as in 'trine cluster show dgx-h100'"),
        # algorithms and protocols
        (f"{REDUCE} --cluster dgx-h100 --nodes 3 --algorithm nvls", "that all 24 ranks reach; '3 x dgx-h100' has 3"),
        (f"{REDUCE} --cluster dgx-h100 --nodes 3 --algorithm nvls --protocol none", "nvlstree (all_reduce) and"),
        (f"{REDUCE} --cluster dgx-h100 --nodes 3 --algorithm sharp", "sharp needs a switch that reduces and that all"),
        ("collective all_gather --size 1M --cluster dgx-h100 --nodes 2 --algorithm nvls", "the ranks are on 2 nodes"),
        (f"{REDUCE} --cluster dgx-a100 --algorithm nvls", "nvls needs a switch that reduces (NVSwitches from Hopper"),
        (f"{REDUCE} --cluster dgx-h100 --algorithm nvlstree", "(it needs switches that reduce, and several nodes"),
        (f"{REDUCE} --cluster dgx-h100 --nodes 2 --algorithm collnet", "(it needs a fabric that reduces, 'reduces"),
        (f"{REDUCE} --cluster dgx-h100 --algorithm ring,tree", "one algorithm at a time, got 'ring,tree': give one"),
        (f"{REDUCE} --cluster dgx-h100 --algorithm 'ring, tree'", "one algorithm at a time, got 'ring, tree'"),
        (f"{REDUCE} --cluster dgx-h100 --protocol ll,simple", "one protocol at a time, got 'll,simple'"),
        (f"{TRAIN} --gpus 8 --cluster dgx-h100 --algorithm all_reduce=nvls --network fifo", "switches that reduce"),
        (f"{TRAIN} --gpus 16 --cluster dgx-h100 --nodes 2 --algorithm all_reduce=nvls", "nccl has no all_reduce with"),
        # inline topologies and links
        (f"{REDUCE} --topology ring:8 --bandwidth '65 GB/s'", "--topology ring:8 has a size: use --topology ring"),
        (f"{REDUCE} --topology ring --bandwidth '65 GB/s'", "--topology ring needs --gpus"),
        (f"{REDUCE} --topology torus --bandwidth '65 GB/s'", "--topology torus needs its sizes, torus:RxC"),
        (f"{REDUCE} --topology dragonfly --bandwidth '65 GB/s'", "needs its sizes, dragonfly:AxPxH, and --gpus"),
        (f"{REDUCE} --topology fat-tree --gpus 8 --bandwidth '65 GB/s'", "topology 'fat-tree' needs its GPUs a leaf"),
        (f"{REDUCE} --cluster dgx-h100 --nodes 2 --link-down nic0", "'nic0' is a device, its links are 'node0.nic0->"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("folder")
def test_one_line_says_what_is_wrong_and_what_to_do(line: str, said: str) -> None:
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert len(err) <= 400


@pytest.mark.parametrize(
    "line",
    [
        f"{REDUCE} --cluster four.yaml --nodes 4",
        f"{REDUCE} --cluster four.yaml --gpus 16",
        f"{REDUCE} --cluster four.yaml --gpus 8",
        f"{REDUCE} --cluster dgx-h100 --nodes 32",
        f"{REDUCE} --cluster dgx-h100 --nodes 8 --fabric clos:2@ib-ndr",
        f"{REDUCE} --cluster dgx-h100 --nodes 3 --algorithm nvlstree",
        f"{REDUCE} --topology torus:2x4 --bandwidth '65 GB/s'",
        f"{TRAIN} --cluster dgx-h100 --gpus 16 --nodes 2",
        "cluster show gb200-nvl72 --nodes 5 --gpus 300",
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_remedies_work(line: str) -> None:
    code, out, err = run(line)
    assert code == 0, err
    assert out


def test_one_stands_for_all_in_plain_words() -> None:
    code, out, err = run(f"{TRAIN} --cluster dgx-h100 --gpus 8 --details")
    assert code == 0, err
    assert "\nsimulated 1 of 8 identical ranks: " in out
    assert "1 classes" not in out + err


def test_the_busiest_links_are_one_of_each_tier() -> None:
    code, out, err = run(f"{TRAIN} --cluster dgx-h100 --gpus 320 --nodes 40 --fabric clos --details")
    assert code == 0, err
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("busiest link of each tier"))
    shown = [line for line in lines[first + 1 : first + 7] if " links " in line]
    tiers = [next(part for part in line.split("  ") if " links" in part).split(",")[0].strip() for line in shown]
    assert len(set(tiers)) == len(tiers)
    assert {"gpu-nvswitch", "nic-leaf"} <= set(tiers)
