"""Collectives at the load-store level: asked for, compared with the operator level, and as its costs."""

from trine.collectives.loadstore.compare import compare_fidelity
from trine.collectives.loadstore.costs import LoadStoreCosts
from trine.collectives.loadstore.options import LoadStoreOptions
from trine.collectives.loadstore.query import loadstore_collective
from trine.collectives.loadstore.result import FidelityResult, LoadStoreCollectiveResult

__all__ = [
    "FidelityResult",
    "LoadStoreCollectiveResult",
    "LoadStoreCosts",
    "LoadStoreOptions",
    "compare_fidelity",
    "loadstore_collective",
]
