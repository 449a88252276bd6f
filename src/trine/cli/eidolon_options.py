"""Options that ``trine eidolon run`` and ``sweep`` share, and what they become."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.replay.options import EidolonOptions

_KERNEL, _WRITES, _WAITS, _GPU = "Kernel", "What peers send", "How wavefronts wait", "Machine"

Kernel = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL",
        help="gemv-allreduce, gemm-allreduce, gemm-reducescatter, gemm-alltoall, embedding-alltoall, or a program.",
    ),
]
Rows = Annotated[int | None, typer.Option(help="Of the matrix [1024].", rich_help_panel=_KERNEL)]
Cols = Annotated[int | None, typer.Option(help="Of the matrix [1024; embedding 256].", rich_help_panel=_KERNEL)]
Inner = Annotated[int | None, typer.Option(help="Depth of a GEMM [256], rows of a sum [16].", rich_help_panel=_KERNEL)]
DtypeBytes = Annotated[int | None, typer.Option(help="Of an element [4].", rich_help_panel=_KERNEL)]
Tile = Annotated[str | None, typer.Option(metavar="RxC[xK]", help="Of the result.", rich_help_panel=_KERNEL)]
Workgroups = Annotated[int | None, typer.Option(help="Of the kernel [one a tile].", rich_help_panel=_KERNEL)]
Algorithm = Annotated[
    str | None, typer.Option(metavar="oneshot|twoshot", help="Of an all-reduce.", rich_help_panel=_KERNEL)
]
Flags = Annotated[
    str | None,
    typer.Option(
        "--flags", metavar="joint|single", help="Peers add to one flag, or have one each [joint].",
        rich_help_panel=_KERNEL,
    ),
]  # fmt: skip
FlagSpacing = Annotated[int | None, typer.Option(help="Bytes between flags [8].", rich_help_panel=_KERNEL)]
Unfused = Annotated[
    bool, typer.Option("--unfused", help="Two kernels: compute, then communicate.", rich_help_panel=_KERNEL)
]
WakeupFrom = Annotated[
    str | None,
    typer.Option(metavar="wait|start", help="From when wake-up times count [wait].", rich_help_panel=_WRITES),
]
Fabric = Annotated[
    str | None,
    typer.Option(metavar="ideal|modelled", help="Whether writes go through links [ideal].", rich_help_panel=_WRITES),
]
Straggler = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANK:TIME", help="A peer whose writes come later; again for others.", rich_help_panel=_WRITES
    ),
]
Sync = Annotated[
    str | None, typer.Option(metavar="spin|mwait|sleep", help="How wavefronts wait [spin].", rich_help_panel=_WAITS)
]
Poll = Annotated[str | None, typer.Option(help="Pause between reads of a flag.", rich_help_panel=_WAITS)]
Sleep = Annotated[str | None, typer.Option(help="Pause of --sync sleep.", rich_help_panel=_WAITS)]
Capacity = Annotated[
    int | None,
    typer.Option("--monitor-capacity", help="Wavefronts that may sleep [all].", rich_help_panel=_WAITS),
]
MonitorWakeup = Annotated[
    str | None,
    typer.Option("--monitor-wakeup", help="From a write to the next read [100 ns].", rich_help_panel=_WAITS),
]
GpuModel = Annotated[str | None, typer.Option(help="Inside of the GPU: name or file.", rich_help_panel=_GPU)]
Cluster = Annotated[str, typer.Option(help="Preset name or cluster file.", rich_help_panel=_GPU)]
Engine = Annotated[str, typer.Option(metavar="compiled|reference", help="The engine, or its Python twin.")]


def options_of(**given: Any) -> EidolonOptions:
    """From what was typed; ``tile``, ``straggler`` and ``unfused`` are as the command line has them."""
    from trine.collectives.kernels.options import WAITS
    from trine.replay.options import EidolonOptions

    if given.get("waits") not in (None, *WAITS):
        raise InputError(f"unknown --flags {given['waits']!r:.80}{nearest(given['waits'][:80], WAITS)}")
    tile, late = given.pop("tile", None), given.pop("straggler", None)
    return EidolonOptions(
        fused=not given.pop("unfused", False),
        tile=None if tile is None else _tile(tile),
        stragglers=_stragglers(late or ()),
        **given,
    )


def _tile(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,9}(x\d{1,9}){0,2}", text):
        raise InputError(f"--tile is like 64x256, or 128x128x32 for a GEMM, got {text[:80]!r}")
    return tuple(int(part) for part in text.split("x"))


def _stragglers(texts: Sequence[str]) -> dict[int, str]:
    pairs = [_straggler(text) for text in texts]
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InputError("--straggler names a rank twice")
    return found


def _straggler(text: str) -> tuple[int, str]:
    rank, colon, late = text.partition(":")
    if not colon or not rank.isdecimal() or len(rank) > 6:
        raise InputError(f"--straggler is RANK:TIME, such as '2:5 us', got {text[:80]!r}")
    return int(rank), late


def whole_numbers(option: str, text: str | None) -> tuple[int, ...]:
    """``3,15,255``, or ``1024:8192:1024`` (first:last:step)."""
    if text is None:
        return ()
    if ":" in text:
        first, last, step = _three(option, text)
        return tuple(_count(option, n) for n in _range(option, *(_whole(option, part) for part in (first, last, step))))
    return tuple(_whole(option, part) for part in text.split(","))


def times(option: str, text: str | None) -> tuple[int, ...]:
    """``"0,5 us,10 us"``, or ``0:40us:5us``; ps."""
    from trine.units import parse_time

    if text is None:
        return ()
    if ":" in text:
        return _range(option, *(parse_time(part, option) for part in _three(option, text)))
    return tuple(parse_time(part, option) for part in text.split(","))


def _three(option: str, text: str) -> list[str]:
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(f"{option} is a list with commas, or FIRST:LAST:STEP, got {text[:80]!r}")
    return parts


def _range(option: str, first: int, last: int, step: int) -> tuple[int, ...]:
    if step <= 0 or last < first or (last - first) // step > 10_000:
        raise InputError(f"{option}: FIRST:LAST:STEP goes upwards, in at most 10000 steps")
    return tuple(range(first, last + 1, step))


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", text):
        raise InputError(f"{option} is whole numbers with commas, got {text[:80]!r}")
    return int(text)


def _count(option: str, number: int) -> int:
    if number < 1:
        raise InputError(f"{option} counts from 1")
    return number
