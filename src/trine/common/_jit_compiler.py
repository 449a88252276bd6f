"""Numba's compiler with less work: the load-store loop, 90 functions, compiles in 4 s instead of 11. Imports numba."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar

from numba import types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, register_model

#: Numba's passes for language features that kernels do not use, such as closures and expressions of whole arrays.
_UNUSED = {
    "with_lifting", "inline_closure_likes", "rewrite_semantic_constants", "generic_rewrites",
    "Rewrite dynamic raises", "make_function_op_code_to_jit_function", "inline_inlinables", "find_literally",
    "literal_unroll", "LiteralPropagation", "inline_overloads", "nopython_rewrites",
}  # fmt: skip


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


#: Call a function from a frame so large that CPython puts the frames of nested calls in the same 2 MiB block. Otherwise
#: each call at the end of a 16 KiB block maps the next block and unmaps it again: a quarter of the compilation.
call_on_large_stack: Callable[..., Any] = FunctionType(_call.__code__.replace(co_stacksize=1 << 17), {})


class KernelCompiler(Compiler):  # type: ignore[misc]
    """Compiler without the passes that kernels do not need."""

    def define_pipelines(self) -> list[Any]:
        self.state.typingctx = _TypingMemory(self.state.typingctx)
        (manager,) = super().define_pipelines()
        manager.passes = [each for each in manager.passes if each[0].name() not in _UNUSED]
        manager.finalize()
        return [manager]


class InlinedCompiler(KernelCompiler):
    """Compiler of functions that exist only inside kernels: without machine code for the function alone."""

    def define_pipelines(self) -> list[Any]:
        state = self.state
        state.library = _InlinedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()


class _InlinedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """LLVM code to link into kernels; LLVM optimises it there, as part of the kernel."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """The object that numba asks to register the function's environment, which needs machine code."""
        return self

    def set_env(self, env_name: str, env: Any) -> None: ...


class _TypingMemory:
    """A typing context that remembers the types of operators; numba tries all their overloads at every use."""

    _signatures: ClassVar[dict[Any, Any]] = {}

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if kws or isinstance(func, types.Dispatcher):
            return self._context.resolve_function_type(func, args, kws)
        key = func, tuple(args)
        if key not in self._signatures:
            self._signatures[key] = self._context.resolve_function_type(func, args, kws)
        return self._signatures[key]


class _BundleType(types.Type):  # type: ignore[misc]
    """Type of a pointer to a NamedTuple of arrays or of further bundles. Symbols contain its name, so it is short."""

    key: Any = None  # overrides a property

    def __init__(self, bundle: Any) -> None:
        self.key = bundle
        digest = hashlib.sha256(str(bundle).encode()).hexdigest()[:8]
        super().__init__(f"{bundle.instance_class.__name__}_{digest}")


@register_model(_BundleType)
class _BundleModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: _BundleType) -> None:
        super().__init__(manager, kind, manager.lookup(kind.key).get_value_type().as_pointer())


@infer_getattr
class _BundleAttributes(AttributeTemplate):  # type: ignore[misc]
    key = _BundleType

    def generic_resolve(self, kind: _BundleType, field: str) -> Any:
        part = kind.key.types[kind.key.fields.index(field)]
        return _BundleType(part) if isinstance(part, types.BaseNamedTuple) else part


@lower_getattr_generic(_BundleType)  # type: ignore[untyped-decorator]
def _get_field(context: Any, builder: Any, kind: _BundleType, value: Any, field: str) -> Any:
    index = kind.key.fields.index(field)
    part = cgutils.gep_inbounds(builder, value, 0, index)
    return part if isinstance(kind.key.types[index], types.BaseNamedTuple) else builder.load(part)


@intrinsic  # type: ignore[untyped-decorator]
def refer(typing_context: Any, bundle: Any) -> Any:
    """Return a NamedTuple as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return cgutils.alloca_once_value(builder, arguments[0])

    return _BundleType(bundle)(bundle), generate
