"""Launch configurations: what is emitted is read back as the same layout, for every dialect."""

import pytest

import trine
from trine.errors import InputError
from trine.search.flags import _dispatch_fields, dialects, emit_flags, read_flags
from trine.search.ranked import Ranked
from trine.search.report import PlanSearch
from trine.search.space import Layout
from trine.search.worker import Outcome

LAYOUT = Layout(
    dp=4, tp=8, pp=4, cp=1, ep=1, etp=None, sharding="zero1", shard_ways=None, schedule="1f1b", virtual_stages=1,
    micro_batch=2, sequence_parallel=True, recompute="full", offload="none",
)  # fmt: skip
#: Layouts that each software can express.
EXAMPLES = {
    "megatron": [LAYOUT, LAYOUT._replace(schedule="interleaved", virtual_stages=2, recompute="selective"),
                 LAYOUT._replace(cp=2, ep=4, etp=1, sharding="none", recompute="none", offload="optimizer"),
                 LAYOUT._replace(pp=1, schedule=None, sharding="fsdp")],
    "torchtitan": [LAYOUT._replace(sharding="fsdp"), LAYOUT._replace(sharding="fsdp", shard_ways=2),
                   LAYOUT._replace(sharding="none", schedule="gpipe", recompute="none", sequence_parallel=False)],
    "deepspeed": [LAYOUT._replace(sequence_parallel=False, recompute="none", offload="optimizer")],
    "nanotron": [LAYOUT, LAYOUT._replace(schedule="gpipe", sharding="none", recompute="none")],
}  # fmt: skip


def answer(layout):
    return PlanSearch(
        model="llama-3-70b", gpus=128, gpu="h100-sxm", cluster="dgx-h100", software="megatron-core", global_batch=64,
        sequence=8192, layers=80, num_layouts=1, num_simulated=1, ranked=(Ranked(layout, Outcome(step_ps=1), 0),),
        rejected={},
    )  # fmt: skip


@pytest.mark.parametrize(("dialect", "layout"), [(d, each) for d in EXAMPLES for each in EXAMPLES[d]])
def test_an_emitted_layout_is_read_back(dialect, layout, tmp_path):
    path = tmp_path / "configuration"
    text = emit_flags(dialect, answer(layout))
    path.write_text("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    values = read_flags(str(path))
    assert values["global_batch"] == 64
    in_code = {"pp", "ep", "recompute", "schedule"} if dialect == "deepspeed" else set()
    implied = {"schedule", "dp"} if dialect in ("megatron", "deepspeed") else set()
    implied |= {"virtual_stages"} if dialect == "torchtitan" else set()
    for name, value in layout._asdict().items():
        default = {"cp": 1, "ep": 1, "virtual_stages": 1, "sharding": "none", "recompute": "none", "offload": "none"}
        if name not in in_code | implied and values.get(name, default.get(name)) not in (value, None):
            raise AssertionError(f"{name}: {values.get(name)} for {value}")


def test_a_dispatch_is_written_for_experts_by_dialects_with_a_name_for_it():
    spread = trine.Plan(dp=8, ep=8, batch=8, dispatch="deepep")
    assert _dispatch_fields("megatron", spread) == {"dispatch": "deepep"}
    assert _dispatch_fields("megatron", trine.Plan(dp=8, batch=8)) == {}
    assert _dispatch_fields("torchtitan", spread) == {}


def test_megatron_counts_virtual_stages():
    layout = LAYOUT._replace(schedule="interleaved", virtual_stages=2)
    assert "--num-virtual-stages-per-pipeline-rank 2" in emit_flags("megatron", answer(layout))


def test_every_dialect_has_examples_and_a_source():
    assert set(dialects()) == set(EXAMPLES)
    assert all(dialect.software for dialect in dialects().values())


def test_a_layout_without_a_name_is_refused():
    with pytest.raises(InputError, match="torchtitan has no name for sharding zero1"):
        emit_flags("torchtitan", answer(LAYOUT))
    with pytest.raises(InputError, match="nanotron has no name for offload optimizer"):
        emit_flags("nanotron", answer(LAYOUT._replace(offload="optimizer")))
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        emit_flags("megatro", answer(LAYOUT))


def test_a_launch_script_is_read(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py \\\n  --tensor-model-parallel-size=4 --pipeline-model-parallel-size 2 \\\n"
        "  --seq-length 8192 --sequence-parallel --micro-batch-size 1 # comment --context-parallel-size 2\n"
    )
    assert read_flags(str(path)) == {"tp": 4, "pp": 2, "sequence_parallel": True, "micro_batch": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [("nothing here", "holds no name of a layout"), ("--recompute-granularity some", "does not know the value 'some'"),
     ("--tensor-model-parallel-size eight", "does not know the value")],
)  # fmt: skip
def test_a_faulty_configuration_is_refused(text, message, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_flags(str(path))


def test_torchtitan_degree_of_all_remaining_ranks(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 8\n")
    assert read_flags(str(path)) == {"tp": 8, "sharding": "fsdp"}
