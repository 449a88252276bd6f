"""Collectives at the load-store level: asked for, compared with the operator level, and as its costs.

What runs is imported when it is first asked for: the options alone, of a help page, import none of it.
"""

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.gpu.collective.costs import LoadStoreCosts
    from trine.gpu.collective.options import LoadStoreOptions
    from trine.gpu.collective.query import loadstore_collective
    from trine.gpu.collective.result import FidelityResult, LoadStoreCollectiveResult
    from trine.gpu.collective.two_levels import compare_fidelity

_MODULES = {
    "FidelityResult": "trine.gpu.collective.result",
    "LoadStoreCollectiveResult": "trine.gpu.collective.result",
    "LoadStoreCosts": "trine.gpu.collective.costs",
    "LoadStoreOptions": "trine.gpu.collective.options",
    "compare_fidelity": "trine.gpu.collective.two_levels",
    "loadstore_collective": "trine.gpu.collective.query",
}

__all__ = [
    "FidelityResult", "LoadStoreCollectiveResult", "LoadStoreCosts", "LoadStoreOptions", "compare_fidelity",
    "loadstore_collective",
]  # fmt: skip

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _MODULES)
