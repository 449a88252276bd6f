"""The reader of trine's own trace format: recognises its files, and reads them with :mod:`trine.workload.native`."""

from __future__ import annotations

from pathlib import Path

from trine.common.inputs import head
from trine.errors import TraceError
from trine.graph.workload import Workload
from trine.workload.files import NATIVE_SUFFIXES
from trine.workload.readers import TraceReader


def _find(path: Path) -> dict[str, Path] | None:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(NATIVE_SUFFIXES) and file.is_file())
        if len(files) > 1:
            raise TraceError(f"holds {len(files)} traces, {files[0].name} and others: name one", file=path)
        return {"trace": files[0]} if files else None
    return {"trace": path} if path.name.endswith(NATIVE_SUFFIXES) or _says_native(path) else None


def _says_native(path: Path) -> bool:
    """Return whether a JSON file of another name starts like this format."""
    if not path.name.endswith((".json", ".json.gz")):
        return False
    return b'"trine-trace"' in head(path, 4096)[:200]


def _read(files: dict[str, Path], batch: int | None) -> Workload:
    from trine.workload.native import load_native

    workload = load_native(files["trace"])
    if batch is not None and batch != workload.batch:
        message = f"batch {batch} was given, but the trace says {workload.batch}"
        raise TraceError(message, file=files["trace"], field="batch")
    return workload


READER = TraceReader("native", f"a file that ends in {' or '.join(NATIVE_SUFFIXES)}", _find, _read)
