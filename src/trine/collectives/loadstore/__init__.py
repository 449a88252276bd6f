"""Collectives at the load-store level: asked for, compared with the operator level, and as its costs.

What runs is imported when it is first asked for: the options alone, of a help page, import none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trine.collectives.loadstore.compare import compare_fidelity
    from trine.collectives.loadstore.costs import LoadStoreCosts
    from trine.collectives.loadstore.options import LoadStoreOptions
    from trine.collectives.loadstore.query import loadstore_collective
    from trine.collectives.loadstore.result import FidelityResult, LoadStoreCollectiveResult

_MODULES = {
    "FidelityResult": "result",
    "LoadStoreCollectiveResult": "result",
    "LoadStoreCosts": "costs",
    "LoadStoreOptions": "options",
    "compare_fidelity": "compare",
    "loadstore_collective": "query",
}

__all__ = [
    "FidelityResult",
    "LoadStoreCollectiveResult",
    "LoadStoreCosts",
    "LoadStoreOptions",
    "compare_fidelity",
    "loadstore_collective",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
