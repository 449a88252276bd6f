"""Load a plan, whatever its format: MSCCL++ JSON of either generation, or MSCCL XML."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trine.collectives.mscclpp.plan import KernelPlan
from trine.collectives.mscclpp.read_v1 import read_v1
from trine.collectives.mscclpp.read_v2 import read_v2
from trine.collectives.mscclpp.read_xml import read_xml
from trine.collectives.mscclpp.reading import check_plan_shape
from trine.errors import SpecError
from trine.inputs import read_text
from trine.schema import show
from trine.spec import parse_json


def load_plan(path: str | os.PathLike[str]) -> KernelPlan:
    """Read an execution plan.

    Parameters
    ----------
    path: MSCCL++ JSON (v1: April 2024 to v0.7.0; v2: v0.8.0 on) or MSCCL XML, told apart by what is in the file.

    Raises
    ------
    SpecError: the file cannot be read, is in no known format, or says something unknown or inconsistent; names the
        file, the GPU, thread block and operation, and the nearest valid name.
    """
    file = os.fspath(path)
    text = read_text(path)
    plan = read_xml(text, file) if text.lstrip().startswith("<") else _read_json(text, file)
    check_plan_shape(plan)
    return plan


def _read_json(text: str, file: str) -> KernelPlan:
    data = parse_json(text, file)
    gpus = data.get("gpus") if isinstance(data, Mapping) else None
    if not isinstance(gpus, list) or not gpus:
        raise SpecError(
            f"is not a plan: must be a list of what each GPU does, got {show(gpus)}", file=file, field="gpus"
        )
    first = gpus[0]
    if isinstance(first, Mapping) and "inputChunks" in first:
        return read_v1(data, file)
    if isinstance(first, Mapping) and "input_chunks" in first:
        return read_v2(data, file)
    raise SpecError(
        "is not a plan: gpus[0] has neither 'inputChunks' (MSCCL++ up to v0.7) nor 'input_chunks' (from v0.8 on)",
        file=file,
    )
