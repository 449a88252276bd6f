"""Locks of an experiment's shards: no two drivers of one machine answer the same points at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trine.errors import InputError
from trine.experiments.journal import JOURNAL, folder_of, shard_folders
from trine.experiments.places import make_folder
from trine.experiments.spec import ExperimentSpec, Shard


@contextmanager
def locked(directory: Path, spec: ExperimentSpec, shard: Shard) -> Iterator[None]:
    """Lock a shard's folder of journals until the block or this process ends.

    Raises InputError if another process of this machine has locked it, or a shard that shares points with it.
    """
    make_folder(directory, JOURNAL, folder_of(directory, shard).name)
    with ExitStack() as stack:
        with ExitStack() as start:  # drivers start one after the other, so that each sees the locks of all others
            _lock(directory / JOURNAL, start, is_patient=True)
            if not _lock(folder_of(directory, shard), stack):
                raise InputError(f"another process is answering shard {shard} of it", file=directory)
            for other, folder in shard_folders(directory).items():
                if other != shard and shard.shared(other, spec.size) and not _lock(folder, start):
                    raise InputError(
                        f"another process is answering shard {other} of it, which shares points with shard {shard}",
                        file=directory,
                    )
        yield


def _lock(folder: Path, stack: ExitStack, *, is_patient: bool = False) -> bool:
    """Lock a folder until the stack closes; return False if another process has locked it.

    Returns True without a lock on Windows, and on a file system without locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        handle = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if is_patient else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
