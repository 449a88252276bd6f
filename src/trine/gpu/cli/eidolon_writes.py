"""``trine eidolon record`` and ``writes-from``: files of peers' writes, from runs and profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.options import OUTPUT, WRITES, Option, argument, fused_kernels
from trine.cli.output import say, show
from trine.cli.parameters import Fields, Given
from trine.cli.progress import watched
from trine.errors import InputError
from trine.gpu.cli.eidolon import Kernel, made
from trine.gpu.replay.options import EidolonOptions

if TYPE_CHECKING:
    from trine.gpu.peers import Arrivals
    from trine.gpu.replay.writes import WriteTable

#: Value of --from: the start of the first transfer.
FIRST = "first"
#: Options that ``record`` lacks: the run itself determines the peers' writes, with the compiled engine.
_SENT = (
    "wakeup", "wakeup_from", "distribution", "seed", "together", "straggler", "writes", "arrivals", "symmetric",
    "fabric", "engine",
)  # fmt: skip
_OF_KERNEL = (
    "rows", "cols", "inner", "dtype_bytes", "tile", "workgroups", "algorithm", "flags", "flag_spacing", "fused",
    "peers", "gpu_model", "cluster",
)  # fmt: skip


def record(
    kernel: Kernel,
    output: Annotated[str, Option("Write the record (.npz).", "FILE", OUTPUT, ("--output", "-o"))],
    given: Annotated[
        Given[EidolonOptions],
        Fields(without=_SENT, helps={"peers": "GPUs beside the target [3].", "target": "Record this rank [0]."}),
    ],
    no_fold: Annotated[bool, Option("Simulate every GPU, also identical ones.")] = False,
) -> None:
    """Simulate all GPUs, and record all arrivals at the I/O ports of one (for eidolon run --arrivals).

    Example: trine eidolon record gemv-allreduce --rows 256 --output arrivals.npz
    """
    from trine.gpu.replay.arrivals import save_arrivals
    from trine.gpu.replay.record import record_run

    if not output.lower().endswith(".npz"):
        raise InputError(f"a record is .npz, not {Path(output).suffix!r}", file=output)
    options = made(given, kernel=kernel)
    with watched("requests"):
        found = record_run(options, fold="off" if no_fold else "auto")
    save_arrivals(output, found.arrivals)
    show(found.summary(), None)
    say(f"record written to {output}")


def writes_from(
    result: Annotated[
        list[str], argument("Records of a run (npz, csv, parquet), arrivals, or a profile's files.", "RESULT...")
    ],
    output: Annotated[str, Option("Write the writes: CSV, JSON or Parquet.", "FILE", OUTPUT, ("--output", "-o"))],
    given: Annotated[
        Given[EidolonOptions],
        Fields(
            only=_OF_KERNEL,
            helps={
                "rows": "Set that kernel's rows [1024].", "cols": "Set that kernel's columns.",
                "peers": "Set that kernel's peers [3].",
                "cluster": "Choose that kernel's cluster: preset or file [eidola].",
            },
        ),
    ],
    target: Annotated[int | None, Option("Take the transfers of this rank [0].", panel=WRITES)] = None,
    kernel: Annotated[
        str | None,
        Option("Use the transfers as flags of this fused kernel [list them].", panel="Kernel",
               values=fused_kernels),
    ] = None,
    buffer: Annotated[str | None, Option("Send listed transfers to this buffer.", panel=WRITES)] = None,
    first_flag: Annotated[int | None, Option("Number the first listed transfer's semaphore [0].", panel=WRITES)] = None,
    at: Annotated[
        str | None, Option("Use a transfer's end or start [end]; start for --fabric modelled.", "end|start", WRITES)
    ] = None,
    since: Annotated[
        str | None,
        Option("Take transfers from this time on; count times from it [all, from 0].", "TIME|first", WRITES,
               ("--from",)),
    ] = None,
    mapping: Annotated[
        str | None, Option("Read the meaning of a profile's columns and names (YAML).", "FILE", WRITES)
    ] = None,
) -> None:  # fmt: skip
    """Write the peers' writes of a run or a profile, for eidolon run --writes.

    Example: trine eidolon writes-from records.parquet --kernel gemv-allreduce --output writes.csv
    """
    from trine.gpu.replay.record import request_writes
    from trine.gpu.replay.write_files import save_writes

    of_kernel = dict(given.values)
    of_list = {"buffer": buffer, "first_flag": first_flag}
    of_transfers = {"target": target, "at": at, "from": since, "kernel": kernel}
    notes: tuple[str, ...] = ()
    if mapping is not None:
        _refuse({**of_kernel, **of_list, **of_transfers}, "a profile, whose --mapping says it")
        table, notes = _profile(result, mapping)
    elif (found := _arrivals(result)) is not None:
        _refuse({**of_kernel, **of_list, **of_transfers}, "transfers, and this is a record of arrivals")
        table, notes = request_writes(found)
    else:
        if kernel is None:
            _refuse(of_kernel, "a kernel: give --kernel")
        else:
            _refuse(of_list, "listed transfers, whose targets come from --kernel")
        if kernel is not None:
            of_kernel["kernel"] = kernel

        def derived(of_kernel: Mapping[str, Any]) -> WriteTable:
            return _transferred(_only(result), target or 0, at or "end", since, of_kernel, of_list)

        table = derived(of_kernel)
        notes = tuple(_idle(of_kernel, table, derived))
    save_writes(output, table)
    for note in notes:
        say(f"note: {note}")
    say(f"{len(table):,} writes in {output}")


def _idle(
    given: Mapping[str, Any], table: WriteTable, derived: Callable[[Mapping[str, Any]], WriteTable]
) -> Iterator[str]:
    """Yield a sentence for each option of the kernel's inputs and machine that does not change the writes."""
    import numpy as np

    for name in ("cols", "inner", "gpu_model", "cluster"):
        if name not in given:
            continue
        try:
            other = derived({key: value for key, value in given.items() if key != name})
        except InputError:
            continue  # the kernel needs it
        pairs: Iterator[tuple[Any, Any]] = zip(table.columns, other.columns, strict=True)
        if table.names == other.names and all(np.array_equal(one, two) for one, two in pairs):
            option = f"--{name.replace('_', '-')} {given[name]}"
            yield f"{option} does not change the writes: it affects the target's kernel only"


def _profile(paths: list[str], mapping: str) -> tuple[WriteTable, tuple[str, ...]]:
    from trine.gpu.replay.profiles import read_profile

    found = read_profile(list(paths), mapping)
    return found.table, found.notes


def _transferred(
    path: str, target: int, at: str, since: str | None, of_kernel: Mapping[str, Any], of_list: Mapping[str, Any]
) -> WriteTable:
    """Return the transfers of an operator-level run as the writes of a kernel's peers, or as listed writes."""
    from trine.common.units import parse_time
    from trine.gpu.replay.record import fused_writes
    from trine.gpu.replay.transfers import listed_writes, read_transfers, records_file, transfers_from

    records_file(path)
    if not of_kernel and of_list["buffer"] is None:
        raise InputError("where do transfers go? --kernel NAME, or --buffer NAME of your program", file=path)
    transfers = read_transfers(path, target)
    if since is not None:
        transfers = transfers_from(transfers, None if since == FIRST else parse_time(since, "--from"))
    if of_kernel:
        return fused_writes(transfers, made(Given(EidolonOptions, of_kernel)), target, at)
    return listed_writes(transfers, buffer=of_list["buffer"], first_flag=of_list["first_flag"] or 0, at=at)


def _arrivals(paths: list[str]) -> Arrivals | None:
    """Return the record, or None if the file is not one."""
    from trine.gpu.replay.arrivals import is_record, load_arrivals

    return load_arrivals(paths[0]) if len(paths) == 1 and is_record(paths[0]) else None


def _only(paths: list[str]) -> str:
    if len(paths) > 1:
        raise InputError("several files are one profile, which needs --mapping FILE")
    return paths[0]


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            option = "--unfused" if name == "fused" else f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is about {why}")
