"""Does every message have at most 400 characters, line breaks where it lists, and no traceback for odd numbers?"""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from trine.cli.main import app
from trine.common.units import finite_number, whole_number
from trine.errors import MAX_LINE, several_lines

JOB = ["train", "model:gpt-2,layers=1", "--dp", "8", "--cluster", "dgx-h100"]


def refused(*words, code=2):
    """Return the message of a command that fails."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.output, done.exception)
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.rstrip("\n")) <= 400
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["collective", *["x" * 50] * 40],
        ["collective", "all_reduce", "--size", "9" * 5000],
        ["x" * 5000],
        ["train", "--" + "y" * 5000],
        [*JOB, "--fsdp", "z" * 5000],
        [*JOB, "--tp", "9" * 5000],
        [*JOB, "--capacity-factor", "1e309"],
        [*JOB, "--tp", "1_0"],
        [*JOB, "--vary", "tp=1..1e309"],
        [*JOB, "--vary", f"tp={'9' * 5000}"],
        [*JOB, "--jitter", "normal:1e309"],
        [*JOB, "--gpu-spread", "inf"],
        [*JOB, "--slow", "rank=0:1e400"],
        [
            "hop",
            "vgg13-h100-b128",
            "--workers",
            "4",
            "--slow-by",
            "1:inf",
            "--bandwidth",
            "1 GB/s",
            "--latency",
            "1 us",
        ],
    ],
)
def test_odd_words_give_one_line(words):
    assert len(refused(*words).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("m.yaml", "family: []\n", "train model:{} --gpu h100-sxm"),
        ("m.yaml", "family: .inf\n", "train model:{} --gpu h100-sxm"),
        (
            "p.yaml",
            "date: 2026-01-01\nusd_per_gpu_hour: {{h100-sxm: .inf}}\n",
            "train model:gpt-2 --tokens 1B --price {}",
        ),
        ("e.yaml", "command: collective\nsettings: {op: 2026-01-01}\nvary: {size: [1M, 2M]}\n", "sweep {}"),
        ("e.yaml", "command: collective\nsettings: {op: !!binary aGk=}\nvary: {size: [1M, 2M]}\n", "sweep {}"),
        ("e.yaml", "command: collective\nsettings: {op: all_reduce}\nvary: {size: .inf}\n", "sweep {}"),
        ("e.json", '{"command": "collective", "vary": {"size": 1e309}}', "sweep {}"),
        ("e.json", '{"command": "collective", "vary": {"size": ' + "9" * 5000 + "}}", "sweep {}"),
        ("f.sh", "torchrun train.py --tensor-model-parallel-size " + "9" * 5000, "plan llama-3-8b --gpus 8 --from {}"),
        ("c.yaml", "base: dgx-h100\nlatency: .nan\n", "cluster show {}"),
    ],
)
def test_odd_numbers_in_files_give_one_line(tmp_path, name, text, command):
    path = tmp_path / name
    path.write_text(text)
    assert len(refused(*command.format(path).split()).splitlines()) == 1


def test_a_deadlock_has_line_breaks(tmp_path):
    path = tmp_path / "stuck.gpu"
    path.write_text("program stuck\nranks 8\nsemaphores 1\nkernel 'waits' ranks all\nacquire sem 0\n")
    message = refused("kernel", "run", path, "--cluster", "astra3-generic", "--gpus", "8", "--no-fold", code=1)
    assert "\\n" not in message
    first, *rest = message.splitlines()
    assert first.endswith("wait:")
    assert rest[0].startswith("  rank 0, kernel 'waits'")
    assert "lines left out" in message


@given(st.lists(st.text(st.characters(categories=["L", "P"]), max_size=300), min_size=1, max_size=30))
def test_several_lines_fit_and_keep_the_first_and_the_last(lines):
    shown = several_lines("\n".join(lines))
    assert len(shown) <= MAX_LINE
    if len("\n".join(lines)) <= 130:
        assert shown == "\n".join(lines)
    assert shown.startswith(lines[0][:60])


@given(st.text())
def test_text_is_a_number_or_none(text):
    number = finite_number(text)
    assert number is None or abs(number) < float("inf")
    assert whole_number(text) is None or int(text) >= 0


@pytest.mark.parametrize(
    "text", ["1e309", "inf", "nan", "9" * 5000, "1_000", "٣", "²", "", " ", "0x10", "1,5", "--1", "1e"]
)
def test_what_is_no_finite_number(text):
    assert finite_number(text) is None
    assert whole_number(text) is None


@pytest.mark.parametrize("text", ["1", " 1.5 ", ".5", "1.", "-2e-3", "+1", "1e308"])
def test_what_is_a_finite_number(text):
    assert finite_number(text) == float(text)
    assert finite_number("5", 0, 4) is None
