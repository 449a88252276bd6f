"""The files of a capture: check that trine can read them, compress them, and move them into place atomically.

The execution trace observer writes each call's tensors during the call. This takes about 70 us per call, ten times a
small operator's launch (PyTorch 2.13), and the profiler would time it. So each records a separate step, and both steps
must do the same work, call by call.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from trine.common.outputs import open_output, write_text
from trine.common.schema import Fault, Field, read_as
from trine.errors import InputError, TraceError
from trine.graph.workload import TRACED_STEP, Workload
from trine.workload.files import read_json as read_strictly

# The third file of a capture, ``meta.json``, read strictly and written deterministically.
#
# A capture is a directory with :data:`KINETO_FILE`, :data:`EXECUTION_TRACE_FILE` and :data:`META_FILE`. The first two
# are PyTorch's own formats; the third has data they cannot hold: step times measured without the profiler, and the
# machine.

KINETO_FILE = "kineto.json.gz"
EXECUTION_TRACE_FILE = "execution_trace.json.gz"
META_FILE = "meta.json"
CAPTURE_FILES = (EXECUTION_TRACE_FILE, KINETO_FILE, META_FILE)
#: The only file of a capture on the meta device, in trine's own format.
STEP_FILE = "step.trine.json.gz"

FORMAT, VERSION = "trine-capture", 1
_Text = Annotated[str, Field(max_length=1000)]
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureMeta:
    """Conditions of a capture.

    ``device``: ``cuda`` or ``cpu``; ``device_name``: from the driver or the system. ``warmup_steps``: steps before the
    first measured one. ``unprofiled_steps_ps``: wall time of each step without the profiler, device synchronised before
    and after, in picoseconds. ``traced_step_ps``: the same for the traced step, with the profiler. ``versions``,
    ``host``, ``settings``: names and values for people.
    """

    name: _Text
    device: Literal["cuda", "cpu"]
    device_name: _Text
    captured_at: _Text
    warmup_steps: _Count
    unprofiled_steps_ps: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    traced_step_ps: _Count
    versions: dict[_Text, _Text]
    host: dict[_Text, _Text]
    settings: dict[_Text, _Text]

    @property
    def unprofiled_step_ps(self) -> int:
        """Median of the un-profiled steps in picoseconds (the lower of two middle steps)."""
        return statistics.median_low(self.unprofiled_steps_ps)


def write_meta(meta: CaptureMeta, path: Path) -> None:
    """Write ``meta`` as JSON to ``path``; it includes the median for people, which is checked on reading."""
    document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(meta)}
    document["unprofiled_step_median_ps"] = meta.unprofiled_step_ps
    write_text(path, json.dumps(document, indent=2) + "\n")


def read_meta(path: Path) -> CaptureMeta:
    """Read a capture's ``meta.json``. Raises TraceError, naming the file and the field, if the file is invalid."""
    document = read_strictly(path, strict=True)
    if not isinstance(document, dict):
        raise TraceError(f"must be a JSON object, got {type(document).__name__}", file=path)
    version = (document.pop("format", None), document.pop("version", None))
    if version != (FORMAT, VERSION):
        raise TraceError(f"must be {(FORMAT, VERSION)}, got {version}", file=path, field="format, version")
    median = document.pop("unprofiled_step_median_ps", None)
    try:
        meta = read_as(CaptureMeta, document)
    except Fault as error:
        raise TraceError(str(error), file=path, field=error.path or None) from None
    if median != meta.unprofiled_step_ps:
        text = f"is {median!r}, but the median of unprofiled_steps_ps is {meta.unprofiled_step_ps}"
        raise TraceError(text, file=path, field="unprofiled_step_median_ps")
    return meta


def with_meta(workload: Workload, meta: CaptureMeta) -> Workload:
    """Return ``workload`` with the un-profiled step time, device and machine from ``meta``."""
    metadata = {key: value for key, value in workload.metadata.items() if value}  # a capture blanks the host's name
    metadata.update(device=meta.device, device_name=meta.device_name, captured_at=meta.captured_at)
    metadata.update(warmup_steps=str(meta.warmup_steps), timed_steps=str(len(meta.unprofiled_steps_ps)))
    metadata[TRACED_STEP] = str(meta.traced_step_ps)
    for group in ("versions", "host", "settings"):
        metadata.update({f"{group}.{key}": value for key, value in getattr(meta, group).items()})
    gpu = meta.device_name if meta.device == "cuda" else None
    return dataclasses.replace(
        workload, name=meta.name, gpu=workload.gpu or gpu, unprofiled_step_ps=meta.unprofiled_step_ps, metadata=metadata
    )


def with_meta_beside(workload: Workload, kineto: Path) -> Workload:
    """Return ``workload``, read from the profiler file ``kineto``, with the metadata beside that file, if any.

    Raises TraceError if the file has a capture's name and its ``meta.json`` cannot be read.
    """
    path = kineto.with_name(META_FILE)
    if kineto.name != KINETO_FILE or not path.exists():
        return workload
    return with_meta(workload, read_meta(path))


#: Prefixes of unsupported events, and their error messages. Names of PyTorch 2.1 to 2.13 and CUPTI/roctracer.
_UNSUPPORTED = (
    (("Torch-Compiled Region", "CompiledFunction", "CompiledFxGraph"), "runs torch.compile code, whose fused kernels "
     "are not separate operators: capture the eager model"),
    (("cudaGraphLaunch", "hipGraphLaunch"), "replays a CUDA graph, whose kernels have no operators: capture without"),
    (("c10d::", "nccl:", "gloo:", "record_param_comms"), "communicates: capture one process on one GPU, without "
     "DistributedDataParallel or FSDP; trine adds the communication"),
)  # fmt: skip

#: Kineto's fields for the machine's name and the file's original path.
_PRIVATE = re.compile(rb'"(host_name|traceName)"\s*:\s*"(?:[^"\\]|\\.)*"')


def check_target(path: Path, *, overwrite: bool) -> None:
    """Raise InputError if ``path`` exists, unless it holds only an earlier capture and ``overwrite`` is set."""
    if not path.name or path.name == "..":
        raise InputError("must end in the name of the directory to make", file=path)
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise InputError("exists and is not a directory; a capture is a directory: choose another name", file=path)
    entries = sorted(entry.name for entry in path.iterdir())
    strangers = [name for name in entries if name not in (*CAPTURE_FILES, STEP_FILE)]
    if strangers:
        raise InputError(f"exists and holds other files ({strangers[0]!r}): choose another name", file=path)
    if entries and not overwrite:
        raise InputError("holds a capture already; overwrite=True (--overwrite) replaces it", file=path)


def check_kineto(kineto: Mapping[str, Any], device: str) -> None:
    """Reject a traced step that trine would misread.

    ``kineto`` is the profiler's document, ``device`` the user's choice (``cuda`` or ``cpu``).
    Raises InputError for a step without operators, no GPU kernel on ``cuda``, several GPUs, compiled code, CUDA graphs,
    or collectives.
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
    """Raise InputError for GPU tensors in a capture with ``device`` ``cpu``, since kernel times would be missing."""
    if device == "cpu" and any(_on_gpu(node) for node in execution_trace.get("nodes", ())):
        raise InputError("the traced step used a GPU, not device='cpu': use device='cuda'")


def _on_gpu(node: Mapping[str, Any]) -> bool:
    """Return whether an execution trace's node has a GPU tensor, written as [id, storage, ..., ``"cuda:0"``]."""
    for side in ("inputs", "outputs"):
        block = node.get(side, ())
        values = block.get("values", ()) if isinstance(block, dict) else block  # a plain list up to PyTorch 2.2
        if any(isinstance(v, list) and v and isinstance(v[-1], str) and v[-1].startswith("cuda") for v in values):
            return True
    return False


def without_private(kineto: bytes) -> bytes:
    """Return the text of Kineto's file without the machine's name and paths, otherwise unchanged."""
    return _PRIVATE.sub(rb'"\1": ""', kineto)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that the profiler has just written. Raises TraceError if it is not a JSON object."""
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the profiler wrote a file that is not JSON: {error}", file=path) from error
    if not isinstance(document, dict):
        raise TraceError("the profiler wrote no JSON object", file=path)
    return document


def write_gzip(content: bytes, path: Path) -> None:
    """Write ``content`` compressed; equal content gives equal bytes (no name or time in the header)."""
    with (
        open_output(path) as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as out,
    ):
        out.write(content)


def put_in_place(finished: Path, path: Path) -> None:
    """Rename the finished directory ``finished`` to its sibling ``path``, then remove an earlier capture from there."""
    if not path.exists():
        finished.rename(path)
        return
    former = finished.with_name(finished.name + "-former")
    path.rename(former)
    try:
        finished.rename(path)
    except BaseException:  # Ctrl-C as well
        former.rename(path)
        raise
    shutil.rmtree(former)


_CALLS = ("cpu_op", "user_annotation")
_STEP_MARK = "ProfilerStep#"  # set by the profiler itself


def check_same_work(kineto: Mapping[str, Any], execution_trace: Mapping[str, Any]) -> None:
    """Reject two steps whose threads made different calls, since readers join the two files by the order of calls.

    Each thread of the profiler's step needs a thread of the observer's step with the same sequence of names. The
    observer may have more threads (a data loader's). Raises InputError with the first call that differs.
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
    """Return each thread's call names by start time, the thread with the most calls first."""
    threads: dict[str, list[tuple[float, float, int, str]]] = {}
    for index, event in enumerate(kineto["traceEvents"]):
        if event.get("cat") in _CALLS and event.get("ph") == "X" and not event["name"].startswith(_STEP_MARK):
            call = (float(event["ts"]), -float(event["dur"]), index, str(event["name"]))
            threads.setdefault(str(event.get("tid")), []).append(call)
    sequences = []
    for calls in threads.values():
        sequences.append([name for *_, name in sorted(calls)])
    return sorted(sequences, key=lambda names: -len(names))


def _observed_threads(execution_trace: Mapping[str, Any]) -> list[list[str]]:
    """Return each thread's call names in the execution trace, by node id; thread roots are not calls."""
    threads: dict[int, list[tuple[int, str]]] = {}
    for node in execution_trace["nodes"]:
        values = node
        if "attrs" in node:  # since PyTorch 2.3; before, a node's own fields
            values = {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
        if values["rf_id"]:
            threads.setdefault(values["tid"], []).append((node["id"], node["name"]))
    sequences = []
    for calls in threads.values():
        sequences.append([name for _, name in sorted(calls)])
    return sequences


def _common_start(first: list[str], second: list[str]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
