"""Print the lowest version of each dependency that pyproject.toml allows, for pip: ``numpy==2.0 numba==0.60 ...``.

Arguments: names of extras whose dependencies to add. ``.ci/run`` tests trine with these versions.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_LOWEST = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)")


def lowest(extras: list[str]) -> list[str]:
    """Return ``name==version`` of the dependencies and of the extras. Raises ValueError for one without a lowest."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"]]
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    versions = []
    for requirement in requirements:
        match = _LOWEST.match(requirement)
        if match is None:
            raise ValueError(f"{requirement!r} states no lowest version")
        versions.append(f"{match[1]}=={match[2]}")
    return versions


if __name__ == "__main__":
    print(" ".join(lowest(sys.argv[1:])))
