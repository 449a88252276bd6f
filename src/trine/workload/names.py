"""Names of operators, reduced to what they compute."""

from __future__ import annotations

import re

AUTOGRAD = "autograd::engine::evaluate_function: "
_BACKWARD = re.compile(r"(?:torch::autograd::)?(?:Compiled)?([A-Za-z0-9_:]+?)Backward\d*$")


def call_kind(name: str) -> str:
    """``aten::_softmax`` -> ``softmax``, ``aten::relu_`` -> ``relu``, ``autograd...: AddmmBackward0`` -> ``Addmm'``.

    A backward node of autograd is the name of its forward with an apostrophe: the derivative.
    """
    if name.startswith(AUTOGRAD):
        name = name[len(AUTOGRAD) :]
    match = _BACKWARD.fullmatch(name)
    if match:
        return match[1].rpartition("::")[2] + "'"
    return name.rpartition("::")[2].partition(".")[0].strip("_")
