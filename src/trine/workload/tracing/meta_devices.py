"""The ``meta`` device in place of every other one, and the kernels that a GPU would run there.

PyTorch chooses kernels by device: attention falls back to matrix products on ``meta``, and optimizers to loops over the
weights. Here both choose as on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

#: Largest head of FlashAttention's kernels (sdp_utils.cpp, check_head_dim_size_flash, PyTorch 2.13).
_MAX_FLASH_HEAD = 256
#: Methods that move a tensor to a device named by the method.
_MOVES = ("cuda", "cpu", "xpu")


class Devices:
    """Places tensors on ``meta`` and chooses kernels; ``torch`` is the imported module."""

    def __init__(self, torch: Any) -> None:
        from torch.utils._device import _device_constructors

        self._torch = torch
        self._meta = torch.device("meta")
        self._makers = _device_constructors()
        self._attention = torch.nn.functional.scaled_dot_product_attention

    def on_meta(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Return a call with its tensors on ``meta``. A tensor of one number stays on the CPU (an optimizer's step)."""
        name = getattr(function, "__name__", "")
        if function in self._makers:
            is_number = function is self._torch.tensor and args and isinstance(args[0], int | float)
            if not is_number:
                kwargs["device"] = self._meta
        elif name == "to" or name in _MOVES:
            args = tuple(self._meta if isinstance(each, str | self._torch.device) else each for each in args)
            if "device" in kwargs:
                kwargs["device"] = self._meta
            if name in _MOVES:
                return self._torch.Tensor.to, (args[0], self._meta), {}
        return function, args, kwargs

    def kernel_for(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return the call to make; attention runs the kernels of a GPU."""
        if function is self._attention:
            return partial(self._attend, *args, **kwargs)
        return partial(function, *args, **kwargs)

    def _attend(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        """Run FlashAttention, memory-efficient attention, or the products, in the order of sdp_utils.cpp."""
        aten = self._torch.ops.aten
        is_dense = query.dim() == key.dim() == value.dim() == 4
        is_half = query.dtype in (self._torch.float16, self._torch.bfloat16)
        is_alike = query.shape[-1] == value.shape[-1] <= _MAX_FLASH_HEAD
        if is_dense and is_half and is_alike and attn_mask is None:
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        if is_dense and not enable_gqa:
            if attn_mask is not None:
                attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
            efficient = aten._scaled_dot_product_efficient_attention
            needs_sum = self._torch.is_grad_enabled()
            return efficient(query, key, value, attn_mask, needs_sum, dropout_p, is_causal, scale=scale)[0]
        return self._attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Let optimizers take their ``foreach`` and fused steps, and run compiled functions as they are written.

    transformers looks for packed sequences in the values of the position ids; meta tensors have none, so it finds none.
    """
    import torch

    with ExitStack() as stack:
        for module in (import_module("torch.optim.optimizer"), import_module("torch.utils._foreach_utils")):
            stack.enter_context(_replaced(module, "_get_foreach_kernels_supported_devices", _supported_devices))
            stack.enter_context(_replaced(module, "_get_fused_kernels_supported_devices", _supported_devices))
        masks = sys.modules.get("transformers.masking_utils")
        stack.enter_context(_replaced(masks, "find_packed_sequence_indices", _no_packed_sequence))
        stack.enter_context(_replaced(torch.cuda, "synchronize", _no_wait))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _supported_devices() -> list[str]:
    return ["cuda", "meta"]


def _no_packed_sequence(position_ids: object) -> None:
    return None


def _no_wait(device: object = None) -> None:
    return None


@contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    """Replace a module's attribute for a while; one that this version lacks stays away."""
    if not hasattr(module, name):
        yield
        return
    former = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, former)
