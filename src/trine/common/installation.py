"""Facts of an installation and its machine: versions, extras, processors, memory, and the cache of compiled kernels.

Sources: the metadata of the installed packages (PEP 566), ``sched_getaffinity``, and on Linux the limits of control
groups, version 2 (``cpu.max`` and ``memory.max``; kernel documentation, admin-guide/cgroup-v2).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from trine.common._jit_files import said
from trine.common._version import __version__

#: Extras for users, and their purpose; the others serve trine's own development.
EXTRAS = {
    "plot": "pictures (--plot, --timeline)",
    "parquet": "--parquet, and traces in Parquet",
    "pandas": "result.to_frame()",
    "capture": "trine trace capture, trine measure",
    "dask": "trine sweep --scheduler",
    "search": "searches of trine sweep",
}
#: Environment variables that make trine slower, with the reason.
SLOW_SETTINGS = {
    "NUMBA_DISABLE_JIT": "kernels run as plain Python, hundreds of times slower",
    "NUMBA_BOUNDSCHECK": "kernels check every index",
    "NUMBA_DEBUG": "numba prints what it compiles",
    "NUMBA_OPT": "kernels are compiled with another level of optimisation",
    "PYTHONDONTWRITEBYTECODE": "each process compiles Python sources again",
}
_CGROUP = Path("/sys/fs/cgroup")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;\s*extra\s*==\s*[\"']([A-Za-z0-9_-]+)[\"'])?\s*\Z")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that trine uses. version: None if missing. extra: the extra that asks for it, or ""."""

    name: str
    version: str | None
    extra: str


@dataclass(frozen=True, slots=True)
class Processors:
    """cores: of the machine. usable: by this process, after affinity and quota of its group."""

    cores: int
    usable: float


@dataclass(frozen=True, slots=True)
class KernelFolder:
    """Folder of compiled kernels. folder: None if no folder works, with the reason as problem."""

    folder: str | None
    kernels: int
    size_bytes: int
    problem: str | None


def versions() -> dict[str, str]:
    """Return the versions of trine, Python and the operating system, and trine's folder."""
    return {
        "trine": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "folder": str(Path(__file__).parents[1]),
    }


def packages() -> tuple[Package, ...]:
    """Return the packages that trine's metadata asks for, those of :data:`EXTRAS` included; () without metadata."""
    try:
        requirements = metadata.requires("trine") or []
    except metadata.PackageNotFoundError:  # sources on the path, not installed
        return ()
    found = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue
        name, extra = match[1], match[2] or ""
        if not extra or extra in EXTRAS:
            found.append(Package(name, _version_of(name), extra))
    return tuple(found)


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processors() -> Processors:
    """Return the machine's cores, and how many of them this process may use."""
    cores = os.cpu_count() or 1
    usable = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(cores)
    quota = _numbers_of(_CGROUP / "cpu.max")
    if len(quota) == 2:
        usable = min(usable, quota[0] / quota[1])
    return Processors(cores, usable)


def memory_bytes() -> int | None:
    """Return the memory that this process may use: the machine's, or less by a limit; None if unknown."""
    limits = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limits += _numbers_of(_CGROUP / "memory.max")
    try:
        import resource
    except ImportError:  # Windows
        return min(limits, default=None)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits, default=None)


def _numbers_of(path: Path) -> list[int]:
    """Return the whole numbers of a file of a control group; [] without a file, or for a word such as ``max``."""
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
    return [int(word) for word in words] if all(word.isdecimal() for word in words) else []


def kernel_cache() -> KernelFolder:
    """Return the folder of compiled kernels, how many it holds and their size."""
    from trine.common._jit import cache_directory

    folder = cache_directory()
    if folder is None:
        return KernelFolder(None, 0, 0, said())
    files = list(folder.glob("*.nbc"))
    size_bytes = sum(file.stat().st_size for file in files)
    return KernelFolder(str(folder), len(files), size_bytes, said())


def slow_settings() -> Iterator[tuple[str, str]]:
    """Yield environment variables that are set and make trine slower, as ``NAME=value``, with the reason."""
    for name, reason in SLOW_SETTINGS.items():
        value = os.environ.get(name, "")
        is_default = name == "NUMBA_OPT" and value == "3"
        if value not in ("", "0") and not is_default:
            yield f"{name}={value}", reason
