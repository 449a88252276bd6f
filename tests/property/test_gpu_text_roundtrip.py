"""Is a GPU program that was printed and parsed again the same program?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_text_cases import random_program
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.errors import InputError
from trine.gpu.kernels.build import build_kernel, known_kernels
from trine.gpu.kernels.lower.plan import lower_plan
from trine.gpu.plans import load_plan
from trine.gpu.program import DATA_OPS
from trine.gpu.text import format_program, parse_program, same_program
from trine.gpu.validate import validate_program

PLANS = sorted(p for p in (Path(__file__).parents[1] / "data" / "mscclpp").iterdir() if p.suffix in (".json", ".xml"))


def comes_back(program):
    validate_program(program)
    text = format_program(program)
    again = parse_program(text)
    assert same_program(program, again)
    assert format_program(again) == text
    return text


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_random_programs(seed):
    program = random_program(seed)
    comes_back(program)
    assert program.num_ops == 0 or not same_program(program, _changed(program, seed))


def _changed(program, seed):
    """The program with one number of an operation or operand that means something changed."""
    rng = np.random.default_rng(seed)
    names = ["op_amount", "op_kind", "op_label"]
    names += ["operand_address", "operand_rank", "operand_semaphore"] if len(program.operand_role) else []
    lines = np.repeat(np.isin(program.op_kind, DATA_OPS), np.diff(program.operand_ptr))
    if lines.any():
        step = program.operand_step.copy()
        step[rng.choice(np.flatnonzero(lines))] += 1
        if rng.integers(2):
            return replace(program, operand_step=step)
    name = str(rng.choice(names))
    column = getattr(program, name).copy()
    at = rng.integers(len(column))
    column[at] = (column[at] + 2) % len(program.labels) - 1 if name == "op_label" else column[at] + 1
    return replace(program, **{name: column})


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
def test_programs_of_builders_are_one_text_for_all_ranks(ranks, protocol):
    for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        for algorithm in known_kernels(op):
            try:
                program = build_kernel(op, ranks, 10_000, algorithm=algorithm, workgroups=3, protocol=protocol)
            except InputError:  # flags and reading from others
                continue
            assert "ranks all" in comes_back(program), algorithm


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_almost_regular_programs(seed):
    """One operand or operation off the rule that the others follow."""
    rng = np.random.default_rng(seed)
    algorithm = str(rng.choice(["put", "get", "ring"]))
    program = build_kernel("all_gather", int(rng.integers(2, 5)), 5000, algorithm=algorithm, workgroups=3)
    for name, change in (("operand_address", 1), ("op_unroll", 3), ("op_label", -1), ("kernel_wavefronts", 1)):
        column = getattr(program, name).copy()
        at = int(rng.integers(len(column)))
        column[at] = -1 if name == "op_label" else column[at] + change
        if name != "op_unroll" or program.op_kind[at] in DATA_OPS:
            comes_back(replace(program, **{name: column}))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_programs_of_plans(path):
    plan = load_plan(path)
    try:
        program = lower_plan(plan, max(plan.min_bytes, 2**16))
    except InputError as error:
        assert "multicast" in str(error)  # noqa: PT017
        return
    comes_back(program)


def test_a_program_of_128_ranks_is_not_longer_than_one_of_one():
    program = build_kernel("all_gather", 128, 2**20, algorithm="put", workgroups=4)
    text = comes_back(program)
    assert text.count("\n") < program.num_ops / 100
    with pytest.raises(InputError, match="more than 100 lines"):
        format_program(program, max_lines=100)
