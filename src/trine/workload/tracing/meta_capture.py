"""Capture a step on the ``meta`` device: shapes only, so a model of any size needs no GPU and no memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from trine.common._version import __version__
from trine.errors import InputError
from trine.graph.workload import Workload
from trine.workload.tracing import files
from trine.workload.tracing.meta_autocast import Autocast
from trine.workload.tracing.meta_devices import Devices, as_on_gpu
from trine.workload.tracing.meta_recorder import Recorder, make_modes
from trine.workload.tracing.module_paths import ModulePaths
from trine.workload.tracing.torch_import import import_torch


class MetaCapture:
    """A capture of one step on the ``meta`` device::

        with trine.capture() as c:
            model, optimizer = build()
            for _ in c:
                train_step(model, optimizer)
        trine.simulate(c.workload, gpu="h100-sxm")

    Inside the block every tensor is on ``meta``, whatever device the code names. The loop runs once, and its step is
    recorded; a block without a loop is recorded as a whole. Leaving the block sets ``workload`` and, with a ``path``,
    writes the trace into that directory. A step that reads values of tensors (``loss.item()``) raises InputError with
    the operator and the line.

    path: the directory to create, None to write nothing. name: of the workload; None: the directory's name, or "step".
    overwrite: replace an earlier capture at ``path``.

    Raises InputError: an existing ``path``, a step without operators. MissingExtraError: torch is not installed.
    """

    num_steps = 1
    device = "meta"

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, name: str | None = None, overwrite: bool = False
    ) -> None:
        self.path = None if path is None else Path(path)
        self.name = name or ("step" if self.path is None else self.path.name)
        self.overwrite = overwrite
        self.workload: Workload | None = None
        self._recorder: Recorder | None = None
        self._open = ExitStack()

    def __enter__(self) -> MetaCapture:
        if self.path is not None:
            files.check_target(self.path, overwrite=self.overwrite)
        torch = import_torch()
        autocast, modules = Autocast(torch), ModulePaths()
        self._recorder = Recorder(torch, Devices(torch), autocast, modules)
        with ExitStack() as stack:  # closed again if one of them fails
            for context in (as_on_gpu(), autocast.followed(), modules.followed(), *make_modes(self._recorder)):
                stack.enter_context(context)
            self._open = stack.pop_all()
        self._recorder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if kind is None and self._recorder is not None:
            self.workload = self._read(self._recorder)
            if self.path is not None:
                self._write(self.workload, self.path)

    def __iter__(self) -> Iterator[int]:
        if self._recorder is None:
            raise InputError("iterate a capture inside its block: with trine.capture() as c: for step in c: ...")
        self._recorder.start()
        with as_on_gpu():  # transformers may have been imported since the block began
            yield 0
        self._recorder.is_on = False

    def _read(self, recorder: Recorder) -> Workload:
        import torch

        from trine.workload.analysis.analyse import analyse
        from trine.workload.pytorch.reader import read_calls

        if len(recorder.nodes) == 1:
            raise InputError("the step ran no PyTorch operator: is the work done inside the loop?")
        workload = analyse(read_calls(recorder.nodes, self.name))
        metadata = {"device": "meta", "versions.trine": __version__, "versions.torch": str(torch.__version__)}
        return replace(workload, name=self.name, metadata={**workload.metadata, **metadata})

    def _write(self, workload: Workload, path: Path) -> None:
        from trine.workload.native import save

        build = path.with_name(f".{path.name}.partial-{os.getpid()}")
        try:
            build.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", file=path) from error
        try:
            save(workload, build / files.STEP_FILE)
            files.put_in_place(build, path)
        finally:
            shutil.rmtree(build, ignore_errors=True)
