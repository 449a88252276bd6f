"""Did an error come from a lack of memory? Python and its libraries raise many kinds of errors where memory ends.

A module that cannot be loaded is an ImportError, or a SyntaxError where the compiler needs it; a thread that cannot
start is a RuntimeError; an extension may raise a SystemError. So the process's address space is compared with its
limit.
"""

from __future__ import annotations

import errno
import os

#: Part of the limit of the address space (``ulimit -v``) from which on an error counts as a lack of memory.
NEAR = 0.9


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error or one of its causes is a lack of memory, or the address space is nearly used up."""
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            break
        if isinstance(seen, MemoryError) or (isinstance(seen, OSError) and seen.errno == errno.ENOMEM):
            return True
        seen = seen.__cause__ or seen.__context__
    return is_near_limit()


def is_near_limit() -> bool:
    """Return whether this process has nearly all of the address space that it may have; False without a limit."""
    try:
        import resource

        limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
        with open("/proc/self/statm", "rb") as file:
            used_bytes = int(file.read(64).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError, MemoryError):
        return False
    return limit_bytes != resource.RLIM_INFINITY and used_bytes > NEAR * limit_bytes
