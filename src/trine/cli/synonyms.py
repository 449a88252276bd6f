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
#: An option of other commands, in a command without it.
ELSEWHERE = {"gpus": "--workers {}"}
#: Values of options in other tools, and trine's.
VALUES = {("--offload", "cpu"): "optimizer", ("--recompute", "true"): "full", ("--sharding", "zero"): "zero1"}
#: Values of ``--recompute`` and ``--zero`` in other tools.
_RECOMPUTE, _STAGES = ("none", "selective", "full"), {"--sharding zero0": "--sharding none"}


def correct(words: Sequence[str], known: Collection[str]) -> str | None:
    """Return the command line in trine's words, quoted for a shell; None if trine has no such option.

    words: without ``trine``. known: options of the command.
    """
    left, made, extras, is_changed = list(words), list[str](), list[str](), False
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        ours = (
            (OPTIONS | ELSEWHERE).get(name.removeprefix("--")) if name.startswith("--") and name not in known else None
        )
        if not equals and left and not left[0].startswith("-"):
            value = left[0]
        if ours is None:
            better = VALUES.get((name, value)) if name.startswith("--") else None
            is_changed |= better is not None
            made += [word] if better is None else [name, better]
            del left[: better is not None and not equals]
            continue
        is_changed = True
        if "{}" not in ours:  # a flag here; its value there, if it has one, is a level of recomputation or "true"
            is_level = value in _RECOMPUTE and ours.startswith("--recompute")
            ours = f"--recompute {value}" if is_level else ours
            del left[: not equals and (is_level or value.lower() in ("true", "1", "cpu"))]
        elif not value:
            return None
        else:
            del left[: not equals]
            ours = ours.format(value)
        ours = _STAGES.get(ours, ours)
        if ours.startswith("workload"):
            extras.append(ours.removeprefix("workload"))
        elif ours.split()[0] not in known:
            return None
        else:
            made += ours.split()
    for extra in extras:
        place = next((i for i, word in enumerate(made) if word.startswith("model:")), None)
        if place is None:
            return None
        made[place] += extra
    return shlex.join(["trine", *made]) if is_changed else None
