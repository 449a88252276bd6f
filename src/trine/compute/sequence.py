"""Which dimension of a tensor counts the tokens of a sample."""

from __future__ import annotations

from trine.graph.workload import Tensor, Workload
from trine.units import whole_number


def sequence_length(workload: Workload) -> int | None:
    """Tokens of a sample, where the workload says so (``metadata["sequence"]``, as synthesised transformers do)."""
    return whole_number(workload.metadata.get("sequence", ""), 2)


def sequence_dim(tensor: Tensor, length: int) -> int | None:
    """The dimension of an activation or input that is proportional to the tokens of a sample; None if it has none.

    It lies behind the batch, (batch, tokens, ...), and behind the heads of (batch, heads, tokens, size). A dimension
    of several times ``length`` is that of tokens copied to their experts.
    """
    if tensor.batch_dims != (0,):
        return None
    dim = 2 if len(tensor.shape) == 4 else 1
    if len(tensor.shape) <= dim or not tensor.shape[dim] or tensor.shape[dim] % length:
        return None
    return dim
