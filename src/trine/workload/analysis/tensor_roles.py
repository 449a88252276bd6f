"""Role of each allocation from its uses: weight, buffer, input, gradient, optimizer state, activation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from trine.errors import TraceError
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER
from trine.workload.analysis.aten_schema import BUFFER_POSITIONS, DATA_MAKERS, DATA_POSITIONS, VIEWS, WEIGHT_POSITIONS
from trine.workload.raw_trace import RawCall, RawTrace

#: Calls whose result stands for their single input, such as the preparation of data before the model.
_PREPARING = VIEWS | {
    "to", "to_copy", "copy", "contiguous", "clone", "detach", "alias", "pin_memory", "div", "sub", "mul", "transpose",
    "permute", "t", "slice", "select", "expand", "lift_fresh",
}  # fmt: skip

#: FBGEMM's lookups in many tables at once, whose backward pass updates the tables: with TorchRec each rank has its own.
_LOOKUP = re.compile(r"(split|ssd)_embedding_\w*lookup\w*")


@dataclass(slots=True)
class Roles:
    """Role of each storage, and the seeds of the batch: data tensors in the model's order of use."""

    of_storage: dict[int, str] = field(default_factory=dict)
    data: list[int] = field(default_factory=list)
    guessed: list[int] = field(default_factory=list)
    bytes_of_source: dict[int, int] = field(default_factory=dict)

    def of(self, raw: RawTrace, tensor: int) -> str:
        """Return the role of ``tensor``, from its storage; a weight expanded to the batch is an activation."""
        recorded = raw.tensors[tensor]
        role = self.of_storage.get(recorded.storage, "activation")
        expanded = recorded.size_bytes > self.bytes_of_source.get(recorded.storage, recorded.size_bytes)
        return "activation" if role == "weight" and expanded else role


def find_roles(raw: RawTrace, batch: int | None) -> Roles:
    """Assign every storage its role, except gradients (see :mod:`trine.workload.analysis.analyse`).

    A *source* is a tensor that no call makes from other tensors. A source that the forward phase reads and the
    optimizer touches is a weight; otherwise its position in its consumer's signature decides.
    """
    sources = _sources(raw)
    roles = Roles(bytes_of_source={storage: raw.tensors[i].size_bytes for storage, i in sources.items()})
    touched = _storages(raw, (OPTIMIZER,))
    read_before = _storages(raw, (FORWARD, BACKWARD))
    forward = _storages(raw, (FORWARD,))
    for call in raw.calls:
        if call.phase == BACKWARD and call.in_place and call.inputs and (first := call.inputs[0]) is not None:
            storage = raw.tensors[first].storage
            if storage in sources:  # a gradient kept from step to step
                roles.of_storage[storage] = "gradient"
    for storage in sources:
        if storage in touched and storage in forward:
            roles.of_storage.setdefault(storage, "weight")
    for call in raw.calls:
        if _LOOKUP.fullmatch(call.kind):
            storages = (raw.tensors[i].storage for i in call.inputs if i and "float" in raw.tensors[i].dtype)
            roles.of_storage.update(dict.fromkeys((s for s in storages if s in sources), "table"))
    for call in raw.calls:
        if call.phase == FORWARD:
            _by_position(raw, call, WEIGHT_POSITIONS, "weight", sources, roles)
            _by_position(raw, call, BUFFER_POSITIONS, "buffer", sources, roles)
    _hinted(raw, sources, roles)
    _data(raw, sources, roles)
    _leftovers(raw, sources, roles, batch)
    for storage in touched:
        if storage not in read_before:
            roles.of_storage[storage] = "optimizer_state"
    return roles


def _storages(raw: RawTrace, phases: tuple[str, ...]) -> dict[int, None]:
    return dict.fromkeys(
        raw.tensors[i].storage
        for call in raw.calls
        if call.phase in phases
        for i in (*call.inputs, *call.outputs)
        if i is not None
    )


def _sources(raw: RawTrace) -> dict[int, int]:
    """Return storages that exist before the step, or that a call draws at random, with the first tensor of each."""
    sources: dict[int, int] = {}
    produced: set[int] = set()
    group: list[RawCall] = []
    for call in raw.calls:
        group.append(call)
        if call.inner:
            continue
        created = {s for s in _created(raw, group) if s not in produced and s not in sources}
        from_nothing = call.kind in DATA_MAKERS and not any(i is not None for i in call.inputs)
        for member in group:
            for i in member.inputs:
                if i is not None and raw.tensors[i].size_bytes:
                    storage = raw.tensors[i].storage
                    if storage not in produced and storage not in created:
                        sources.setdefault(storage, i)
        for i in call.outputs if from_nothing else ():
            if i is not None and raw.tensors[i].storage in created:
                sources[raw.tensors[i].storage] = i
        produced.update(s for s in created if s not in sources)
        group = []
    return sources


def _created(raw: RawTrace, group: list[RawCall]) -> set[int]:
    """Return the storages that an outermost call and its inner calls create: outputs that no input of the call shares.

    Callers only test the set for membership; nothing depends on its order.
    """
    created: set[int] = set()
    for call in group:
        input_storages = {raw.tensors[i].storage for i in call.inputs if i is not None}
        new_storages = []
        for i in call.outputs:
            if i is not None and (s := raw.tensors[i].storage) not in input_storages:
                new_storages.append(s)
        created.update(new_storages)
    return created


def _by_position(
    raw: RawTrace, call: RawCall, positions: dict[str, tuple[int, ...]], role: str, sources: dict[int, int],
    roles: Roles,
) -> None:  # fmt: skip
    for place in positions.get(call.kind, ()):
        tensor = call.inputs[place] if place < len(call.inputs) else None
        if tensor is not None and (storage := raw.tensors[tensor].storage) in sources:
            roles.of_storage.setdefault(storage, role)


def _hinted(raw: RawTrace, sources: dict[int, int], roles: Roles) -> None:
    for tensor in raw.tensors.values():
        if tensor.hint and tensor.storage in sources:
            roles.of_storage.setdefault(tensor.storage, tensor.hint)


def _data(raw: RawTrace, sources: dict[int, int], roles: Roles) -> None:
    """Follow sources through preparing calls to their first use at a data position of a signature."""
    origin: dict[int, int] = {}  # storage -> source storage
    for call in raw.calls:
        if call.phase != FORWARD:
            continue
        present = [i for i in call.inputs if i is not None]
        if call.kind in _PREPARING and call.outputs and call.outputs[0] is not None:
            from_ = [origin.get(raw.tensors[i].storage, raw.tensors[i].storage) for i in present]
            unknown = [s for s in from_ if s in sources and s not in roles.of_storage]
            if len(unknown) == 1 and len(from_) <= 2:
                origin.setdefault(raw.tensors[call.outputs[0]].storage, unknown[0])
        for place in DATA_POSITIONS.get(call.kind, ()):
            tensor = call.inputs[place] if place < len(call.inputs) else None
            if tensor is None or raw.tensors[tensor].shape == ():
                continue
            storage = raw.tensors[tensor].storage
            storage = origin.get(storage, storage)
            role = roles.of_storage.get(storage, "input")
            if storage in sources and role == "input" and raw.tensors[sources[storage]].shape:
                roles.of_storage[storage] = "input"
                if sources[storage] not in roles.data:
                    roles.data.append(sources[storage])


def _leftovers(raw: RawTrace, sources: dict[int, int], roles: Roles, batch: int | None) -> None:
    """Classify sources that no signature explains: data if dimension 0 is the batch, else a buffer or a constant."""
    size = batch or (raw.tensors[roles.data[0]].shape[0] if roles.data else None)
    forward = _storages(raw, (FORWARD,))
    produced = {raw.tensors[i].storage for call in raw.calls for i in call.outputs if i is not None}
    for storage, tensor in sources.items():
        shape = raw.tensors[tensor].shape
        if storage in roles.of_storage or storage not in forward:
            continue
        if shape and (size is None or shape[0] == size) and raw.tensors[tensor].size_bytes:
            size = size or shape[0]
            roles.of_storage[storage] = "input"
            roles.data.append(tensor)
            roles.guessed.append(tensor)
        elif shape or storage in produced:
            roles.of_storage[storage] = "buffer"  # else a constant: the 1 of num_batches_tracked += 1


class FoundBatch(NamedTuple):
    """The batch size, the batch dimension of each data tensor, and the assumptions behind them."""

    size: int
    dims: dict[int, int]
    assumptions: tuple[str, ...]


def find_batch(raw: RawTrace, roles: Roles, batch: int | None) -> FoundBatch:
    """Find the batch size, and the batch dimension of each data tensor.

    Raises TraceError if ``batch`` was given and no data tensor has such a dimension.
    """
    assumed: list[str] = []
    if not roles.data:
        if batch is not None:
            raise TraceError(f"batch {batch} was given, but no tensor of the trace is input data", file=raw.source)
        return FoundBatch(1, {}, ("no input data was found: the batch counts as 1 and nothing scales with it",))
    first = raw.tensors[roles.data[0]]
    size = batch if batch is not None else first.shape[0]
    dims: dict[int, int] = {}
    for tensor in roles.data:
        shape = raw.tensors[tensor].shape
        place = _batch_dim(shape, size)
        if place is not None:
            dims[tensor] = place
        elif size != 1:
            assumed.append(f"the input of shape {list(shape)} does not scale with the batch of {size}")
    if batch is not None and not dims:
        raise TraceError(f"batch {batch} was given, but no input has it; the first is {list(first.shape)}",
                         file=raw.source, field="batch")  # fmt: skip
    if batch is None:
        assumed.insert(0, f"the batch is {size}: dimension 0 of the first input, {list(first.shape)}")
    for tensor in roles.guessed:
        shape = raw.tensors[tensor].shape
        assumed.append(f"a tensor of shape {list(shape)} is input data, since its dimension 0 is the batch")
    return FoundBatch(size, dims, tuple(assumed))


def _batch_dim(shape: tuple[int, ...], size: int) -> int | None:
    """Return dimension 0 if it is the batch, else another such dimension, else 0 if the batch divides its size."""
    if size in shape:
        return shape.index(size)
    return 0 if shape and size > 1 and shape[0] and shape[0] % size == 0 else None
