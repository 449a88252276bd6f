"""Does each precision stand in one record, and do the tables of other modules follow from it?"""

import re
from pathlib import Path

import numpy as np
import pytest

from trine.cluster import load_gpu
from trine.cluster.presets import known_gpus
from trine.common.precision import ARITHMETIC, BY_NAME, CASTS, ITEM_BYTES, NCCL_BYTES, PRECISIONS, TORCH_DTYPES
from trine.compute.roofline import derived_peak
from trine.compute.tables.machine import peak_of
from trine.inference.precision import served_precisions
from trine.software.precision import known_precisions

SOURCES = Path(__file__).parents[3] / "src" / "trine"
#: Bits of a number, from the name that its standard gives it: float8_e4m3fn has a sign, 4 and 3 bits.
FIELDS = re.compile(r"float\d+_e(\d)m(\d)(?:fn)?")


@pytest.mark.parametrize("dtype", sorted(set(ITEM_BYTES) - {"none", "nf4"}))
def test_sizes_follow_from_the_names(dtype):
    fields = FIELDS.fullmatch(dtype)
    if fields is not None:
        bits = 1 + sum(map(int, fields.groups()))
    elif dtype == "bfloat16":
        bits = 16
    else:
        bits = 8 * np.dtype(dtype).itemsize
    assert ITEM_BYTES[dtype] * 8 == bits


def test_nf4_has_the_bits_of_its_paper():
    """QLoRA (arXiv:2305.14314), section 3: 4 bits, an 8-bit constant per 64 weights, a 32-bit one per 256 of those."""
    assert float(ITEM_BYTES["nf4"] * 8) == pytest.approx(4 + 8 / 64 + 32 / (64 * 256), rel=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda each: each.name)
def test_tensors_of_a_precision_calculate_in_it(precision):
    """TF32 is stored as float32; its operators state it."""
    assert ARITHMETIC[precision.name] == precision.name
    expected = "float32" if precision.name == "tfloat32" else precision.name
    assert ARITHMETIC[precision.tensor_type] == expected
    assert ITEM_BYTES[precision.tensor_type] == precision.bytes


def test_names_of_other_programs_belong_to_one_type():
    for table in ("torch_names", "nccl_names"):
        names = [name for precision in PRECISIONS for name in getattr(precision, table)]
        assert len(names) == len(set(names)) >= 4
    assert TORCH_DTYPES["c10::Half"] == "float16"
    assert NCCL_BYTES["half"] == 2


@pytest.mark.parametrize(
    "recipe", [*known_precisions().values(), *served_precisions().values()], ids=lambda each: each.title
)
def test_recipes_multiply_in_a_known_precision(recipe):
    assert recipe.products in BY_NAME


@pytest.mark.parametrize("name", CASTS)
def test_cast_products_are_smaller_than_their_results(name):
    precision = BY_NAME[name]
    assert precision.bytes < precision.result_bytes == 2.0


def test_float4_doubles_float8_unless_the_data_sheet_says_more():
    for gpu in map(load_gpu, known_gpus()):
        if "float4" not in gpu.flop_per_s:
            assert peak_of(gpu, "float4") == 2 * gpu.flop_per_s.get("float8", 0)


def test_a_derived_peak_needs_tensor_cores_that_have_it():
    """NVIDIA's data sheets: FP4 at twice the FP8 rate on Blackwell; Hopper has none, and a CDNA GPU neither."""
    for name, has_peak in (("b200", True), ("h100-sxm", False), ("mi300x", False)):
        gpu = load_gpu(name)
        assert derived_peak(gpu, "float4") == (2 * gpu.flop_per_s["float8"] if has_peak else None)
        assert derived_peak(gpu, "bfloat16") is None
        assert derived_peak(gpu, "no-such") is None


def test_no_other_module_lists_precisions():
    """A dict or a set with three names of tensors' precisions is a table that belongs to the records."""
    names = "|".join(sorted((precision.name for precision in PRECISIONS), key=len, reverse=True))
    table = re.compile(rf'"(?:{names})": [^,{{}}]+, "(?:{names})": [^,{{}}]+, "(?:{names})":')
    found = [path for path in sorted(SOURCES.rglob("*.py")) if table.search(path.read_text())]
    assert not found
