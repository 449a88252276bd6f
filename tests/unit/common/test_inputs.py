"""Is invalid user input refused in one sentence of trine: paths that are no files, non-numbers, endless names?"""

from __future__ import annotations

import os

import numpy as np
import pytest
from cpu_time import computes_for_less_than

import trine
from trine.common.inputs import open_input, read_bytes, read_text
from trine.common.units import UnitError, parse_bytes, parse_time, whole_number
from trine.errors import MAX_LINE, InputError, PlanError, SpecError, TraceError, TrineError, nearest, one_line

CLUSTER = trine.load_cluster("dgx-h100")
#: Public functions that take a path.
PATHS = {
    "trace": trine.load,
    "kineto": lambda path: trine.load(kineto=path),
    "cluster": lambda path: trine.load_cluster(path),
    "calibration": trine.Calibration.load,
    "placement": lambda path: trine.simulate(
        "vgg13-h100-b128", trine.Plan(dp=8), cluster="dgx-h100", placement=os.fspath(path)
    ),
}


@pytest.mark.parametrize("way", PATHS)
@pytest.mark.parametrize("name", ["a\0b", "/dev/zero", "pipe", "/", "no/such/file.json"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch, way, name):
    """A device never ends; a pipe without a writer never begins."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with computes_for_less_than(5), pytest.raises(InputError):
        PATHS[way](name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("pipe", "it is a pipe"), ("/dev/zero", "it is a device"), ("/", "it is a folder"), ("none", "No such file"),
     ("a\0b", "no file has such a name"), ("\ud800", "no file has such a name"), ("x" * 300, "File name too long")],
)  # fmt: skip
def test_every_file_is_opened_in_one_way(tmp_path, monkeypatch, name, problem):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for error in (SpecError, TraceError):
        with pytest.raises(error, match=f"cannot be read: {problem}"):
            read_bytes(name, error=error)


def test_files_are_bounded_also_where_they_hide_their_size(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(SpecError, match="is larger than 4 bytes"):
        read_bytes(path, 4)
    with pytest.raises(SpecError, match="is larger than 4 bytes"):
        read_bytes("/proc/self/maps", 4)  # its status gives 0 bytes


def test_faults_of_who_reads_are_not_faults_of_the_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\xff")
    with pytest.raises(SpecError, match=r"is not UTF-8 text \(byte 0\)"):
        read_text(path)
    with pytest.raises(ZeroDivisionError), open_input(path):
        _ = 1 // 0
    with pytest.raises(UnicodeDecodeError), open_input(path) as file:
        file.read().decode()


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("-5", -5), ("9223372036854775807", 2**63 - 1), ("9223372036854775808", None),
     ("--5", None), ("+5", None), ("1_0", None), ("4_", None), ("", None), ("-", None), (" 5", None), ("5\n", None),
     ("１２", None), ("²", None), ("٣", None), ("1e3", None), ("0x10", None), ("9" * 5000, None)],
)  # fmt: skip
def test_whole_numbers_are_digits(text, number):
    assert whole_number(text, -(2**63)) == number


@pytest.mark.parametrize("text", ["4_ KiB", "1__0 KiB", "_1 KiB", "１ KiB", "--1 KiB"])
def test_quantities_are_digits(text):
    with pytest.raises(UnitError):
        parse_bytes(text)
    assert parse_bytes("1_024 KiB") == 2**20
    assert parse_time("1_0.5 us") == 10_500_000


@pytest.mark.parametrize("sizes", [1 << 26, "64X", ["64 s"], "1G:1K", [1.5], [True], [-1], [None], [], None, b"64"])
@pytest.mark.parametrize("ask", [trine.collective, trine.loadstore_collective, trine.compare_fidelity])
def test_sizes_are_a_list_of_bytes(ask, sizes):
    with pytest.raises((InputError, UnitError), match=r"^sizes|^no sizes"):
        ask("all_reduce", sizes, CLUSTER)


def test_sizes_may_be_of_numpy():
    answer = trine.collective("all_reduce", np.array([1024, 4096]), CLUSTER)
    assert answer.times_ps == trine.collective("all_reduce", [1024, 4096], CLUSTER).times_ps


@pytest.mark.parametrize("fold", [False, True, None, 0, "maybe", []])
def test_how_to_fold_is_a_word(fold):
    with pytest.raises(InputError, match="unknown folding"):
        trine.simulate("vgg13-h100-b128", trine.Plan(dp=2), cluster="dgx-h100", fold=fold)


HUGE = {
    "nodes": lambda: trine.load_cluster("dgx-h100", nodes=10**12),
    "GPUs of nodes": lambda: trine.load_cluster("dgx-h100", gpus=10**12),
    "racks": lambda: trine.load_cluster("gb200-nvl72", nodes=2**24),
    "a ring": lambda: trine.build_topology("ring", "1 GB/s", "1 us", 10**12),
    "all pairs": lambda: trine.build_topology("full", "1 GB/s", "1 us", 2**24 + 1),
    "a group": lambda: trine.collective_time("all_reduce", "1M", 10**12, CLUSTER),
    "a group of a preset": lambda: trine.collective_time("all_reduce", "1M", 10**12, "dgx-h100"),
    "a listed group": lambda: trine.collective("all_reduce", [1], CLUSTER, group=range(10**12)),
    "bytes": lambda: trine.collective("all_reduce", [10**30], CLUSTER),
    "sizes": lambda: trine.collective("all_reduce", range(10**12), CLUSTER),
    "steps": lambda: trine.simulate("vgg13-h100-b128", trine.Plan(dp=2, steps=10**12), cluster="dgx-h100"),
    "stages": lambda: trine.simulate(
        "vgg13-h100-b128", trine.Plan(pp=2, virtual_stages=10**12, schedule="interleaved"), cluster="dgx-h100"
    ),
    "micro-batches": lambda: trine.simulate(
        "vgg13-h100-b128", trine.Plan(pp=2, batch=10**9, micro_batch=1), cluster="dgx-h100"
    ),
    "layers": lambda: trine.synthesize("gpt-2", layers=10**12),
    "tokens": lambda: trine.synthesize("gpt-2", sequence=10**12),
    "peers": lambda: trine.run_eidolon(trine.EidolonOptions(peers=10**12)),
    "rows": lambda: trine.run_eidolon(trine.EidolonOptions(rows=10**12)),
    "workgroups": lambda: trine.run_eidolon(trine.EidolonOptions(workgroups=10**12)),
}


@pytest.mark.parametrize("what", HUGE)
def test_counts_beyond_all_machines_are_refused_at_once(what):
    with computes_for_less_than(5), pytest.raises(InputError):
        HUGE[what]()


WRONG = {
    "a plan": lambda: trine.simulate("vgg13-h100-b128", "ddp", cluster="dgx-h100"),
    "a trace": lambda: trine.load(7),
    "a collective": lambda: trine.collective(["all_reduce"], [1], CLUSTER),
    "a network": lambda: trine.simulate("vgg13-h100-b128", trine.Plan(dp=2), cluster="dgx-h100", network=7),
    "an engine": lambda: trine.simulate("vgg13-h100-b128", trine.Plan(dp=2), cluster="dgx-h100", engine=False),
    "a GPU": lambda: trine.load_gpu(7),
    "a topology": lambda: trine.build_topology(7, "1 GB/s", "1 us", 4),
    "ways": lambda: trine.Plan(dp="8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_values_of_another_type_are_refused(what):
    with pytest.raises(InputError, match=r"must be|unknown"):
        WRONG[what]()


def test_what_is_wrong_with_a_machine_of_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "devices: [{name: gpu, count: 2}]\nlinks: [{from: gpu0, to: gpu1, bandwidth: 1 GB/s, latency: 0}]\n"
    )
    with pytest.raises(SpecError, match=r"mine\.yaml: "):
        trine.load_cluster(path, nodes=2)


def test_plans_are_no_larger_than_the_largest_machine():
    assert trine.Plan(dp=2**12, tp=2**12).num_ranks == 2**24
    with pytest.raises(PlanError, match="16777220 ranks are more than the 16777216 GPUs"):
        trine.Plan(dp=2**22 + 1, tp=4)


@pytest.mark.parametrize("text", ["a" * 10_000, "x\ny" * 500, "\x00\ud800\u2028" * 200, "é" * 399, "ok"])
def test_messages_are_one_line_that_names_the_file(text):
    for made in (
        InputError(f"must be a word, got {text!r}; did you mean 'yes'?", file="folder/file.yaml", field="some.field"),
        SpecError(text, file="folder/file.yaml"),
        TraceError("is wrong", file=f"{text}/file.yaml", field=text),
    ):
        assert len(f"error: {made}") <= MAX_LINE
        assert str(made).isprintable()
        assert "file.yaml" in str(made)
        str(made).encode()


def test_messages_that_fit_are_whole():
    assert str(InputError("is wrong", file="a", field="b")) == "a: b: is wrong"
    assert str(InputError("é" * 380)) == "é" * 380
    assert one_line("a" * 50 + "b" * 50, 30) == "a" * 15 + " ... " + "b" * 10


@pytest.mark.parametrize("name", [False, None, 7, "on\0", "x" * 10**6])
def test_the_nearest_name_of_anything(name):
    assert nearest(name, ("on", "off")) in ("; did you mean 'on'?", "; known: off, on")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("etq", "; did you mean 'etp'?"), ("tpp", "; did you mean 'tp'?"),
     ("set", ""), ("ept", "; did you mean 'etp'?")],
)  # fmt: skip
def test_of_three_letters_one_may_be_wrong_or_their_order(name, hint):
    assert nearest(name, ("etp", "tp", "workers"), is_listed=True) == hint


def test_every_error_of_input_is_one_of_ours():
    assert issubclass(InputError, TrineError)
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize("name", ["data", "tp_style", "inputs", "recompute", "sync", "offload"])
def test_a_choice_that_always_has_a_value_may_not_be_none(name):
    with pytest.raises(PlanError, match=name):
        trine.Plan(**{name: None})
