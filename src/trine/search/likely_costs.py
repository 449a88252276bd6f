"""Likely costs of a layer under forms of parallelism that no probe has measured, from other micro-batches.

A large model has thousands of forms: every micro-batch of every degree of parallelism. A search measures the smallest
micro-batch of each form at first, and others only if they may be among the best. A larger micro-batch takes no less
time than a smaller one, and no more time per sample. So two measured micro-batches bound the time between them from
below, also where launches and not the GPU take the time.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from trine.search.probe import LayerCosts

if TYPE_CHECKING:
    from trine.search.space import Layout

#: The least time per sample of a layer, as a share of its time per sample in the smallest micro-batch. Larger
#: micro-batches are more efficient. A guess that is too low only costs a probe.
LEAST_PER_SAMPLE = 0.5


class LikelyCosts:
    """Measured costs by form, and guesses for the other forms. forms: a layout of every form of a search.

    A form is a tuple as :func:`trine.search.search.form_of_layer` returns it; a kind is a form without micro-batch.
    """

    def __init__(self, forms: dict[tuple[object, ...], Layout], costs: dict[tuple[object, ...], LayerCosts | None]):
        self._forms, self._costs = forms, costs
        self._sizes: dict[tuple[object, ...], list[int]] = {}
        for form in forms:
            self._sizes.setdefault(_kind_of(form), []).append(_micro_batch_of(form))
        for sizes in self._sizes.values():
            sizes.sort()
        self._guesses: dict[tuple[object, ...], tuple[int, LayerCosts]] = {}

    def smallest(self) -> list[Layout]:
        """Return a layout with the smallest micro-batch of each kind."""
        return [self._forms[_with_micro_batch(kind, sizes[0])] for kind, sizes in self._sizes.items()]

    def next_probe(self, form: tuple[object, ...]) -> Layout:
        """Return the layout to measure next for a better guess: of the kind's largest micro-batch, then its own."""
        largest = _with_micro_batch(_kind_of(form), self._sizes[_kind_of(form)][-1])
        return self._forms[form if largest in self._costs else largest]

    def is_close(self, form: tuple[object, ...]) -> bool:
        """Return whether a form is measured, or micro-batches below and above it."""
        if form in self._costs:
            return True
        kind, size = _kind_of(form), _micro_batch_of(form)
        known = self._measured(kind)
        return bool(known) and min(known) < size < max(known)

    def _measured(self, kind: tuple[object, ...]) -> list[int]:
        """Return the micro-batches of a kind that are measured."""
        sizes = self._sizes.get(kind, ())
        return [size for size in sizes if self._costs.get(_with_micro_batch(kind, size)) is not None]

    def of(self, form: tuple[object, ...]) -> LayerCosts | None:
        """Return the measured costs of a form, or a guess; None without a smaller measured micro-batch."""
        if form in self._costs:
            return self._costs[form]
        kind, size = _kind_of(form), _micro_batch_of(form)
        measured = [
            each for each in self._sizes.get(kind, ()) if self._costs.get(_with_micro_batch(kind, each)) is not None
        ]
        found = self._guesses.get(form)
        if found is not None and found[0] == len(measured):
            return found[1]
        less = max((each for each in measured if each < size), default=None)
        more = min((each for each in measured if each > size), default=None)
        if less is None:
            return None
        first = self._costs[_with_micro_batch(kind, less)]
        assert first is not None
        if more is None:
            guess = _least(first, first, size / less, LEAST_PER_SAMPLE * size / less)
        else:
            second = self._costs[_with_micro_batch(kind, more)]
            assert second is not None
            guess = _least(first, second, size / less, size / more)
        self._guesses[form] = len(measured), guess
        return guess


def _kind_of(form: tuple[object, ...]) -> tuple[object, ...]:
    return (*form[:_PLACE], *form[_PLACE + 1 :])


def _micro_batch_of(form: tuple[object, ...]) -> int:
    size = form[_PLACE]
    assert isinstance(size, int)
    return size


def _with_micro_batch(kind: tuple[object, ...], size: int) -> tuple[object, ...]:
    return (*kind[:_PLACE], size, *kind[_PLACE:])


#: Place of the micro-batch in a form.
_PLACE = 4
_NUMBERS = tuple(each.name for each in fields(LayerCosts) if each.name not in ("resident", "rest", "weights"))
#: Bytes, which grow with the micro-batch exactly.
_BYTES = ("message", "kept", "peak", "rise")


def _least(first: LayerCosts, second: LayerCosts, of_bytes: float, of_times: float) -> LayerCosts:
    """Return the least likely costs: times no less than the first ones, nor than ``of_times`` of the second ones.

    of_bytes: the factor from the first costs' bytes.
    """
    values: dict[str, Any] = {}
    for name in _NUMBERS:
        value = getattr(first, name)
        values[name] = int(value * of_bytes) if name in _BYTES else max(value, int(getattr(second, name) * of_times))
    return LayerCosts(weights=first.weights, resident=first.resident, rest=first.rest, **values)
