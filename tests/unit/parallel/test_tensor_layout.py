"""Tensor-parallel layouts: the valid ones, their style and vocabulary, and their report in the answer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import small_transformers as transformers
from forms_of_parallelism import build, collectives, model, payloads

import trine
from trine.cluster import build_topology
from trine.compute import make_compute
from trine.errors import PlanError
from trine.graph.program import Compute, Job
from trine.graph.workload import Workload
from trine.parallel.build import BuildReport, build_job
from trine.parallel.heads import attention_of
from trine.parallel.plan import Plan

DATA = Path(__file__).parents[2] / "data" / "torch213-cpu"
FEW_HEADS = """
family: transformer
layers: 2
hidden: 192
heads: 12
kv_heads: 4
ffn: 480
vocab: 1000
sequence: 64
"""


def recorded() -> Workload:
    """Return a transformer of 4 heads, a vocabulary of 100 and 2 layers, recorded by PyTorch on a CPU."""
    return trine.load(DATA / "tf_et.json.gz")


def build_recorded(workload: Workload, plan: Plan) -> tuple[Job, BuildReport]:
    """Build a job with times from the shapes, since a CPU's times are not a GPU's."""
    return build_job(workload, plan.filled(), make_compute("roofline", workload, target=trine.load_gpu("h100-sxm")))


@pytest.fixture
def few_heads(tmp_path: Path) -> Workload:
    (tmp_path / "few.yaml").write_text(FEW_HEADS)
    return trine.synthesize(tmp_path / "few.yaml", gpu="h100-sxm", batch=2)


# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["auto", "megatron", "column"])
@pytest.mark.parametrize(
    ("name", "tp", "says", "near"),
    [
        ("llama-3-8b", 3, "does not divide the 32 attention heads (8 of keys and values)", "2 or 4"),
        ("gpt-2", 8, "does not divide the 12 attention heads", "6 or 12"),
        ("gpt-2-xl", 2, "does not divide the 25 attention heads", "1 or 5"),
        ("llama-3-8b", 64, "does not divide the 32 attention heads (8 of keys and values)", "32"),
        ("llama-3.2-3b", 12, "is neither a multiple nor a divisor of the KV heads of the 24 attention heads (8 of keys "
         "and values)", "8 or 24"),
    ],
)  # fmt: skip
def test_ways_that_no_framework_runs_are_refused(name: str, tp: int, says: str, near: str, style: str) -> None:
    with pytest.raises(PlanError) as error:
        build(model(name), Plan(tp=tp, tp_style=style))
    assert str(error.value) == f"tp = {tp} {says} of layers.0.attention.core: the nearest valid number is {near}"


def test_features_that_do_not_divide_are_refused(few_heads: Workload) -> None:
    """The heads would allow it, but Megatron-core must also divide a projection's features evenly."""
    with pytest.raises(PlanError) as error:
        build(few_heads, Plan(tp=12))
    assert str(error.value) == (
        "tp = 12 does not divide the 320 features of layers.0.attention.qkv: the nearest valid number is 4"
    )
    with pytest.raises(PlanError, match=r"4608 features of layers.0.attention.qkv: the nearest valid number is 4$"):
        build(model("qwen2.5-7b"), Plan(tp=28))
    build(few_heads, Plan(tp=12, tp_style="column"))  # outputs are gathered, parts are rounded up with a note


def test_the_command_line_refuses_in_one_line() -> None:
    arguments = ["train", "model:llama-3-8b,layers=1", "--tp", "3", "--cluster", "dgx-h100"]
    done = subprocess.run([sys.executable, "-m", "trine", *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: tp = 3 does not divide the 32 attention heads")
    assert done.stderr.strip().count("\n") == 0


def test_heads_of_recorded_attention_come_from_the_shapes_of_its_operator() -> None:
    """aten::scaled_dot_product_attention reads (batch, heads, tokens, size)."""
    (heads,) = attention_of(recorded()).heads
    assert (heads.queries, heads.keys, heads.size) == (4, 4, 16)
    with pytest.raises(
        PlanError, match=r"tp = 3 does not divide the 4 attention heads of scaled_dot_product_attention"
    ):
        build_recorded(recorded(), Plan(tp=3))


def test_heads_of_attention_in_parts_come_from_the_scores() -> None:
    workload = transformers.Transformer(1).workload()
    (heads,) = attention_of(workload).heads
    assert (heads.queries, heads.keys, heads.size) == (transformers.A, transformers.A, transformers.H // transformers.A)
    with pytest.raises(PlanError, match=r"tp = 3 does not divide the 4 attention heads of layers.0.softmax"):
        build(workload, Plan(tp=3))


def test_copied_keys_and_values_are_seen_through_their_projections() -> None:
    """A trace that repeats keys for each query head, like Hugging Face's eager attention."""
    workload = transformers.Transformer(1).workload()
    tensors, seen = dict(workload.tensors), {}
    for op in workload.operators:
        features = {"layers.0.q": 32, "layers.0.k": 8, "layers.0.v": 8}.get(op.layer)
        if features is not None and op.phase == "forward":
            whole = tensors[op.outputs[0]]
            seen[whole.id] = replace(whole, id=9000 + whole.id)  # (batch, heads, tokens, size), as attention reads it
            tensors[whole.id] = replace(whole, shape=(2, 16, features), size_bytes=2 * 16 * features * 2)
            tensors[9000 + whole.id] = seen[whole.id]
    operators = tuple(
        replace(op, inputs=tuple(9000 + t if t in seen else t for t in op.inputs))
        if op.layer in ("layers.0.scores", "layers.0.context") else op
        for op in workload.operators
    )  # fmt: skip
    copied = replace(workload, tensors=tensors, operators=operators)
    (heads,) = attention_of(copied).heads
    assert (heads.queries, heads.keys) == (4, 1)
    with pytest.raises(PlanError, match=r"above the 1 heads of keys and values of layers.0.softmax, which is modelled"):
        build(copied, Plan(tp=2))
    build(copied, Plan(tp=2, tp_style="column"))  # every rank has all heads


def test_attention_without_visible_heads_is_said_and_not_silently_allowed() -> None:
    workload = recorded()
    tensors = {
        number: replace(tensor, shape=(tensor.shape[0], tensor.size_bytes // tensor.shape[0] // 4))
        if len(tensor.shape) == 4 else tensor
        for number, tensor in workload.tensors.items()
    }  # fmt: skip
    _, report = build_recorded(replace(workload, tensors=tensors), Plan(tp=2, tp_style="column"))
    assert any("does not tell how many heads the attention of scaled_dot" in text for text in report.warnings)
    assert not any("heads" in text for text in build_recorded(workload, Plan(tp=2))[1].warnings)


# -- the style ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "fields", "style", "rule"),
    [
        (model, {}, "megatron", "default for models with attention"),
        (recorded, {}, "megatron", "default for models with attention"),
        (lambda: trine.load("resnet50-h100-b128"), {}, "column", "default for models without attention"),
        (model, {"tp_style": "column"}, "column", "asked for"),
        (model, {"tp_style": "megatron"}, "megatron", "asked for"),
        (model, {"sequence_parallel": True}, "megatron", "sequence parallelism is a part of it"),
    ],
)
def test_the_answer_says_which_style_ran_and_why(workload, fields, style, rule) -> None:  # type: ignore[no-untyped-def]
    cluster = build_topology("switch", "100 GB/s", "1 us", 2)
    times = {"compute": "roofline", "gpu": "h100-sxm"} if workload is recorded else {}
    result = trine.simulate(workload(), Plan(tp=2, **fields), cluster=cluster, **times)
    assert result.plan["tp_style"] == style
    assert next(e.detail for e in result.evidence if e.what == "tensor parallelism") == f"{style} style: {rule}"
    same = trine.simulate(workload(), Plan(tp=2, **(fields | {"tp_style": style})), cluster=cluster, **times)
    assert same.step_time_ps == result.step_time_ps


def test_the_gathers_of_heads_are_named_with_their_bytes() -> None:
    _, report = build(model(), Plan(tp=16))
    size = 512 * (32 + 2 * 8) * 128 * 2 // 2**20
    assert any(
        f"{size} MiB of QKV a projection and sample are all-gathered forward" in text for text in report.tp_notes
    )
    assert not any("gathered" in text for text in build(model(), Plan(tp=8))[1].tp_notes)


# -- the vocabulary ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 4])
def test_the_vocabulary_is_padded_to_a_multiple_of_128_for_each_rank(tp: int) -> None:
    """GPT-2's 50 257 rows: only weights, gradients and bytes of the table and its logits grow."""
    workload = model("gpt-2", sequence=64)
    padded = -(-50257 // (128 * tp)) * 128 * tp
    job, report = build(workload, Plan(tp=tp))
    assert any(f"50,257 is padded to {padded:,}, a multiple of 128 x tp" in text for text in report.tp_notes)
    weights = job.programs[0].resident_bytes[0]
    others = sum(p.size_bytes for p in workload.parameters) - 50257 * 768 * 2
    small, _ = build(model("gpt-2", sequence=64, layers=1), Plan(tp=tp))
    layer = weights - small.programs[0].resident_bytes[0]
    tables = weights - 2 * layer - 1024 * 768 * 2 - 2 * 768 * 2  # positions and the last norm are whole
    assert tables == padded // tp * 768 * 2
    assert weights < (others + padded * 768 * 2)


def test_padding_takes_time_and_none_where_it_adds_no_rows() -> None:
    """llama-2's 32 000 rows are a multiple of 128 x 2, not of 128 x 16; the head's GEMM grows with the rows."""
    assert not any("padded" in text for text in build(model("llama-2-7b"), Plan(tp=2))[1].tp_notes)
    even = trine.synthesize("llama-2-7b", layers=2, sequence=4096, batch=1, times="roofline")
    found = {}
    for tp in (2, 16):
        job, _ = build(even, Plan(tp=tp))
        found[tp] = _head_ps(job) - 3 * 10**6  # a fixed time of 3 us
    rows = {2: 32000, 16: 32768}
    assert 16 * found[16] / (2 * found[2]) == pytest.approx(rows[16] / rows[2], rel=0.02)


def _head_ps(job) -> int:  # type: ignore[no-untyped-def]
    (head,) = [i for i, name in enumerate(job.layer_names) if name == "head"]
    steps = job.programs[0].steps
    return next(s.duration_ps for s in steps if isinstance(s, Compute) and s.label.layer == head)


def test_without_tensor_parallelism_a_trace_keeps_its_rows() -> None:
    workload = recorded()
    whole = sum(p.size_bytes for p in workload.parameters)
    assert build_recorded(workload, Plan())[0].programs[0].resident_bytes[0] == whole
    _, report = build_recorded(workload, Plan(tp=2, tp_style="column"))
    assert not any("padded" in text for text in report.tp_notes)


def test_a_table_of_positions_is_whole_on_every_rank() -> None:
    """Megatron-LM divides only the vocabulary's table: one all-reduce for two embeddings."""
    made = transformers.Transformer(1)
    workload = made.workload()
    first = workload.operators[0]
    assert first.name == "aten::embedding"
    table = replace(workload.tensors[first.inputs[0]], id=9001, storage=9001, shape=(16, 32), size_bytes=16 * 32 * 2)
    out = replace(workload.tensors[first.outputs[0]], id=9002, storage=9002)
    positions = replace(first, id=9000, inputs=(9001, first.inputs[1]), outputs=(9002,), layer="positions")
    both = replace(
        workload, tensors={**workload.tensors, 9001: table, 9002: out}, operators=(positions, *workload.operators)
    )
    count = len(collectives(build(workload, Plan(tp=2))[0].programs[0], "all_reduce"))
    assert len(collectives(build(both, Plan(tp=2))[0].programs[0], "all_reduce")) == count


# -- context parallelism -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cp": 3}, "a sequence of 512 tokens does not divide into 3"),
        ({"cp": 16}, "cp = 16 does not divide the 8 heads of layers.0.attention.core: the nearest valid cp is 8"),
        ({"cp": 4, "tp": 4}, "cp x tp = 16 does not divide the 8 heads .*: the nearest valid cp is 2"),
    ],
)
def test_ulysses_needs_a_head_of_keys_for_each_rank(fields: dict[str, object], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        build(model(), Plan(cp_style="ulysses", **fields))  # type: ignore[arg-type]


def test_ulysses_beside_column_style_divides_heads_by_the_context_ranks_alone() -> None:
    """In column style every tensor-parallel rank holds all of attention, which then takes as long as with tp = 1."""
    jobs = [build(model(), Plan(cp=2, tp=tp, tp_style="column", cp_style="ulysses"))[0] for tp in (2, 4)]
    alone = build(model(), Plan(cp=2, cp_style="ulysses"))[0]
    times = {_core_ps(job) for job in (*jobs, alone)}
    assert len(times) == 1
    assert payloads(jobs[0].programs[0])["all_to_all", "cp"] == payloads(alone.programs[0])["all_to_all", "cp"]


def _core_ps(job) -> int:  # type: ignore[no-untyped-def]
    (core,) = [i for i, name in enumerate(job.layer_names) if name == "layers.0.attention.core"]
    return sum(s.duration_ps for s in job.programs[0].steps if isinstance(s, Compute) and s.label.layer == core)
