"""Attention of packed documents: FLOPs and times are sums over documents, and one document changes nothing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import trine
from trine.cluster import load_gpu
from trine.compute import Split, kind_of, work
from trine.compute.kinds import family_of
from trine.compute.tables.operators import AttentionShape, OperatorTables
from trine.compute.tables.times import TableTimes
from trine.errors import InputError
from trine.graph.workload import Operator, Workload
from trine.workload.synthesis.documents import MAX_LENGTHS, Documents, parse_documents
from trine.workload.synthesis.model import from_text, synthesize

S = 2048
#: Sequence length is a multiple of each.
LENGTHS = (256, 512, 1024)


def model(documents: str | None = None, **options: object) -> Workload:
    return synthesize("llama-3-8b", layers=1, sequence=S, documents=documents, **options)


def attention(workload: Workload) -> list[Operator]:
    """Return the forward and the backward operator of attention."""
    return [op for op in workload.operators if family_of(kind_of(op)) == "attention"]


def listed(path: Path, lengths: list[int]) -> str:
    path.write_text("# lengths\n" + "".join(f"{length}\n" for length in lengths))
    return str(path)


@pytest.mark.parametrize("length", LENGTHS)
def test_equal_documents_cost_as_much_as_so_many_short_samples(length):
    """One sample of S / l documents is S / l samples of l tokens: the same FLOPs, and the same time to the ps."""
    packed = model(str(length))
    short = synthesize("llama-3-8b", layers=1, sequence=length, batch=S // length)
    gpu = load_gpu("h100-sxm")
    times, wanted = TableTimes(packed, gpu), TableTimes(short, gpu)
    for one, other in zip(attention(packed), attention(short), strict=True):
        assert work(one, packed) == work(other, short)
        assert times.duration(one, Split(1)) == wanted.duration(other, Split(S // length))


def test_a_mix_is_the_sum_over_its_documents(tmp_path):
    """Each document takes its share of a kernel with documents of its length only, and its own pairs of tokens."""
    lengths = [1024, 512, 256, 256]
    packed, gpu = model(listed(tmp_path / "lengths", lengths)), load_gpu("h100-sxm")
    times = TableTimes(packed, gpu)
    alone = {length: (model(str(length)), TableTimes(model(str(length)), gpu)) for length in set(lengths)}
    for number, op in enumerate(attention(packed)):
        parts = [
            alone[length][1].duration(attention(alone[length][0])[number], Split(1)).ps * Fraction(length, S)
            for length in lengths
        ]
        assert times.duration(op, Split(1)).ps == pytest.approx(float(sum(parts)), abs=len(lengths) + 1)
        pairs = sum(length**2 for length in lengths)
        whole = work(attention(model())[number], model()).flops
        assert work(op, packed).flops == whole * pairs // S**2


def test_documents_of_several_samples_take_the_time_of_one_by_one(tmp_path):
    """The table's time of each document alone, with a batch that fills the GPU, within 3 %, and one gap of 1.9 us."""
    lengths = [2048, 1024, 1024, 1024, 512, 512]
    packed = model(listed(tmp_path / "lengths", lengths), batch=8)
    tables, gpu = OperatorTables(load_gpu("h100-sxm")), load_gpu("h100-sxm")
    forward = attention(packed)[0]
    shape = {"heads": 32, "kv_heads": 8, "size": 128}
    kernel, gap_us = str(forward.attributes["attention_kernel"]), 1.9  # the gap between two kernels of a stream
    total = 0.0
    for length in lengths:  # 24 documents of a length at once, a third of them for each of three samples
        time = tables.attention_in_step(AttentionShape(batch=24, length=length, **shape), backward=False, kernel=kernel)
        total += time.us / 24
    per_sample = total / (sum(lengths) / S)
    found = (TableTimes(packed, gpu).duration(forward, Split(8)).ps / 1e6 - gap_us) / 8  # one launch for 8 samples
    assert found == pytest.approx(per_sample, rel=0.03)


@pytest.mark.parametrize(
    "plan",
    [
        {"dp": 2}, {"dp": 2, "recompute": "full"}, {"tp": 2}, {"cp": 2}, {"cp": 2, "cp_style": "ulysses"},
        {"cp": 2, "cp_style": "all-gather"}, {"tp": 2, "pp": 2, "micro_batch": 1, "batch": 4},
    ],
    ids=str,
)  # fmt: skip
def test_one_document_of_full_length_changes_nothing(plan):
    results = [
        trine.simulate(f"llama-3-8b,layers=2,sequence={S}{text}", trine.Plan(**plan), cluster="dgx-h100", compare=False)
        for text in ("", f",documents={S}")
    ]
    results.append(
        trine.simulate(
            f"llama-3-8b,layers=2,sequence={S}", trine.Plan(**plan), cluster="dgx-h100", compare=False, documents=str(S)
        )
    )
    documents = [result.document() for result in results]
    for document in documents:
        document["plan"].pop("source", None)
        document.pop("simulator")
    assert documents[0] == documents[1] == documents[2]


def attention_ps(result: trine.Result) -> list[int]:
    return [row.compute_ps for row in result.operators if "dot_product" in row.name]


@pytest.mark.parametrize(
    "plan",
    [{"tp": 2}, {"cp": 2}, {"cp": 4}, {"cp": 2, "cp_style": "ulysses"}, {"cp": 2, "cp_style": "all-gather"},
     {"cp": 2, "tp": 2, "sequence_parallel": True, "recompute": "selective"}],
    ids=str,
)  # fmt: skip
def test_ranks_divide_each_document(plan):
    """Each rank has its part of the heads or tokens of every document, as of as many short samples."""
    plan = {**plan, "overlap": "ideal"}  # the same transfers slow other attention down elsewhere
    packed = trine.simulate(
        "llama-3-8b,layers=2,sequence=8192,documents=2048",
        trine.Plan(batch=1, **plan),
        cluster="dgx-h100",
        compare=False,
    )
    short = trine.simulate(
        "llama-3-8b,layers=2,sequence=2048", trine.Plan(batch=4, **plan), cluster="dgx-h100", compare=False
    )
    assert attention_ps(packed) == attention_ps(short) != []


def test_shorter_documents_never_take_longer():
    steps = []
    for length in (8192, 4096, 2048, 1024, 512, 256):
        result = trine.simulate("llama-3-8b,layers=2,sequence=8192", gpu="h100-sxm", documents=str(length))
        steps.append(result.step_time_ps)
    assert steps == sorted(steps, reverse=True)


def test_model_flops_count_pairs_within_documents():
    """6 FLOPs per parameter and token, and 12 hidden layers x mean length for attention (full, not causal)."""
    name = "llama-3-8b,layers=2,sequence=4096"
    whole, packed = (
        trine.simulate(name, gpu="h100-sxm", documents=documents).work.model_flops for documents in (None, "512")
    )
    attention_flops = 12 * 2 * 4096 * 4096 * 4096  # 3 x 4 x layers x hidden x sequence x tokens
    assert whole - packed == pytest.approx(attention_flops * (1 - 512 / 4096), rel=1e-6)


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_samples_are_filled_in_order_and_their_last_document_is_cut(tmp_path):
    assert parse_documents("1000").tokens_by_length(4096) == {96: 96, 1000: 4000}
    path = listed(tmp_path / "lengths", [3000, 1000, 500])
    # 3000 + 1000 + 96 of 500; 3000 again? No: the list has had its turn when the first sample is full.
    assert parse_documents(path).tokens_by_length(4096) == {96: 96, 1000: 1000, 3000: 3000}
    path = listed(tmp_path / "more", [3000, 2000, 500])
    # 3000 + 1096 of 2000; then 500 + 3000 + 596 of 2000.
    assert parse_documents(path).tokens_by_length(4096) == {500: 500, 596: 596, 1096: 1096, 3000: 6000}


@pytest.mark.parametrize("bounds", [(1, 7), (3, 3), (5, 20), (100, 2000)])
def test_a_distribution_has_the_expected_documents(bounds):
    """Compared with a million tokens drawn at random; the tokens of a sample add up."""
    sequence = 4000 if bounds[1] > 100 else 40
    documents = Documents("u", bounds=bounds)
    tokens = documents.tokens_by_length(sequence)
    total = sum(tokens.values())
    assert total == pytest.approx(sequence * 10**6, rel=1e-4)
    draw, pairs, samples = np.random.default_rng(1), 0, 4000
    for _ in range(samples):
        place = 0
        while place < sequence:
            piece = min(int(draw.integers(bounds[0], bounds[1] + 1)), sequence - place)
            pairs += piece**2
            place += piece
    mean = sum(length * number for length, number in tokens.items()) / total
    assert mean == pytest.approx(pairs / samples / sequence, rel=0.02)


def test_many_lengths_are_joined_and_keep_tokens_and_pairs():
    rng = np.random.default_rng(3)
    lengths = tuple(int(n) for n in rng.integers(1, 4097, 5000))
    documents = Documents("many", lengths)
    from trine.workload.synthesis import documents as module

    exact = module._filled(lengths, 4096)
    joined = documents.tokens_by_length(4096)
    assert len(exact) > MAX_LENGTHS > 0
    assert len(joined) <= 12 * 8 + 1
    assert sum(joined.values()) == sum(exact.values())
    pairs = [sum(length * number for length, number in each.items()) for each in (exact, joined)]
    assert pairs[1] == pytest.approx(pairs[0], rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "from 1 to the sequence.*got '0'"), ("-7", "from 1 to the sequence.*got '-7'"),
        ("9000", "9000 tokens does not fit a sequence of 2048: lengths are 1 to 2048"),
        ("uniform:1:2049", "2049 tokens does not fit a sequence of 2048"),
        ("uniform:5", "A at most B; got 'uniform:5'"),
        ("uniform:9:2", "A at most B"), ("uniform:0:9", "from 1 to the sequence"), ("none.txt", "got 'none.txt'"),
    ],
)  # fmt: skip
def test_bad_lengths_are_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        model(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("3\n\n5\n", "line 2: .*1 to the sequence, got an empty line"), ("3\n-5\n", "line 2: .*got '-5'"),
        ("x\n", "line 1: .*got 'x'"), ("", "holds no lengths"),
        ("4\n4096\n", "4096 tokens does not fit a sequence of 2048"),
        ("1.5\n", "line 1: .*got '1.5'"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line(tmp_path, lines, message):
    path = tmp_path / "lengths"
    path.write_text(lines)
    with pytest.raises(InputError, match=message) as caught:
        model(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet50,documents=5", "no use for documents"), ("t5-3b,documents=5", "no use for documents"),
        ("llama-3-8b,layers=1,software=megatron-2021,documents=5", "computes the scores of whole samples"),
        ("llama-3-8b,layers=1,times=roofline,documents=x", "got 'x'"),
    ],
)  # fmt: skip
def test_models_without_fused_attention_over_one_sequence_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        from_text(f"model:{name}")


def test_a_trace_and_documents_named_twice_are_refused():
    with pytest.raises(InputError, match="a trace has the attention of its own documents"):
        trine.simulate("vgg13-h100-b128", documents="5")
    with pytest.raises(InputError, match="give them once"):
        trine.simulate("llama-3-8b,layers=1,documents=5", gpu="h100-sxm", documents="5")


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "lengths"
    found = []
    for length in (512, 256):
        path.write_text(f"{length}\n")
        found.append(attention(from_text(f"model:llama-3-8b,layers=1,sequence={S},documents={path}"))[0].attributes)
    assert found[0] != found[1]


def test_a_written_trace_keeps_its_documents(tmp_path):
    workload = model("512")
    path = tmp_path / "packed.trine.json"
    trine.save(workload, path)
    (one, *_), (other, *_) = attention(workload), attention(trine.load(path))
    assert replace(one, attributes={}) == replace(other, attributes={})
    assert dict(one.attributes) == dict(other.attributes)
