"""Do options that people type first work, or lead to the whole command line that does?"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from command_tree import built

import trine
from trine.cli.application import parses
from trine.cli.commands import COMMANDS
from trine.cli.corrections import OPTIONS
from trine.cli.main import app
from trine.cli.options import VALUES_ELSEWHERE
from trine.common.plugins import Registry
from trine.errors import as_known, nearest
from trine.workload.synthesis.model import DTYPES

JOB = "train model:llama-3-8b,layers=2 --gpus 8 --cluster dgx-h100"


def ask(line: str):
    return CliRunner().invoke(app, shlex.split(line))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--fsdp", "--sharding fsdp"),
        ("--zero 3", "--sharding zero3"),
        ("--zero=3", "--sharding zero3"),
        ("--parallel ddp --batch-size 4", "--parallel ddp --batch 4"),
        ("--parallel ddp --activation-checkpointing", "--parallel ddp --recompute full"),
        ("--parallel ddp --activation-checkpointing full", "--parallel ddp --recompute full"),
        ("--parallel ddp --offload cpu", "--parallel ddp --offload optimizer"),
        ("--parallel ddp --offload=cpu", "--parallel ddp --offload optimizer"),
        ("--parallel ddp --activation-checkpointing none", "--parallel ddp --recompute none"),
        ("--parallel ddp --ac=selective", "--parallel ddp --recompute selective"),
        ("--dp 8 --zero 0", "--dp 8 --sharding none"),
        ("--tensor-model-parallel-size 2", "--tp 2"),
    ],
)
def test_a_synonym_is_refused_with_the_command_that_works(typed: str, meant: str) -> None:
    done = ask(f"{JOB} {typed}")
    assert done.exit_code == 2
    better = f"trine {JOB} {meant}"
    assert f"try: {better}" in done.stderr
    assert ask(better.removeprefix("trine ") + " --brief").exit_code == 0


def test_what_the_workload_says_goes_to_the_workload() -> None:
    done = ask("train model:llama-3-8b --seq-len 4096 --batch-size 2 --parallel ddp --gpus 8")
    assert "try: trine train model:llama-3-8b,sequence=4096 --batch 2 --parallel ddp --gpus 8" in done.stderr
    done = ask("train vgg13-h100-b128 --seq-len 4096")
    assert done.exit_code == 2
    assert "try:" not in done.stderr


def test_a_command_without_the_option_gets_no_command_line() -> None:
    done = ask("collective all_reduce --size 1M --cluster dgx-h100 --fsdp")
    assert done.exit_code == 2
    assert "try:" not in done.stderr


def test_a_long_command_line_is_not_cut_but_named_by_its_option() -> None:
    slow = " ".join([f"--slow rank={rank}:1.{rank}1111111" for rank in range(8)] * 3)
    done = ask(f"{JOB} {slow} --fsdp")
    assert "try:" not in done.stderr
    assert "trine writes it as --sharding fsdp" in done.stderr


@pytest.mark.parametrize(
    ("line", "words", "absent"),
    [
        (f"{JOB} --fsdp 8", "trine writes it as --sharding fsdp", "try:"),
        (f"{JOB} --parallel ddp --precision int3", "unknown precision 'int3'", "try:"),
        (f"{JOB} --parallel ddp --precision amp", "unknown precision 'amp'", "try:"),
        (f"{JOB} --parallel ddp --fp8", "--precision takes a whole recipe: fp8, mxfp8", "did you mean"),
        (f"{JOB} --dp 8 --zero 7", "trine writes it as --sharding zeroVALUE", "try:"),
        (f"{JOB} --parallel ddp --plot x.png", "--timeline x.png", "--slow"),
        ("plan llama-3-8b --gpus 64 --tp 2", "try: trine plan llama-3-8b --gpus 64 --fix tp=2", "--top"),
        ("plan llama-3-8b --gpus 64 --tensor-parallel-size 2", "--fix tp=2", "--top"),
        ("serve model:llama-3-8b", "trine infer predicts latency and throughput", "No such command"),
        ("decode", "trine infer predicts latency and throughput", "did you mean"),
        (f"{JOB} --parallel ddp --request-rate 5", "does not model requests that arrive at a rate", "did you mean"),
        (
            "train model:llama-3-8b,dtype=fp8 --dp 8 --cluster dgx-h100",
            "weights stay in 16 bits; give precision=fp8",
            "did you mean",
        ),
        ("train model:deepseek-v9x --dp 8 --cluster dgx-h100", "did you mean 'deepseek-v3'?", "densenet"),
        ("train deepseek-v9x --dp 8 --cluster dgx-h100", "did you mean 'deepseek-v3'?", "densenet"),
        ("collective all_reduce --size 1M --cluster zzzz", "'trine cluster list' lists", "known:"),
        ("train model:llama-3-8b --gpu zzzz", "'trine support' lists", "known:"),
    ],
)
def test_help_is_near_and_works_or_is_absent(line: str, words: str, absent: str) -> None:
    done = ask(line)
    assert done.exit_code == 2
    assert words in done.stderr
    assert absent not in done.stderr
    assert len(done.stderr.rstrip("\n")) <= 400


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("value", ["", "8", "fp8", "full", "bf16"])
def test_every_command_line_that_is_shown_parses(name: str, value: str) -> None:
    done = ask(f"train model:gpt-2,layers=1 --gpus 8 --{name} {value}")
    shown = done.stderr.partition("try: ")[2].partition(" (trine")[0]
    assert not shown or parses(shlex.split(shown)[1:])


def test_what_is_not_modelled_is_no_part_of_trine() -> None:
    """A row must go with the change that models its subject."""
    rows = yaml.safe_load((Path(trine.__file__).parent / "presets" / "not_modelled.yaml").read_text())
    commands = {word for each in COMMANDS for word in each.words.split()}
    options = {name for each in COMMANDS for part in built(each.words).params for name in part.opts}
    for row in rows:
        assert not set(row["commands"]) & commands
        assert not {f"--{name}" for name in row["options"]} & options
        assert not set(row["values"]) & set(DTYPES)


@pytest.mark.parametrize("text", ["0.5", ".5", "5e-1", "+0.5", "5E-1"])
def test_numbers_are_read_as_python_reads_them(text: str) -> None:
    job = "train model:mixtral-8x7b,layers=2 --dp 8 --ep 8 --cluster dgx-h100 --brief --capacity-factor "
    assert ask(job + text).stdout == ask(job + "0.5").stdout
    refused = ask(job + "half")
    assert "error: --capacity-factor must be a number, got 'half'" in refused.stderr


def test_no_synonym_is_an_option_of_train() -> None:
    known = {name for each in built("train").params for name in (*each.opts, *each.secondary_opts)}
    assert not {f"--{name}" for name in OPTIONS} & known
    assert {option for option, _ in VALUES_ELSEWHERE} <= known
    words = [word for each in OPTIONS.values() for word in each.split() if word.startswith("--")]
    of_infer = {name for each in built("infer").params for name in each.opts}
    assert set(words) <= known | of_infer


@pytest.mark.parametrize(
    ("typed", "works"),
    [("--input-len 128", "--isl 128"), ("--max-tokens 9", "--osl 9"), ("--max-concurrency 4", "--concurrency 4")],
)
def test_words_of_engines_are_options_of_infer(typed: str, works: str) -> None:
    given = [each for each in ("--isl 100", "--osl 10", "--concurrency 2") if each.split()[0] != works.split()[0]]
    answer = ask(f"infer model:llama-3-8b --cluster dgx-h100 {' '.join(given)} {typed}")
    assert answer.exit_code == 2
    assert f"{' '.join(given)} {works} (trine infer --help)" in answer.stderr


def test_an_option_that_is_near_nothing_gets_no_list() -> None:
    assert ask(f"{JOB} --parallel ddp --xyzzy").stderr == "error: No such option: --xyzzy (trine train --help)\n"


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("--sharding fsdp", "--dp 8 --sharding fsdp"),
        ("--tp 2", "--tp 2 --dp 4"),
        ("--sharding none", "--dp 8"),
        ("--pp 2 --tp 2 --batch 4 --micro-batch 1", "--pp 2 --tp 2 --dp 2 --batch 4 --micro-batch 1"),
        ("--parallel fsdp", "--dp 8 --sharding fsdp"),
        ("--parallel fsdp --reshard", "--dp 8 --sharding fsdp --reshard"),
    ],
)
def test_replicas_fill_the_remaining_gpus(short: str, long: str) -> None:
    first, second = (ask(f"{JOB} {layout} --brief") for layout in (short, long))
    assert first.exit_code == 0, first.stderr
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("--tp 3", "8 GPUs do not divide into replicas of 3"),
        ("--tp 16", "--tp 16 = 16 GPUs contradicts --gpus 8"),
        ("--tp 2 --dp 2", "contradicts --gpus 8"),
        ("--parallel fsdp --sharding zero1", "--parallel fsdp contradicts --sharding zero1"),
        ("", "8 GPUs need a parallelism"),
    ],
)
def test_layouts_that_do_not_fill_the_gpus(layout: str, message: str) -> None:
    done = ask(f"{JOB} {layout}")
    assert done.exit_code == 2
    assert message in done.stderr


def test_experts_fill_the_gpus_with_replicas() -> None:
    job = "train model:mixtral-8x7b,layers=2 --gpus 8 --cluster dgx-h100 --brief"
    assert ask(f"{job} --ep 8").stdout == ask(f"{job} --dp 8 --ep 8").stdout
    assert ask(f"{job} --ep 8").exit_code == 0


def test_names_ignore_case() -> None:
    assert trine.load_cluster("DGX-H100") == trine.load_cluster("dgx-h100")
    first, second = (ask(f"{line} --parallel ddp --brief") for line in (JOB, JOB.replace("dgx-h100", "DGX-h100")))
    assert first.stdout == second.stdout
    upper = ask(JOB.replace("llama", "Llama") + " --parallel ddp --software PyTorch-Eager --brief")
    assert upper.exit_code == 0, upper.stderr
    assert as_known("a", ("A", "b")) == "A"
    assert as_known("a", ("A", "a")) == "a"
    assert as_known("c", ("A", "a")) == "c"


def test_names_registered_at_run_time_ignore_case_too() -> None:
    registry = Registry[int]("thing", "trine.no_such_group", {})
    registry.register("Mine", 1)
    assert registry.get("mine") == registry.get("MINE") == 1
    with pytest.raises(trine.InputError, match="unknown thing 'yours'; known: Mine"):
        registry.get("yours")


def test_suggestions_are_the_nearest_names() -> None:
    assert nearest("DGX_H100", ("a40-pcie", "dgx-h100")) == "; did you mean 'dgx-h100'?"
    names = [f"{letter}{letter}{letter}-{number}" for letter in "abcdefg" for number in range(10)]
    assert nearest("gxxgxx-", names, command="trine list") == "; 'trine list' lists all 70"
    assert nearest("--tp", ("--top", "--fix")) == "; known: --fix, --top"
    assert nearest("--plot", ("--slow",), is_listed=True) == ""
    assert nearest("--plo", ("--plot",)) == "; did you mean '--plot'?"
    assert nearest("zzz", names).startswith("; known: aaa-0, aaa-1, ")
    assert nearest("zzz", ("a", "b")) == "; known: a, b"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("collective all_reduce --size 1M --size 1G --cluster dgx-h100", "--size"),
        (f"{JOB} --gpus 4", "--gpus"),
        (f"{JOB} --cpu --no-cpu", "--cpu/--no-cpu"),
    ],
)
def test_an_option_with_one_value_is_given_once(line: str, option: str) -> None:
    answer = ask(line)
    assert answer.exit_code == 2
    assert answer.stderr.startswith(f"error: {option} is given twice")


def test_options_that_may_be_repeated_still_are() -> None:
    answer = ask("train vgg13-h100-b128 --dp 2 --cluster dgx-h100 --slow rank=0:1.1 --slow rank=1:1.2 --brief")
    assert answer.exit_code == 0


def test_hop_counts_workers() -> None:
    assert "try: trine hop vgg13-h100-b128 --workers 8" in ask("hop vgg13-h100-b128 --gpus 8").stderr


def test_python_gives_the_same_help() -> None:
    with pytest.raises(trine.InputError, match="did you mean 'sharding'"):
        trine.Plan(shard="fsdp")  # type: ignore[call-arg]
    with pytest.raises(trine.InputError, match="trine calls it 'sharding'"):
        trine.Plan(zero=3)  # type: ignore[call-arg]
    by_name = trine.run_eidolon("gemv-allreduce")
    assert by_name.end_ps == trine.run_eidolon(trine.EidolonOptions(kernel="gemv-allreduce")).end_ps
    with pytest.raises(trine.InputError, match="did you mean 'gemv-allreduce'"):
        trine.run_eidolon("gemv-allredu")
