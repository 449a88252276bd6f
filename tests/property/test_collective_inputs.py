"""Does every option of ``trine collective`` move the answer, or get refused by name? One at a time, all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.collective import collective
from trine.cli.main import app
from trine.cli.parameters import all_parameters

RUNNER = CliRunner()
H100 = "all_reduce --size 1K,1M,64M --cluster dgx-h100"
TWO = "all_reduce --size 1K,1M,64M --cluster dgx-h100 --nodes 2"
INLINE = "all_reduce --size 1K,1M --topology ring --gpus 4 --bandwidth 50GB/s --latency 1us"
FAIR = "all_reduce --size 1M --cluster dgx-h100 --network fair"
PHOTONIC = "all_to_all --size 1M --cluster wafer-a100-photonic"
INSIDE = "all_reduce --size 64K --cluster dgx-h100 --gpus 4 --fidelity loadstore"
ACROSS = "all_reduce --size 8K --cluster dgx-h100 --nodes 2 --fidelity loadstore --workgroups 1 --wavefronts 2"
EXPERTS = "moe_dispatch --cluster hgx-h800 --gpus 4 --fidelity loadstore --tokens 8 --hidden 512 --experts 16 --top-k 4"
NORMAL = EXPERTS.replace("dispatch", "combine") + " --algorithm normal"
UNEVEN = "all_to_all_v --size 64K --cluster dgx-h100 --gpus 4"
LARGE = "all_gather --size 512K --cluster dgx-h100 --gpus 4 --fidelity loadstore --workgroups 1"
FOLDED = "all_gather --size 256K --cluster astra3-generic --gpus 8 --fidelity loadstore"
BOTH = "all_reduce --size 1K --cluster dgx-h100 --gpus 4 --compare-fidelity"
PLANS = Path(__file__).parents[1] / "data" / "mscclpp"

#: (base command, option to add)
MOVES = [
    (H100, "--gpus 4"),
    (H100, "--nodes 2"),
    ("all_reduce --size 64M --cluster dgx-h100 --nodes 64", "--fabric fat-tree:4"),
    ("all_reduce --size 1G --cluster dgx-h100 --nodes 4", "--sharp"),
    ("all_reduce --size 64M --cluster gb200-nvl72 --gpus 80", "--segment 4"),
    (H100, "--slow-link gpu0->nvswitch:0.5"),
    ("all_reduce --size 64M --cluster mi300x-node", "--link-down gpu0->gpu1 --link-down gpu1->gpu0"),
    ("all_to_all --size 64M --cluster dgx-h100 --nodes 64 --fabric fat-tree:2", "--routing ecmp-hash"),
    ("all_reduce --size 1M --topology ring --gpus 4 --bandwidth 50GB/s", "--latency 1us"),
    (H100, "--link-down gpu0->nvswitch"),  # round by PCIe
    (INSIDE, "--bookkeeping none"),
    (ACROSS, "--initiator proxy"),
    (ACROSS, "--algorithm ring"),
    (ACROSS, "--bookkeeping none"),
    ("all_reduce --size 1K --cluster mi300x-node --fidelity loadstore", "--link-down gpu0-gpu1"),  # round by PCIe
    (H100, "--algorithm ring"),
    (H100, "--algorithm halving-doubling"),
    (H100, "--protocol simple"),
    (H100, "--protocol none"),
    (INLINE, "--protocol simple"),
    (INLINE, "--algorithm halving-doubling"),
    (H100, "--launch graph"),
    (H100, "--launch single-process"),
    (FAIR, "--launch graph"),
    (FAIR, "--protocol simple"),
    (FAIR, "--algorithm direct"),
    (FAIR, "--gpus 4"),
    (H100, "--nvls"),
    (H100, "--no-nvls"),
    (TWO, "--nvls"),
    ("all_reduce --size 8G --cluster dgx-h100", "--nvls-chunk 512K"),
    (H100, "--min-channels 48"),
    (H100, "--max-channels 4"),
    (TWO, "--max-channels 4"),
    ("all_to_all --size 64M --cluster l40s-pcie", "--max-channels 1"),
    (H100, "--network fair"),
    (H100, "--network fifo"),
    ("all_to_all --size 64M --cluster l40s-pcie --network fair", "--network fifo"),
    (PHOTONIC, "--circuit-setup 1ms"),
    (PHOTONIC, "--circuit-ports 1"),
    (PHOTONIC, "--circuit-bandwidth 24GB/s"),
    (PHOTONIC, "--circuit-latency 1us"),
    (H100, "--explain"),
    (f"all_reduce --size 1M --cluster dgx-h100 --gpus 4 --algorithm {PLANS}/v1_v0.7.0_allreduce_ring_4gpu.json",
     "--protocol ll"),
    (INSIDE.removesuffix(" --fidelity loadstore"), "--fidelity loadstore"),
    (INSIDE, "--algorithm twoshot-get"),
    (INSIDE, f"--algorithm {PLANS}/v2_HEAD_allreduce_allpairs_4gpu.json"),
    (INSIDE, "--protocol ll"),
    (INSIDE, "--workgroups 2"),
    (INSIDE, "--wavefronts 2"),
    (INSIDE, "--gpu-model astra3-generic"),
    (INSIDE, "--gpus 2"),
    (INSIDE, "--slow-link gpu0->nvswitch:0.1"),
    (LARGE, "--unroll 2"),
    (EXPERTS, "--tokens 12"),
    (EXPERTS, "--hidden 1024"),
    (EXPERTS, "--experts 32"),
    (EXPERTS, "--top-k 2"),
    (EXPERTS, "--expert-imbalance zipf:1"),
    (EXPERTS, "--draws rotated"),
    (EXPERTS, "--seed 1"),
    (EXPERTS, "--dispatch-type bf16"),
    (EXPERTS, "--algorithm normal"),
    (EXPERTS.replace("--gpus 4", "--nodes 2"), "--top-nodes 1"),
    (NORMAL, "--sms 4"),
    (UNEVEN, "--expert-imbalance zipf:1"),
    (f"{UNEVEN} --fidelity loadstore", "--expert-imbalance zipf:1"),
    (LARGE, "--max-outstanding 8"),
    (FOLDED.replace("256K", "2M") + " --algorithm put --unroll 256", "--arbitration fair"),
]  # fmt: skip

#: (base command, option that must not change the answer)
SAME = [(INSIDE, "--no-fold"), (FOLDED, "--verify-fold"), (H100, "--brief"), (H100, "--details")]

#: (base command, option of links that only a second run shows to be idle)
IDLE = [
    (INLINE, "--routing ecmp-hash"),
    (H100, "--routing ecmp-hash"),
    (TWO, "--slow-link node0.pcie0->node0.host0:0.5"),
    (TWO, "--link-down node0.pcie0->node0.host0 --link-down node1.pcie0->node1.host0"),
]

#: (base command, option to add, a word of the refusal)
REFUSED = [
    (H100, "--gpus 9 --nodes 1", "8"),
    (H100, "--fabric switch", "fabric"),
    (INLINE, "--fabric switch", "--fabric"),
    (INLINE, "--nodes 2", "--nodes"),
    (INLINE, "--launch graph", "--launch"),
    (INLINE, "--launch process-per-gpu", "--launch"),
    (INLINE, "--library nccl", "library"),
    (INLINE, "--nvls", "nvls"),
    (INLINE, "--no-nvls", "nvls"),
    (INLINE, "--max-channels 4", "channels"),
    (INLINE, "--cluster dgx-h100", "--topology"),
    (H100, "--bandwidth 50GB/s", "--bandwidth"),
    (H100, "--latency 1us", "--latency"),
    (H100, "--routing sideways", "sideways"),
    (H100, "--slow-link gpu0->nvswitc:0.5", "nvswitch"),
    (H100, "--library rccl", "library"),
    (H100, "--library ncl", "library"),
    ("all_reduce --size 1M --cluster mi300x-node", "--library nccl", "library"),
    (H100, "--launch by-hand", "launch"),
    (f"{H100} --algorithm ring", "--no-proof", "plans"),
    (H100, "--algorithm rign", "ring"),
    (H100, "--algorithm collnet", "algorithm"),
    (H100, "--protocol ll256", "protocol"),
    ("all_reduce --size 1M --cluster l40s-pcie", "--protocol ll128", "protocol"),
    ("all_reduce --size 1M --cluster dgx-a100", "--nvls", "nvls"),
    ("all_reduce --size 1M --cluster dgx-a100", "--no-nvls", "nvls"),
    ("broadcast --size 1M --cluster dgx-h100", "--no-nvls", "nvls"),
    ("broadcast --size 1M --cluster dgx-h100", "--nvls", "nvls"),
    ("all_to_all --size 1M --cluster dgx-h100", "--min-channels 48", "--min-channels"),
    ("all_reduce --size 1G --cluster dgx-h100", "--min-channels 48", "--min-channels"),
    (H100, "--min-channels 8", "--min-channels"),
    (H100, "--max-channels 64", "--max-channels"),
    (H100, "--max-channels 0", "--max-channels"),
    (H100, "--min-channels 9 --max-channels 8", "--min-channels"),
    (H100, "--algorithm ring --nvls", "ring"),
    (FAIR, "--max-channels 4", "channels"),
    (FAIR, "--min-channels 4", "channels"),
    (FAIR, "--nvls", "nvls"),
    (FAIR, "--no-nvls", "nvls"),
    (FAIR, "--protocol none --launch graph", "launch"),
    (FAIR, "--protocol none --library nccl", "library"),
    (H100, "--circuit-setup 1ms", "--circuit-ports"),
    (H100, "--circuit-buffer 64KiB", "--circuit-setup"),
    (H100, "--network fare", "fair"),
    (H100, "--matrix {tmp}/m.csv", "--matrix"),
    (H100, "--tokens 8", "--tokens"),
    (H100, "--expert-imbalance zipf:1", "--expert-imbalance"),
    (UNEVEN, "--expert-imbalance zipff:1", "balanced"),
    (UNEVEN, "--tokens 8", "--tokens"),
    ("all_to_all_v --cluster dgx-h100 --gpus 2", "--matrix {tmp}/m.csv --expert-imbalance zipf:1", "give one"),
    (EXPERTS, "--size 1M", "--size"),
    (EXPERTS, "--matrix {tmp}/m.csv", "--matrix"),
    (EXPERTS, "--sms 4", "--sms"),
    (EXPERTS, "--top-nodes 1", "--top-nodes"),
    (EXPERTS, "--workgroups 4", "--workgroups"),
    (EXPERTS, "--wavefronts 4", "--wavefronts"),
    (EXPERTS, "--bookkeeping none", "--bookkeeping"),
    (EXPERTS, "--protocol ll", "--protocol"),
    (EXPERTS, "--experts 15", "--experts"),
    (NORMAL, "--sms 3", "--sms"),
    (NORMAL, "--sms 400", "--sms"),
    (EXPERTS.replace(" --fidelity loadstore", ""), "--brief", "--fidelity loadstore"),
    (EXPERTS.replace("--fidelity loadstore", "--compare-fidelity"), "--brief", "--fidelity loadstore"),
    ("all_reduce --cluster dgx-h100", "--matrix {tmp}/m.csv", "matrix"),
    ("barrier --cluster dgx-h100", "--size 1K", "size"),
    ("all_reduce --size 1M --cluster dgx-h100", "--plot {tmp}/x.png", "two sizes"),
    (H100, "--plot {tmp}/x.bmp", "x.bmp"),
    (H100, "--json {tmp}/no/where.json", "where.json"),
    (H100, "--fidelity loadstor", "loadstore"),
    (H100, "--fidelity operator --compare-fidelity", "--compare-fidelity"),
    *((H100, option, f"{option.split()[0]} belongs to --fidelity loadstore") for option in (
        "--workgroups 4", "--wavefronts 4", "--unroll 4", "--max-outstanding 4", "--arbitration fair", "--no-fold",
        "--initiator gpu", "--gpu-model h100-sxm", "--verify-fold", "--plot-noc {tmp}/x.png",
        "--perfetto {tmp}/x.pftrace",
    )),
    *((INSIDE, option, option.split()[0]) for option in (
        "--library nccl", "--launch graph", "--nvls", "--no-nvls", "--min-channels 4", "--max-channels 4",
        "--network fair", "--explain",
    )),
    ("all_to_all_v --cluster dgx-h100 --fidelity loadstore", "--matrix {tmp}/m.csv", "--matrix"),
    (INSIDE, "--circuit-setup 1ms", "circuits"),
    (INSIDE, "--slow-link pcie0->host0:0.5", "--slow-link"),
    (INSIDE, "--routing ecmp-hash", "--routing"),
    (ACROSS, "--algorithm twoshot", "reads from behind a NIC"),
    (ACROSS, "--algorithm nvls", "no switch adds up"),
    (ACROSS, "--protocol ll", "protocol 'simple'"),
    (ACROSS, "--verify-fold", "nothing to verify"),
    (ACROSS, "--initiator cpu", "gpu"),
    (INSIDE, "--initiator proxy", "no NICs"),
    (INSIDE, "--initiator nobody", "gpu, proxy"),
    (f"{INSIDE} --algorithm twoshot", "--verify-fold", "nothing to verify"),
    (INSIDE, "--algorithm twoshto", "twoshot"),
    (INSIDE, "--protocol none", "protocol"),
    (INSIDE, "--protocol ll256", "ll128"),
    (INSIDE, "--algorithm oneshot-get --protocol ll", "protocol"),
    (INSIDE, f"--workgroups 4 --algorithm {PLANS}/v2_HEAD_allreduce_allpairs_4gpu.json", "workgroups"),
    (INSIDE, f"--protocol ll --algorithm {PLANS}/v2_HEAD_allreduce_allpairs_4gpu.json", "protocol"),
    (INSIDE, f"--algorithm {PLANS}/v1_v0.6.0_allreduce_nvls_8gpu.json", "8 ranks"),
    (INSIDE, "--workgroups 0", "workgroups"),
    (INSIDE, "--unroll 100000", "unroll"),
    (INSIDE, "--arbitration fare", "fair"),
    (INSIDE, "--no-fold --verify-fold", "--no-fold"),
    (INSIDE, "--gpu-model h100-sxn", "h100-sxm"),
    (INSIDE, "--plot {tmp}/x.png", "two sizes"),
    ("send_recv --size 1K --cluster dgx-h100", "--fidelity loadstore", "send_recv"),
    ("all_reduce --size 0 --cluster dgx-h100", "--fidelity loadstore", "1 byte"),
    ("all_reduce --size 1K --cluster l40s-pcie", "--fidelity loadstore", "pcie0->host0"),
    ("all_reduce --size 1K,2K --cluster dgx-h100 --fidelity loadstore", "--perfetto {tmp}/x.pftrace", "one size"),
    ("all_reduce --size 1K,2K --cluster dgx-h100 --fidelity loadstore", "--plot-noc {tmp}/x.png", "one size"),
    (BOTH, "--perfetto {tmp}/x.pftrace", "--compare-fidelity"),
    (BOTH, "--explain", "--explain"),
    ("all_reduce --size 1K,2K --cluster dgx-h100 --compare-fidelity", "--plot {tmp}/x.png", "--compare-fidelity"),
]  # fmt: skip


def run(command: str) -> tuple[int, str, str]:
    text = command.replace("50GB/s", "50\0GB/s").replace("1us", "1\0us")
    result = RUNNER.invoke(app, ["collective", *(word.replace("\0", " ") for word in text.split())])
    return result.exit_code, result.stdout, result.stderr


def answer(command: str) -> dict[str, object]:
    code, out, err = run(f"{command} --json -")
    assert code == 0, err
    data = json.loads(out)
    assert isinstance(data, dict)
    return data


def times(data: dict[str, object]) -> list[float]:
    rows = data["rows"]
    assert isinstance(rows, list)
    return [row["time_us"] for row in rows]


@pytest.mark.parametrize(("base", "option"), MOVES, ids=lambda text: str(text)[-60:])
def test_it_moves_the_answer(base: str, option: str) -> None:
    name = option.split()[0]
    rest = re.sub(rf" {name} \S+", "", base)  # an option given twice is an error
    before, after = answer(base), answer(f"{rest} {option}")
    if option == "--explain":
        assert "explain" in after
        assert "explain" not in before
    else:
        assert times(before) != times(after)


@pytest.mark.parametrize(("base", "option"), IDLE, ids=lambda text: str(text)[-60:])
def test_a_note_names_an_idle_option_of_links(base: str, option: str) -> None:
    notes = answer(f"{base} {option}")["notes"]
    assert isinstance(notes, list)
    assert any(note.startswith(option.split()[0]) and "changes no time" in note for note in notes), notes


@pytest.mark.parametrize(("base", "option"), SAME, ids=lambda text: str(text)[-60:])
def test_it_does_not_move_the_answer(base: str, option: str) -> None:
    assert times(answer(base)) == times(answer(f"{base} {option}"))


@pytest.mark.parametrize(("base", "option", "word"), REFUSED, ids=lambda text: str(text)[-60:])
def test_it_is_refused_by_name(base: str, option: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,1\n1,0\n")
    code, out, err = run(f"{base} {option.replace('{tmp}', str(tmp_path))}")
    assert code == 2, out + err
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert word in last


def test_no_option_is_missing_here() -> None:
    """An option that is added to the command has to be added above."""
    tried = " ".join(f"{base} {option}" for base, option, *_ in [*MOVES, *SAME, *REFUSED]).replace(
        "--no-nvls", "--nvls"
    )
    for name in (each.name for each in all_parameters(collective)):
        if name not in ("op", "vary", "samples", "experiment", "processes"):  # of every command: unit/experiments
            assert f"--{name.replace('_', '-')} " in tried + " ", name


def test_the_order_of_sizes_and_repeats_do_not_matter() -> None:
    one, other = (
        answer("all_reduce --size 1M,1K,1M --cluster dgx-h100"),
        answer("all_reduce --size 1K,1M --cluster dgx-h100"),
    )
    assert one == other


@pytest.mark.parametrize("name", ["allreduce", "all_reduce_perf", "All-Reduce", "all_reduce"])
def test_other_names_of_a_collective(name: str) -> None:
    assert answer(f"{name} --size 1K --cluster dgx-h100")["op"] == "all_reduce"
