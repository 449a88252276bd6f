"""Does a command end in one line, and keep files, with little memory, Ctrl-C, a full disk, or no working directory?"""

from __future__ import annotations

import ast
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from full_disk import full_disk

import trine
from trine.cli.main import app
from trine.common.inputs import read_at_most
from trine.common.schema import Fault, Field, Spec
from trine.errors import InputError, TraceError, safe
from trine.formats.chakra import read_chakra
from trine.software.profile import load_software

SOURCE = Path(trine.__file__).parent
TRACE = ("train", "vgg13-h100-b128", "--gpus", "2", "--parallel", "ddp", "--cluster", "dgx-h100")


def command(*words: str, **how: object) -> subprocess.CompletedProcess[str]:
    how.setdefault("env", {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    return subprocess.run([sys.executable, "-m", "trine", *words], capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload, no-any-return]


class Counting(io.BytesIO):
    """File that records the bytes that each read reserves."""

    asked: tuple[int, ...] = ()

    def read(self, size: int | None = -1) -> bytes:
        self.asked += (size or 0,)
        return super().read(size)


def test_a_read_reserves_memory_for_what_is_there_and_not_for_its_limit():
    file = Counting(b"x" * 3_000_000)
    assert len(read_at_most(file, 2 << 30)) == 3_000_000
    assert max(file.asked) <= 1 << 20
    assert read_at_most(io.BytesIO(b"abcdef"), 4) == b"abcd"
    assert read_at_most(io.BytesIO(b""), 4) == b""


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space as Linux does")
def test_a_step_runs_where_two_gigabytes_may_be_reserved():
    done = command(*TRACE, preexec_fn=limit_memory(2_000_000))
    assert done.returncode == 0, done.stderr
    assert "\nstep " in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits address space as Linux does")
@pytest.mark.parametrize("kilobytes", [60_000, 90_000, 120_000, 160_000, 220_000, 300_000])
def test_a_lack_of_memory_is_one_line(kilobytes):
    done = command(
        "train", "model:llama-3-8b", "--dp", "8", "--pp", "4", "--tp", "2", "--batch", "64", "--micro-batch", "1",
        "--schedule", "1f1b", "--cluster", "dgx-h100", "--nodes", "8", preexec_fn=limit_memory(kilobytes),
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode != 0 or done.stdout
    others = (
        "OpenBLAS",
        "simulated",
        "64 ranks in",
        "LLVM ERROR",
        "Buffer allocation",
    )
    own = [line for line in done.stderr.splitlines() if not line.startswith(others)]
    assert len(own) <= 1


def limit_memory(kilobytes: int):
    import resource

    return lambda: resource.setrlimit(resource.RLIMIT_AS, (kilobytes << 10, kilobytes << 10))


def test_ctrl_c_while_a_command_is_imported_is_one_line(tmp_path):
    # the import hook raises KeyboardInterrupt, like Ctrl-C, on the import of numpy
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    done = command(*TRACE, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_workers_end_by_ctrl_c_without_a_word():
    code = (
        "import os, signal\n"
        "from validation.replay_rows import _end_on_interrupt\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "_end_on_interrupt()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_only_outputs_py_writes_files():
    """A plain write leaves half a file on a full disk; trine.common.outputs keeps the old one."""
    own = {"common/outputs.py"}
    appends = {"cli/streams.py", "experiments/worker.py"}  # journals, and stdout
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name not in own | appends:
            found += [f"{name}:{line}" for line in plain_writes(ast.parse(path.read_text(encoding="utf-8")))]
    assert not found


def plain_writes(tree: ast.AST) -> list[int]:
    """Return the lines that call ``Path.write_text``, ``Path.write_bytes`` or ``open`` for writing."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [each.value for each in (*node.args, *(k.value for k in node.keywords if k.arg == "mode"))
                 if isinstance(each, ast.Constant) and isinstance(each.value, str)]  # fmt: skip
        is_method = isinstance(node.func, ast.Attribute)
        writes = name == "open" and any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)
        if writes or (is_method and name in ("write_text", "write_bytes")):
            lines.append(node.lineno)
    return lines


def test_the_rule_on_writers_finds_what_it_is_for():
    tree = ast.parse(
        "Path(p).write_bytes(b)\nopen(p, 'w')\nopen(p, mode='ab')\nopen(p)\nwrite_bytes(p, b)\nf.open('x')"
    )
    assert plain_writes(tree) == [1, 2, 3, 6]


def test_a_full_disk_keeps_the_old_memory_snapshot(tmp_path):
    path = tmp_path / "memory.pickle"
    path.write_bytes(b"old")
    with full_disk(64):
        done = CliRunner().invoke(app, [*TRACE, "--memory-snapshot", str(path)])
    assert done.exit_code == 2
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("output", ["c.yaml", "link.yaml", "node.yaml"])
def test_an_output_may_not_overwrite_an_input(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("node.yaml").write_text("base: dgx-h100\nname: own\n")
    Path("c.yaml").write_text("base: node.yaml\nname: two\n")
    Path("link.yaml").symlink_to("c.yaml")
    before = Path("c.yaml").read_text(), Path("node.yaml").read_text()
    done = CliRunner().invoke(app, ["cluster", "show", "c.yaml", "--yaml", output])
    assert done.exit_code == 2
    assert "input of this command" in done.stderr
    assert (Path("c.yaml").read_text(), Path("node.yaml").read_text()) == before


def test_a_working_directory_that_is_gone_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", 'cd "$1" && rmdir "$1" && shift && exec "$@"', "sh", str(gone), sys.executable, "-m",
         "trine", *TRACE, "--json", "x.json"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(gone) in done.stderr


@pytest.mark.parametrize("lost", [[1], [0, 3], [3]])
def test_missing_traces_of_a_chakra_set_are_named(lost, tmp_path):
    made = CliRunner().invoke(
        app,
        [
            "train",
            "vgg13-h100-b128",
            "--dp",
            "4",
            "--cluster",
            "dgx-h100",
            "--inputs",
            "none",
            "--chakra",
            str(tmp_path / "job"),
        ],
    )
    assert made.exit_code == 0, made.output
    assert len(read_chakra(tmp_path / "job").files) == 4
    for rank in lost:
        (tmp_path / f"job.{rank}.et").unlink()
    with pytest.raises(TraceError, match=rf"rank.*{lost[0]}"):
        read_chakra(tmp_path / "job")


@pytest.mark.parametrize(
    "rows", ["a,b,50 GB/s,1 us,fibre", "a,b,50 GB/s,1 us,", "a\u202eb,b,50 GB/s,1 us,", "a,,50 GB/s,1 us,"]
)
def test_trine_reads_the_cluster_that_it_writes(rows, tmp_path):
    edges, out = tmp_path / "e.csv", tmp_path / "out.yaml"
    edges.write_text(f"source,target,bandwidth,latency,medium\n{rows}\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["cluster", "import", str(edges), "--gpu", "h100-sxm", "--yaml", str(out)])
    if done.exit_code:
        assert done.exit_code == 2
        assert str(edges) in done.stderr
        assert not out.exists()
    else:
        shown = CliRunner().invoke(app, ["cluster", "show", str(out)])
        assert shown.exit_code == 0, shown.output


def test_gpus_that_nothing_joins_are_shown(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\ndevices: [{name: gpu0, gpu: h100-sxm}, {name: gpu1, gpu: h100-sxm}]\nlinks: []\n")
    shown = CliRunner().invoke(app, ["cluster", "show", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "no route" in shown.output


class _Numbers(Spec):
    ratio: float = 1.0
    text: float = Field(default=1.0, strict=False)
    count: int = 1


@pytest.mark.parametrize("field", ["ratio", "text", "count"])
def test_numbers_of_hundreds_of_digits_are_faults_of_their_field(field):
    with pytest.raises(Fault) as caught:
        _Numbers.model_validate({field: 10**309})
    assert caught.value.path == field


def test_a_fit_beyond_the_limits_of_a_factor_is_an_error_of_input():
    with pytest.raises(
        InputError,
        match=r"factors: the fit is beyond limits: gpu.value should be less than or equal to 100, got 1000000.0",
    ):
        load_software("megatron-core").scaled({"gpu": 1e6}, "a test")


def test_foreign_text_cannot_steer_a_terminal(tmp_path):
    assert safe("a\x1b[31mb\u202ec\nd") == "a\\x1b[31mb\\u202ec\nd"
    assert safe("µ × – 'plain'") == "µ × – 'plain'"
    path = tmp_path / "c.yaml"
    path.write_text('base: dgx-h100\nname: "a\\e[31mb"\nnotes: "x\\u202ey"\n', encoding="utf-8")
    for words in (["cluster", "show", str(path)], [*TRACE[:-1], str(path)]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        assert "\u202e" not in done.output
