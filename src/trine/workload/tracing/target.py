"""Finds the function that a user names on the command line: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from trine.errors import InputError, nearest


def load_function(target: str) -> Callable[[], object]:
    """Import and return the function that ``target`` names; it takes no arguments.

    As for a script, its folder (of a file) or the current directory (of a module) is put in front of ``sys.path``.
    Raises InputError where the module cannot be imported or holds no such function.
    """
    module_name, separator, function_name = target.rpartition(":")
    if not separator or not module_name or not function_name.isidentifier():
        raise InputError(f"must be package.module:function or path/to/file.py:function, got {target!r}", field="target")
    is_file = module_name.endswith(".py") or "/" in module_name or "\\" in module_name
    module = _import_file(Path(module_name)) if is_file else _import_module(module_name)
    function = getattr(module, function_name, None)
    if function is None:
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise InputError(f"has no function {function_name!r}{nearest(function_name, functions)}", file=module_name)
    if not callable(function):
        raise InputError(f"{function_name!r} is a {type(function).__name__}, not a function", file=module_name)
    _check_no_arguments(function, target)
    return function  # type: ignore[no-any-return]


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r} is not the name of a module", field="target")
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError("no such file", file=path)
    _search_first(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError("is not a Python file: its name must end in .py", file=path)
    module = importlib.util.module_from_spec(spec)
    former = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if former is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = former
        raise _import_failed(str(path), error) from error
    return module


def _import_failed(target: str, error: Exception) -> InputError:
    return InputError(f"cannot be imported: {type(error).__name__}: {error}", file=target)


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _check_no_arguments(function: Callable[..., object], target: str) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"must be callable without arguments: {error}", file=target) from error
    except ValueError:  # a built-in without a signature: calling it will tell
        return
