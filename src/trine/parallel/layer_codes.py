"""Steps and operators of a layer as codes that are equal in layers that are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class OtherStateError(Exception):
    """A pass or layer depends on something that a copy cannot name."""


class LayerCodes:
    """The codes of one layer. first: its first step. names: operator id -> code.

    Steps have codes from 0 within the layer. Those before it have codes below 0, by the order in which the state
    before the layer names them. outside: these steps.
    """

    def __init__(self, first: int, names: Mapping[int, int], outside: Sequence[int] = ()) -> None:
        self.first = first
        self.outside = list(outside)
        self._names, self._ids = names, list(names)
        self._may_grow = True

    def close(self) -> None:
        """Note that the state before the layer is complete: it names no further steps before the layer."""
        self._may_grow = False

    def code(self, step: int) -> int:
        """Return the code of a step. Raises OtherStateError for a step that the state before the layer lacks."""
        if step >= self.first:
            return step - self.first
        if step not in self.outside:
            if not self._may_grow:
                raise OtherStateError
            self.outside.append(step)
        return -1 - self.outside.index(step)

    def step(self, code: int) -> int:
        """Return the step with a code."""
        return self.first + code if code >= 0 else self.outside[-1 - code]

    def name(self, operator: int | None) -> int:
        """Return the code of an operator; -1 for None. Before the layer, other operators than the layer's have -2.

        Behind it, they raise OtherStateError.
        """
        name = -1 if operator is None else self._names.get(operator, -2)
        if name < -1 and not self._may_grow:
            raise OtherStateError
        return name

    def operator(self, name: int) -> int | None:
        """Return the id of an operator of the layer by its code; None for -1."""
        return None if name < 0 else self._ids[name]
