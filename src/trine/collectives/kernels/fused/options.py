"""What a fused kernel is asked to be: which computation, its sizes, tiles and ranks. Checked on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trine.collectives.kernels.options import JOINT, SINGLE, WAITS
from trine.errors import InputError, nearest

#: What a workgroup computes: tiles of A x, tiles of A B, or sums of rows of a table.
GEMV, GEMM, EMBEDDING = "gemv", "gemm", "embedding"
ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL = "all_reduce", "reduce_scatter", "all_to_all"


class Kind(NamedTuple):
    """compute: GEMV, GEMM or EMBEDDING. op: the collective that its result goes through."""

    compute: str
    op: str


FUSED: dict[str, Kind] = {
    "gemv-allreduce": Kind(GEMV, ALL_REDUCE),
    "gemm-allreduce": Kind(GEMM, ALL_REDUCE),
    "gemm-reducescatter": Kind(GEMM, REDUCE_SCATTER),
    "gemm-alltoall": Kind(GEMM, ALL_TO_ALL),
    "embedding-alltoall": Kind(EMBEDDING, ALL_TO_ALL),
}

#: An all-reduce in one step (partial results to all ranks, each adds up everything) or in two (to the rank that adds
#: that part up, and its sums to all).
ONESHOT, TWOSHOT = "oneshot", "twoshot"
ALGORITHMS = (ONESHOT, TWOSHOT)
#: What tile= gives, for each computation.
TILE_WORDS = {GEMV: "rows, cols", GEMM: "rows, cols, inner", EMBEDDING: "rows"}
#: Multiply-adds a cycle of a CU's matrix units by dtype_bytes. AMD CDNA 2 white paper (2021), peak FLOPS a clock and
#: CU: 256 in FP64 and FP32, 1024 in FP16 and INT8 (the GPU in Eidola is CDNA-like).
MACS_PER_CYCLE = {8: 128, 4: 128, 2: 512, 1: 512}
INDEX_BYTES = 8
FLAG_SPACING, TABLE_ROWS, COLLECTIVE_WORKGROUPS = 8, 1 << 20, 32

_MAX_SIDE = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedOptions:
    """One fused kernel, or its unfused counterpart, with everything that was left open filled in (`fused_options`).

    rows, cols, inner: docs/background/fused-kernels.md. tile: as TILE_WORDS says. workgroups: None: one a tile.
    algorithm: of an all-reduce, else "". only_rank: None: kernels of all ranks.

    Raises
    ------
    InputError: a number out of range, sizes that do not go together, an unknown name.
    """

    name: str
    num_ranks: int
    rows: int
    cols: int
    inner: int
    dtype_bytes: int
    tile: tuple[int, ...]
    workgroups: int | None
    wavefronts: int
    line_bytes: int
    fused: bool
    algorithm: str
    waits: str
    flag_spacing: int
    macs_per_cycle: int
    table_rows: int
    seed: int
    collective_workgroups: int
    only_rank: int | None

    def __post_init__(self) -> None:
        for field, least, most in (
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
            _in_range(field, getattr(self, field), least, most)
        if self.workgroups is not None:
            _in_range("workgroups", self.workgroups, 1, 1 << 20)
        if self.only_rank is not None:
            _in_range("only_rank", self.only_rank, 0, self.num_ranks - 1)
        for field, step in (("line_bytes", 16), ("flag_spacing", 4)):
            if getattr(self, field) % step:
                raise InputError(f"must be a multiple of {step}, got {getattr(self, field)}", field=field)
        if self.waits not in WAITS:
            raise InputError(f"unknown waits {self.waits!r}{nearest(self.waits, WAITS)}", field="waits")
        self._check_tile()
        if self.chunks > 1 and self.rows % self.num_ranks:
            raise InputError(
                f"{self.name}{' in two steps' * bool(self.algorithm)} gives each of {self.num_ranks} ranks as many "
                f"rows, and {self.rows} are not a multiple of that",
                field="rows",
            )

    def _check_tile(self) -> None:
        words = TILE_WORDS[self.kind.compute]
        if len(self.tile) != len(words.split(", ")):
            raise InputError(f"of {self.name} is ({words}), got {self.tile!r}", field="tile")
        lined = {GEMV: (0, 1), GEMM: (1, 2), EMBEDDING: ()}[self.kind.compute]
        for i, size in enumerate(self.tile):
            _in_range(f"tile.{words.split(', ')[i]}", size, 1, _MAX_SIDE)
            if i in lined and size % self.line_elements:
                near = -(-size // self.line_elements) * self.line_elements
                raise InputError(
                    f"{size} elements of {self.dtype_bytes} B are not whole lines of {self.line_bytes} B; take {near}",
                    field=f"tile.{words.split(', ')[i]}",
                )

    @property
    def kind(self) -> Kind:
        return FUSED[self.name]

    @property
    def chunks(self) -> int:
        """Parts of the result that belong to different ranks; 1 where every rank needs all partial results."""
        return 1 if self.algorithm == ONESHOT else self.num_ranks

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return self.rows // self.chunks

    @property
    def line_elements(self) -> int:
        """Elements in a line."""
        return self.line_bytes // self.dtype_bytes

    def lines(self, elements: int) -> int:
        """Lines of so many elements side by side; a partial line costs a line."""
        return -(-elements // self.line_elements)


def fused_options(
    name: str,
    num_ranks: int,
    *,
    rows: int,
    cols: int,
    inner: int = 1,
    dtype_bytes: int = 4,
    tile: tuple[int, ...] | None = None,
    workgroups: int | None = None,
    wavefronts: int = 4,
    line_bytes: int = 64,
    fused: bool = True,
    algorithm: str | None = None,
    waits: str | None = None,
    flag_spacing: int | None = None,
    macs_per_cycle: int | None = None,
    table_rows: int | None = None,
    seed: int | None = None,
    collective_workgroups: int | None = None,
    only_rank: int | None = None,
) -> FusedOptions:
    """What is meant where something is left open; parameters as
    :func:`trine.collectives.kernels.fused.build.build_fused`.

    Raises
    ------
    InputError: wrong values, and options that cannot matter.
    """
    if name not in FUSED:
        raise InputError(f"no fused kernel {name!r}{nearest(name, FUSED)}", field="name")
    if dtype_bytes not in MACS_PER_CYCLE:
        raise InputError(f"must be one of 1, 2, 4 and 8, got {dtype_bytes!r}", field="dtype_bytes")
    kind = FUSED[name]
    of_one_form = {"flag_spacing": flag_spacing, "collective_workgroups": collective_workgroups}
    of_compute = {"table_rows": table_rows, "seed": seed, "macs_per_cycle": macs_per_cycle}
    given = {"algorithm": algorithm, "inner": None if inner == 1 else inner, **of_one_form, **of_compute}
    _refuse_idle(name, fused, given)
    usual = {ALL_REDUCE: ONESHOT if kind.compute == GEMV else TWOSHOT}.get(kind.op, "")
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise InputError(f"unknown algorithm {algorithm!r}{nearest(algorithm, ALGORITHMS)}", field="algorithm")
    _in_range("line_bytes", line_bytes, 16, 4096)
    return FusedOptions(
        name=name,
        num_ranks=num_ranks,
        rows=rows,
        cols=cols,
        inner=inner,
        dtype_bytes=dtype_bytes,
        tile=_usual_tile(kind.compute, line_bytes // dtype_bytes) if tile is None else tuple(tile),
        workgroups=workgroups,
        wavefronts=wavefronts,
        line_bytes=line_bytes,
        fused=fused,
        algorithm=usual if algorithm is None else algorithm,
        waits=(SINGLE if fused else JOINT) if waits is None else waits,
        flag_spacing=FLAG_SPACING if flag_spacing is None else flag_spacing,
        macs_per_cycle=MACS_PER_CYCLE[dtype_bytes] if macs_per_cycle is None else macs_per_cycle,
        table_rows=TABLE_ROWS if table_rows is None else table_rows,
        seed=0 if seed is None else seed,
        collective_workgroups=COLLECTIVE_WORKGROUPS if collective_workgroups is None else collective_workgroups,
        only_rank=only_rank,
    )


def _refuse_idle(name: str, fused: bool, given: Mapping[str, object]) -> None:
    """Raise InputError for options (None: not given) that cannot matter."""
    kind = FUSED[name]
    in_tables = kind.compute == EMBEDDING
    for field, matters, why in (
        ("algorithm", kind.op == ALL_REDUCE, f"{name} has one algorithm"),
        ("flag_spacing", fused, "the collective of the unfused form has semaphores on lines of their own"),
        ("collective_workgroups", not fused, "a fused kernel has workgroups alone"),
        ("table_rows", in_tables, f"{name} has no table"),
        ("seed", in_tables, f"nothing is random in {name}"),
        ("macs_per_cycle", not in_tables, "rows of a table are added up as they arrive"),
        ("inner", kind.compute != GEMV, "a GEMV has one vector; take gemm-allreduce"),
    ):
        if given[field] is not None and not matters:
            raise InputError(f"cannot matter here: {why}", field=field)


def _usual_tile(compute: str, line_elements: int) -> tuple[int, ...]:
    """GEMV: 64 rows, 256 columns at a time; GEMM: 128 x 128, 32 deep; 16 sums of a table; at least whole lines."""

    def whole(elements: int) -> int:
        return -(-elements // line_elements) * line_elements

    return {GEMV: (whole(64), whole(256)), GEMM: (128, whole(128), whole(32)), EMBEDDING: (16,)}[compute]


def _in_range(field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"must be a whole number from {least} to {most}, got {value!r}", field=field)
