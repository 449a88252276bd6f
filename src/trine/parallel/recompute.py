"""Activation recomputation: the forward operators that run again right before the backward pass that needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING

from trine.compute import kind_of
from trine.compute.kinds import layer_of
from trine.errors import PlanError
from trine.graph.workload import BACKWARD, Operator, Workload
from trine.parallel.layer_places import has_layers
from trine.parallel.plan import Plan

if TYPE_CHECKING:
    from trine.software.profile import MemoryStyle, SelectiveStyle

#: Megatron-LM's selective recomputation: the core of attention.
ATTENTION = "attention"
#: The core of attention begins and ends with operators of these kinds.
CORE_KINDS = frozenset({"matmul", "softmax", "attention"})


def recomputed(
    workload: Workload, plan: Plan, forward: Sequence[Operator], selective: str = ATTENTION
) -> list[list[Operator]]:
    """Return the segments of a part's ``forward`` operators that run again, each as a whole.

    ``full``: every layer (block of the operators' names; only the first ``plan.recompute_layers`` of the part, if set).
    If names show no layers, the whole part is one segment, as in GPipe (Huang et al., 2019, section 2.3).
    ``selective``: the core of attention, from the query-key product to the product with the values (Korthikanti et al.,
    Reducing Activation Recomputation in Large Transformer Models, 2022, section 5). Other variants, by ``selective``:
    each block as a whole, except attention and GEMMs that are kept (:func:`kept_share`).
    """
    if plan.recompute == "none":
        return []
    if plan.recompute == "selective" and selective == ATTENTION:
        return _attention_cores(workload, forward)
    blocks = []
    for block, ops in groupby(forward, lambda op: layer_of(op.layer)):
        blocks.append((block, list(ops)))
    if not any(block for block, _ in blocks):
        return [list(forward)] if not has_layers(workload.operators) else []
    return [ops for block, ops in blocks if block][: plan.recompute_layers]


def left_out_again(workload: Workload, segments: Iterable[Sequence[Operator]]) -> frozenset[int]:
    """Return the last operators of segments that a non-reentrant checkpoint skips, because nothing reads their output.

    PyTorch's ``torch.utils.checkpoint`` with ``use_reentrant=False`` stops once everything that the backward pass needs
    exists (``set_checkpoint_early_stop``, on by default since 2.1). In a transformer layer it skips the last GEMM and
    the residual addition.
    """
    skipped = []
    of_forward: dict[int, list[Operator]] = {}
    for op in workload.operators:
        if op.phase == BACKWARD and op.forward_id is not None:
            of_forward.setdefault(op.forward_id, []).append(op)
    for ops in segments:
        inputs = {
            workload.tensors[t].storage for op in ops for backward in of_forward.get(op.id, ()) for t in backward.inputs
        }
        for op in reversed(ops):
            if any(workload.tensors[t].storage in inputs for t in op.outputs):
                break
            skipped.append(op.id)
    return frozenset(skipped)


def kept_share(workload: Workload, op: Operator, keeps: SelectiveStyle) -> Fraction:
    """Return the fraction of the output of a block's GEMM that is kept.

    ``every-second`` keeps the first, third, ... in the order queries, keys, values, output, gate, up, down (or with a
    single up projection). This is torchtitan's policy ``op``, which counts the GEMMs of a block.
    """
    name = op.layer.rsplit(".", 1)[-1]
    if kind_of(op) not in ("linear", "matmul") or not op.outputs:
        return Fraction(0)
    style: str = keeps.products
    if op.attributes.get("expert"):
        style = keeps.grouped
    elif name == "router":
        style = keeps.router
    if style != "every-second":
        return Fraction(style == "kept")
    if name == "qkv":
        heads, keys = heads_of(workload, op)
        return Fraction(heads + keys, heads + 2 * keys)
    return {"gate_up": Fraction(1, 2), "up": Fraction(1), "down": Fraction(1)}.get(name, Fraction(0))


def kept_operators(
    workload: Workload, plan: Plan, segments: Iterable[Sequence[Operator]], style: MemoryStyle
) -> frozenset[int]:
    """Return the operators of segments that do not run again: attention and GEMMs that are kept as a whole, dispatched
    tokens, and operators after the last GEMM of a block, whose results no backward operator needs."""
    if plan.recompute != "selective" or style.selective == ATTENTION:
        return frozenset()
    ids: set[int] = set()
    keeps = style.selective_keeps
    for ops in segments:
        products = [i for i, op in enumerate(ops) if kind_of(op) in ("linear", "matmul")]
        first_kept = products[-1] + 1 if products else len(ops)
        ids.update(op.id for op in ops[first_kept:])
        ids.update(op.id for op in ops if _is_kept(workload, plan, op, keeps))
    return frozenset(ids)


def _is_kept(workload: Workload, plan: Plan, op: Operator, keeps: SelectiveStyle) -> bool:
    if kind_of(op) == "attention":
        return keeps.attention == "kept"
    is_sent = plan.ep > 1 and op.attributes.get("moe") == "dispatch"
    return (is_sent and keeps.exchanged == "kept") or kept_share(workload, op, keeps) >= 1


def heads_of(workload: Workload, op: Operator) -> tuple[int, int]:
    """Return the query heads and key-value heads of the attention after a projection; (1, 1) if unknown."""
    place = workload.operators.index(op)
    for candidate in workload.operators[place : place + 4]:
        heads, keys = candidate.attributes.get("num_heads"), candidate.attributes.get("num_kv_heads")
        if isinstance(heads, int) and isinstance(keys, int):
            return heads, keys
    return 1, 1


def check_recompute(workload: Workload, plan: Plan, parts: Sequence[Sequence[Sequence[Operator]]]) -> None:
    """Raise PlanError, with the reason, if the plan's recomputation has nothing to recompute or saves no memory.

    parts: the segments of each part of the model.
    """
    if plan.recompute == "none":
        return
    if not workload.is_training:
        raise PlanError("recomputation needs a backward pass, which the trace lacks")
    if not any(parts):
        raise PlanError(
            f"{plan.recompute} recomputation finds nothing in {workload.name!r} to run again"
            + (": no operator is an attention, or a softmax beside a product" if plan.recompute == "selective" else "")
        )
    layers = max(map(len, parts))
    if plan.recompute_layers is not None and layers < plan.recompute_layers:
        raise PlanError(
            f"recompute_layers is {plan.recompute_layers}, and no part of {workload.name!r} has more than {layers} "
            "layers: leave it out to recompute all"
        )
    if (
        plan.recompute == "full"
        and not has_layers(workload.operators)
        and (plan.pp == 1 or plan.recompute_layers is not None)
    ):
        raise PlanError(
            "full recomputation needs layers, and the operators' names show none (names such as "
            "'layers.3.mlp.up' do): with a pipeline, each stage is recomputed as a whole"
        )


def recompute_notes(plan: Plan, segments: Sequence[Sequence[Operator]]) -> tuple[str, ...]:
    """Return notes for the user about the segments."""
    if plan.recompute == "selective" and all([kind_of(op) for op in ops] == ["attention"] for ops in segments):
        return (
            "selective recomputation runs fused attention again, which keeps nothing large in memory: it costs time "
            "and saves next to no memory",
        )
    return ()


def _attention_cores(workload: Workload, forward: Sequence[Operator]) -> list[list[Operator]]:
    """Return runs of operators without weights, from the first to the last of CORE_KINDS, that are attention.

    Fused attention may read weights, such as sinks.
    """

    def is_outside(op: Operator) -> bool:
        return kind_of(op) != "attention" and any(workload.tensors[t].role == "weight" for t in op.inputs)

    cores = []
    for has_weight, group in groupby(forward, is_outside):
        ops = list(group)
        core = [i for i, op in enumerate(ops) if kind_of(op) in CORE_KINDS]
        if has_weight or not core:
            continue
        kinds = {kind_of(ops[i]) for i in core}
        if "attention" in kinds or {"softmax", "matmul"} <= kinds:
            cores.append(ops[core[0] : core[-1] + 1])
    return cores
