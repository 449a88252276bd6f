"""The one entry point that reads any trace."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from trine.common.arguments import named_arguments
from trine.common.inputs import exists
from trine.errors import TraceError, nearest
from trine.graph.workload import Workload
from trine.workload.readers import READERS, bundled, load_bundled, read_trace

#: Same as :data:`trine.workload.synthesis.model.PREFIX`, whose module imports all models.
_PREFIX = "model:"


@named_arguments
def load(
    path: str | PathLike[str] | None = None,
    *,
    kineto: str | PathLike[str] | None = None,
    execution_trace: str | PathLike[str] | None = None,
    batch: int | None = None,
) -> Workload:
    """Read a single-GPU trace of one step, recognising its format.

    path: a file or folder, the name of a bundled trace (:func:`bundled`), or a model, ``NAME[,option=value...]`` with
        or without the prefix ``model:``, which :func:`trine.synthesize` then writes.
    kineto, execution_trace: the two halves of a PyTorch pair, in place of ``path``.
    batch: the batch size of the traced step, where dimension 0 of the first input is not it.

    Raises TraceError, naming the file and the line or event, for anything that is not a well-formed trace.
    """
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise TraceError(f"must be a positive whole number, got {batch!r}", field="batch")
    if kineto is not None or execution_trace is not None:
        if path is not None or kineto is None:
            raise TraceError("give either a path, or kineto with or without execution_trace")
        files = {"kineto": Path(kineto)}
        if execution_trace is not None:
            files["execution_trace"] = Path(execution_trace)
        return READERS.get("pytorch").read(files, batch)
    if path is None:
        raise TraceError("give a path, the name of a bundled trace, or kineto and execution_trace")
    if is_model_name(path):
        if batch is not None:
            raise TraceError(f"a model has its batch in its name: {str(path)[:80]},batch={batch}", field="batch")
        from trine.workload.synthesis.model import from_text

        return from_text(str(path))
    if not isinstance(path, str | PathLike):
        raise TraceError(f"must be a path, got {path!r:.80}")
    place = Path(path)
    if not exists(place) and str(path) in bundled():
        return load_bundled(str(path), batch)
    if not exists(place):
        hint = nearest(str(path), [*bundled(), *_models()], command="trine trace models")
        raise TraceError(f"no such file, folder, bundled trace or model{hint}", file=path)
    return read_trace(place, batch)


def is_model_name(workload: object) -> bool:
    """Return whether ``workload`` is ``model:NAME``, or a model's bare name that no file or bundled trace has."""
    if not isinstance(workload, str) or workload.startswith(_PREFIX):
        return isinstance(workload, str)
    name = workload.partition(",")[0]
    if _is_config(Path(name)):
        return True
    return name in _models() and not exists(Path(name)) and name not in bundled()


def _is_config(path: Path) -> bool:
    """Return whether a path is a config.json of Hugging Face, or a folder with one."""
    if path.suffix != ".json" and not (path / "config.json").is_file():
        return False
    from trine.workload.architecture.config_files import is_config

    return exists(path) and is_config(path)


def _models() -> tuple[str, ...]:
    from trine.workload.synthesis.model_names import known_models

    return known_models()
