"""Memory that software keeps besides the operators' tensors, as described by its profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from trine.common.precision import ITEM_BYTES
from trine.compute import kind_of
from trine.compute.kinds import family_of, layer_of
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Tensor
from trine.parallel.recompute import ATTENTION, kept_share
from trine.parallel.token_partition import is_expert

if TYPE_CHECKING:
    from trine.parallel.chunks import OperatorRun
    from trine.parallel.job import JobContext

_ACTIVATIONS = MEMORY_CATEGORIES.index("activations")
# Storage numbers outside all tensors': extra copies and kept parts of an operator's output, and its gathered input.
_MORE, _KEPT, _GATHERED = -(10**12), -2 * 10**12, -3 * 10**12
_OF_KIND = {"loss": "loss", "embedding": "embedding", "attention": "attention", "linear": "linear", "matmul": "linear"}
_OF_NAME = {
    "norm": "norm", "rotary": "rotary", "swiglu": "activation", "gelu": "activation", "silu": "activation",
    "dropout": "dropout", "softmax": "softmax", "add": "residual",
}  # fmt: skip


def profile_family(op: Operator) -> str:
    """Return the operator's family in a profile, or an empty string."""
    family_of_kind = _OF_KIND.get(family_of(kind_of(op)), "")
    return family_of_kind or next((family for text, family in _OF_NAME.items() if text in op.name), "")


class Extras:
    """Storages that a profile adds to forward operators until their backward operators have run.

    fused: weights whose gradients the GEMM itself accumulates, and their number of matrices on a rank: a grouped weight
    has one for each local expert. dummy_bytes: bytes of the dummy gradients that replace them, one of each shape of a
    matrix (Transformer Engine, get_dummy_wgrad in pytorch/module/base.py; module/grouped_linear.py asks for one
    expert's shape, because each expert's weight is a parameter). expert_workspace_bytes: workspaces of the GEMMs of
    experts, if there are any.
    """

    def __init__(self, context: JobContext, forward: Iterable[Operator]) -> None:
        self._style = context.memory_style
        self._context = context
        self._tensors = context.workload.tensors
        self._added: dict[int, dict[int, int]] = {}  # forward operator -> storage -> tensor whose size counts
        self._factor: dict[int, Fraction] = {}
        self._instead: dict[int, int] = {}  # forward operator -> storage of the input that the gathered one replaces
        self._kept: set[int] = set()  # storages that stay allocated although their operators are recomputed
        self.fused: dict[int, int] = {}
        self._add_chunks()
        self.expert_workspace_bytes = 0
        for op in forward:
            self._add_more(op)
            self._add_router(op)
            self._add_kept(op)
            self._add_gathered(op)
            self._add_fused(op)
        self.dummy_bytes = sum(size for _, size in {self._dummy_of(*weight) for weight in self.fused.items()})

    def _add_chunks(self) -> None:
        """Scale the logits and the loss's tensors to one chunk of tokens; only one chunk is alive at a time."""
        chunks = self._style.loss_chunks
        if chunks > 1:
            operators = [op for op in self._context.workload.operators if op.phase != OPTIMIZER]
            tensors = {t for op in operators if op.layer.startswith("loss") for t in (*op.inputs, *op.outputs)}
            logits = (self._tensors[t] for t in tensors if self._tensors[t].role != "input")
            self._factor = {tensor.storage: Fraction(1, chunks) for tensor in logits}

    def _add_more(self, op: Operator) -> None:
        times = self._style.keeps.get(profile_family(op), 0) if self._style.keeps else 0
        tensor = op.outputs[0] if op.outputs else 0
        heads = op.attributes.get("num_heads")
        if self._style.keeps and heads is not None and op.attributes.get("num_kv_heads") == heads:
            times, tensor = times + 2 * self._style.keeps.get("key_values", 0), op.inputs[1]
        if times and tensor:
            self._added.setdefault(op.id, {})[_MORE - op.id] = tensor
            self._factor[_MORE - op.id] = Fraction(times).limit_denominator(1000)

    def _add_router(self, op: Operator) -> None:
        """Add what a router keeps for each token and expert beside its logits, and the workspaces of the experts."""
        if is_expert(op):
            self.expert_workspace_bytes = self._style.expert_workspace_bytes
        if op.layer.endswith(".router") and self._style.router_bytes:
            logits = self._tensors[op.outputs[0]]
            self._added.setdefault(op.id, {})[_MORE - op.id] = logits.id
            item_bytes = Fraction(ITEM_BYTES[logits.dtype])
            self._factor[_MORE - op.id] = Fraction(self._style.router_bytes).limit_denominator(1000) / item_bytes

    def _add_kept(self, op: Operator) -> None:
        """Add the part of a recomputed GEMM's output that is kept anyway."""
        if self._style.selective == ATTENTION or self._context.plan.recompute != "selective" or not layer_of(op.layer):
            return
        keeps, is_expert = self._style.selective_keeps, op.attributes.get("expert") is True
        share = kept_share(self._context.workload, op, keeps)
        is_last = op.layer.endswith(".down")
        if is_expert and is_last and self._context.plan.ep > 1 and keeps.exchanged == "kept":
            share = Fraction(1)  # the experts' results
        keeps_last = is_last and self._style.selective == "products" and not is_expert
        if (op.id in self._context.runs_again and share) or keeps_last:
            self._added.setdefault(op.id, {})[_KEPT - op.id] = op.outputs[0]
            self._factor[_KEPT - op.id] = share or Fraction(1)
            self._kept.add(_KEPT - op.id)

    def _add_gathered(self, op: Operator) -> None:
        plan, split = self._context.plan, self._context.split_of(op)
        moves_tokens = plan.sequence_parallel or plan.expert_tp != plan.tp
        gathers_first = self._style.dispatcher == "allgather" and plan.ep == 1 and is_expert(op)
        keeps = self._style.gathered_inputs == "kept" or gathers_first or self._keeps_input_of(op)
        if not keeps or not moves_tokens or split is None:
            return
        if gathers_first and split.mode == "row":  # the sums of its ranks are scaled by the router's shares and kept
            self._added.setdefault(op.id, {})[_GATHERED - op.id] = op.outputs[0]
            self._factor[_GATHERED - op.id] = self._context.token_partition.expert_tokens
        if split.mode == "column" and op.inputs:
            self._added.setdefault(op.id, {})[_GATHERED - op.id] = op.inputs[0]
            if is_expert(op):
                self._factor[_GATHERED - op.id] = self._context.token_partition.expert_tokens
            self._instead[op.id] = self._tensors[op.inputs[0]].storage

    def _keeps_input_of(self, op: Operator) -> bool:
        """Return whether ``op`` is an expert's GEMM whose gathered input is kept."""
        return is_expert(op) and self._style.expert_inputs == "kept" and self._context.plan.expert_tp > 1

    def _add_fused(self, op: Operator) -> None:
        """Collect the weights of the blocks' linear layers; embedding and head have separate gradients."""
        if self._style.weight_gradients == "fused" and profile_family(op) == "linear" and layer_of(op.layer):
            weights = [t for t in op.inputs if self._tensors[t].role == "weight" and len(self._tensors[t].shape) > 1]
            self.fused.update({weight: self._num_matrices(op, weight) for weight in weights})

    def _num_matrices(self, op: Operator, weight: int) -> int:
        """Return the number of matrices in a rank's part of a weight: its experts, if the weight holds several."""
        shape = self._tensors[weight].shape
        return max(1, shape[0] // self._context.plan.ep) if is_expert(op) and len(shape) > 2 else 1

    def _dummy_of(self, weight: int, num_matrices: int) -> tuple[tuple[int, ...], int]:
        """Return the whole shape of one matrix of a weight, and the bytes of a rank's part of it."""
        shape = tuple(self._tensors[weight].shape)
        return shape if num_matrices == 1 else shape[1:], self._context.local_bytes[weight] // num_matrices

    def storages_of(self, forward: Operator) -> dict[int, None]:
        """Return the added storages of a forward operator."""
        return dict.fromkeys(self._added.get(forward.id, ()))

    def new_storages(self, run: OperatorRun) -> dict[int, None]:
        """Return the added storages that ``run`` allocates."""
        if run.op.phase != FORWARD:
            return {}
        return {storage: None for storage in self.storages_of(run.op) if not run.rerun or storage not in self._kept}

    def kept_storages(self, run: OperatorRun, touched: dict[int, None]) -> dict[int, None]:
        """Return the storages of ``touched`` that are kept for ``run``: not a part if the whole is kept."""
        op = run.op
        part = self._instead.get(op.forward_id, -1) if op.phase == BACKWARD and op.forward_id is not None else -1
        if part >= 0:
            return {storage: None for storage in touched if storage != part}
        return touched

    def allocated(self, run: OperatorRun) -> tuple[tuple[int, int, int], ...]:
        """Return (storage, tensor whose size counts, category) of the storages that ``run`` allocates."""
        if run.op.phase != FORWARD:
            return ()
        storages, added = self.new_storages(run), self._added.get(run.op.id, {})
        return tuple((storage, tensor, _ACTIVATIONS) for storage, tensor in added.items() if storage in storages)

    def times(self, storage: int, size: int) -> int:
        """Return the bytes of a storage; ``size``: bytes of the tensor whose size counts."""
        factor = self._factor.get(storage)
        return size if factor is None else -(-size * factor.numerator // factor.denominator)

    def is_whole(self, storage: int) -> bool:
        """Return whether a tp rank holds a whole storage although it holds only a part of the tensor."""
        return storage <= _GATHERED


class Logits:
    """Copies of the logits that are alive when the loss's backward pass begins. in_place: storages that share memory
    with another copy."""

    def __init__(self, context: JobContext, forward: Iterable[Operator]) -> None:
        self._context = context
        style = context.memory_style
        self._item_bytes = style.logits_bytes
        if context.plan.tp > 1 and style.parallel_logits_bytes is not None:
            self._item_bytes = style.parallel_logits_bytes
        self._storages: set[int] = set()
        self._logits: Tensor | None = None
        self.in_place: set[int] = set()
        if self._item_bytes is None:
            return
        tensors = context.workload.tensors
        losses = [op for op in forward if profile_family(op) == "loss"]
        tensors_of_losses = [tensors[t] for op in losses[:1] for t in op.inputs]
        logits = max(tensors_of_losses, key=lambda t: t.size_bytes, default=None)
        if logits is not None:
            self._logits, self._share = logits, context.output_share(losses[0])
            of_loss = [op for op in context.workload.operators if op.layer.startswith("loss")]
            touched = (tensors[t] for op in of_loss for t in (*op.inputs, *op.outputs))
            self._storages = {t.storage for t in touched if t.shape[-1:] == logits.shape[-1:] and t.batch_dims}
            copies_made = [tensors[t] for op in of_loss for t in op.outputs if tensors[t].dtype == "float32"]
            copies = dict.fromkeys(tensor.storage for tensor in copies_made if tensor.storage in self._storages)
            self.in_place = set(list(copies)[1:])

    def missing(self, op: Operator, live: Mapping[int, tuple[int, ...]], batch: int) -> list[int]:
        """Return the bytes of float32 copies that the trace does not name, at a backward operator of the loss."""
        if self._logits is None or self._item_bytes is None or op.phase != BACKWARD or not op.layer.startswith("loss"):
            return []
        count = self._context.rank_bytes(self._logits.id, batch) // int(ITEM_BYTES.get(self._logits.dtype, 4))
        count //= self._context.memory_style.loss_chunks
        live_bytes = sum(live[storage][0] for storage in self._storages if storage in live)
        missing = max(int(count * self._item_bytes) - live_bytes, 0)
        return [4 * count] * (missing // (4 * count)) + [missing % (4 * count)] if missing else []
