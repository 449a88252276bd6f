"""Does every option of every command change the answer in its case? (``tests/data/options.yaml``)

This catches options that are parsed but have no effect. A new option without a case fails here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from chakra_files import ALL_REDUCE, ALL_TO_ALL, collective, node, receive, send, write
from click.testing import CliRunner
from command_tree import all_commands
from nccl_logs import log, table

from trine.cli.main import app

DATA = Path(__file__).parents[1] / "data"
RUNNER = CliRunner()
LOPSIDED = "\nkernel 'more' ranks 1 wavefronts 1\nworkgroups 1\n  compute 90000 cycles\n"
CASES_FILE = DATA / "options.yaml"
EXIT_INPUT = 2
#: Commands whose result is a file instead of JSON.
WRITES = {"eidolon record": "{tmp}/r.npz", "eidolon writes-from": "{tmp}/w.csv"}
#: JSON keys with computed values, by command; all keys for commands not listed.
ANSWERS = {
    "train": ("step_time_s", "step_ends_s", "compute_s", "exposed_communication_s", "communication_s", "bubble_s",
              "idle_s", "memory_peak_bytes", "collectives", "links", "memory", "energy"),
    "run": ("end_s", "makespan_s", "records", "tasks", "links"),
    "calibrate": ("kinds", "fits", "shapes", "operators", "laws"),
    "collective": ("rows", "links", "num_ranks"),
    "infer": ("ttft_s", "tpot_s", "end_to_end_s", "output_tokens_per_s", "kv_bytes", "largest_concurrency", "gpus"),
    "check": ("verdict", "healthy", "rows", "causes", "hypotheses"),
    "hop": ("end_s", "workers", "sent_bytes", "sent_updates", "shares", "staleness"),
    "chakra run": ("step_time_s", "links", "compute_s", "communication_s"),
    "cluster show": ("gpus", "nodes", "num_gpus", "links", "classes", "bisection_bytes_per_s", "devices"),
    "cluster import": ("gpus", "links", "devices", "num_gpus", "notes", "classes"),
    "eidolon run": ("time_s", "flag_reads", "non_flag_reads", "writes_delivered", "wait_s", "wait_total_s", "inside"),
    "eidolon sweep": ("runs", "fits"),
    "kernel run": ("time_s", "run", "ranks", "gpus", "links", "counts", "stalls"),
    "kernel show": ("operations", "workgroups", "wavefronts", "remote_store_bytes", "remote_load_bytes", "lines"),
}  # fmt: skip


class Case(NamedTuple):
    """Two command lines and the option's expected effect (``tests/data/options.yaml``)."""

    option: str
    before: str
    after: str
    expected: str = "answer"


CASES = {
    command: [Case(**row) for row in rows]
    for command, rows in yaml.load(CASES_FILE.read_bytes(), yaml.CSafeLoader).items()
}
#: ``trace capture`` and ``measure`` need torch; crosscheck/test_meta_capture.py and measure/test_measure_command.py
#: flip their options.
ELSEWHERE = {
    "trace capture", "measure",
    *("plan", "size", "compare", "support", "sweep", "plot"),  # tests/unit/search, decide and experiments
}  # fmt: skip


#: Options of every command that answers: tests/unit/experiments asks them.
OF_EVERY_COMMAND = {"--vary", "--samples", "--experiment", "--processes"}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every command and the long names of its options."""
    for words, command in all_commands():
        options = [max(p.opts, key=len) for p in command.params if p.param_type_name == "option" and p.expose_value]
        yield words, [name for name in options if name not in OF_EVERY_COMMAND or words == "sweep"]


COMMANDS = dict(commands())
ROWS = [(command, case) for command, cases in CASES.items() for case in cases]


def test_every_option_has_a_case():
    for command, options in COMMANDS.items():
        if command not in ELSEWHERE:
            missing = set(options) - {case.option for case in CASES.get(command, ())}
            assert not missing, f"trine {command}: no case in {CASES_FILE.name} for {sorted(missing)}"
    for command, cases in CASES.items():
        unknown = {case.option for case in cases} - set(COMMANDS[command])
        assert not unknown, f"trine {command} has no {sorted(unknown)}: take the case out"


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the files that the cases use; return their folder."""
    folder = tmp_path_factory.mktemp("options")
    models(folder)
    machines(folder)
    chakra_jobs(folder)
    logs_and_tables(folder)
    gpu_programs(folder)
    annotations(folder)
    replays(folder)
    racy_plan(folder)
    return folder


def models(folder: Path) -> None:
    make(folder, "trace synthesize llama-3-8b --layers 4 --sequence 512 --output {tmp}/llama.trine.json")
    make(folder, "trace synthesize mixtral-8x7b --layers 1 --sequence 256 --output {tmp}/moe.trine.json")
    make(folder, "trace convert vgg13-h100-b128 {tmp}/named.trine.json")
    text = json.loads((folder / "named.trine.json").read_text())
    text["gpu"] = None
    (folder / "measured.yaml").write_text(
        "software: megatron-2021\nsteps: [{workload: 'model:gpt-2,layers=2,gpu=h100-sxm', step_time: 20 ms}]\n"
    )
    (folder / "rows.csv").write_text(
        "model,cluster,engine,isl,osl,concurrency,tpot_ms\nllama-3-8b,dgx-h100,vllm,512,64,8,20\n"
    )
    (folder / "stack.yaml").write_text(
        "{model: llama-3-8b, gpu: h100-sxm, engine: vllm, precision: bf16, points: 1, "
        "tpot: {factor: 2.0, low: 0.9, high: 1.1, points: 1}}"
    )
    (folder / "unnamed.trine.json").write_text(json.dumps(text))
    make(folder, "calibrate resnet50-h100-b128 --output {tmp}/fits.json")


def machines(folder: Path) -> None:
    for name, rate in (("slow", "1 GB/s"), ("fast", "10 GB/s")):
        (folder / f"{name}.yaml").write_text(
            f"devices: [a, b, c]\nlinks:\n- {{from: a, to: b, bandwidth: {rate}, latency: 1 us, duplex: true}}\n"
            f"- {{from: b, to: c, bandwidth: {rate}, latency: 1 us, duplex: true}}\n"
        )
    (folder / "uneven.yaml").write_text(
        "devices: [a, b, c, d]\nlinks:\n"
        "- {from: a, to: b, bandwidth: 100 GB/s, latency: 1 us, duplex: true}\n"
        "- {from: b, to: c, bandwidth: 1 GB/s, latency: 1 us, duplex: true}\n"
        "- {from: c, to: d, bandwidth: 100 GB/s, latency: 1 us, duplex: true}\n"
    )
    (folder / "placement.txt").write_text("0\n2\n1\n3\n")
    (folder / "neighbour.yaml").write_text("workload: vgg13-h100-b128\nplan: {dp: 4}\n")
    (folder / "twin-spines.yaml").write_text(
        "devices:\n- {name: gpu, count: 8}\n- {name: leaf, count: 2, kind: switch}\n"
        "- {name: spine, count: 4, kind: switch}\nlinks:\n"
        "- {from: gpu0..3, to: leaf0, bandwidth: 10 GB/s, latency: 1 us, duplex: true}\n"
        "- {from: gpu4..7, to: leaf1, bandwidth: 10 GB/s, latency: 1 us, duplex: true}\n"
        "- {from: leaf0..1, to: spine0..3, bandwidth: 10 GB/s, latency: 1 us, duplex: true}\n"
    )
    (folder / "eight-slow.yaml").write_text("topology: {kind: full, gpus: 8, bandwidth: 1 GB/s, latency: 1 us}\n")
    (folder / "ring-of-hop.yaml").write_text("topology: {kind: full, gpus: 8, bandwidth: 1 GB/s, latency: 1 us}\n")
    (folder / "one-way.yaml").write_text(
        "devices: [a, b]\nlinks:\n- {from: a, to: b, bandwidth: 1 GB/s, latency: 1 us}\n"
        "- {from: b, to: a, bandwidth: 2 GB/s, latency: 1 us}\n"
    )
    (folder / "links.csv").write_text("source,target,bandwidth,latency\na,b,50 GB/s,1 us\nb,c,50 GB/s,1 us\n")
    (folder / "bare.csv").write_text("source,target,medium\na,b,wire\nb,c,wire\n")


def chakra_jobs(folder: Path) -> None:
    mixed = [[node(1, 4, num_ops=10**9, tensor_size=2**24), collective(2, ALL_REDUCE, 2**20, [1])] for _ in range(4)]
    write(folder, mixed, "mixed")
    write(folder, [[collective(1, ALL_TO_ALL, 2**20)] for _ in range(8)], "eight")
    grouped = [[collective(1, ALL_REDUCE, 2**20, pg_name=str(1 + rank // 2))] for rank in range(4)]
    write(folder, grouped, "grouped")
    (folder / "grouped.groups.json").unlink(missing_ok=True)
    (folder / "pairs.json").write_text('{"1": [0, 1], "2": [2, 3]}')
    (folder / "halves.json").write_text('{"1": [0, 1, 2, 3], "2": [0, 1, 2, 3]}')
    crossing = [
        [send(1, 2, 2**22), send(2, 1, 2**20)], [receive(1, 0, 2**20), send(2, 2, 2**22)],
        [receive(1, 0, 2**22), receive(2, 1, 2**22)], [node(1, 4)],
    ]  # fmt: skip
    write(folder, crossing, "crossing")
    tasks = [
        {"id": "c", "kind": "compute", "rank": "a", "duration": "5 us"},
        {"id": "t", "kind": "transfer", "src": "a", "dst": "c", "bytes": "4 MiB", "after": ["c"]},
        {"id": "u", "kind": "transfer", "src": "a", "dst": "b", "bytes": "1 MiB", "after": ["c"]},
    ]
    for name in ("graph", "shared"):
        (folder / f"{name}.json").write_text(json.dumps({"tasks": tasks}))


def logs_and_tables(folder: Path) -> None:
    sizes = [1024 * 4**i for i in range(9)]
    times = [20 + size / 200e3 for size in sizes]
    rows = [(size, time, 0.8 * time) for size, time in zip(sizes, times, strict=True)]
    (folder / "nccl.log").write_text(log(rows))
    (folder / "unsaid.log").write_text("\n".join(table(rows, "broadcast")) + "\n")
    (folder / "slow.log").write_text(log([(size, 20 * time, 16 * time) for size, time, _ in rows]))
    (folder / "alltoall.log").write_text(log(rows, "alltoall"))
    (folder / "both.log").write_text(log(rows) + log(rows, "all_gather"))
    (folder / "even.csv").write_text("0,1048576\n1048576,0\n")
    (folder / "skewed.csv").write_text("0,1048576\n8388608,0\n")
    make(folder, "collective all_reduce --size 1M --cluster dgx-h100 --json {tmp}/answer.json")


def racy_plan(folder: Path) -> None:
    plan = json.loads((DATA / "mscclpp" / "v2_HEAD_allreduce_allpairs_4gpu.json").read_text())
    del plan["gpus"][0]["threadblocks"][0]["ops"][3]  # a wait
    (folder / "racy.json").write_text(json.dumps(plan))


def annotations(folder: Path) -> None:
    nodes = [
        {"name": f"node[{i // 8}]xpu[{i % 8}]", "attributes": [{"attribute": "rank", "value": str(15 - i)}]}
        for i in range(16)
    ]
    (folder / "ranks.json").write_text(json.dumps({"nodes": nodes, "links": [], "edges": [], "graph": []}))


def gpu_programs(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/formats/gpu-program.md").read_text()
    text = re.search(r"^```\n(program.*?)^```$", page, re.S | re.M)[1]  # type: ignore[index]
    (folder / "exchange.gpu").write_text(text)
    (folder / "any.gpu").write_text(text.replace("ranks 4 ", "# "))
    (folder / "eight.gpu").write_text(text.replace("ranks 4 ", "ranks 8 "))
    (folder / "lopsided.gpu").write_text(
        text + "\nkernel 'more' ranks 1 wavefronts 1\nworkgroups 1\n  compute 90000 cycles\n"
    )


def replays(folder: Path) -> None:
    rows = [f"transfer,,{peer},0,{peer}000000,{peer + 1}000000,4096" for peer in (1, 2, 3)]
    rows += ["transfer,,0,1,7000000,8000000,4096"]
    (folder / "records.csv").write_text("\n".join(["kind,name,rank,peer,start_ps,end_ps,size_bytes", *rows]) + "\n")
    five = [*rows, "transfer,,4,0,4000000,5000000,4096"]
    (folder / "five.csv").write_text("\n".join(["kind,name,rank,peer,start_ps,end_ps,size_bytes", *five]) + "\n")
    make(folder, "eidolon record gemv-allreduce --rows 128 --cols 128 --output {tmp}/recorded.npz")
    make(folder, "eidolon writes-from {tmp}/recorded.npz --output {tmp}/writes.csv")
    text = (DATA / "profiles" / "rocm.yaml").read_text().replace("launch: 1", "launch: 0")
    (folder / "rocm-1.yaml").write_text(text)
    (folder / "rocm-2.yaml").write_text(text.replace("value: 1}", "value: 7}"))


def make(folder: Path, line: str) -> None:
    done = invoke(folder, line)
    assert done.exit_code == 0, done.output


def invoke(folder: Path, line: str) -> Any:
    return RUNNER.invoke(app, [word.format(tmp=folder, data=DATA) for word in shlex.split(line)])


def asked(folder: Path, command: str, line: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """Run a command line; return its JSON and text."""
    speaks = "--json" in COMMANDS[command] and "--json" not in shlex.split(line)
    done = invoke(folder, f"{line} --json -" if speaks else line)
    assert done.exit_code == code, f"trine {line}\n{done.output[-2000:]}{done.exception!r}"
    if not speaks or code:
        return {}, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def inner(answer: Any, path: str) -> Any:
    for key in path.split("."):
        answer = answer.get(key) if isinstance(answer, dict) else None
    return answer


def computed(folder: Path, command: str, answer: dict[str, Any]) -> Any:
    """Return the command's computed values, without its inputs and run times."""
    if command in WRITES:
        path = Path(WRITES[command].format(tmp=folder))
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return {name: arrays[name].tolist() for name in arrays.files if name not in ("made_by", "of", "header")}
        return path.read_text()
    keys = ANSWERS.get(command, tuple(answer))
    found = {key: answer[key] for key in keys if key in answer}
    assert found, f"trine {command}: none of {keys} among {sorted(answer)}"
    return json.loads(re.sub(r'"(wall_s|events_per_s)": [0-9.e+-]+', '"timed": 0', json.dumps(found)))


@pytest.mark.slow
@pytest.mark.parametrize(("command", "case"), [pytest.param(c, k, id=f"{c} {k.option}") for c, k in ROWS])
def test_the_option_changes_the_answer(command: str, case: Case, tmp: Path):
    kind, _, what = case.expected.partition(":")
    if kind == "plain":
        plain = [invoke(tmp, line) for line in (case.before, case.after)]
        assert [done.exit_code for done in plain] == [0, 0]
        assert plain[0].stdout != plain[1].stdout
        return
    for name in what.split() if kind in ("file", "differ") else ():
        assert not (tmp / name).exists() or kind == "differ"
    first, first_text = asked(tmp, command, case.before, EXIT_INPUT if kind == "answers" else 0)
    before = computed(tmp, command, first) if kind in ("answer", "same") else None
    second, second_text = asked(tmp, command, case.after, int(what) if kind == "exit" else 0)
    if kind in ("answer", "same"):
        after = computed(tmp, command, second)
        assert (before == after) == (kind == "same"), f"{case.option}: {str(before)[:400]}"
    elif kind == "key":
        assert inner(first, what) != inner(second, what)
    elif kind == "text":
        assert what in second_text
        assert not what or what not in first_text
        assert what or first_text != second_text
    elif kind == "file":
        assert (tmp / what).exists()
    elif kind == "differ":
        one, two = ((tmp / name).read_bytes() for name in what.split())
        assert one != two
    else:
        assert kind in ("exit", "answers")
