"""Whether a log is of a version of NCCL that the prediction covers."""

from __future__ import annotations

import re

from trine.check.nccl_tests import NcclLog
from trine.collectives.nccl.parameters import load_library

_VERSION = re.compile(r"(\d+)\.(\d+)")


def version_notes(log: NcclLog, library: str | None) -> tuple[str, ...]:
    """Return a note on a log of NCCL outside the versions of the prediction; library: of the cluster's GPUs.

    A table without a version tells by its form that it is older: nccl-tests has printed a root column since 2022.
    """
    if library != "nccl" or log.library not in (None, "nccl"):
        return ()
    covered = load_library("nccl").version
    bounds = [_numbers(text) for text in covered.split(" to ")]
    version = _numbers(log.version or "")
    if version is None:
        if not log.is_old_form:
            return ()
        source = "the table has the form of nccl-tests before 2022, so its NCCL is older than the prediction's"
        return (f"{source} ({covered}): it may choose other algorithms and take longer for small sizes",)
    if None in bounds or len(bounds) != 2:
        return ()
    low, high = bounds
    assert low is not None
    assert high is not None
    if low <= version <= high:
        return ()
    return (f"the log is of NCCL {log.version}, the prediction of {covered}: the algorithms and costs may differ",)


def _numbers(text: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version, or None for another text."""
    match = _VERSION.match(text)
    return None if match is None else (int(match[1]), int(match[2]))
