"""Random choice of the next ready wavefront of a compute unit to issue, as an alternative to taking turns.

The minimal standard generator of Park and Miller (CACM 31, 1988), one for each compute unit: small state, and the same
numbers in Python and compiled code.
"""

from __future__ import annotations

import numpy as np

MULTIPLIER = 48_271
MODULUS = 2**31 - 1


def first_draw(seed: int | None, cu: int) -> int:
    """Return the generator's initial state; compute units of the same number draw the same numbers on all GPUs."""
    if seed is None:
        return 0
    return int(np.random.SeedSequence([seed, cu]).generate_state(1)[0]) % (MODULUS - 1) + 1
