"""The global batch of a search without one."""

import pytest

from trine.errors import InputError
from trine.search.usual_batch import published_batches, usual_batch


@pytest.mark.parametrize(
    ("model", "sequence", "gpus", "samples"),
    [
        ("deepseek-v3", 4096, 2048, 15360),  # arXiv 2412.19437, section 4.2
        ("bloom-176b", 2048, 384, 2064),  # 2,048, as a multiple of 48 nodes
        ("llama-2-70b", 4096, 256, 1024),  # arXiv 2307.09288: 4M tokens
        ("llama-3-405b", 8192, 16384, 2048),  # arXiv 2407.21783: 16M tokens
        ("model:deepseek-v3,layers=4", 4096, 2048, 15360),
        ("deepseek-v3.2", 4096, 256, 1024),  # another model
        ("a-model", 4096, 12, 1024),  # GPUs that do not fill nodes
        ("a-model", 2**24, 64, 8),  # at least a sample for each replica
    ],
)
def test_the_published_batch_is_rounded_to_replicas_of_a_node(model, sequence, gpus, samples):
    assert usual_batch(model, sequence, gpus, 8).samples == samples


def test_each_batch_has_its_source():
    batches = published_batches()
    assert all("arXiv" in each.source for each in (batches.usual, *batches.models.values()))
    assert usual_batch("deepseek-v3", 4096, 2048, 8).source == batches.models["deepseek-v3"].source


def test_samples_without_tokens_need_a_batch():
    with pytest.raises(InputError, match="global_batch N"):
        usual_batch("resnet50", None, 8, 8)
