"""Is an error where memory ends told from other errors?"""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from trine.common import lack_of_memory
from trine.common.lack_of_memory import is_near_limit, lacks_memory


def chained(last: Exception, *causes: Exception) -> Exception:
    """Return ``last`` as raised from the first of ``causes``, that from the next, and so on."""
    error = last
    for cause in causes:
        error.__cause__ = cause
        error = cause  # type: ignore[assignment]
    return last


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (chained(RuntimeError("compilation failed"), TypeError(), MemoryError()), True),
        (chained(ValueError("wrong"), KeyError("name")), False),
        (OSError(errno.ENOENT, "No such file"), False),
    ],
)
def test_an_error_lacks_memory_if_a_cause_does(error: Exception, lacks: bool) -> None:
    assert lacks_memory(error) is lacks


def test_a_loop_of_causes_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert lacks_memory(first) is False


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space as Linux does")
@pytest.mark.parametrize(("free_mib", "is_near"), [(4, True), (400, False)])
def test_an_address_space_is_nearly_used_up_close_to_its_limit(free_mib: int, is_near: bool) -> None:
    program = f"""
import os, resource
from trine.common.lack_of_memory import is_near_limit, lacks_memory
ballast = bytearray(100 << 20)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * os.sysconf("SC_PAGE_SIZE") + ({free_mib} << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(is_near_limit(), lacks_memory(SyntaxError("cannot load a module")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(is_near)] * 2


def test_without_a_limit_no_error_lacks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lack_of_memory, "NEAR", 0.0)
    assert not is_near_limit()
