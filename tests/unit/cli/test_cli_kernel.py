"""Does ``trine kernel`` run and print programs and plans, and say in one line what is wrong?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.gpu.proofs import check_program
from trine.gpu.text import parse_program, read_program, same_program

ROOT = Path(__file__).parents[3]
PLANS = ROOT / "tests" / "data" / "mscclpp"
PLAN = PLANS / "v2_HEAD_allreduce_allpairs_4gpu.json"
NVLS = PLANS / "v1_v0.6.0_allreduce_nvls_8gpu.json"
MACHINE = ["--cluster", "astra3-generic", "--gpus", 4]
TEXT = re.search(r"^```\n(program.*?)^```$", (ROOT / "docs/formats/gpu-program.md").read_text(), re.S | re.M)[1]
ANY = TEXT.replace("ranks 4 ", "# ")


def invoke(*arguments):
    return CliRunner().invoke(app, ["kernel", *(str(argument) for argument in arguments)])


def answer(*arguments):
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "exchange.gpu"
    path.write_text(TEXT)
    return path


@pytest.fixture
def any_ranks(tmp_path):
    path = tmp_path / "any.gpu"
    path.write_text(ANY)
    return path


def test_show_prints_what_parses_to_the_same(file, any_ranks):
    assert same_program(parse_program(answer("show", file)), read_program(file))
    assert same_program(parse_program(answer("show", any_ranks, "--gpus", 4)), read_program(file))


def test_the_documented_program_has_no_race_and_no_deadlock(file):
    check_program(read_program(file))


def test_show_prints_plans_as_operations(tmp_path):
    printed = answer("show", PLAN, "--size", "1M", "--wavefronts", 4, "--line", "256 B")
    program = parse_program(printed)
    assert (program.num_ranks, program.line_bytes, program.payload_bytes) == (4, 256, 2**20)
    assert set(program.kernel_wavefronts.tolist()) == {4}
    xml = answer("show", PLANS / "allgather_ring_4_1_1.xml", "--size", "64K", "--summary")
    assert "4 ranks, lines of 128 B" in xml


def test_show_counts(file):
    done = invoke("show", file, "--json", "-")
    counts = json.loads(done.stdout)
    assert counts["remote_store_bytes"] == 4 * 3 * 64 * 1024  # each rank's 64 KiB to three others
    assert counts["operations"] == {"copy": 24, "acquire": 24, "release": 24, "waitcnt": 8, "barrier": 8}
    assert "24 copy" in done.stderr


MAILBOX = re.search(r"^program mailbox.*?(?=^```$)", (ROOT / "docs/formats/gpu-program.md").read_text(), re.S | re.M)[0]


def test_a_program_that_goes_by_way_of_a_host_takes_it_from_the_cluster(tmp_path):
    path = tmp_path / "mailbox.gpu"
    path.write_text(MAILBOX)
    run = ["run", path, "--cluster", "rtx3090-pcie"]
    for text in (answer(*run), answer(*run, "--details")):
        assert "mailbox: 2 ranks of rtx3090 on rtx3090-pcie (2 GPUs), and the memory of 1 host" in text
        assert re.search(r"^simulated +2 of 2 GPUs, ", text, re.M)
    assert "requests of 2 GPUs" in text
    found = json.loads(answer(*run, "--json", "-"))
    assert found["ranks"] == 2
    assert 2e-6 < found["time_s"] < 2e-5
    assert "mailbox: 2 ranks and 1 hosts" in answer("show", path, "--summary")
    assert parse_program(answer("show", path)).num_hosts == 1
    check_program(read_program(path), None)
    machine = ["--topology", "ring", "--bandwidth", "65 GB/s", "--latency", "1 us", "--gpu-model", "rtx3090"]
    failed = invoke("run", path, *machine)
    assert failed.exit_code == 2
    assert "2 of 2 GPUs, and they have 0 of 1 hosts" in failed.output


def test_run_says_how_long_and_writes_everything(file, tmp_path):
    out = [tmp_path / name for name in ("a.json", "a.pftrace")]
    done = invoke("run", file, "--cluster", "astra3-generic", "--json", out[0], "--perfetto", out[1])
    assert done.exit_code == 0, done.output
    found = json.loads(out[0].read_text())
    assert found["program"] == "exchange"
    assert found["finished"] is True
    # 192 KiB leave each GPU at 1 TiB/s at most, acknowledged after 2 us, and semaphores follow
    assert found["time_s"] > 192 / 2**30 + 3e-6
    assert found["traffic"]["fabric"]["data_messages"] == len(found["gpus"]) * 3 * 64 * 1024 // 128
    assert found["folding"]["classes"] == 1
    assert out[1].stat().st_size > 0


def test_both_engines_folded_or_not_say_the_same(any_ranks):
    times = {
        json.loads(answer("run", any_ranks, *MACHINE, *options, "--json", "-"))["time_s"]
        for options in ([], ["--no-fold"], ["--verify-fold"], ["--engine", "reference"])
    }
    assert len(times) == 1


def test_options_of_the_gpu_matter(file):
    def time_s(*options):
        return json.loads(answer("run", file, *MACHINE, *options, "--json", "-"))["time_s"]

    usual = time_s()
    assert time_s("--unroll", 1) > 1.5 * usual
    assert time_s("--max-outstanding", 4) > 1.5 * usual
    assert time_s("--gpu-model", "h100-sxm") != usual


def test_a_plan_has_its_bandwidths():
    found = json.loads(answer("run", PLAN, "--size", "64K", "--cluster", "astra3-generic", "--json", "-"))
    assert found["ranks"] == 4
    assert found["algbw_bytes_per_s"] == pytest.approx(2**16 / found["time_s"])
    assert found["busbw_bytes_per_s"] == pytest.approx(1.5 * found["algbw_bytes_per_s"])


def test_the_gpu_model_says_how_many_wavefronts_a_workgroup_may_have(tmp_path):
    text = (ROOT / "src/trine/presets/gpu_models/astra3-generic.yaml").read_text()
    assert "wavefronts: 64, " in text
    (tmp_path / "wide.yaml").write_text(text.replace("wavefronts: 64, ", "wavefronts: 96, "))
    given = ("run", PLAN, *MACHINE, "--size", "64K", "--gpu-model", tmp_path / "wide.yaml", "--wavefronts")
    assert json.loads(answer(*given, 96, "--json", "-"))["finished"]
    done = invoke(*given, 97)
    assert done.exit_code == 2
    assert "--wavefronts: a workgroup is on one CU, and one of GPU 'wide' holds no more than 96, got 97" in done.stderr
    shown = parse_program(answer("show", PLAN, "--size", "64K", "--wavefronts", 96))
    assert set(shown.kernel_wavefronts.tolist()) == {96}


def test_a_deadlock_names_the_wavefronts(tmp_path):
    path = tmp_path / "stuck.gpu"
    path.write_text("program stuck\nranks 2\nsemaphores 1\nkernel 'waits' ranks all\nacquire sem 0\n")
    for options, ranks in (([], (0,)), (["--no-fold"], (0, 1))):  # folded, rank 0 stands for both
        done = invoke("run", path, "--cluster", "astra3-generic", *options)
        assert done.exit_code == 1
        for rank in ranks:
            assert f"rank {rank}, kernel 'waits', workgroup 0, wavefront 0: operation 0, acquire" in done.stderr
        assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "FILE"], "add a machine: "),
        (["run", "FILE", "--cluster", "astra3-generc"], "did you mean 'astra3-generic'?"),
        (["run", "FILE", "--cluster", "astra3-generic", "--gpus", 8], "is for 4 ranks, and the machine has 8 GPUs"),
        (["run", "FILE", *MACHINE, "--size", "1M"], "--size is about plans"),
        (["run", "FILE", *MACHINE, "--wavefronts", 2], "--wavefronts is about plans"),
        (["run", "FILE", *MACHINE, "--gpu-model", "h101"], "no GPU model 'h101'"),
        (["run", "FILE", *MACHINE, "--no-fold", "--verify-fold"], "contradict each other"),
        (["run", "FILE", *MACHINE, "--engine", "compield"], "did you mean 'compiled'?"),
        (["run", "FILE", *MACHINE, "--arbitration", "fare"], "did you mean 'fair'?"),
        (["run", "FILE", "--topology", "ring", "--bandwidth", "10 GB/s"], "--gpu-model"),
        (["run", str(PLAN), *MACHINE], "--size is needed"),
        (["run", str(NVLS), "--size", "1M", "--cluster", "dgx-a100"], "one switch between the ranks that adds up"),
        (["show", "FILE", "--gpus", 4], "says itself that it is for 4 ranks"),
        (["show", "ANY"], "says not how many ranks it is for: --gpus N"),
        (["show", "FILE", "--line", "64 B"], "--line is about plans"),
        (["show", str(PLAN), "--size", "1M", "--line", "0 B"], "--line: must be a power of two of at least 16 bytes"),
        (["show", str(PLAN), "--size", "1M", "--wavefronts", 0], "--wavefronts: a workgroup needs at least one, got 0"),
        (["run", str(PLAN), *MACHINE, "--size", "1M", "--wavefronts", 0], "--wavefronts: a workgroup needs at least"),
        (["show", str(PLAN), "--size", "1M", "--wavefronts", 32769], "--wavefronts: a workgroup of a program has"),
        (
            ["run", str(PLAN), *MACHINE, "--size", "1M", "--wavefronts", 65],
            "GPU 'astra3-generic' holds no more than 64",
        ),
        (["show", str(PLAN), "--size", "0"], "--size: a message has at least 1 byte, got 0"),
        (["run", str(PLAN), *MACHINE, "--size", "0 B"], "--size: a message has at least 1 byte, got 0 B"),
        (["show", "nowhere.gpu"], "cannot be read"),
        (["show", "README"], "is neither a text program"),
        (["show", "WRONG"], "wrong.gpu:4: unknown operation 'lod'; did you mean 'load'?"),
        (["run", "FULL", *MACHINE], "--unroll has no effect"),
        (["run", "FILE", "--cluster", "dgx-h100", "--initiator", "proxy"], "--initiator has no effect: the program"),
        (["run", "ONE", "--cluster", "astra3-generic", "--no-fold"], "are about several ranks"),
        (["run", "WIDE", *MACHINE], "wavefronts, and a CU of GPU 'astra3-generic' holds no more than"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message, file, any_ranks, tmp_path):
    texts = {
        "README": "read me",
        "WRONG": "program p\nranks 1\nkernel rank 0\nlod 1 line own:0\n",
        "FULL": TEXT.replace("rank + 32 KiB * wg\n", "rank + 32 KiB * wg unroll 2\n"),
        "ONE": "program p\nranks 1\nkernel rank 0\nnop\n",
        "WIDE": TEXT.replace("wavefronts 4", "wavefronts 4000"),
    }
    files = {"FILE": str(file), "ANY": str(any_ranks)}
    for name, text in texts.items():
        (tmp_path / f"{name.lower()}.gpu").write_text(text)
        files[name] = str(tmp_path / f"{name.lower()}.gpu")
    given = [files.get(str(argument), argument) for argument in arguments]
    done = invoke(*given, *(["--unroll", 2] if "FULL" in arguments else []))
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
