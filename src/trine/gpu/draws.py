"""Which of the wavefronts of a compute unit that are ready issues next, where that is drawn and not in turns.

The minimal standard generator of Park and Miller (CACM 31, 1988), one for each compute unit: few bits, and the same in
Python and compiled.
"""

from __future__ import annotations

import numpy as np

MULTIPLIER = 48_271
MODULUS = 2**31 - 1


def first_draw(seed: int | None, cu: int) -> int:
    """Where the numbers of a compute unit begin; compute units of the same number draw alike on all GPUs."""
    if seed is None:
        return 0
    return int(np.random.SeedSequence([seed, cu]).generate_state(1)[0]) % (MODULUS - 1) + 1
