"""Follow the module of a PyTorch model that is under way, by hooks on every module's forward pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ModulePaths:
    """The path of the innermost module under way, such as ``model.layers.3.mlp``; "" outside and in the whole model."""

    def __init__(self) -> None:
        self.path = ""
        self._outer: list[str] = []
        self._paths: dict[int, str] = {}  # id of a module -> its path in the outermost module

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow every module called inside the block."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        handles = (register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave))
        try:
            with warnings.catch_warnings():  # a compiled module calls the hooks twice, once for itself: no harm
                warnings.filterwarnings(
                    "ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks"
                )
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: Any, _arguments: object) -> None:
        if not self._outer:
            self._paths = {id(each): path for path, each in module.named_modules()}
        self._outer.append(self.path)
        self.path = self._paths.get(id(module), self.path)

    def _leave(self, _module: Any, _arguments: object, _output: object) -> None:
        if self._outer:
            self.path = self._outer.pop()
