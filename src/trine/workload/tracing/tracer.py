"""The tracer: records one training step of the user's own loop as a pair of PyTorch traces.

Like TrioSim's tracer (ISCA'25, section 4.2), it records the PyTorch profiler (Kineto) for operators, kernels and times,
and the execution trace observer for tensors, but in one run. The order is: warm-up, steps timed without the profiler,
one observed step (tensors; the profiler warms up meanwhile), one profiled step (times). Each of them records alone,
because the observer slows every call; :mod:`trine.workload.tracing.files` checks that both steps did the same work.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from trine.common.arguments import check_whole, named_arguments
from trine.errors import InputError, nearest
from trine.graph.workload import Workload
from trine.workload.tracing import files as files
from trine.workload.tracing.files import (
    EXECUTION_TRACE_FILE,
    KINETO_FILE,
    META_FILE,
    CaptureMeta,
    check_same_work,
    write_meta,
)
from trine.workload.tracing.machine import describe_machine
from trine.workload.tracing.meta_capture import MetaCapture
from trine.workload.tracing.model_step import ModelInputs, step_of
from trine.workload.tracing.torch_import import import_torch

DEVICES = ("auto", "cuda", "cpu", "meta")
_RECORDED = 2  # one step with the observer, one with the profiler
#: Maximum number of warm-up steps, and of timed steps.
MAX_STEPS = 100_000
_PS_PER_NS = 1000


class Capture:
    """A capture of the loop around the user's own step::

        with trine.capture("resnet50-b128") as c:
            for step in c:
                train_step()

    Iterating yields the numbers 0 to ``num_steps`` - 1: ``warmup`` steps, ``timed`` steps without the profiler, two
    recorded steps. Leaving the block writes the directory ``path``, reads it back, and sets ``workload``. If the block
    raises, or the loop ends early, trine writes no files.

    path: the directory to create, with its parents.
    device: ``cuda`` (also ROCm), ``cpu``, or ``auto``: cuda if PyTorch sees a GPU.
    name: of the workload; None: the directory's name.
    overwrite: replace an earlier capture at ``path``.

    Raises InputError: a wrong argument, an existing ``path``, a missing device, a loop that ended early, or a step that
    trine would misread (compiled code, CUDA graphs, collectives, several GPUs, other work than in the step before).
    MissingExtraError: torch is not installed. TraceError: the recorded files cannot be read; they are kept.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, device: str = "auto", warmup: int = 3, timed: int = 5,
        name: str | None = None, overwrite: bool = False,
    ) -> None:  # fmt: skip
        if device not in DEVICES[:-1]:
            raise InputError(f"unknown device {device!r}{nearest(str(device), DEVICES)}", field="device")
        self.path = Path(path)
        self.device = device
        for field, value in (("warmup", warmup), ("timed", timed)):
            check_whole(field, value, 1, MAX_STEPS)
        self.warmup, self.timed = warmup, timed
        self.name = name or self.path.name
        self.overwrite = overwrite
        self.workload: Workload | None = None
        self._torch: Any = None
        self._profiler: Any = None
        self._observer: Any = None
        self._steps_begun = 0
        self._step_ns: list[int] = []

    @property
    def num_steps(self) -> int:
        """Number of steps of the loop."""
        return self.warmup + self.timed + _RECORDED

    @property
    def _build_path(self) -> Path:
        """Temporary directory next to ``path``; one rename moves it there at the end."""
        return self.path.with_name(f".{self.path.name}.partial-{os.getpid()}")

    def __enter__(self) -> Capture:
        self._torch = import_torch()
        self.device = _resolve_device(self.device, self._torch)
        if self._torch.autograd._profiler_enabled():
            raise InputError("a PyTorch profiler is running already: capture outside of it")
        files.check_target(self.path, overwrite=self.overwrite)
        try:
            self._build_path.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", file=self.path) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finished = len(self._step_ns) == self.timed + 1
        try:
            self._stop_observer()
            self._stop_profiler()
            if kind is None and not finished:
                raise InputError(
                    f"the loop ended in step {self._steps_begun} of {self.num_steps}: let 'for step in c' run to its "
                    "end (no break, and enough data), or ask for fewer warmup and timed steps"
                )
            if kind is None:
                self._write()
        finally:
            shutil.rmtree(self._build_path, ignore_errors=True)
        if kind is None:
            from trine.workload import load  # not at the top: the package's __init__ imports this module's names

            self.workload = load(self.path)

    def __iter__(self) -> Iterator[int]:
        if self._torch is None:
            raise InputError("iterate a capture inside its block: with trine.capture(path) as c: for step in c: ...")
        if self._steps_begun:
            raise InputError("a capture can be iterated once: make another one for another trace")
        for step in range(self.warmup):
            yield self._begin(step)
        for step in range(self.warmup, self.warmup + self.timed):
            yield from self._timed(step)
        yield from self._recorded(self.num_steps - _RECORDED)

    def _begin(self, step: int) -> int:
        self._steps_begun = step + 1
        return step

    def _timed(self, step: int) -> Iterator[int]:
        """Time one step; the device is idle before and after."""
        self._synchronise()
        start = time.perf_counter_ns()
        yield self._begin(step)
        self._synchronise()
        self._step_ns.append(max(1, time.perf_counter_ns() - start))

    def _recorded(self, step: int) -> Iterator[int]:
        """Run the observed step and the profiled step; both files are in ``_build_path`` afterwards."""
        self._start_profiler()
        self._synchronise()
        self._observer.start()
        yield self._begin(step)
        self._synchronise()
        self._stop_observer()
        self._profiler.step()
        yield from self._timed(step + 1)
        self._profiler.step()
        self._stop_profiler()

    def _start_profiler(self) -> None:
        import torch.profiler as profiler

        self._observer = profiler.ExecutionTraceObserver()
        self._observer.register_callback(str(self._build_path / "execution_trace.json"))
        activities = [profiler.ProfilerActivity.CPU]
        if self.device == "cuda":
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
            on_trace_ready=lambda profile: profile.export_chrome_trace(str(self._build_path / "kineto.json")),
            record_shapes=True,
        )
        self._profiler.start()

    def _stop_profiler(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _stop_observer(self) -> None:
        if self._observer is not None:
            self._observer.unregister_callback()
            self._observer = None

    def _synchronise(self) -> None:
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def _write(self) -> None:
        raw_kineto, raw_execution = self._build_path / "kineto.json", self._build_path / "execution_trace.json"
        if not raw_execution.exists():  # PyTorch reports success for a second observer, but does not register it
            raise InputError("PyTorch allows one ExecutionTraceObserver at a time, and another one is registered")
        kineto, execution = files.read_json(raw_kineto), files.read_json(raw_execution)
        files.check_devices(execution, self.device)
        files.check_kineto(kineto, self.device)
        check_same_work(kineto, execution)
        files.write_gzip(files.without_private(raw_kineto.read_bytes()), self._build_path / KINETO_FILE)
        files.write_gzip(raw_execution.read_bytes(), self._build_path / EXECUTION_TRACE_FILE)
        write_meta(self._meta(), self._build_path / META_FILE)
        raw_kineto.unlink()
        raw_execution.unlink()
        files.put_in_place(self._build_path, self.path)

    def _meta(self) -> CaptureMeta:
        machine = describe_machine(self._torch, self.device)
        step_ps = tuple(ns * _PS_PER_NS for ns in self._step_ns)
        return CaptureMeta(
            name=self.name, device="cuda" if self.device == "cuda" else "cpu", device_name=machine.device_name,
            captured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), warmup_steps=self.warmup,
            unprofiled_steps_ps=step_ps[:-1], traced_step_ps=step_ps[-1], versions=machine.versions,
            host=machine.host, settings=machine.settings,
        )  # fmt: skip


@named_arguments
def capture(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    warmup: int | None = None,
    timed: int | None = None,
    name: str | None = None,
    overwrite: bool = False,
) -> Capture | MetaCapture:
    """Capture the user's own training step.

    path: the directory to create; None writes nothing. device: ``cuda``, ``cpu`` or ``auto`` records the loop around
    the step (:class:`Capture`); ``meta``, the default without a path, records one step without memory or a GPU
    (:class:`trine.workload.tracing.meta_capture.MetaCapture`).
    """
    device = "meta" if path is None and device == "auto" else device
    if device == "meta":
        refuse_steps(warmup, timed)
        return MetaCapture(path, name=name, overwrite=overwrite)
    if path is None:
        raise InputError(f"a capture on {device!r} writes files: name a directory for them", field="path")
    warmup, timed = 3 if warmup is None else warmup, 5 if timed is None else timed
    return Capture(path, device=device, warmup=warmup, timed=timed, name=name, overwrite=overwrite)


def capture_function(
    function: Callable[[], object], path: str | os.PathLike[str], *, device: str = "auto", warmup: int | None = None,
    timed: int | None = None, name: str | None = None, overwrite: bool = False, inputs: ModelInputs | None = None,
) -> Workload:  # fmt: skip
    """Capture the step of ``function``; return the workload.

    function: it returns a step, a model, or a model and its inputs, or performs the step itself
    (:func:`trine.workload.tracing.model_step.step_of`). Its first call decides between these; if it performs a step,
    that is one more warm-up step. inputs: sizes for a model. Other parameters and errors as for :func:`capture`;
    exceptions of ``function`` pass through.
    """
    session = capture(path, device=device, warmup=warmup, timed=timed, name=name, overwrite=overwrite)
    with session:
        step = step_of(function, inputs, session.device)
        for _ in session:
            step()
    assert session.workload is not None  # set when the block is left without an error
    return session.workload


def refuse_steps(warmup: int | None, timed: int | None) -> None:
    """Raise InputError for numbers of steps, which a capture on the meta device does not repeat."""
    for field, value in (("warmup", warmup), ("timed", timed)):
        if value is not None:
            raise InputError("has no effect with device meta, which records one step", field=field)


def _resolve_device(device: str, torch: Any) -> str:
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise InputError("PyTorch sees no CUDA or ROCm GPU here; device='cpu' traces on the processor", field="device")
    if device == "auto":
        return "cuda" if available else "cpu"
    return device
