"""Automatic mixed precision on the ``meta`` device.

PyTorch casts by device, and does not cast ``meta`` tensors; without a GPU it even turns ``torch.autocast("cuda")`` off.
Here a block of autocast casts as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Lists of PyTorch's documentation, "Automatic Mixed Precision package", section "CUDA Ops that can autocast"; attention
# as in aten/src/ATen/autocast_mode.h. Operators in neither list run in the types of their inputs.
_TO_HALF = frozenset({
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "einsum", "linear", "matmul", "mm", "mv", "prelu",
    "scaled_dot_product_attention", "__matmul__", "__rmatmul__",
})  # fmt: skip
_TO_FLOAT = frozenset({
    "cosine_similarity", "cross_entropy", "cross_entropy_loss", "cumprod", "cumsum", "exp", "group_norm", "kl_div",
    "l1_loss", "layer_norm", "log", "log_softmax", "mse_loss", "nll_loss", "norm", "pow", "prod", "reciprocal",
    "rms_norm", "rsqrt", "smooth_l1_loss", "softmax", "softplus", "sum", "tan",
})  # fmt: skip


class Autocast:
    """The blocks of autocast under way; ``torch`` is the imported module."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._types: list[Any] = []  # of each block, None for one that is off
        self._cast_weights: dict[int, Any] = {}  # a weight is cast once in the outermost block

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the blocks of ``torch.autocast`` entered inside this one."""
        blocks = self._torch.autocast
        former = {name: getattr(blocks, name) for name in ("__init__", "__enter__", "__exit__")}
        blocks.__init__, blocks.__enter__, blocks.__exit__ = _remember, self._enter_block(), self._leave_block()
        try:
            yield
        finally:
            for name, method in former.items():
                setattr(blocks, name, method)

    @property
    def is_on(self) -> bool:
        """Whether a block of autocast is under way."""
        return bool(self._types)

    def _enter_block(self) -> Any:
        def enter(block: Any) -> Any:
            is_on, dtype = block.trine_autocast
            self._types.append((dtype or self._torch.get_autocast_dtype(block.device)) if is_on else None)
            return block

        return enter

    def _leave_block(self) -> Any:
        def leave(_block: Any, *_error: object) -> bool:
            self._types.pop()
            if not self._types:
                self._cast_weights.clear()
            return False

        return leave

    def cast(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the function ``name`` in the type that autocast gives them."""
        dtype = self._types[-1] if self._types else None
        if dtype is None or (name not in _TO_HALF and name not in _TO_FLOAT):
            return args, kwargs
        source, target = (self._torch.float32, dtype) if name in _TO_HALF else (dtype, self._torch.float32)
        return (
            tuple(self._as(value, source, target) for value in args),
            {key: self._as(value, source, target) for key, value in kwargs.items()},
        )

    def _as(self, value: Any, source: Any, target: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._as(item, source, target) for item in value)
        if not isinstance(value, self._torch.Tensor) or value.dtype != source:
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(target)
        if id(value) not in self._cast_weights:
            self._cast_weights[id(value)] = value.to(target)
        return self._cast_weights[id(value)]


def _remember(
    block: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> None:
    """Keep the arguments of ``torch.autocast``, which PyTorch would check against this machine."""
    block.device, block.trine_autocast = device_type, (enabled, dtype)
