"""Do the plug-in guide's examples run unchanged, and does the guide name every kind of plug-in?"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from trine import testing
from trine.collectives.registry import ALGORITHMS
from trine.compute.models import COMPUTE_MODELS
from trine.engine.models import NETWORK_MODELS
from trine.parallel.schedules import SCHEDULES
from trine.workload import READERS

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "plug-ins.md").read_text()
BLOCKS = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def test_blocks_run():
    """All blocks run in one process, since each registers different names."""
    program = "\n".join(f"exec(compile({code!r}, {title!r}, 'exec'), {{}})" for title, code in BLOCKS)
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_kind_has_its_block_and_its_row():
    assert len(BLOCKS) == GUIDE.count("```python\n") == len(testing.__all__) == 5
    for check in testing.__all__:
        assert sum(check in code for _, code in BLOCKS) == 1, check
    for registry in (NETWORK_MODELS, ALGORITHMS, COMPUTE_MODELS, READERS, SCHEDULES):
        assert f"| `{registry.group}` |" in GUIDE
