"""How fast is the compiled load-store loop against a C++ loop of the same structure (gpu_loop.cpp)?

Run: python benchmarks/bench_gpu_loop.py [--gpus 16] [--mib 16] [--pairs 5] [--only put|get] [--compiler g++]
     [--flags "-O3 -march=native"]
An all-gather by put and one by get on the paper's GPU (astra3-generic), all GPUs simulated. Both loops start from the
same tables, with room for all requests, and must end with equal records of each task, operation, CU, link and channel.
Prints CPU time per event of the loops alone (ns, medians of alternating pairs of runs), and the median ratio.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import trine.engine._state as engine_state
import trine.gpu._state as S
from trine.cluster import load_cluster
from trine.common._records import for_kernel, new_records, one_for_kernel, with_parts
from trine.engine._limits import MAX_PS
from trine.gpu import program as operations
from trine.gpu._loop import advance
from trine.gpu._scheduler import _MAX_SEQUENCE
from trine.gpu._wheel import FETCHED
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import gpu_model_of
from trine.gpu.records import STATE_NAMES
from trine.gpu.start import GpuState, copy_entities, more_lines, more_requests, new_state
from trine.gpu.system import GpuSystem, kernel_tasks, unfolded

SOURCE = Path(__file__).with_name("gpu_loop.cpp")
HEADER = "gpu_loop_tables.h"
C_TYPES = {"i1": "int8_t", "i2": "int16_t", "i4": "int32_t", "i8": "int64_t", "f8": "double"}
#: Record types of the loop, by C++ name.
_NAMED = vars(S) | {name: getattr(engine_state, name) for name in ("TASK", "STREAM", "ENTRY")}
RECORDS = {
    "".join(word.title() for word in name.split("_")): dtype
    for name, dtype in _NAMED.items()
    if isinstance(dtype, np.dtype)
}
MIB = 1 << 20
#: Larger than the number of events of any run.
NO_LIMIT = 1 << 62


# The tables


def system_of(gpus: int, size_bytes: int, algorithm: str) -> GpuSystem:
    """Build an all-gather on the paper's GPUs, all of them simulated."""
    cluster = load_cluster("astra3-generic", gpus=gpus)
    program = build_kernel("all_gather", gpus, size_bytes, algorithm=algorithm)
    return unfolded(program, cluster, cluster.gpus, gpu_model_of(cluster, cluster.gpus), kernel_tasks(program))


def arrays_of(bundle: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays of a bundle and its nested bundles, in order."""
    for name, part in zip(bundle._fields, bundle, strict=True):
        if isinstance(part, tuple):
            yield from arrays_of(part, f"{name}_")
        elif name in S.VIEWS and name != "requests":
            continue  # the same memory
        else:
            yield prefix + name, part


def all_arrays(state: GpuState) -> dict[str, np.ndarray]:
    """Return all arrays of a run's state by name: clocks, models and tables."""
    return {"clock": state.clocks, "model": state.models, **dict(arrays_of(state.tables))}


def c_type(dtype: np.dtype[Any]) -> str:
    """Return the C++ type of an array's entries."""
    if dtype.names is None:
        return C_TYPES[dtype.str[1:]]
    return next(name for name, record in RECORDS.items() if record == dtype)


def c_record(name: str, dtype: np.dtype[Any]) -> str:
    """Return a record type as a C++ struct; among fields that share bytes, it keeps the first."""
    assert dtype.fields is not None
    lines, checks, end = [f"struct alignas(8) {name} {{"], [], 0
    for field, (kind, offset, *_) in dtype.fields.items():
        if offset < end:
            continue
        base = kind.base
        length = f"[{kind.shape[0]}]" if kind.shape else ""
        lines.append(f"    {C_TYPES[base.str[1:]]} {field}{length};")
        checks.append(f"static_assert(offsetof({name}, {field}) == {offset});")
        end = offset + kind.itemsize
    rest = dtype.itemsize - end
    if rest:
        lines.append(f"    char unused[{rest}];")
    checks.append(f"static_assert(sizeof({name}) == {dtype.itemsize});")
    return "\n".join([*lines, "};", *checks])


def header_of(state: GpuState) -> str:
    """Return a C++ header with the Python side's records, constants and array names."""
    numbers = {name: value for name, value in vars(S).items() if name.isupper() and type(value) is int}
    numbers |= {f"OP_{name.upper()}": kind for kind, name in enumerate(operations.OP_NAMES)}
    numbers |= {f"STATE_{name.upper()}": kind for kind, name in enumerate(STATE_NAMES)}
    numbers |= {
        "ROLE_READ": operations.READ, "ROLE_WRITE": operations.WRITE, "TASK_COMPUTE": engine_state.COMPUTE,
        "NUM_STATES": len(STATE_NAMES), "MAX_PS": MAX_PS, "MAX_SEQUENCE": _MAX_SEQUENCE, "FETCHED": FETCHED,
    }  # fmt: skip
    arrays = {name: c_type(array.dtype) for name, array in all_arrays(state).items()}
    return "\n".join([
        "#pragma once", "#include <cstddef>", "#include <cstdint>",
        *(f"constexpr std::int64_t {name} = {value};" for name, value in numbers.items()),
        *(c_record(name, dtype) for name, dtype in RECORDS.items()),
        f"#define FOR_ARRAYS(DO) {' '.join(f'DO({kind}, {name})' for name, kind in arrays.items())}",
        "struct Tables {", *(f"{kind}* {name}; std::int64_t num_{name};" for name, kind in arrays.items()), "};", "",
    ])  # fmt: skip


def write_tables(state: GpuState, path: Path) -> None:
    """Write all arrays, each preceded by its bytes per entry and its number of entries."""
    with path.open("wb") as file:
        for array in all_arrays(state).values():
            file.write(np.array([array.dtype.itemsize, len(array)], np.int64).tobytes())
            file.write(np.ascontiguousarray(array).tobytes())


def differences(state: GpuState, path: Path) -> list[str]:
    """Return the names of the arrays that differ from the file."""
    found, at, raw = [], 0, path.read_bytes()
    for name, array in all_arrays(state).items():
        other = raw[at + 16 : at + 16 + array.nbytes]
        at += 16 + array.nbytes
        if other != np.ascontiguousarray(array).tobytes():
            found.append(name)
    return found


# Runs


def copy_of(state: GpuState) -> GpuState:
    """Return a copy of the state with new arrays; the fabric is shared."""
    tables = with_parts(state.tables, lambda part: with_parts(part, copied) if isinstance(part, tuple) else part)
    tables = tables._replace(entities=copy_entities(state.tables.entities))
    return GpuState(tables=tables, clocks=copied(state.clocks), models=copied(state.models), fabric=state.fabric)


def copied(array: np.ndarray) -> np.ndarray:
    """Return a copy of the array; records start at a cache line."""
    if array.dtype.names is None:
        return array.copy()
    made = new_records(len(array), array.dtype)
    made[:] = array
    return made


def run_here(state: GpuState) -> tuple[int, int]:
    """Run ``state`` to its end in the compiled loop; return the status, and the CPU time in ns."""
    tables = for_kernel(state.tables)
    clock, model = one_for_kernel(state.clocks)[0], one_for_kernel(state.models)[0]
    began = time.thread_time_ns()
    status = int(advance(tables, clock, model, NO_LIMIT))
    return status, time.thread_time_ns() - began


def with_room(system: GpuSystem) -> GpuState:
    """Return the initial state with arrays as large as the whole run needs."""
    grow = {S.REQUESTS_FULL: more_requests, S.LINES_FULL: more_lines}
    state, begin = new_state(system), new_state(system)
    while True:
        status, _ = run_here(state)
        if status == S.FINISHED:
            return begin
        if status not in grow:
            raise SystemExit(f"the compiled loop came back with {status}")
        grow[status](state)
        grow[status](begin)


def compile_here(compiler: str, flags: str, state: GpuState, folder: Path) -> Path:
    """Compile the C++ loop in ``folder``."""
    if shutil.which(compiler) is None:
        raise SystemExit(f"{compiler} is not there: this needs a C++17 compiler (--compiler)")
    (folder / HEADER).write_text(header_of(state), encoding="utf-8")
    program = folder / "gpu_loop"
    command = [compiler, "-std=c++17", *shlex.split(flags), f"-I{folder}", str(SOURCE), "-o", str(program)]
    made = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{made.stderr}")
    return program


def run_there(program: Path, tables: Path, result: Path) -> tuple[int, int, int]:
    """Run the C++ loop; return events, end time in ps and CPU time in ns."""
    made = subprocess.run([program, tables, result], capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(made.stderr.strip() or f"the C++ loop ended with {made.returncode}")
    events, end_ps, spent_ns = map(int, made.stdout.split())
    return events, end_ps, spent_ns


def compare(algorithm: str, begin: GpuState, program: Path, pairs: int) -> None:
    """Run one program in alternating pairs and print one line with the medians."""
    tables, result = program.with_name("tables"), program.with_name("result")
    write_tables(begin, tables)
    here_ns, there_ns = [], []
    for _ in range(pairs):
        state = copy_of(begin)
        _, spent_ns = run_here(state)
        events, end_ps, other_ns = run_there(program, tables, result)
        if (events, end_ps) != (state.clock.num_events, state.clock.now):
            here = f"{state.clock.num_events} events until {state.clock.now} ps"
            raise SystemExit(f"{algorithm}: {here}, in C++ {events} until {end_ps}")
        if different := differences(state, result):
            raise SystemExit(f"{algorithm}: other results in C++: {', '.join(different)}")
        here_ns.append(spent_ns / events)
        there_ns.append(other_ns / events)
    ratio = statistics.median(here / there for here, there in zip(here_ns, there_ns, strict=True))
    print(
        f"{algorithm:6} {events / 1e6:9.2f} {end_ps / 1e6:13.2f} {statistics.median(here_ns):12.1f} "
        f"{statistics.median(there_ns):12.1f} {ratio:7.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--mib", type=int, default=16, help="output of the all-gather in MiB")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=("put", "get"), help="one of the two programs")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--flags", default="-O3 -march=native")
    options = parser.parse_args()
    if options.pairs < 1 or options.gpus < 2 or options.mib < 1:
        parser.error("--pairs, --mib: 1 or more; --gpus: 2 or more")
    with tempfile.TemporaryDirectory() as folder:
        program = compile_here(options.compiler, options.flags, new_state(system_of(2, MIB, "put")), Path(folder))
        print(f"{'':6} {'M events':>9} {'simulated us':>13} {'trine ns/ev.':>12} {'C++ ns/ev.':>12} {'ratio':>7}")
        for algorithm in (options.only,) if options.only else ("put", "get"):
            begin = with_room(system_of(options.gpus, options.mib * MIB, algorithm))
            compare(algorithm, begin, program, options.pairs)


if __name__ == "__main__":
    main()
