"""The only choice between network models: a new built-in one is a file beside this and a branch here."""

from __future__ import annotations

from trine._jit import Int, inlined
from trine.network._equal import equal_rates
from trine.network._fair import fair_rates
from trine.network._state import Flows, Links

FAIR, EQUAL, CIRCUIT, FIFO = 0, 1, 2, 3
CODES = {"fair": FAIR, "equal": EQUAL, "circuit": CIRCUIT, "fifo": FIFO}

#: Models from this one on carry whole messages from link to link; those before give rates to flows.
FIRST_QUEUE = FIFO


@inlined
def assign_rates(model: Int, links: Links, flows: Flows, num_links: Int, num_flows: Int) -> None:
    """Write the new_rate, bytes/s, of all flows of the component found last."""
    if model == EQUAL:
        equal_rates(links, flows, num_links, num_flows)
    else:  # FAIR, and what CIRCUIT sends over links
        fair_rates(links, flows, num_links, num_flows)
