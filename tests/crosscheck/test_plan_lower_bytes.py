"""Do lowered plans move the bytes of the plan's transfers over each wire, packets and flags included?"""

from __future__ import annotations

import pytest
from lowered import prove
from plan_cases import bytes_of_links
from plan_lower_cases import LOWERED, bundled

from trine.gpu.plans import plan_schedule

#: whole lines per chunk, for lines of 128 and of 120 bytes
SIZE = 32 * 15 * 128


@pytest.mark.parametrize("name", LOWERED)
def test_bytes_of_each_pair(name: str) -> None:
    plan = bundled(name)
    assert prove(plan, SIZE).moved == bytes_of_links(plan_schedule(plan, SIZE))
