"""Does synthesis write the requested workload, refuse invalid requests, and do the passes accept the result?"""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from cpu_time import computes_for_less_than

import trine
from trine.cli.main import app
from trine.compute import Shares, kind_of, make_compute
from trine.compute.kinds import family_of
from trine.compute.resize import Split
from trine.errors import InputError, SpecError, TraceError
from trine.graph.workload import BACKWARD, FORWARD
from trine.parallel.splits import split_operators
from trine.parallel.stages import cut_into_stages
from trine.parallel.tensor_layout import local_parameter_bytes
from trine.workload import known_models
from trine.workload.architecture.model import Architecture
from trine.workload.consistency import check_workload
from trine.workload.synthesis.model_files import load_model


def small(name="llama-3-8b", **options):
    return trine.synthesize(name, **{"layers": 2, "sequence": 256} | options)


@pytest.mark.parametrize("name", known_models())
def test_every_model_that_comes_with_trine_is_a_well_formed_workload(name, tmp_path):
    spec = load_model(name)
    assert spec.sources
    if isinstance(spec, Architecture) and not spec.head:
        with pytest.raises(InputError, match="has no head for tokens"):  # an encoder: counted, without a training step
            trine.synthesize(name)
        return
    workload = trine.synthesize(name)
    check_workload(workload, tmp_path)
    assert all(family_of(kind_of(op)) != "other" for op in workload.operators)
    assert all(op.gpu_time_ps > 0 for op in workload.operators)
    made = [p.gradient_operator for p in workload.parameters]
    assert None not in made
    assert workload.is_training
    assert workload.assumptions


def test_a_model_of_126_layers_is_written_fast():
    one, two = (len(trine.synthesize("llama-3-405b", layers=layers).operators) for layers in (1, 2))
    with computes_for_less_than(1.5):
        all_layers = trine.synthesize("llama-3-405b", layers=126)
    assert len(all_layers.operators) == one + 125 * (two - one)


def test_it_survives_its_own_file(tmp_path):
    workload = small("mixtral-8x7b", shares={"matmul": 0.5})
    trine.save(workload, tmp_path / "a.trine.json.gz")
    again = trine.load(tmp_path / "a.trine.json.gz")
    assert again == replace(workload, tensors=again.tensors, operators=again.operators)
    assert again.operators == workload.operators
    assert Shares.from_metadata(again.metadata).matmul == 0.5
    op = again.operators[2]
    assert make_compute("auto", again).duration(op, Split(1)).ps == op.gpu_time_ps


def test_a_model_can_stand_where_a_trace_is_expected():
    assert trine.load("model:llama-3-8b,layers=2,sequence=256,gpu=h100-sxm") == small()
    other = trine.load("model:llama-3-8b,layers=2,sequence=256,gpu=a100-80gb,dtype=fp16,batch=3")
    assert other == small(gpu="a100-80gb", dtype="fp16", batch=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:lama-3-8b", "did you mean 'llama-3-8b'"),
        ("model:llama-3-8b,layer=2", "did you mean 'layers'"),
        ("model:llama-3-8b,layers=two", "layers: must be a whole number"),
        ("model:llama-3-8b,layers=0", "layers: must be a whole number from 1"),
        ("model:llama-3-8b,layers=2,layers=3", "each once"),
        ("model:llama-3-8b,layers", "option=value"),
        ("model:llama-3-8b,layers=33", "has 32 layers"),
        ("model:llama-3-8b,image=224", "has no use for image"),
        ("model:llama-3-8b,dtype=bf61", "did you mean 'bf16'"),
        ("model:llama-3-8b,gpu=h100-smx", "did you mean 'h100-sxm'"),
        ("model:llama-3-8b,gpu=v100", "no peak for bfloat16"),
        ("model:llama-3-8b,times=fit", "did you mean 'fitted'"),
        ("model:llama-3-8b,times=fitted", "no operators of transformers"),
        ("model:gpt-2,sequence=2048", "learned positions for 1024 tokens"),
        ("model:vgg19,sequence=12", "has no use for sequence"),
        ("model:vgg19,dtype=bf16", "fp32, tf32 or amp"),
        ("model:gpt-2,dtype=tf32", "bf16, fp16 or fp32"),
        ("model:vgg19,dtype=tf23", "did you mean 'tf32'"),
        ("model:vgg19,dtype=amp,times=fitted", "other precisions"),
        ("model:t5-smal", "did you mean 't5-small'"),
        ("model:t5-small,targets=3", "did you mean 'target'"),
        ("model:t5-small,layers=7", "has 6 layers"),
        ("model:gpt-2,target=3", "has no use for target"),
        ("model:bert-base,sequence=1024", "learned positions for 512 tokens"),
        ("model:", "unknown model ''"),
        ("model:../vgg19", "unknown model"),
    ],
)
def test_what_it_cannot_write_is_refused_with_the_nearest_name(text, message):
    with pytest.raises(InputError, match=message):
        trine.load(text)


def test_a_bare_model_name_is_the_model():
    assert trine.load("vgg19").operators == trine.load("model:vgg19").operators
    with pytest.raises(TraceError, match="did you mean 'vgg19'"):
        trine.load("vgg-19")
    with pytest.raises(TraceError, match="model:vgg19,batch=4"):
        trine.load("model:vgg19", batch=4)


@pytest.mark.parametrize(
    ("shares", "message"),
    [({"matmul": 1.5}, "matmul"), ({"memory": 0}, "memory"), ({"matmull": 0.5}, "did you mean 'matmul'"),
     ({"fixed_us": -1}, "fixed_us"), ({"conv": "much"}, "must be a number")],
)  # fmt: skip
def test_shares_that_cannot_be_are_refused(shares, message):
    with pytest.raises(InputError, match=message):
        small(shares=shares)


def test_options_that_cannot_matter_are_refused():
    calibration = trine.calibrate([trine.load("vgg13-h100-b128")])
    with pytest.raises(InputError, match="tables times use no calibration"):
        small(calibration=calibration)
    with pytest.raises(InputError, match="fitted times use no shares"):
        trine.synthesize("vgg11", shares={"conv": 0.3})
    with pytest.raises(InputError, match="uses no calibration"):
        make_compute("auto", small(), calibration=calibration)


MODEL = "family: transformer\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 100\nsequence: 32\n"

BERT = "family: bert\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 100\nsequence: 32\nmax_positions: 32\n"
T5 = "family: t5\nlayers: 2\nhidden: 64\nheads: 4\nffn: 256\nvocab: 100\nsequence: 32\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL + "fnn: 256\n", "did you mean 'ffn'"),
        (MODEL, "either ffn or experts.ffn"),
        (MODEL + "ffn: 256\nkv_heads: 3\n", "kv_heads: must divide the 4 heads"),
        (MODEL + "ffn: 256\nparameters: 7\n", "parameters: says 7, but the shapes make"),
        (MODEL + "ffn: 256\nqk_norm: true\nmax_positions: 8\n", "needs rotary positions"),
        (MODEL + "experts: {count: 2, top_k: 3, ffn: 8}\n", "top_k must be at most count"),
        (MODEL.replace("64", "66") + "ffn: 256\n", "4 heads do not divide hidden 66"),
        (MODEL.replace("transformer", "transfromer"), "did you mean 'transformer'"),
        (MODEL.replace("layers: 2", "layers: 20000"), "layers"),
        ("- 1\n", "family"),
        ("family: vgg\nstages: [[64], [128]]\nparameters: 5\n", "says 5, but the shapes make"),
        ("family: brt\n", "did you mean 'bert'"),
        (BERT + "ffm: 3\n", "did you mean 'ffn'"),
        (BERT.replace("64", "66") + "ffn: 256\n", "4 heads do not divide hidden 66"),
        (BERT.replace("sequence: 32", "sequence: 64") + "ffn: 256\n", "sequence 64 is above max_positions 32"),
        (BERT + "ffn: 256\nparameters: 7\n", "parameters: says 7, but the shapes make"),
        (T5.replace("layers", "layer"), "did you mean 'layers'"),
        (T5 + "activation: geglo\n", "activation"),
        (T5 + "parameters: 8\n", "parameters: says 8, but the shapes make"),
        ("family: resnet\nblocks: [2, 2, 2, 2]\nbottleneck: false\ngroups: 32\n", "need blocks with a bottleneck"),
        ("family: resnet\nblocks: [2, 2, 2, 2]\nbottleneck: true\nsqueeze: 512\n", "leaves no channel"),
    ],
)
def test_faults_of_a_model_file_name_file_and_field(text, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        trine.synthesize(str(path))
    assert "mine" in str(caught.value)


def test_a_model_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MODEL + "ffn: 256\nbiases: qkv\n")
    workload = trine.load(f"model:{path}")
    assert workload.name == "mine"
    assert workload.metadata["parameters"] == str(2 * (64 * 192 + 192 + 64 * 64 + 3 * 64 * 256 + 128) + 200 * 64 + 64)


def test_megatron_splits_every_product_and_sums_up_four_times_a_layer():
    workload = small()
    splits, _ = split_operators(workload, "megatron")
    modes = {op.layer: splits[op.id] for op in workload.operators if op.id in splits and op.phase == FORWARD}
    block = "layers.1"
    columns = (f"{block}.attention.qkv", f"{block}.mlp.gate_up", "head")
    rows = (f"{block}.attention.out", f"{block}.mlp.down")
    assert all(modes[name].mode == "column" and not modes[name].forward and modes[name].backward for name in columns)
    assert all(modes[name].mode == "row" and modes[name].forward == "all_reduce" for name in rows)
    assert modes["embedding"].mode == "embedding"
    for name in ("attention.rotary", "attention.core", "mlp.act"):
        assert modes[f"{block}.{name}"].mode == "shared"
    assert modes["loss"].mode == "shared"  # divided along the vocabulary: the logits are not gathered
    local = local_parameter_bytes(workload, splits, 4)
    norms = [p for p in workload.parameters if len(workload.tensors[p.weight].shape) == 1]
    total, whole = sum(p.size_bytes for p in workload.parameters), sum(p.size_bytes for p in norms)
    assert sum(local.values()) == whole + (total - whole) // 4


def test_a_cut_between_layers_sends_the_stream_alone():
    workload = small(batch=2)
    stages = cut_into_stages(workload, 2, ("layers.1.attention.norm",), {})
    (crossing,) = stages.crossings
    assert workload.tensors[crossing.tensor].shape == (2, 256, 4096)
    assert crossing.has_gradient
    assert not crossing.guessed
    last = next(op for op in workload.operators if op.id == crossing.gradient_after)
    assert last.layer == "layers.1.attention.norm"


def test_gradients_of_input_and_weight_are_operators_of_their_own():
    workload = small("gpt-2")
    products = [op for op in workload.operators if op.phase == BACKWARD and kind_of(op) == "linear backward"]
    by_layer = {}
    for op in products:
        by_layer.setdefault(op.layer, []).append(op.attributes["gradient_of"])
    assert set(map(tuple, by_layer.values())) == {("input", "weight")}
    assert {p.gradient_operator for p in workload.parameters} & {op.id for op in products}
    assert all(op.forward_id is not None for op in products)


def test_nothing_about_a_synthesised_workload_is_called_measured():
    result = trine.simulate(trine.synthesize("vgg11", batch=4), trine.Plan(batch=8, micro_batch=4))
    times = [row for row in result.evidence if row.what == "operator time"]
    assert [row.kind for row in times] == ["assumed"]
    assert times[0].detail == "from the shapes of vgg11 alone"


def test_times_for_another_gpu_are_those_that_synthesis_for_it_gives():
    there, here = small(gpu="a100-80gb"), small(gpu="h100-sxm")
    moved = trine.simulate(here, gpu="a100-80gb")
    assert moved.step_time_ps == trine.simulate(there).step_time_ps
    named = trine.simulate("model:llama-3-8b,layers=2,sequence=256", gpu="a100-80gb")
    assert named.step_time_ps == moved.step_time_ps


def test_a_model_is_written_for_the_gpu_of_the_cluster():
    plan = trine.Plan(dp=2)
    result = trine.simulate("model:llama-3-8b,layers=1,sequence=256", plan, cluster="dgx-a100")
    assert result.plan["trace_gpu"] == "a100-80gb"


def test_experts_can_be_told_apart():
    workload = small("qwen3-30b-a3b")
    experts = {op.layer for op in workload.operators if op.attributes.get("expert") is True}
    assert experts == {f"layers.{n}.moe.experts.{part}" for n in range(2) for part in ("up", "act", "down")}
    moves = {op.attributes["moe"] for op in workload.operators if "moe" in op.attributes}
    assert moves == {"dispatch", "combine"}


def test_batch_sizes_other_than_the_written_one_scale():
    one, four = small(batch=1), small(batch=4)
    model = make_compute("auto", one)
    for mine, theirs in zip(one.operators, four.operators, strict=True):
        if mine.phase != "optimizer":
            assert model.duration(mine, Split(4)).ps == theirs.gpu_time_ps, mine.layer


def test_predicted_times_are_no_calibration():
    with pytest.raises(InputError, match="holds predicted times"):
        trine.calibrate([small()])


def cli(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_command_line_writes_and_lists_models(tmp_path):
    target = tmp_path / "a.trine.json"
    done = cli("trace", "synthesize", "gpt-2", "--layers", "2", "--gpu", "v100", "--dtype", "fp16",
               "--share", "matmul=0.5", "-o", str(target))  # fmt: skip
    assert done.exit_code == 0, done.output
    assert trine.load(target) == replace(
        trine.synthesize("gpt-2", layers=2, gpu="v100", dtype="fp16", shares={"matmul": 0.5}),
        tensors=trine.load(target).tensors,
    )
    listed = cli("trace", "models", "--json", "-")
    assert [row["name"] for row in json.loads(listed.stdout)["models"]] == list(known_models())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--share", "matmul"), "NAME=SHARE"),
        (("--share", "matmul=1", "--share", "matmul=1"), "given twice"),
        (("--share", "mat=1"), "did you mean 'matmul'"),
        (("--times", "fitted"), "give a calibration"),
    ],
)
def test_the_command_line_refuses_what_cannot_be(arguments, message, tmp_path, capfd):
    done = cli("trace", "synthesize", "gpt-2", "-o", str(tmp_path / "a.trine.json"), *arguments)
    assert done.exit_code == 2
    assert message in done.output + capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_nobody_named_is_an_assumption() -> None:
    def assumed(**options: str) -> list[str]:
        plan = trine.Plan(inputs="none")
        step = trine.simulate("model:llama-3.2-1b,layers=1,sequence=128", plan, compare=False, **options)  # type: ignore[arg-type]
        return [row.detail for row in step.evidence if "set another with --gpu" in row.detail]

    assert assumed() == assumed(software="megatron-core") != []
    assert "assumed GPU h100-sxm" in assumed()[0]
    assert assumed(gpu="h100-sxm") == assumed(cluster="dgx-a100") == []


def test_a_step_without_its_vision_tower_says_how_large_it_is():
    """Kimi K2.5's tower, by hand: 27 layers of 1,152 features (tests/closed_form/test_model_counts.py has K3's)."""
    tower = load_model("kimi-k2.5").towers["vision"]
    parameters = sum(weight.size for weight in tower.weights())
    assert parameters == 471_143_920
    workload = trine.synthesize("kimi-k2.5", layers=1, sequence=64, gpu="h100-sxm")
    assert any("without its vision tower (0.47B parameters)" in words for words in workload.assumptions)
