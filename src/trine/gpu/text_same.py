"""Are two GPU programs the same?"""

from __future__ import annotations

import numpy as np

from trine.gpu.program import DATA_OPS, GpuProgram


def same_program(one: GpuProgram, other: GpuProgram) -> bool:
    """Whether two programs do the same under the same names.

    Labels are compared by what they say, not by number; steps of operations without lines are not compared.
    """
    plain = ("name", "num_ranks", "buffers", "line_bytes", "payload_bytes", "notes")
    arrays = (
        "kernel_rank", "kernel_wavefronts", "kernel_ptr", "workgroup_ptr", "op_kind", "op_amount", "op_unroll",
        "operand_ptr", "operand_role", "operand_rank", "operand_address", "operand_semaphore", "semaphores",
    )  # fmt: skip
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
        and _steps(one) == _steps(other)
        and (one.kernel_names == other.kernel_names or not any(one.kernel_names + other.kernel_names))
        and _labels(one) == _labels(other)
    )


def _steps(program: GpuProgram) -> list[int]:
    has_lines = np.repeat(np.isin(program.op_kind, DATA_OPS), np.diff(program.operand_ptr))
    steps: list[int] = np.where(has_lines, program.operand_step, 0).tolist()
    return steps


def _labels(program: GpuProgram) -> list[str]:
    names = np.array([*program.labels, ""], object)
    labels: list[str] = names[program.op_label].tolist()
    return labels
