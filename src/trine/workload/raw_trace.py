"""The data that a reader passes to the analysis: operators, tensors and the finer graph of calls. Frozen, no logic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trine.graph.workload import Operator, RecordedCollective


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor without its role. ``storage`` names one allocation: reused memory gets a new number.

    ``hint`` is the role if the trace itself names it ("weight", "buffer", "input"), else "".
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    storage: int
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RawCall:
    """One call of an operator, in the order of completion, so that a call follows the calls inside it.

    ``kind`` is the name without namespace, leading and trailing underscores. ``inputs`` holds the tensors by position
    in the signature, None for an absent one. ``operator`` indexes the operator that contains the call (None: it
    ran no kernel). ``inner`` is true for a call inside another call, ``in_place`` for one that writes its first input.
    ``values`` holds the other arguments by name.
    """

    kind: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    phase: str
    operator: int | None = None
    inner: bool = False
    in_place: bool = False
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawTrace:
    """A trace as read. ``forward_id`` of its operators is known only if the trace records it.

    ``layer`` of an operator is the path of the module that called it, "" if the trace records none.

    ``accumulated`` lists the inputs of autograd's AccumulateGrad nodes, in order, if known: the incoming tensor, and
    the tensor that the weight keeps as its gradient.
    """

    name: str
    source: str
    format: str
    gpu: str | None
    operators: tuple[Operator, ...]
    calls: tuple[RawCall, ...]
    tensors: Mapping[int, RawTensor]
    accumulated: tuple[tuple[int, int], ...] = ()
    missing: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    unprofiled_step_ps: int | None = None
    collectives: tuple[RecordedCollective, ...] = ()


AUTOGRAD = "autograd::engine::evaluate_function: "
_BACKWARD = re.compile(r"(?:torch::autograd::)?(?:Compiled)?([A-Za-z0-9_:]+?)Backward\d*$")


def call_kind(name: str) -> str:
    """Return ``relu`` for ``aten::relu_``, ``softmax`` for ``aten::_softmax``, ``Addmm'`` for node AddmmBackward0.

    An autograd node gets the name of its forward operator with an apostrophe, for the derivative.
    """
    if name.startswith(AUTOGRAD):
        name = name[len(AUTOGRAD) :]
    match = _BACKWARD.fullmatch(name)
    if match:
        return match[1].rpartition("::")[2] + "'"
    return name.rpartition("::")[2].partition(".")[0].strip("_")
