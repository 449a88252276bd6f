"""Precisions of numbers: the names that trine and other programs write, sizes, peaks, and the casts that they need.

``PRECISIONS`` and ``OTHER_TYPES`` are the only list of them. Other tables are derived from these records. Recipes
that cast a model's products (presets/precisions.yaml, presets/serving/precisions.yaml) name one of these precisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberType:
    """A type of numbers in tensors.

    name: as trine writes it. bits: of an element, with the constants of its blocks. torch_names: as PyTorch's C++ side
    writes it in traces. nccl_names: as nccl-tests and rccl-tests print it.
    """

    name: str
    bits: int | Fraction
    torch_names: tuple[str, ...] = ()
    nccl_names: tuple[str, ...] = ()

    @property
    def bytes(self) -> int | Fraction:
        """Bytes of an element: an int, or a fraction below a byte."""
        return Fraction(self.bits) / 8 if self.bits % 8 else int(self.bits) // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(NumberType):
    """A floating-point type for calculations on GPUs.

    word: in options and in tables of published steps; empty: they do not know it. tensor_types: dtypes of tensors that
    hold it; empty: its own name. holds_weights: whether models that trine writes can store their weights in it.
    is_stated: an operator may state it (attribute ``precision``), because its tensors' dtypes do not show it.
    on_tensor_cores: whether the clock of its GEMMs has the tensor cores' ceiling. result: precision of a product.
    peak_from: the precision whose peak, times a factor, stands for a peak that a data sheet does not list.
    peak_on: parts of the names of GPUs whose tensor cores have that peak.
    quantised_bytes: bytes that the tables' calls move for each element of the input before a GEMM, None for a GEMM
    that casts nothing (:mod:`trine.compute.tables.operators` has the derivation).
    """

    word: str = ""
    tensor_types: tuple[str, ...] = ()
    holds_weights: bool = False
    is_stated: bool = False
    on_tensor_cores: bool = False
    result: str = ""
    peak_from: tuple[str, int] | None = None
    peak_on: tuple[str, ...] = ()
    quantised_bytes: float | None = None

    @property
    def tensor_type(self) -> str:
        """The dtype of a tensor that holds it: the first of several."""
        return self.tensor_types[0] if self.tensor_types else self.name

    @property
    def result_bytes(self) -> float:
        """Bytes of an element of a product."""
        return float(BY_NAME[self.result].bytes if self.result else self.bytes)


PRECISIONS = (
    Precision(
        name="bfloat16", bits=16, word="bf16", torch_names=("c10::BFloat16",), nccl_names=("bfloat16",),
        holds_weights=True, on_tensor_cores=True,
    ),
    Precision(
        name="float16", bits=16, word="fp16", torch_names=("c10::Half",), nccl_names=("half", "float16"),
        holds_weights=True, on_tensor_cores=True,
    ),
    Precision(
        name="float32", bits=32, word="fp32", torch_names=("float",), nccl_names=("float", "float32"),
        holds_weights=True, is_stated=True,
    ),
    Precision(name="tfloat32", bits=32, word="tf32", tensor_types=("float32",), is_stated=True),
    Precision(name="float64", bits=64, torch_names=("double",), nccl_names=("double", "float64")),
    # OCP 8-bit Floating Point Specification 1.0: E4M3 for values, E5M2 for gradients.
    Precision(
        name="float8", bits=8, word="fp8", tensor_types=("float8_e4m3fn", "float8_e5m2"),
        nccl_names=("f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), is_stated=True, on_tensor_cores=True,
        result="bfloat16", quantised_bytes=5.0,
    ),
    # OCP Microscaling Formats 1.0: E2M1. NVIDIA's data sheets: twice the peak of FP8.
    Precision(
        name="float4", bits=4, tensor_types=("float4_e2m1fn",), is_stated=True, on_tensor_cores=True,
        result="bfloat16", peak_from=("float8", 2), peak_on=("b200", "b300", "rtx-5", "rtx-pro-6000"),
        quantised_bytes=4.5,
    ),
)  # fmt: skip
#: Types without products on any GPU: whole numbers, truth values, and weights that are widened before use.
OTHER_TYPES = (
    NumberType(name="int64", bits=64, torch_names=("long int", "long"), nccl_names=("int64", "uint64")),
    NumberType(name="int32", bits=32, torch_names=("int",), nccl_names=("int", "int32", "uint32")),
    NumberType(name="int16", bits=16, torch_names=("short int", "short")),
    NumberType(name="int8", bits=8, torch_names=("signed char",), nccl_names=("int8", "char")),
    NumberType(name="uint8", bits=8, torch_names=("unsigned char",), nccl_names=("uint8",)),
    NumberType(name="bool", bits=8, torch_names=("bool",)),
    NumberType(name="nf4", bits=Fraction(4127, 1000)),  # QLoRA (arXiv:2305.14314), section 3: blocks of 64, then of 256
)
_ALL = (*PRECISIONS, *OTHER_TYPES)

BY_NAME: Mapping[str, Precision] = {precision.name: precision for precision in PRECISIONS}
#: Name in options -> precision.
BY_WORD: Mapping[str, Precision] = {precision.word: precision for precision in PRECISIONS if precision.word}
#: 16-bit precisions. Their weights need float32 copies in the optimizer.
HALVES = frozenset(precision.name for precision in PRECISIONS if precision.bits == 16)
#: Precisions that recipes cast a product's inputs to.
CASTS: Mapping[str, Precision] = {
    precision.name: precision for precision in PRECISIONS if precision.quantised_bytes is not None
}


def _by_tensor_type() -> dict[str, int | Fraction]:
    found: dict[str, int | Fraction] = {}
    for each in _ALL:
        types = each.tensor_types if isinstance(each, Precision) and each.tensor_types else (each.name,)
        found.update(dict.fromkeys(types, each.bytes))
    return found


#: Dtype of a tensor -> bytes of an element.
ITEM_BYTES: Mapping[str, int | Fraction] = {**_by_tensor_type(), "none": 0}
#: Name in PyTorch's traces -> dtype of a tensor.
TORCH_DTYPES: Mapping[str, str] = {torch_name: each.name for each in _ALL for torch_name in each.torch_names}
#: Name that nccl-tests and rccl-tests print -> bytes of an element.
NCCL_BYTES: Mapping[str, int] = {nccl_name: int(each.bytes) for each in _ALL for nccl_name in each.nccl_names}


def plain_name(torch_name: str) -> str:
    """Return a name of PyTorch's C++ side without namespace, blanks and capitals: ``c10::Half`` is ``half``."""
    return torch_name.rpartition("::")[2].replace(" ", "").lower()


def _arithmetic() -> dict[str, str]:
    found: dict[str, str] = {}
    for precision in PRECISIONS:
        found.update(dict.fromkeys(precision.tensor_types, precision.name))
    for precision in PRECISIONS:
        found.update({plain_name(torch_name): precision.name for torch_name in precision.torch_names})
        found[precision.name] = precision.name
    return found


#: Dtype of a tensor, also as PyTorch's C++ side writes it (:func:`plain_name`) -> precision of its arithmetic.
ARITHMETIC: Mapping[str, str] = _arithmetic()
