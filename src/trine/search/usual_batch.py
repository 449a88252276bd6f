"""The global batch of a search without ``global_batch``: as the model was published, and divisible into replicas."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from trine.common.inputs import PRESETS
from trine.common.schema import Spec
from trine.common.spec import read_spec
from trine.errors import InputError


class _BatchSpec(Spec):
    """Tokens of a step, and the publication that states them."""

    tokens: int
    source: str


class BatchesFile(Spec):
    """Contents of presets/training_batches.yaml."""

    usual: _BatchSpec
    models: dict[str, _BatchSpec]


class UsualBatch(NamedTuple):
    """A global batch in samples. source: the publication of the batch that it is next to."""

    samples: int
    source: str


@cache
def published_batches() -> BatchesFile:
    """Return the published batches of presets/training_batches.yaml."""
    return read_spec(PRESETS / "training_batches.yaml", BatchesFile)


def usual_batch(model: str, sequence: int | None, gpus: int, node_gpus: int) -> UsualBatch:
    """Return the published batch of a model, or the usual one, as the nearest multiple that ``gpus`` GPUs can divide.

    sequence: tokens of a sample. The batch divides into replicas of ``node_gpus`` GPUs, or of all GPUs if these do not
    fill nodes. Raises InputError for samples without tokens.
    """
    if sequence is None:
        raise InputError("a search needs the batch: global_batch N", field="global_batch")
    batches = published_batches()
    name = model.removeprefix("model:").partition(",")[0]
    known = [each for each in batches.models if name == each or name.startswith(f"{each}-")]
    batch = batches.models[max(known, key=len)] if known else batches.usual
    replicas = gpus // node_gpus if gpus % node_gpus == 0 else 1
    return UsualBatch(max(1, round(batch.tokens / sequence / replicas)) * replicas, batch.source)
