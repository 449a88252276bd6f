"""Engine profiles: every version reads, later ones override earlier ones, unknown names and versions are refused."""

import pytest

from trine.cluster import load_gpu
from trine.errors import InputError
from trine.inference.deployment import resolve, step_timer
from trine.inference.engines import known_engines, load_engine
from trine.inference.step_time import StepLayout


@pytest.mark.parametrize("name", known_engines())
def test_every_number_has_a_source(name):
    profile = load_engine(name)
    numbers = {
        "max_batched_tokens", "max_sequences", "memory_fraction", "reserve_bytes", "kv_precision", "block_tokens",
        "graph_sizes", "host", "host_us", "sequence_us", "exposed_us", "launch_us", "front_end_us",
        "tokenise_us", "tokenises", "batching",
        "all_reduce", "custom_all_reduce_bytes",
    }  # fmt: skip
    assert numbers - profile.sources.keys() == set()


def test_a_version_takes_the_newest_entry_that_is_not_newer():
    assert load_engine("vllm", "0.12.0").host == "exposed"
    assert load_engine("vllm", "0.13.9").host == "exposed"
    assert load_engine("vllm", "0.14").host == "overlapped"
    assert load_engine("vllm", "0.18.1rc2").host == "overlapped"
    assert load_engine("trtllm", "0.6.1").exposed_sequence_us == 0
    assert load_engine("trtllm", "1.0.0rc3").exposed_sequence_us == 9


def test_without_a_version_it_is_the_newest():
    assert load_engine("vllm").version == "0.24"
    assert load_engine("sglang").version == "0.5"


@pytest.mark.parametrize("version", ["0.1", "9.9", "0.25.0", "dev"])
def test_unknown_versions_name_the_known_ones(version):
    with pytest.raises(InputError, match=r"engine: unknown version '.*' of vllm: known are 0.2 to 0.24"):
        load_engine("vllm", version)


def test_an_unknown_engine_names_the_nearest():
    with pytest.raises(InputError, match="unknown engine 'sglan'; did you mean 'sglang'"):
        load_engine("sglan")


@pytest.mark.parametrize(
    ("engine", "gpu", "tokens"),
    [
        ("vllm", "h100-sxm", 8192), ("vllm", "a100-80gb", 2048), ("vllm", "l40s", 2048), ("sglang", "t4", 2048),
        ("sglang", "l40s", 4096), ("sglang", "h200", 8192), ("sglang", "b200", 16384), ("trtllm", "l4", 8192),
    ],
)  # fmt: skip
def test_defaults_depend_on_the_memory(engine, gpu, tokens):
    profile = load_engine(engine)
    assert profile.default_for(load_gpu(gpu), profile.max_batched_tokens) == tokens


#: Sizes of CUDA graphs, spelt out from the sources that the profiles name.
GRAPHS = {
    ("vllm", "0.9.2"): [1, 2, 4, *range(8, 513, 8)],
    ("vllm", "0.19.1"): [1, 2, 4, *range(8, 249, 8), *range(256, 513, 16)],
    ("sglang", "0.5.10"): [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), 512],
    ("trtllm", "1.0.0"): [1, 2, 4, *range(8, 129, 8), 256, 512, 1024, 2048],
    ("trtllm", "1.3.0"): [1, 2, 4, *range(8, 129, 8), *range(192, 2049, 64)],
}


@pytest.mark.parametrize(("name", "version"), GRAPHS)
def test_decodes_are_padded_to_the_next_graph(name, version):
    sizes = GRAPHS[name, version]
    profile = load_engine(name, version)
    assert profile.graph_batch == sizes[-1]
    for decodes in range(1, sizes[-1] + 1):
        assert profile.padded(decodes) == min(size for size in sizes if size >= decodes)
    assert profile.padded(sizes[-1] + 1) == sizes[-1] + 1


def test_an_engine_without_padding_keeps_the_batch():
    assert [load_engine("trtllm", "0.6.1").padded(decodes) for decodes in (3, 9, 100)] == [3, 9, 100]


def test_grouped_queries_read_their_keys_once_since_xqa():
    """Before 0.8 attention of 8 queries a group takes as long as with as many keys as queries."""
    context, sequences = 2048, 64

    def attention_us(model: str, version: str) -> float:
        timer = step_timer(resolve(StepLayout(tp=4, engine=f"trtllm:{version}").job(model, "dgx-h100")))
        (mixer,) = timer.mixers
        return timer.decode_us(mixer, sequences, context)

    assert attention_us("llama-2-70b", "0.6.1") > 4 * attention_us("llama-2-70b", "0.8")
    assert attention_us("llama-2-7b", "0.6.1") == attention_us("llama-2-7b", "0.8")
    assert not load_engine("trtllm", "0.7.1").shares_keys
    assert all(load_engine(name).shares_keys for name in known_engines())
