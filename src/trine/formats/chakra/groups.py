"""Process groups: from PyTorch's metadata node in a trace, or from a file beside the traces as ASTRA-sim takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trine.errors import TraceError, nearest
from trine.formats.chakra.messages import RawNode
from trine.workload.files import read_json, short

#: Name of the metadata node whose input holds the groups.
GROUPS_NODE = "## process_group:init ##"
#: Names that mean all ranks where no group is called so.
WORLD = ("", "0")

#: name of a group -> its ranks, in the order in which they take part
Groups = Mapping[str, tuple[int, ...]]


def read_groups(path: Path, num_ranks: int) -> dict[str, tuple[int, ...]]:
    """Read ``{"1": [0, 1], ...}``.

    Raises
    ------
    TraceError: names the file and the group.
    """
    data = read_json(path, strict=True)
    if not isinstance(data, dict):
        raise TraceError('must be an object such as {"1": [0, 1]}', file=path)
    return {name: _ranks(ranks, name, num_ranks, path) for name, ranks in data.items()}


def node_groups(node: RawNode, num_ranks: int, path: Path) -> dict[str, tuple[int, ...]]:
    """The groups that a metadata node defines; empty for a node about something else.

    PyTorch's list stands in its inputs behind two characters (``['`` or ``[[``) and before two. No ranks: all of them.
    """
    if node.name != GROUPS_NODE or not node.values:
        return {}
    try:
        items = json.loads(node.values[2:-2])
        named = [(item["pg_name"], item.get("ranks") or list(range(num_ranks))) for item in items]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TraceError(f"node {node.id}: its process groups cannot be read: {short(str(error))}", file=path) from None
    return {str(name): _ranks(ranks, str(name), num_ranks, path) for name, ranks in named}


def group_text(groups: Groups) -> str:
    """The inverse of :func:`node_groups`: the inputs of the metadata node."""
    rows = [
        {"pg_name": name, "pg_desc": name, "ranks": list(ranks), "group_size": len(ranks)}
        for name, ranks in groups.items()
    ]
    return f"['{json.dumps(rows)}']"


def resolve(name: str, groups: Groups, num_ranks: int, node: RawNode, path: Path) -> tuple[int, ...]:
    """The ranks of the group of this name. Raises TraceError where it is not known."""
    if name in groups:
        return groups[name]
    if name in WORLD:
        return tuple(range(num_ranks))
    hint = nearest(name, groups) if groups else "; the trace defines none: name the file of groups"
    raise TraceError(f"node {node.id}: there is no process group {name[:60]!r}{hint}", file=path)


def merged(first: Groups, second: Groups, path: Path) -> dict[str, tuple[int, ...]]:
    """All groups of both. Raises TraceError where they say different things of one name."""
    for name, ranks in second.items():
        if first.get(name, ranks) != ranks:
            raise TraceError(
                f"process group {name[:60]!r} has ranks {short(list(ranks))} here, but {short(list(first[name]))} "
                "elsewhere",
                file=path,
            )
    return {**first, **second}


def _ranks(ranks: Any, name: str, num_ranks: int, path: Path) -> tuple[int, ...]:
    what = f"process group {name[:60]!r}"
    if not isinstance(ranks, Sequence) or isinstance(ranks, str) or not ranks:
        raise TraceError(f"{what} must be a list of ranks, got {short(ranks)}", file=path)
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < num_ranks:
            raise TraceError(f"{what} names rank {short(rank)}, the traces have ranks 0 to {num_ranks - 1}", file=path)
    if len(set(ranks)) != len(ranks):
        raise TraceError(f"{what} names a rank twice", file=path)
    return tuple(ranks)
