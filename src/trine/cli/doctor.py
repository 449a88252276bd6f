"""``trine doctor``: is this installation complete, and what makes it slow?"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trine.cli.options import Json
from trine.cli.output import show, write_json
from trine.common.units import format_bytes

if TYPE_CHECKING:
    from trine.common.installation import KernelFolder, Package, Processors

#: Least number of usable cores without advice: sweeps and searches use one process each.
MIN_CORES = 2
#: Memory of the largest bundled example, with a margin.
MIN_MEMORY_BYTES = 2 << 30


def doctor(json: Json = None) -> None:
    """Print versions, extras, cores, memory and the kernel cache; time a small answer; name what is slow, and why.

    Example: trine doctor
    """
    from trine.common.installation import kernel_cache, memory_bytes, packages, processors, slow_settings, versions

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a problem of the cache is an entry of this answer
        times = {"import numba": _timed(_import_numba)}
        before = kernel_cache()
        times |= {"first answer": _timed(_small_answer), "next answer": _timed(_small_answer)}
        cache = kernel_cache()
    facts, found, cores, memory = versions(), packages(), processors(), memory_bytes()
    settings = dict(slow_settings())
    advice = [f"{setting}: {reason}" for setting, reason in settings.items()]
    advice += _advice(before, cache, cores, memory)
    missing = [package.name for package in found if package.version is None and not package.extra]
    advice += [f"{name} is not installed: pip install {name}" for name in missing]

    lines = [f"trine {facts['trine']}, {facts['python']}, {facts['system']}", f"  folder    {facts['folder']}"]
    lines += [f"  packages  {_named(package for package in found if not package.extra)}"]
    lines += _extras(found)
    lines.append(f"  cores     {cores.usable:g} usable of {cores.cores}")
    lines.append(f"  memory    {'unknown' if memory is None else format_bytes(memory)}")
    lines.append(f"  kernels   {_kernels(cache)}")
    lines.append("  times     " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items()))
    lines += [f"  slow      {text}" for text in advice] or ["  no part is slow"]
    show("\n".join(lines), json)
    answer: dict[str, Any] = {
        "versions": facts,
        "packages": [asdict(package) for package in found],
        "cores": cores.cores,
        "usable_cores": cores.usable,
        "memory_bytes": memory,
        "kernel_cache": asdict(cache),
        "times_s": {name: round(seconds, 3) for name, seconds in times.items()},
        "advice": advice,
    }
    write_json(answer, json, "doctor")


def _timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _import_numba() -> None:
    from trine.common._jit import is_uncompiled

    is_uncompiled()


def _small_answer() -> None:
    """Simulate the step of a bundled trace on two GPUs."""
    from trine.parallel.plan import Plan
    from trine.training import simulate
    from trine.workload import load

    simulate(load("vgg13-h100-b128"), Plan(dp=2), cluster="dgx-h100")


def _named(packages: Iterable[Package]) -> str:
    return ", ".join(f"{package.name} {package.version or 'missing'}" for package in packages)


def _extras(found: tuple[Package, ...]) -> list[str]:
    """Return a line for each extra: its packages, or the command that installs them."""
    from trine.common.installation import EXTRAS

    lines = []
    for extra, adds in EXTRAS.items():
        members = [package for package in found if package.extra == extra]
        if not members:
            continue
        if any(package.version is None for package in members):
            lines.append(f"  extra     {extra}: not installed; adds {adds}: pip install 'trine[{extra}]'")
        else:
            lines.append(f"  extra     {extra}: {_named(members)}")
    return lines


def _kernels(cache: KernelFolder) -> str:
    if cache.folder is None:
        return "not kept"
    return f"{cache.kernels} compiled ({format_bytes(cache.size_bytes)}) in {cache.folder}"


def _advice(before: KernelFolder, cache: KernelFolder, cores: Processors, memory: int | None) -> list[str]:
    """Return the slow parts with their reasons and remedies. before: the cache before the small answer."""
    advice = []
    if cache.problem is not None:
        advice.append(cache.problem)
    elif cache.kernels == 0:
        advice.append("the first large run compiles kernels for about 5 s, once: 'trine warmup' compiles them now")
    elif before.kernels == 0:
        advice.append(
            "the first answer compiled kernels, once for this installation: 'trine warmup' compiles the others"
        )
    if cores.usable < min(MIN_CORES, cores.cores):
        advice.append(f"sweeps and searches run one process: this one may use {cores.usable:g} of {cores.cores} cores")
    if memory is not None and memory < MIN_MEMORY_BYTES:
        advice.append(f"{format_bytes(memory)} of memory: large jobs may end with 'out of memory'")
    return advice
