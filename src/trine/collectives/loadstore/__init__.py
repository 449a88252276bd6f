"""Collectives at the load-store level: asked for, compared with the operator level, and as its costs.

What runs is imported when it is first asked for: the options alone, of a help page, import none of it.
"""

from typing import TYPE_CHECKING

from trine._lazy import lazy

if TYPE_CHECKING:
    from trine.collectives.loadstore.compare import compare_fidelity
    from trine.collectives.loadstore.costs import LoadStoreCosts
    from trine.collectives.loadstore.options import LoadStoreOptions
    from trine.collectives.loadstore.query import loadstore_collective
    from trine.collectives.loadstore.result import FidelityResult, LoadStoreCollectiveResult

_MODULES = {
    "FidelityResult": "trine.collectives.loadstore.result",
    "LoadStoreCollectiveResult": "trine.collectives.loadstore.result",
    "LoadStoreCosts": "trine.collectives.loadstore.costs",
    "LoadStoreOptions": "trine.collectives.loadstore.options",
    "compare_fidelity": "trine.collectives.loadstore.compare",
    "loadstore_collective": "trine.collectives.loadstore.query",
}

__all__ = [
    "FidelityResult", "LoadStoreCollectiveResult", "LoadStoreCosts", "LoadStoreOptions", "compare_fidelity",
    "loadstore_collective",
]  # fmt: skip

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _MODULES)
