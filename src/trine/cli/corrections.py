"""Options of other tools, and the command line that says the same to trine."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from trine.cli.options import VALUES_ELSEWHERE

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
        "input input-len input-length random-input-len prompt-length": "--isl {}",
        "output output-len output-length random-output-len max-tokens": "--osl {}",
        "max-concurrency": "--concurrency {}",
        "context-parallel context-parallel-size cp-size": "--cp {}",
        "expert-parallel expert-parallel-size expert-model-parallel-size ep-size": "--ep {}",
        "seq seq-len seq-length sequence sequence-length": "workload,sequence={}",
        "num-layers layers": "workload,layers={}", "dtype": "workload,dtype={}",
    }.items()
    for name in names.split()
}  # fmt: skip

_FIXED = ("tp", "pp", "dp", "cp", "ep", "sharding", "recompute", "micro-batch")

#: An option of other commands, in a command without it: the first of its forms whose option the command has.
ELSEWHERE = {
    "gpus": ("--workers {}",), "plot": ("--timeline {}",), "timeline": ("--plot {}",),
    **{name: (f"--fix {name}={{}}",) for name in _FIXED},
}  # fmt: skip

#: Values of ``--recompute`` and ``--zero`` in other tools.
_RECOMPUTE, _STAGES = ("none", "selective", "full"), {"--sharding zero0": "--sharding none"}


def correct(words: Sequence[str], valid: Collection[str]) -> str | None:
    """Return the command line in trine's words, quoted for a shell; None if trine has no such option.

    words: without ``trine``. valid: options of the command.
    """
    remaining, corrected, extras, is_changed = list(words), list[str](), list[str](), False
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        is_foreign = name.startswith("--") and name not in valid
        ours = own_form(name.removeprefix("--"), valid) if is_foreign else None
        if not equals and remaining and not remaining[0].startswith("-"):
            value = remaining[0]
        if ours is None:
            better = VALUES_ELSEWHERE.get((name, value)) if name.startswith("--") else None
            is_changed |= better is not None
            corrected += [word] if better is None else [name, better]
            del remaining[: better is not None and not equals]
            continue
        is_changed = True
        if "{}" not in ours:  # a flag here; its value there, if it has one, is a level of recomputation or "true"
            is_level = value in _RECOMPUTE and ours.startswith("--recompute")
            ours = f"--recompute {value}" if is_level else ours
            del remaining[: not equals and (is_level or value.lower() in ("true", "1", "cpu"))]
        elif not value:
            return None
        else:
            del remaining[: not equals]
            ours = ours.format(value)
        ours = _STAGES.get(ours, ours)
        if ours.startswith("workload"):
            extras.append(ours.removeprefix("workload"))
        elif ours.split()[0] not in valid:
            return None
        else:
            corrected += ours.split()
    return _with_extras(corrected, extras) if is_changed else None


def own_form(name: str, valid: Collection[str]) -> str | None:
    """Return trine's words for an option of other tools or commands, None without any."""
    form = OPTIONS.get(name)
    if form is None or (not form.startswith("workload") and form.split()[0] not in valid):
        own = form.split()[0].removeprefix("--") if form is not None else name
        form = next((each for each in ELSEWHERE.get(own, ()) if each.split()[0] in valid), form)
    return form


def _with_extras(corrected: list[str], extras: Sequence[str]) -> str | None:
    """Return the command line with parts of ``model:NAME`` in place; None without such a workload."""
    for extra in extras:
        place = next((i for i, word in enumerate(corrected) if word.startswith("model:")), None)
        if place is None:
            return None
        corrected[place] += extra
    return shlex.join(["trine", *corrected])
