"""Arguments of the library: fields with help texts, and error messages for unknown names."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from trine.errors import InputError, nearest

T = TypeVar("T")
R = TypeVar("R")

#: Argument names from before version 0.3 -> current names.
FORMER = {
    "num_steps": "steps", "input_copy": "inputs", "algorithms": "algorithm", "waits": "flags",
    "stragglers": "straggler",
}  # fmt: skip

#: Argument names of other tools -> trine's names.
SYNONYMS = {
    "zero": "sharding", "fsdp": "sharding", "gpus": "dp", "replicas": "dp", "data_parallel": "dp",
    "tensor_parallel": "tp", "pipeline_parallel": "pp", "batch_size": "batch", "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch", "activation_checkpointing": "recompute",
}  # fmt: skip

#: Arguments of another function whose result a function takes: argument -> the parameter, and the call.
ELSEWHERE = {"nodes": ("cluster", 'cluster=load_cluster("dgx-h100", nodes=2)')}


class ArgumentError(InputError, TypeError):
    """An unknown or missing argument of a function."""


def option(default: Any = MISSING, help: str = "", *, factory: Any = MISSING, needed: str = "") -> Any:
    """Return a dataclass field with the help sentence that Python and the command line show.

    needed: the message if a field without a default is missing; it names the field.
    """
    if factory is not MISSING:
        return field(default_factory=factory, metadata={"help": help})
    return field(default=default, metadata={"help": help, "needed": needed})


def check_needed(kind: type, names: Collection[str], function: str) -> None:
    """Raise ArgumentError if ``names`` leave out a field of a dataclass that has no default."""
    for each in fields(kind):
        if each.default is MISSING and each.default_factory is MISSING and each.name not in names:
            usual = f"{function}: missing a required argument: {each.name!r}"
            raise ArgumentError(each.metadata.get("needed") or usual)


def options_of(kind: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that are options, by name."""
    return {each.name: each for each in fields(kind) if "help" in each.metadata}


def check_whole(field: str, value: object, least: int, most: int) -> None:
    """Raise InputError unless ``value`` is a whole number in this range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"must be a whole number from {least} to {most}, got {value!r}", field=field)


def named_arguments(target: T) -> T:
    """Make a function, or a class's constructor, refuse unknown arguments and suggest the nearest name.

    Calls raise ArgumentError for an unknown, missing or repeated argument.
    """
    if inspect.isclass(target):
        cls = cast(Any, target)
        cls.__init__ = _checked(cls.__init__, target.__name__)
        return target
    return cast(T, _checked(target, target.__name__))  # type: ignore[attr-defined]


def _checked(function: Any, name: str) -> Any:
    @functools.wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError as error:
            if isinstance(error, InputError):
                raise
            _check_names(function, name, keywords)
            _check_call(function, name, args, keywords)
            raise

    return called


def _check_names(function: Any, name: str, keywords: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    names = [each for each in parameters if each != "self"]
    for word in keywords:
        if word not in names:
            raise _unknown(name, word, names) from None


def _unknown(name: str, word: str, names: list[str]) -> ArgumentError:
    new_name = FORMER.get(word)
    synonym = SYNONYMS.get(word)
    hint = f"; it is called {new_name!r} now" if new_name in names else nearest(word, names)
    if synonym in names:
        hint = f"; trine calls it {synonym!r}"
    parameter, call = ELSEWHERE.get(word, ("", ""))
    if parameter in names:
        hint = f"; the {parameter} has it: {call}"
    return ArgumentError(f"{name} has no argument {word!r}{hint}")


def _part_with(function: Any, word: str) -> ArgumentError | None:
    """Return the error for the field of a parameter's dataclass, given to the function itself: ``tp`` of a plan."""
    names = inspect.unwrap(function).__globals__
    for parameter in inspect.signature(function).parameters.values():
        for kind in re.findall(r"\w+", str(parameter.annotation)):
            part = names.get(kind)
            if is_dataclass(part) and any(each.name == word for each in fields(part)):
                text = f"has no argument {word!r}; it is a field of {kind}: {parameter.name}={kind}({word}=...)"
                return ArgumentError(f"{function.__name__} {text}")
    return None


def _check_call(function: Any, name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(*args, **keywords)
    except TypeError as error:
        raise ArgumentError(f"{name}: {error}") from None


def takes(kind: type[Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a function be called with the fields of ``kind`` as keywords, or with ``options=``, or both (keywords win).

    The function itself has a parameter ``options``, the finished dataclass; ``inspect.signature`` shows all keywords.

    Calls raise ArgumentError for an unknown, missing or repeated argument.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        signature = inspect.signature(function)
        own_parameters = [each for each in signature.parameters.values() if each.name != "options"]
        defaults = {each.name: _default_of(each) for each in fields(kind)}
        types = {each.name: each.type for each in fields(kind)}
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=types[name])
            for name, value in defaults.items()
        ]
        checked = _checked(function, function.__name__)

        @functools.wraps(function)
        def called(*args: Any, options: Any = None, **values: Any) -> R:
            own_values = {each.name: values.pop(each.name) for each in own_parameters if each.name in values}
            for word in values:
                if word not in defaults:
                    part = _part_with(function, word)
                    if part is not None:
                        raise part
                    raise _unknown(function.__name__, word, [*(each.name for each in own_parameters), *defaults])
            if options is None:
                _check_own(signature, own_parameters, args, own_values, function.__name__)
                check_needed(kind, values, function.__name__)
            filled = kind(**values) if options is None else replace(options, **values)
            return cast(R, checked(*args, **own_values, options=filled))

        called.__signature__ = signature.replace(parameters=[*own_parameters, *keywords])  # type: ignore[attr-defined]
        called.__annotations__ = {**types, **function.__annotations__}
        return called

    return decorate


def _check_own(
    signature: inspect.Signature, own: list[inspect.Parameter], args: tuple[Any, ...], values: Mapping[str, Any],
    name: str,
) -> None:  # fmt: skip
    """Check the arguments that are no fields, which come first. Raises ArgumentError for missing or surplus ones."""
    try:
        signature.replace(parameters=own).bind(*args, **values)
    except TypeError as error:
        raise ArgumentError(f"{name}: {error}") from None


def _default_of(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING and field.default_factory is MISSING else field.default
