"""Decorators for numba: one for kernels and one for the functions that they inline.

Kernels are compiled once per installation and kept in
``<cache>/trine/<hash of the kernel sources, of numba and of its settings>``, where ``<cache>`` is ``NUMBA_CACHE_DIR``,
``XDG_CACHE_HOME`` or ``~/.cache``. Numba only detects changes to the kernel's file; the hash covers every callee.
``_jit_cache.py`` guards numba's cache files, which numba loads unchecked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from trine.common._jit_files import say_once, usable
from trine.common.user_folders import user_cache

#: Scalars of a kernel: Python or numpy numbers; int64 and float64 once compiled. Numba does not read annotations.
Int: TypeAlias = Any
Float: TypeAlias = Any

F = TypeVar("F", bound=Callable[..., Any])


#: First and last version of numba whose inner parts ``_jit_compiler.py`` changes; others take twice as long to compile.
KNOWN_VERSIONS = ((0, 60), (0, 68))


def _is_known() -> bool:
    import numba

    return bool(KNOWN_VERSIONS[0] <= numba.version_info.short <= KNOWN_VERSIONS[1])


def _compiler(name: str) -> dict[str, Any]:
    """Return the option of numba for a class of ``_jit_compiler.py``."""
    if not _is_known():
        return {}
    from trine.common import _jit_compiler

    return {"pipeline_class": getattr(_jit_compiler, name)}


def make_by_reference() -> Callable[[Any], Any]:
    """Return a function for kernels that gives a NamedTuple as a pointer.

    By value, each call of an inlined function passes seven numbers for each array.
    """
    import numba

    if _is_known() and not numba.config.DISABLE_JIT:
        from trine.common._jit_compiler import refer

        return refer  # type: ignore[no-any-return]
    return numba.njit(lambda bundle: bundle)  # type: ignore[no-any-return]


def kernel(function: F) -> F:
    """Compile ``function``, cache the machine code on disk, and release the GIL while it runs.

    Kernels take few arguments (arrays and NamedTuples of arrays), allocate nothing, raise nothing and return a status.
    """
    import numba

    options = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True, **_compiler("KernelCompiler")}
    compiled = numba.njit(nogil=True, **options)(function)
    if compiled is function:  # NUMBA_DISABLE_JIT
        return function
    if _is_known():
        from trine.common._jit_compiler import call_on_large_stack

        compiled._compiler.compile = partial(call_on_large_stack, compiled._compiler.compile)
    directory = cache_directory()
    if directory is not None:
        from trine.common._jit_cache import KernelCache

        compiled._cache = KernelCache(function, directory)
    return compiled  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """Compile ``function`` into each kernel that calls it.

    Without ``_nrt=False`` every call with arrays updates reference counts atomically: 1.5 to 3 times slower. Python
    never calls these functions, so they have no Python wrappers; kernels then compile in 0.7 of the time.
    """
    import numba

    options = {"error_model": "numpy", "_nrt": False, **_compiler("InlinedCompiler")}
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(forceinline=True, **options)(function)  # type: ignore[no-any-return]


def make_prefetch() -> Callable[[Any, Int], None]:
    """Return ``prefetch(records, index)`` for kernels: it starts loading a record into the cache without waiting.

    Uncompiled it does nothing.
    """
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    if is_uncompiled():
        return lambda array, index: None

    @intrinsic  # type: ignore[untyped-decorator]
    def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            import llvmlite.ir as ir

            array_struct = context.make_array(signature.args[0])(context, builder, arguments[0])
            address_type = context.get_value_type(types.intp)
            first = builder.ptrtoint(array_struct.data, address_type)
            offset = builder.mul(arguments[1], context.get_constant(types.intp, signature.args[0].dtype.size))
            address = builder.inttoptr(builder.add(first, offset), cgutils.voidptr_t)
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            builder.call(function, [address, number(1), number(3), number(1)])  # to be written, near, data
            return context.get_dummy_value()

        return types.void(array, index), generate

    return prefetch  # type: ignore[no-any-return]


def is_uncompiled() -> bool:
    """Return whether kernels run as plain Python (NUMBA_DISABLE_JIT)."""
    import numba

    return bool(numba.config.DISABLE_JIT)


def is_cold(function: Callable[..., Any]) -> bool:
    """Return whether the next call of the kernel ``function`` must compile it first."""
    if not hasattr(function, "py_func"):  # NUMBA_DISABLE_JIT
        return False
    if function.signatures:  # type: ignore[attr-defined]
        return False
    return cache_directory() is None or bool(function._cache.is_empty())  # type: ignore[attr-defined]


@cache
def cache_directory() -> Path | None:
    """Return the folder of the machine code, possibly read-only. Returns None, after a warning, if no folder works."""
    import numba

    base = os.path.abspath(numba.config.CACHE_DIR) if numba.config.CACHE_DIR else user_cache()
    if base is None:
        say_once("kernels are compiled anew in each process: there is no home folder: set NUMBA_CACHE_DIR to a folder")
        return None
    directory = Path(base) / "trine" / _fingerprint()
    return directory if usable(directory) else None


def _fingerprint() -> str:
    """Return a hash of all kernel sources, the versions of numba and numpy, and the settings that affect the code.

    It includes path and modification time of the sources, as numba's does, so that :func:`is_cold` predicts it.
    """
    import numba
    import numpy

    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("_*.py")):
        if path.name != "__init__.py":
            digest.update(f"{path}\0{path.stat().st_mtime_ns}\0".encode() + path.read_bytes() + b"\0")
    settings = (numba.__version__, numpy.__version__, numba.config.BOUNDSCHECK, numba.config.OPT)
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:16]
