"""Options of other tools, and the command line that says the same to trine."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

#: Names of one option in other tools, and trine's words; ``{}`` is the value. ``workload,`` extends ``model:NAME``.
OPTIONS = {
    name: words
    for names, words in {
        "fsdp": "--sharding fsdp", "zero zero-stage stage": "--sharding zero{}", "zero1": "--sharding zero1",
        "zero2": "--sharding zero2", "zero3": "--sharding zero3", "batch-size bs local-batch-size": "--batch {}",
        "micro-batch-size mbs": "--micro-batch {}", "global-batch-size gbs": "--global-batch {}",
        "activation-checkpointing gradient-checkpointing checkpoint-activations ac": "--recompute full",
        "cpu-offload offload-optimizer": "--offload optimizer", "num-gpus ngpus n-gpus world-size": "--gpus {}",
        "tensor-parallel tensor-parallel-size tensor-model-parallel-size tp-size": "--tp {}",
        "pipeline-parallel pipeline-parallel-size pipeline-model-parallel-size pp-size": "--pp {}",
        "data-parallel data-parallel-size dp-size": "--dp {}",
        "context-parallel context-parallel-size cp-size": "--cp {}",
        "expert-parallel expert-parallel-size expert-model-parallel-size ep-size": "--ep {}",
        "seq seq-len seq-length sequence sequence-length": "workload,sequence={}",
        "num-layers layers": "workload,layers={}", "dtype precision": "workload,dtype={}",
    }.items()
    for name in names.split()
}  # fmt: skip
#: Values of options in other tools, and trine's.
VALUES = {("--offload", "cpu"): "optimizer", ("--recompute", "true"): "full", ("--sharding", "zero"): "zero1"}
#: What may follow an option whose words here have no value.
_FLAGS = ("full", "true", "True", "1", "cpu")


def correct(words: Sequence[str], known: Collection[str]) -> str | None:
    """Return the command line in trine's words, quoted for a shell; None if there is nothing to correct.

    words: behind ``trine``. known: options of the command.
    """
    left, made, extras, is_changed = list(words), list[str](), list[str](), False
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        ours = OPTIONS.get(name.removeprefix("--")) if name.startswith("--") and name not in known else None
        has_next = bool(left) and not left[0].startswith("-")
        if ours is None:
            is_pair = not equals and has_next and (word, left[0]) in VALUES
            made += [word, VALUES[word, left.pop(0)]] if is_pair else [word]
            is_changed |= is_pair
            continue
        if not equals and has_next and ("{}" in ours or left[0] in _FLAGS):
            value = left.pop(0)
        if "{}" in ours and not value:
            return None
        is_changed = True
        if ours.startswith("workload"):
            extras.append(ours.format(value).removeprefix("workload"))
        else:
            made += ours.format(value).split()
    for extra in extras:
        place = next((i for i, word in enumerate(made) if word.startswith("model:")), None)
        if place is None:
            return None
        made[place] += extra
    return shlex.join(["trine", *made]) if is_changed else None
