"""The files of a capture: checked for what trine cannot read, compressed, and put in place in one go.

The execution trace observer writes each call's tensors while the call runs: some 70 us a call, ten times a small
operator's own launch (PyTorch 2.13). Beside the profiler it would be timed with it, so each records a step of its own,
and both steps must have done the same work, call by call.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trine.errors import InputError, TraceError
from trine.outputs import open_output
from trine.workload.tracing.meta import CAPTURE_FILES

#: What an event's name starts with, and what that means. Names as PyTorch 2.1 to 2.13 and CUPTI/roctracer write them.
_UNSUPPORTED = (
    (("Torch-Compiled Region", "CompiledFunction", "CompiledFxGraph"), "runs torch.compile code, whose fused kernels "
     "are not separate operators: capture the eager model"),
    (("cudaGraphLaunch", "hipGraphLaunch"), "replays a CUDA graph, whose kernels have no operators: capture without"),
    (("c10d::", "nccl:", "gloo:", "record_param_comms"), "communicates: capture one process on one GPU, without "
     "DistributedDataParallel or FSDP; trine adds the communication"),
)  # fmt: skip

#: Kineto's fields for the machine's name and for the path that the file had.
_PRIVATE = re.compile(rb'"(host_name|traceName)"\s*:\s*"(?:[^"\\]|\\.)*"')


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a ``path`` that is taken: only a former capture is ever replaced, and only with ``overwrite``."""
    if not path.name or path.name == "..":
        raise InputError("must end in the name of the directory to make", file=path)
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise InputError("exists and is not a directory; a capture is a directory: choose another name", file=path)
    held = sorted(entry.name for entry in path.iterdir())
    strangers = [name for name in held if name not in CAPTURE_FILES]
    if strangers:
        raise InputError(f"exists and holds other files ({strangers[0]!r}): choose another name", file=path)
    if held and not overwrite:
        raise InputError("holds a capture already; overwrite=True (--overwrite) replaces it", file=path)


def check_kineto(kineto: Mapping[str, Any], device: str) -> None:
    """Refuse a traced step that trine could only misread.

    ``kineto`` is the document that the profiler wrote, ``device`` what the user asked for (``cuda`` or ``cpu``).
    Raises InputError: no operator at all, no GPU kernel on ``cuda``, several GPUs, compiled code, CUDA graphs,
    collectives.
    """
    events = [event for event in kineto.get("traceEvents", ()) if isinstance(event, dict)]
    if not any(event.get("cat") == "cpu_op" for event in events):
        raise InputError("the traced step ran no PyTorch operator: is the work done inside the loop?")
    for event in events:
        for starts, meaning in _UNSUPPORTED:
            if str(event.get("name", "")).startswith(starts):
                raise InputError(f"the traced step {meaning} (event {str(event['name'])[:80]!r})")
    gpus = sorted({str((event.get("args") or {}).get("device")) for event in events if event.get("cat") == "kernel"})
    if device == "cuda" and not gpus:
        raise InputError("no GPU kernel ran in the traced step: are model and data on the GPU? (or use device='cpu')")
    if len(gpus) > 1:
        raise InputError(
            f"the traced step used several GPUs ({', '.join(gpus)}): capture on one; trine adds the others"
        )


def check_devices(execution_trace: Mapping[str, Any], device: str) -> None:
    """Refuse tensors on a GPU in a capture that was asked for the CPU: kernel times would be missing."""
    if device == "cpu" and any(_on_gpu(node) for node in execution_trace.get("nodes", ())):
        raise InputError("the traced step used a GPU, not device='cpu': use device='cuda'")


def _on_gpu(node: Mapping[str, Any]) -> bool:
    """Whether a node of the execution trace touches a GPU tensor, noted as [id, storage, ..., ``"cuda:0"``]."""
    for side in ("inputs", "outputs"):
        block = node.get(side, ())
        values = block.get("values", ()) if isinstance(block, dict) else block  # a plain list up to PyTorch 2.2
        if any(isinstance(v, list) and v and isinstance(v[-1], str) and v[-1].startswith("cuda") for v in values):
            return True
    return False


def without_private(kineto: bytes) -> bytes:
    """Return the text of Kineto's file without the machine's name and paths, each other byte as it was."""
    return _PRIVATE.sub(rb'"\1": ""', kineto)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that the profiler has just written; TraceError where it is not a JSON object."""
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the profiler wrote a file that is not JSON: {error}", file=path) from error
    if not isinstance(document, dict):
        raise TraceError("the profiler wrote no JSON object", file=path)
    return document


def write_gzip(content: bytes, path: Path) -> None:
    """Write ``content`` compressed; the same content gives the same bytes (no name, no time in the header)."""
    with (
        open_output(path) as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as out,
    ):
        out.write(content)


def put_in_place(made: Path, path: Path) -> None:
    """Rename the finished directory ``made`` to ``path`` beside it; a former capture there is removed afterwards."""
    if not path.exists():
        made.rename(path)
        return
    former = made.with_name(made.name + "-former")
    path.rename(former)
    try:
        made.rename(path)
    except BaseException:  # Ctrl-C as well
        former.rename(path)
        raise
    shutil.rmtree(former)


_CALLS = ("cpu_op", "user_annotation")
_STEP_MARK = "ProfilerStep#"  # set by the profiler itself


def check_same_work(kineto: Mapping[str, Any], execution_trace: Mapping[str, Any]) -> None:
    """Refuse two steps whose threads made different calls: the readers join the two files by the order of calls.

    Each thread of the profiler's step needs one of the observer's with the same sequence of names. The observer may
    have seen more threads (a data loader's). Raises InputError with the first call that differs.
    """
    observed = _observed_threads(execution_trace)
    for names in _profiled_threads(kineto):
        if names in observed:
            observed.remove(names)
            continue
        closest = max(observed, key=lambda other: _common_start(names, other), default=[])
        place = _common_start(names, closest)
        first, second = (sequence[place] if place < len(sequence) else "nothing" for sequence in (closest, names))
        raise InputError(
            f"two steps in a row did different work: call {place + 1} was {first[:80]!r}, then {second[:80]!r}. A "
            "trace stands for all steps: each must make the same calls (no evaluation or logging now and then)"
        )


def _profiled_threads(kineto: Mapping[str, Any]) -> list[list[str]]:
    """Names of the calls of each thread in the order of their start, the longest thread first."""
    threads: dict[str, list[tuple[float, float, int, str]]] = {}
    for index, event in enumerate(kineto["traceEvents"]):
        if event.get("cat") in _CALLS and event.get("ph") == "X" and not event["name"].startswith(_STEP_MARK):
            call = (float(event["ts"]), -float(event["dur"]), index, str(event["name"]))
            threads.setdefault(str(event.get("tid")), []).append(call)
    sequences = [[name for *_, name in sorted(calls)] for calls in threads.values()]
    return sorted(sequences, key=lambda names: -len(names))


def _observed_threads(execution_trace: Mapping[str, Any]) -> list[list[str]]:
    """The same of the execution trace, whose node ids count up from call to call; roots of threads are no calls."""
    threads: dict[int, list[tuple[int, str]]] = {}
    for node in execution_trace["nodes"]:
        values = node
        if "attrs" in node:  # since PyTorch 2.3; before, a node's own fields
            values = {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
        if values["rf_id"]:
            threads.setdefault(values["tid"], []).append((node["id"], node["name"]))
    return [[name for _, name in sorted(calls)] for calls in threads.values()]


def _common_start(first: list[str], second: list[str]) -> int:
    """How many names the two sequences share from their start on."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
