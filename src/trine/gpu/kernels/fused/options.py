"""Options of a fused kernel: its computation, sizes, tiles and ranks. Checked on construction."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from trine.common.arguments import check_whole, option
from trine.errors import InputError, nearest
from trine.gpu.kernels.options import JOINT, SINGLE, WAITS

#: Computation of a workgroup: tiles of A x, tiles of A B, or sums of table rows.
GEMV, GEMM, EMBEDDING = "gemv", "gemm", "embedding"
ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL = "all_reduce", "reduce_scatter", "all_to_all"


class FusedKind(NamedTuple):
    """compute: GEMV, GEMM or EMBEDDING. op: the collective applied to its result."""

    compute: str
    op: str


FUSED: dict[str, FusedKind] = {
    "gemv-allreduce": FusedKind(GEMV, ALL_REDUCE),
    "gemm-allreduce": FusedKind(GEMM, ALL_REDUCE),
    "gemm-reducescatter": FusedKind(GEMM, REDUCE_SCATTER),
    "gemm-alltoall": FusedKind(GEMM, ALL_TO_ALL),
    "embedding-alltoall": FusedKind(EMBEDDING, ALL_TO_ALL),
}

#: An all-reduce in one step (each rank gets all partial results and sums them), or in two (each part goes to one rank,
#: which sums it and sends the sums to all).
ONESHOT, TWOSHOT = "oneshot", "twoshot"
ALGORITHMS = (ONESHOT, TWOSHOT)
#: Meaning of tile=, for each computation.
TILE_WORDS = {GEMV: "rows, cols", GEMM: "rows, cols, inner", EMBEDDING: "rows"}
#: Multiply-adds per cycle of a CU's matrix units, by dtype_bytes. AMD CDNA 2 white paper (2021), peak FLOPS per clock
#: and CU: 256 in FP64 and FP32, 1024 in FP16 and INT8 (the GPU in Eidola is CDNA-like).
MACS_PER_CYCLE = {8: 128, 4: 128, 2: 512, 1: 512}
INDEX_BYTES = 8
FLAG_SPACING, TABLE_ROWS, COLLECTIVE_WORKGROUPS = 8, 1 << 20, 32

_MAX_SIDE = 1 << 24
_OWN_LINES = "the collective of the unfused form has each semaphore on a separate line"


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedOptions:
    """One fused kernel, or its unfused counterpart. Fields left at None get their defaults.

    name: one of FUSED.
    rows, cols, inner: sizes of each rank's matrices. GEMV: rows x cols times a vector. GEMM: rows x inner times inner x
        cols. Embedding: ``rows`` sums of ``inner`` table rows, ``cols`` wide. Except for a one-step all-reduce,
        ``rows`` must be a multiple of the ranks.
    dtype_bytes: element size: 1, 2, 4 or 8.
    tile: sizes of a result tile and of one load: GEMV (rows, cols), GEMM (rows, cols, inner), embedding (rows,).
        Contiguous elements must fill whole lines.
    workgroups: None: one per tile; with fewer, each takes several tiles.
    wavefronts: number per workgroup. line_bytes: line size of the GPU model. fused: False: two kernels per rank.
    algorithm: of all-reduces: ``oneshot`` (default for GEMV) or ``twoshot`` (default for GEMM).
    waits: ``single``: one flag per peer, awaited in turn (default if fused); ``joint``: one flag counts all peers
        (default if unfused).
    flag_spacing: bytes between flags (8); flags closer than a line share lines.
    macs_per_cycle: multiply-adds per cycle and CU; None: AMD CDNA 2's by dtype_bytes (MACS_PER_CYCLE).
    table_rows, seed: for embeddings: size of the table (2^20), and random seed of the lookups (0).
    collective_workgroups: workgroups of the unfused form's collective (32).
    only_rank: build only this rank's kernels, in a program of ``num_ranks`` ranks.

    Raises InputError: a number out of range, inconsistent sizes, an unknown name, options without effect.
    """

    name: str
    num_ranks: int
    rows: int
    cols: int
    inner: int = 1
    dtype_bytes: int = 4
    tile: tuple[int, ...] = option(None)
    workgroups: int | None = None
    wavefronts: int = 4
    line_bytes: int = 64
    fused: bool = True
    algorithm: str = option(None)
    waits: str = option(None)
    flag_spacing: int = option(None)
    macs_per_cycle: int = option(None)
    table_rows: int = option(None)
    seed: int = option(None)
    collective_workgroups: int = option(None)
    only_rank: int | None = None

    def __post_init__(self) -> None:
        self._fill()
        for field, low, high in (
            ("num_ranks", 2, 4096),
            ("rows", 1, _MAX_SIDE),
            ("cols", 1, _MAX_SIDE),
            ("inner", 1, _MAX_SIDE),
            ("wavefronts", 1, 64),
            ("line_bytes", 16, 4096),
            ("flag_spacing", 4, 4096),
            ("macs_per_cycle", 1, 1 << 20),
            ("table_rows", 1, 1 << 32),
            ("seed", 0, (1 << 63) - 1),
            ("collective_workgroups", 1, 4096),
        ):
            check_whole(field, getattr(self, field), low, high)
        if self.workgroups is not None:
            check_whole("workgroups", self.workgroups, 1, 1 << 20)
        if self.only_rank is not None:
            check_whole("only_rank", self.only_rank, 0, self.num_ranks - 1)
        for field, step in (("line_bytes", 16), ("flag_spacing", 4)):
            if getattr(self, field) % step:
                raise InputError(f"must be a multiple of {step}, got {getattr(self, field)}", field=field)
        if self.waits not in WAITS:
            raise InputError(f"unknown waits {self.waits!r}{nearest(self.waits, WAITS)}", field="waits")
        self._check_tile()
        if self.chunks > 1 and self.rows % self.num_ranks:
            raise InputError(
                f"{self.name}{' in two steps' * bool(self.algorithm)} needs a number of rows that "
                f"{self.num_ranks} ranks divide evenly, not {self.rows}",
                field="rows",
            )

    def _check_tile(self) -> None:
        words = TILE_WORDS[self.kind.compute]
        if len(self.tile) != len(words.split(", ")):
            raise InputError(f"of {self.name} is ({words}), got {self.tile!r}", field="tile")
        lined = {GEMV: (0, 1), GEMM: (1, 2), EMBEDDING: ()}[self.kind.compute]
        for i, size in enumerate(self.tile):
            check_whole(f"tile.{words.split(', ')[i]}", size, 1, _MAX_SIDE)
            if i in lined and size % self.line_elements:
                valid = -(-size // self.line_elements) * self.line_elements
                raise InputError(
                    f"{size} elements of {self.dtype_bytes} B are not whole lines of {self.line_bytes} B; take {valid}",
                    field=f"tile.{words.split(', ')[i]}",
                )

    def _fill(self) -> None:
        """Set the defaults of fields left at None. Raises InputError like the class."""
        if self.name not in FUSED:
            raise InputError(f"no fused kernel {self.name!r}{nearest(self.name, FUSED)}", field="name")
        if self.dtype_bytes not in MACS_PER_CYCLE:
            raise InputError(f"must be one of 1, 2, 4 and 8, got {self.dtype_bytes!r}", field="dtype_bytes")
        kind, algorithm = FUSED[self.name], self.algorithm
        self._refuse_idle(kind)
        if algorithm is not None and algorithm not in ALGORITHMS:
            raise InputError(f"unknown algorithm {algorithm!r}{nearest(algorithm, ALGORITHMS)}", field="algorithm")
        check_whole("line_bytes", self.line_bytes, 16, 4096)
        all_reduce_algorithm = ONESHOT if kind.compute == GEMV else TWOSHOT
        waits = SINGLE if self.fused else JOINT
        defaults: dict[str, Any] = {
            "tile": _usual_tile(kind.compute, self.line_bytes // self.dtype_bytes),
            "algorithm": {ALL_REDUCE: all_reduce_algorithm}.get(kind.op, ""),
            "waits": waits,
            "flag_spacing": FLAG_SPACING,
            "macs_per_cycle": MACS_PER_CYCLE[self.dtype_bytes],
            "table_rows": TABLE_ROWS,
            "seed": 0,
            "collective_workgroups": COLLECTIVE_WORKGROUPS,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "tile", tuple(self.tile))

    def _refuse_idle(self, kind: FusedKind) -> None:
        """Raise InputError for options without effect."""
        in_tables = kind.compute == EMBEDDING
        defaults = {field.name: field.default for field in fields(self)}
        for field, matters, why in (
            ("algorithm", kind.op == ALL_REDUCE, f"{self.name} has one algorithm"),
            ("flag_spacing", self.fused, _OWN_LINES),
            ("collective_workgroups", not self.fused, "a fused kernel has workgroups alone"),
            ("table_rows", in_tables, f"{self.name} has no table"),
            ("seed", in_tables, f"{self.name} has no random part"),
            ("macs_per_cycle", not in_tables, "rows of a table are added up as they arrive"),
            ("inner", kind.compute != GEMV, "a GEMV has one vector; take gemm-allreduce"),
        ):
            if getattr(self, field) != defaults[field] and not matters:
                raise InputError(f"cannot matter here: {why}", field=field)

    @property
    def kind(self) -> FusedKind:
        return FUSED[self.name]

    @property
    def chunks(self) -> int:
        """Number of result parts owned by different ranks; 1 if every rank needs all partial results."""
        return 1 if self.algorithm == ONESHOT else self.num_ranks

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return self.rows // self.chunks

    @property
    def line_elements(self) -> int:
        """Elements per line."""
        return self.line_bytes // self.dtype_bytes

    def lines(self, elements: int) -> int:
        """Return the lines of ``elements`` contiguous elements; a partial line counts as a line."""
        return -(-elements // self.line_elements)


def _usual_tile(compute: str, line_elements: int) -> tuple[int, ...]:
    """Return the default tile: GEMV 64 x 256; GEMM 128 x 128, 32 deep; embedding 16 sums; rounded up to whole lines."""

    def round_up(elements: int) -> int:
        return -(-elements // line_elements) * line_elements

    return {GEMV: (round_up(64), round_up(256)), GEMM: (128, round_up(128), round_up(32)), EMBEDDING: (16,)}[compute]
