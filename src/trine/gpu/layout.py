"""The resources of one GPU and the paths of messages through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64, pointers, spans
from trine.errors import SpecError
from trine.gpu.model import MESH, GpuModel
from trine.gpu.records import ResourceNames

#: The ends of a path.
CU, CHANNEL, PORT = "cu", "channel", "port"


#: (down, right) of the links out of a router
_DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0))


class Hop(NamedTuple):
    """A resource of the GPU that serves a message, and the latency to the next hop."""

    resource: int
    after_ps: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuLayout:
    """Resources 0..r-1 of one GPU: links of the NoC, then memory channels, then slices of the L2 if it has one.

    bytes_per_s: int64[r]. first_channel, first_slice: first resource of each (first_slice -1: no L2).
    """

    model: GpuModel
    names: ResourceNames
    bytes_per_s: npt.NDArray[np.int64]
    first_channel: int
    first_slice: int

    @property
    def num_resources(self) -> int:
        return len(self.bytes_per_s)

    def path(self, source: str, i: int, target: str, j: int) -> tuple[Hop, ...]:
        """Return the hops inside the GPU from CU, channel or port ``i`` to ``j``, without the memory itself."""
        if self.model.noc.kind == MESH:
            return self._through_mesh(source, i, target, j)
        out = 2 * self._end(source, i)
        into = 2 * self._end(target, j) + 1
        return (Hop(out, self.model.noc.hop_ps), Hop(into, 0))

    def num_ends(self, kind: str) -> int:
        """Return the number of CUs, channels or ports."""
        return {CU: self.model.num_cus, CHANNEL: self.model.memory.num_channels, PORT: self.model.ports.count}[kind]

    def after_ps(self) -> npt.NDArray[np.int64]:
        """Return int64[r]: the latency behind each link of the NoC; 0 for memory, whose latency is in the model."""
        latency_ps = np.zeros(self.num_resources, np.int64)
        latency_ps[: self.first_channel : 1 if self.model.noc.kind == MESH else 2] = self.model.noc.hop_ps
        return latency_ps

    def paths(self, source: str, target: str) -> tuple[Int32, Int32]:
        """Return the resources of :meth:`path` from each i to each j as CSR, (hops int32, ptr int32): path i, j is
        ``hops[ptr[at] : ptr[at + 1]]``, at = i * (number of targets) + j.
        """
        i, j = (a.ravel() for a in np.indices((self.num_ends(source), self.num_ends(target))))
        if self.model.noc.kind == MESH:
            return self._all_through_mesh(source, i, target, j)
        hops = np.stack([2 * (i + self._end(source, 0)), 2 * (j + self._end(target, 0)) + 1], axis=1)
        return hops.ravel().astype(np.int32), np.arange(0, 2 * len(i) + 1, 2, dtype=np.int32)

    def _all_through_mesh(self, source: str, i: Int64, target: str, j: Int64) -> tuple[Int32, Int32]:
        model, cols = self.model, self.model.noc.cols
        start = np.array([router_of(model, source, n) for n in range(self.num_ends(source))])[i]
        end = np.array([router_of(model, target, n) for n in range(self.num_ends(target))])[j]
        right, down = end % cols - start % cols, end // cols - start // cols
        out, into = int(source == CU), int(target == CU)
        count = out + abs(right) + abs(down) + into
        ptr = pointers(count)
        step = spans(0, count) - out  # links between routers before this hop
        i, j, start, end, right, down = (np.repeat(a, count) for a in (i, j, start, end, right, down))
        along = step - abs(right)
        in_row = along < 0
        router = np.where(in_row, start + np.sign(right) * step, start + right + np.sign(down) * cols * along)
        direction = np.where(in_row, np.where(right > 0, 0, 1), np.where(down > 0, 2, 3))
        hops = 2 * model.num_cus + 4 * router + direction
        hops = np.where(step < 0, i, np.where(along == abs(down), model.num_cus + j, hops))
        return hops.astype(np.int32), ptr.astype(np.int32)

    def _through_mesh(self, source: str, i: int, target: str, j: int) -> tuple[Hop, ...]:
        model = self.model
        start, end = router_of(model, source, i), router_of(model, target, j)
        hops = [i] if source == CU else []
        row, column = divmod(start, model.noc.cols)
        goal_row, goal_column = divmod(end, model.noc.cols)
        while column != goal_column:
            step = 1 if goal_column > column else -1
            hops.append(self._mesh_link(row, column, 0, step))
            column += step
        while row != goal_row:
            step = 1 if goal_row > row else -1
            hops.append(self._mesh_link(row, column, step, 0))
            row += step
        if target == CU:
            hops.append(model.num_cus + j)
        return tuple(Hop(hop, model.noc.hop_ps) for hop in hops)

    def _mesh_link(self, row: int, column: int, down: int, right: int) -> int:
        noc = self.model.noc
        return 2 * self.model.num_cus + (row * noc.cols + column) * 4 + _DIRECTIONS.index((down, right))

    def _end(self, kind: str, i: int) -> int:
        model = self.model
        return {CU: 0, CHANNEL: model.num_cus, PORT: model.num_cus + model.memory.num_channels}[kind] + i


def layout_of(model: GpuModel) -> GpuLayout:
    """Return the resources of a GPU. Raises SpecError: a mesh without rows or columns."""
    names, kinds, source, target = _mesh_names(model) if model.noc.kind == MESH else _crossbar_names(model)
    rates = [model.noc.bytes_per_s] * len(names)
    first_channel, first_slice = len(names), -1
    names += [f"channel{c}" for c in range(model.memory.num_channels)]
    kinds += ["memory"] * model.memory.num_channels
    rates += [model.memory.bytes_per_s] * model.memory.num_channels
    if model.l2 is not None:
        first_slice = len(names)
        names += [f"l2.{c}" for c in range(model.memory.num_channels)]
        kinds += ["l2"] * model.memory.num_channels
        rates += [model.l2.bytes_per_s] * model.memory.num_channels
    missing = [-1] * (len(names) - len(source))
    described = ResourceNames(
        names=tuple(names), kinds=tuple(kinds), source=tuple(source + missing), target=tuple(target + missing)
    )
    return GpuLayout(
        model=model, names=described, bytes_per_s=np.array(rates, np.int64), first_channel=first_channel,
        first_slice=first_slice,
    )  # fmt: skip


class _LinkNames(NamedTuple):
    """Names and kinds of the links of a NoC, and the routers at their ends (-1: no router)."""

    names: list[str]
    kinds: list[str]
    source: list[int]
    target: list[int]


def _mesh_names(model: GpuModel) -> _LinkNames:
    """Return links out of CUs, links into CUs, four out of each router; links over the mesh's edge are never used."""
    noc = model.noc
    if noc.rows < 1 or noc.cols < 1:
        raise SpecError(f"GPU model {model.name!r}: a mesh has rows and columns, got {noc.rows} x {noc.cols}")
    out_names = [f"cu{i}.out" for i in range(model.num_cus)]
    in_names = [f"cu{i}.in" for i in range(model.num_cus)]
    names = out_names + in_names
    kinds = ["cu"] * len(names)
    source, target = [-1] * len(names), [-1] * len(names)
    for router in range(noc.rows * noc.cols):
        row, column = divmod(router, noc.cols)
        for down, right in _DIRECTIONS:
            other = (row + down) * noc.cols + column + right
            exists = 0 <= row + down < noc.rows and 0 <= column + right < noc.cols
            names.append(f"router{router}->router{other}" if exists else f"router{router}.edge{down:+d}{right:+d}")
            kinds.append("noc")
            source.append(router if exists else -1)
            target.append(other if exists else -1)
    return _LinkNames(names, kinds, source, target)


def _crossbar_names(model: GpuModel) -> _LinkNames:
    ends = [f"cu{i}" for i in range(model.num_cus)]
    ends += [f"channel{i}" for i in range(model.memory.num_channels)]
    ends += [f"port{i}" for i in range(model.ports.count)]
    names = [f"{end}.{side}" for end in ends for side in ("out", "in")]
    kinds = []
    for name in names:
        kinds.append("cu" if name.startswith("cu") else "noc")
    return _LinkNames(names, kinds, [-1] * len(names), [-1] * len(names))


def router_of(model: GpuModel, kind: str, i: int) -> int:
    """Return the mesh router of CU, channel or port ``i`` (docs/design/gpu-model.md)."""
    rows, cols = model.noc.rows, model.noc.cols
    if kind == CU:
        return i % (rows * cols)
    if kind == CHANNEL:
        if rows > 1:
            last_row = [(rows - 1) * cols + c for c in range(cols)]
        else:
            last_row = []
        routers = list(range(cols)) + last_row
    else:
        first_column = [r * cols for r in range(rows)]
        if cols > 1:
            last_column = [r * cols + cols - 1 for r in range(rows)]
        else:
            last_column = []
        routers = first_column + last_column
    return routers[i % len(routers)]
