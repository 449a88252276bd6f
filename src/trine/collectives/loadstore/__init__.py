"""Collectives at the load-store level: asked for, compared with the operator level, and as its costs."""

from trine.collectives.loadstore.ask import LoadStoreAnswer, loadstore_collective
from trine.collectives.loadstore.compare import FidelityAnswer, compare_fidelity
from trine.collectives.loadstore.costs import LoadStoreCosts
from trine.collectives.loadstore.options import LoadStoreOptions

__all__ = [
    "FidelityAnswer",
    "LoadStoreAnswer",
    "LoadStoreCosts",
    "LoadStoreOptions",
    "compare_fidelity",
    "loadstore_collective",
]
