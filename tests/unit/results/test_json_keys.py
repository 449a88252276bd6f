"""Does docs/reference/json-keys.csv list exactly the keys of the JSON answers?"""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from json_keys import ROWS, documented, problems, row_of
from run_traces import dump, entry, two_ranks

from trine.cli.main import app

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
PLACES = {"data": ROOT / "tests" / "data", "inputs": GOLDEN / "inputs", "examples": ROOT / "examples" / "data"}
SMALL = "vgg13-h100-b128 --gpus 4 --parallel ddp --topology ring --bandwidth '65 GB/s' --latency '1 us'"
GPT = "model:gpt-2,layers=2,sequence=128"
HOP = "hop vgg13-h100-b128 --iterations 3 --bandwidth '1 GB/s' --latency '1 us'"
PLAN = "{data}/mscclpp/v2_HEAD_allreduce_allpairs_4gpu.json --size 1K"

_STEP = """{{"schema": "trine/result/1", "step_time_s": {step}, "compute_s": {compute}, "exposed_communication_s": 1,
"bubble_s": 0, "idle_s": 0, "plan": {{"dp": {step}}}}}"""
_COLLECTIVE = (
    """{{"schema": "trine/collective/1", "num_ranks": {ranks}, "rows": [{{"size_bytes": 8, "time_us": 2.5}}]}}"""
)

#: Answer -> command lines that have all of its keys between them.
LINES = {
    "result": [
        f"train {GPT} --tp 4 --batch 1 --cluster dgx-h100 --detail rank=1,layer=1 --explain-memory",
        f"train {GPT} --tp 4 --batch 1 --cluster dgx-h100 --zoom largest",
        f"train {GPT} --tp 4 --batch 1 --cluster dgx-h100 --zoom gemm",
        f"train {SMALL} --overlap range",
        f"train {GPT} --dp 2 --batch 1 --cluster dgx-h100 --offload optimizer",
        f"train {GPT} --batch 24 --micro-batch 1",
        f"train {GPT} --steps 8",
        "train model:llama-3-8b,layers=8 --tp 8 --pp 4 --batch 64 --micro-batch 1 --inputs none --cluster dgx-h100 "
        "--nodes 4",
        f"train {SMALL} --repeat 2 --jitter normal:5%",
        f"train {GPT} --dp 2 --cp 2 --tp 2 --cluster dgx-h100 --order dp-tp-cp-ep-pp --batch 2 --software none",
        f"train {GPT} --dp 4 --sharding fsdp --shard-ways 2 --prefetch 2 --shard-unit 10MiB --cluster dgx-h100",
        "train resnet50-h100-b128 --dp 4 --steps 2 --sync-every 2 --buffers none --cluster dgx-h100",
        f"train {SMALL} --no-dp-overlap",
        f"train {GPT} --pp 2 --stage-layers 0,2 --defer-head-gradient 0 --cluster dgx-h100 --documents 64",
        f"train {GPT} --pp 2 --first-stage-layers 1 --last-stage-layers 1 --cluster dgx-h100",
        f"train {GPT} --dp 2 --cluster dgx-h100 --tokens 1B --price 2 --sensitivity",
        "train vgg13-h100-b128 --dp 2 --cluster dgx-h100 --neighbour neighbour.yaml",
        "train model:gpt-2,layers=2,sequence=128 --dp 4 --replica-batches 3,3,1,1 --cluster mixed.yaml",
        f"train {GPT} --pp 2 --tp 2 --cluster dgx-h100 --batch 2 --micro-batch 1 --tp-overlap 2 --sequence-parallel",
        f"train {GPT} --tp 2 --cluster dgx-h100 --batch 2 --sequence-parallel --userbuffers",
        "train model:mixtral-8x7b,layers=2,sequence=128,batch=4 --dp 2 --tp 2 --ep 4 --etp 1 --expert-imbalance zipf:1 "
        "--capacity-factor 1 --micro-batch 1 --expert-overlap --cluster dgx-h100",
        "train model:deepseek-v3,layers=4,sequence=128 --dp 2 --ep 2 --shared-expert-overlap --cluster dgx-h100",
        "chakra run {inputs}/mixed --topology ring --bandwidth '65 GB/s' --latency '1 us'",
        "chakra run {inputs}/mixed --cluster astra3-generic --fidelity loadstore",
    ],
    "experiment": [
        "collective all_reduce --cluster dgx-h100 --processes 1 --vary size=1K,1M --vary nvls=true,false "
        "--vary library=nccl,no-such",
        f"train {GPT} --cluster dgx-h100 --dp 2 --processes 1 --vary batch=24,3000",
    ],
    "experiment-progress": ["sweep experiment.yaml --processes 1 --shard 0/2"],
    "plan": [
        "plan llama-3.2-1b,layers=3,sequence=512 --gpus 2 --cluster dgx-h100 --global-batch 2 --workers 1 --pareto "
        "--fix recompute=none --fix offload=none --fix cp=1 --from {data}/launch/megatron.sh",
    ],
    "infer": [
        "infer llama-3-8b --cluster dgx-h100 --isl 64 --osl 8 --concurrency 2 --spec 2:0.5 --price 2",
        "infer llama-3-8b --cluster dgx-h100 --isl 64 --osl 8 --batch 2 --phase prefill",
        "infer llama-3-8b --cluster dgx-h100 --isl 64 --osl 8 --batch 2 --stack stack.yaml",
        "infer llama-3-8b --cluster dgx-h100 --isl 64 --osl 8 --batch 2 --tp 8 --fidelity loadstore",
    ],
    "plan-serve": [
        "plan llama-3-70b --serve --cluster dgx-h100 --gpus 2 --isl 64 --osl 8 --tpot 50ms --engine sglang",
    ],
    "size-serve": [
        "size llama-3-8b --serve --requests-per-second 5 --cluster dgx-h100 --cluster l4-pcie --isl 64 --osl 8 "
        "--tpot 8ms --price 2",
    ],
    "ensemble": [f"{HOP} --repeat 2 --jitter normal:5%"],
    "collective": [
        "collective all_reduce --size 1K,1M --cluster dgx-h100 --explain",
        "collective all_reduce --size 1K --cluster dgx-h100 --network fair --explain",
    ],
    "loadstore-collective": [
        "collective all_reduce --size 1K --cluster astra3-generic --gpus 4 --fidelity loadstore",
        "collective all_reduce --size 1K,2K --cluster astra3-generic --gpus 4 --fidelity loadstore",
    ],
    "fidelity": ["collective all_gather --size 1K --cluster dgx-h100 --compare-fidelity"],
    "loadstore": [f"kernel run {PLAN} --cluster astra3-generic --gpus 4"],
    "kernel-show": [f"kernel show {PLAN}"],
    "eidolon": ["eidolon run gemv-allreduce --rows 128 --cols 128 --sync mwait"],
    "eidolon-sweep": [
        "eidolon sweep gemv-allreduce --rows 64 --cols 128 --wakeup 0:20us:10us",
        "eidolon sweep gemv-allreduce --rows 64 --cols 128 --issue-seed 1,2",
    ],
    "doctor": ["doctor"],
    "check": [
        "check {inputs}/slow.log --cluster dgx-h100",
        "check {inputs}/nccl.log --cluster dgx-h100",
        "check {examples}/gh200-8-tcp.log --cluster gh200-node",
    ],
    "calibrate-cluster": ["calibrate --cluster dgx-h100 {inputs}/nccl.log"],
    "check-trace": ["check traces"],
    "check-hang": ["check dumps"],
    "compare-trace": ["compare usual/rank1.json traces/rank1.json", "compare usual traces"],
    "check-runs": ["check {inputs}/slow.log {inputs}/nccl.log"],
    "validate-collectives": ["validate collectives"],
    "validate-loadstore": ["validate loadstore"],
    "validate-memory": ["validate memory"],
    "validate-training": ["validate training", "validate training --blind"],
    "validate-layouts": ["validate layouts", "validate layouts --blind"],
    "validate-scaling": ["validate scaling"],
    "validate-serving": ["validate serving"],
    "validate-operators": ["validate operators"],
    "hop": [HOP, f"{HOP} --compare --backup 1"],
    "run": ["run {inputs}/shared.json --cluster {inputs}/slow.yaml"],
    "chakra-inspect": ["chakra inspect {inputs}/mixed"],
    "gpu-list": ["gpu list"],
    "gpu-show": ["gpu show h100-sxm"],
    "cluster-list": ["cluster list"],
    "cluster-links": ["cluster links"],
    "cluster-topologies": ["cluster topologies"],
    "cluster-show": ["cluster show dgx-h100"],
    "cluster-import": ["cluster import {data}/infragraph/device_dgx1.yaml --links-from catalogue"],
    "software-list": ["software list"],
    "software-show": ["software show megatron-core"],
    "trace-models": ["trace models"],
    "trace-inspect": [
        "trace inspect vgg13-h100-b128 --against resnet50-h100-b128",
        "trace inspect {data}/serving/vllm-tp8-rank0.json.gz --cluster hgx-b200",
    ],
    "trace-synthesize": ["trace synthesize gpt-2 --output t.trine.json"],
    "trace-convert": ["trace convert vgg13-h100-b128 c.trine.json"],
    "calibrate": ["calibrate vgg13-h100-b128", "calibrate --step measured.yaml", "calibrate --serving rows.csv"],
    "study": ["study clos"],
    "compare": ["compare a.json b.json", "compare c.json d.json"],
    "size": [f"size {GPT} --tokens 1M --days 9 --budget 9$ --price 2 --cluster dgx-h100 --global-batch 4 --max-gpus 2"],
    "support": ["support h100-sxm", "support", "support deepseek-v3"],
}
#: Files that the lines read.
FILES = {
    "a.json": _STEP.format(step=2, compute=1),
    "b.json": _STEP.format(step=3, compute=2),
    "c.json": _COLLECTIVE.format(ranks=4),
    "d.json": _COLLECTIVE.format(ranks=8),
    "mixed.yaml": """
nodes:
- {preset: dgx-h100, gpus: 2}
- {preset: dgx-a100, gpus: 2}
fabric: {kind: fat-tree, link: ib-hdr}
""",
    "neighbour.yaml": "workload: vgg13-h100-b128\nplan: {dp: 2}\nflows: [{from: gpu0, to: gpu1, rate: 1 GB/s}]\n",
    "experiment.yaml": """
command: collective
settings: {op: all_reduce, cluster: dgx-h100}
vary: {size: [1K, 1M]}
""",
    "rows.csv": ("model,cluster,engine,isl,osl,concurrency,tpot_ms,ttft_ms\nllama-3-8b,dgx-h100,vllm,512,64,8,8,50\n"),
    "stack.yaml": (
        "{model: llama-3-8b, gpu: h100-sxm, engine: vllm, precision: bf16, points: 2, source: rows.csv, "
        "tpot: {factor: 1.2, low: 0.9, high: 1.1, points: 2}, ttft: {factor: 1.1, low: 0.7, high: 1.4, points: 1}}"
    ),
    "measured.yaml": """
software: pytorch-eager
cluster: dgx-h100
steps:
- {workload: "model:gpt-2,layers=2,sequence=128", plan: {dp: 2, batch: 2}, step_time: 5 ms}
- {workload: "model:gpt-2,layers=2,sequence=128", plan: {dp: 4, batch: 2}, step_time: 5.1 ms}
""",
}
for number in range(2):
    FILES[f"traces/rank{number}.json"] = json.dumps(two_ranks()[number])
    FILES[f"usual/rank{number}.json"] = json.dumps(two_ranks(late_us=0)[number])
    FILES[f"dumps/rank{number}.json"] = json.dumps(dump([entry(1, "started")], {"0": "[0, 1, 2]"}))
#: Keys that only larger jobs have, or answers about data that could not be read.
RARE = {
    "result": (
        "folding.step_if_none_s",  # tests/property/test_estimated.py
        "folding.step_if_all_s",
        "plan.recorded_collectives",  # a trace of several ranks
        # messages above 32 MiB: tests/unit/gpu/test_zoom.py
        *(f"zoom.extension.{name}" for name in ("words", "rates_differ_by", "parts", "parts.bytes", "parts.time_s")),
        # a long run: tests/closed_form/test_other_profiles.py
        "other_profiles", *(f"other_profiles.{name}" for name in ("software", "step_s", "change")),
        *(
            f"{detail}.kernel.options.{name}"
            for detail in ("detail", "zoom.detail")
            for name in (
                "rows", "cols", "inner", "dtype_bytes",  # fused kernels
                "monitor.capacity", "monitor.wakeup_s",  # sync=mwait
            )
        ),
    ),
    "validate-collectives": ("skipped.series", "skipped.why"),
    "validate-loadstore": (
        "small_all_reduces.*", *(f"small_all_reduces.*.{name}" for name in ("rows", "median", "p90", "bias")),
    ),
    "validate-memory": ("not_predicted.row", "not_predicted.why"),
    "validate-training": ("not_predicted.row", "not_predicted.why"),
    "trace-synthesize": (
        # of recorded steps
        "serving", *(f"serving.{name}" for name in (
            "engine", "phase", "tokens", "sequences", "layers", "tp", "heads", "kv_heads", "head_size", "hidden",
            "vocab", "experts", "models", "measured_us", "predicted_us",
        )),
        "differences", *(f"differences.{name}" for name in ("operator", "name", "what", "first", "second")),
    ),
}  # fmt: skip
#: Answers that take seconds.
SLOW = {"result", "study"}
#: Answers that another test compares (its name), or that has no command.
ELSEWHERE = {
    "envelope": "tests/envelope.py",
    "detail": "as part of result",
    "operator-zoom": "as part of result",
    "zoom": "as part of result",
    "sensitivity": "as part of result",
    "trace-capture": "the same class as trace inspect; needs torch",
    "measure": "tests/unit/measure/test_measure_command.py, with a replayed device",
}


@functools.cache
def answer(line: str) -> dict[str, object]:
    words = [word.format(**PLACES) for word in shlex.split(line)]
    done = CliRunner().invoke(app, [*words, "--json", "-"])
    assert done.exit_code == 0, (line, done.output)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in LINES]
)
def test_keys_are_documented_and_exist(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    contents = [dict(answer(line)) for line in LINES[name]]
    assert {content["schema"] for content in contents} == {f"trine/{name}/1"}
    for content in contents:
        for key in ("schema", "version", "command"):
            del content[key]
    assert problems(name, contents, rare=RARE.get(name, ())) == []


def test_every_answer_is_compared():
    assert set(LINES) | set(ELSEWHERE) == {row.answer for row in ROWS}


def golden_answers():
    """Return the recorded golden answers; their long parts are hashes."""
    for path in sorted((GOLDEN / "questions").glob("*.json")):
        for name, kept in json.loads(path.read_text()).items():
            for step in kept.get("steps", [kept]):
                if isinstance(step.get("json"), dict):
                    yield f"{path.stem}: {name}", step["json"]


def test_top_level_keys_of_golden_answers_are_documented():
    known = {name: documented(name) for name in {row.answer for row in ROWS}}
    unknown = []
    for where, content in golden_answers():
        fits = [name for name, keys in known.items() if all(row_of(keys, (key,)) for key in content)]
        if not fits:
            unknown.append(where)
    assert unknown == []


def test_keys_of_golden_plans_are_documented():
    keys = documented("result")
    plans = [content["plan"] for _, content in golden_answers() if isinstance(content.get("plan"), dict)]
    assert len(plans) > 100
    assert {key for plan in plans for key in plan if row_of(keys, ("plan", key)) is None} == set()


def test_pages_have_the_tables_of_the_csv():
    tool = ROOT / "tools" / "json_reference.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}python tools/json_reference.py writes the pages"
