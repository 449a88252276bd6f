"""Which forward operator a backward operator differentiates, where the trace does not say it (TrioSim's CSV)."""

from __future__ import annotations

from functools import lru_cache

from trine.graph.workload import BACKWARD, FORWARD
from trine.workload.draft import Draft
from trine.workload.names import call_kind

#: Backward nodes of autograd whose name is not that of the forward call.
_FORWARD_KINDS: dict[str, frozenset[str]] = {
    "Addmm": frozenset({"linear", "addmm"}),
    "Mm": frozenset({"linear", "matmul", "mm"}),
    "Bmm": frozenset({"matmul", "bmm"}),
    "Convolution": frozenset({"conv1d", "conv2d", "conv3d", "convolution", "conv_transpose2d"}),
    "Threshold": frozenset({"relu"}),
    "NllLoss": frozenset({"cross_entropy_loss", "nll_loss", "nll_loss_nd"}),
    "LogSoftmax": frozenset({"cross_entropy_loss", "log_softmax"}),
    "NativeDropout": frozenset({"dropout", "native_dropout"}),
    "Mean": frozenset({"mean", "adaptive_avg_pool2d"}),
}
_PREFIXES = ("native", "cudnn", "miopen", "mkldnn", "fused", "scaleddotproductflash", "scaleddotproductefficient")


@lru_cache(maxsize=4096)
def _matches(stem: str, kind: str) -> bool:
    known = _FORWARD_KINDS.get(stem)
    if known is not None:
        return kind in known
    flat = kind.replace("_", "")
    name = stem.lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name in (flat, f"{flat}withindices") or (name == "attention" and flat.endswith("attention"))


def forward_links(draft: Draft) -> tuple[int | None, ...]:
    """For each operator the index of the operator whose gradient it computes, None where there is none.

    Among the forward operators of the right kind that no backward operator of this kind has taken, the one that shares
    most storages wins (its weight, its saved output), and among equals the latest: backward runs in reverse order. A
    backward operator whose name fits no forward operator at all goes to the one that it shares a storage with.
    """
    operators = draft.operators
    kinds = [call_kind(op.name) for op in operators]
    storages = [frozenset(draft.tensors[i].storage for i in (*op.inputs, *op.outputs)) for op in operators]
    forward: dict[str, list[int]] = {}
    for i, op in enumerate(operators):
        if op.phase == FORWARD:
            forward.setdefault(kinds[i], []).append(i)
    taken: dict[str, set[int]] = {}
    links: list[int | None] = []
    for index, op in enumerate(operators):
        link = op.forward
        if link is None and op.phase == BACKWARD and kinds[index].endswith("'"):
            stem = kinds[index][:-1]
            used = taken.setdefault(stem, set())
            fitting = [i for kind, those in forward.items() if _matches(stem, kind) for i in those if i not in used]
            if not fitting and not any(_matches(stem, kind) for kind in forward):
                anywhere = sorted(i for those in forward.values() for i in those if i not in used)
                fitting = [i for i in anywhere if storages[i] & storages[index]]
            shared = [(len(storages[i] & storages[index]), i) for i in fitting]
            link = max(shared)[1] if shared else None
            if link is not None:
                used.add(link)
        links.append(link)
    return tuple(links)
