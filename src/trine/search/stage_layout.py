"""The blocks of pipeline chunks in Megatron-core's notation, ``--pipeline-model-parallel-layout``.

``E`` is the embedding, ``t`` a block, ``L`` the loss, ``|`` the border of two chunks, ``x*N`` a repeated symbol and
``(...)*N`` a repeated part. Source: megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trine.errors import InputError
from trine.parallel.layer_counts import ACCOUNTED
from trine.parallel.plan import MAX_LAYERS, Plan

#: Fields of a plan that place the cuts of a pipeline or the head's weight gradient.
PLACEMENT = ("balance", "stage_layers", "first_stage_layers", "last_stage_layers", "defer_head_gradient")
_REPEATED = (re.compile(r"\(([^()]+)\)\*(\d{1,6})"), re.compile(r"([^*])\*(\d{1,6})"))


def layout_text(counts: Sequence[int]) -> str:
    """Return the blocks of each chunk in Megatron-core's notation."""
    chunks = ["t" if count == 1 else f"t*{count}" if count else "" for count in counts]
    chunks[0] = f"E{chunks[0]}"
    chunks[-1] += "L"
    return "|".join(chunks)


def parse_layout(text: str) -> tuple[int, ...]:
    """Return the blocks of each chunk. Raises InputError for other symbols, or unless E comes first and L last."""
    symbols = text.replace(",", "").strip("\"'")
    for pattern in _REPEATED:
        while (match := pattern.search(symbols)) is not None:
            if len(match[1]) * int(match[2]) + len(symbols) > 2 * MAX_LAYERS:
                raise InputError(f"a layout has at most {MAX_LAYERS} layers and chunks; got {text[:40]!r}")
            symbols = symbols[: match.start()] + match[1] * int(match[2]) + symbols[match.end() :]
    inner = symbols[1:-1]
    if not symbols.startswith("E") or not symbols.endswith("L") or len(symbols) < 2 or set(inner) - {"t", "|"}:
        raise InputError(f"a layout has E first, then t and |, and L last, such as E|t*2|tL; got {text[:40]!r}")
    return tuple(chunk.count("t") for chunk in symbols.split("|"))


def placement_fields(plan: Plan) -> dict[str, Any]:
    """Return the fields of launch configurations for a plan's PLACEMENT fields."""
    is_pipeline, rule = plan.pp > 1, plan.balance or ""
    is_accounted = is_pipeline and rule in ACCOUNTED and not plan.has_cuts
    is_deferred = plan.defer_head_gradient is not None
    return {
        "accounts_embedding": (is_accounted and "embedding" in rule) or None,
        "accounts_loss": (is_accounted and "loss" in rule) or None,
        "first_stage_layers": plan.first_stage_layers, "last_stage_layers": plan.last_stage_layers,
        "pipeline_layout": layout_text(plan.stage_layers) if plan.stage_layers else None,
        "defers_head": is_deferred or None, "defer_head_gradient": plan.defer_head_gradient,
    }  # fmt: skip


def placement_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the PLACEMENT fields of a plan from those of :func:`placement_fields`; absent ones stay absent."""
    parts = [part for part in ("embedding", "loss") if values.get(f"accounts_{part}")]
    fields: dict[str, Any] = {"balance": "+".join(["blocks", *parts])} if parts else {}
    if "pipeline_layout" in values:
        fields["stage_layers"] = parse_layout(str(values["pipeline_layout"]))
    fields |= {name: values[name] for name in ("first_stage_layers", "last_stage_layers") if name in values}
    if values.get("defers_head"):
        fields["defer_head_gradient"] = values.get("defer_head_gradient", 0)
    return fields
