"""Choice of the operator of a step to zoom into: the longest one of a name on the slowest rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trine.compute.cost import Sizing
from trine.compute.kinds import FAMILIES, LOOP_FAMILIES, family_of, kind_of
from trine.compute.origin import known_gpu
from trine.compute.roofline import has_tf32_products, precision_of
from trine.errors import InputError, nearest
from trine.gpu.detail.choice import layers_called
from trine.gpu.operators.shapes import PRODUCTS, Kernels, kernels_of
from trine.graph.taskgraph import COMPUTE
from trine.graph.workload import OPTIMIZER, SYNTHESISED, Operator
from trine.parallel.job import JobContext
from trine.parallel.token_partition import WHOLE
from trine.results import Result
from trine.results.activity import PHASE_NAMES, launches
from trine.training.operator_work import optimizer_share
from trine.training.setup import Setup

#: Word for the longest operator of all that have a program, and words for families.
KERNEL = "kernel"
_FAMILIES = {"gemm": PRODUCTS, "norm": frozenset({"layer_norm", "group_norm", "batch_norm"})}
_FAMILIES |= {family: frozenset({family}) for family in FAMILIES}
#: Words for operators that every step may have, for hints.
OPERATOR_WORDS = (KERNEL, *_FAMILIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOperator:
    """An operator of the step on a rank. operator_ps: its time at the operator level, alone. evidence: of that time.

    count: how often an operator of this name, phase and time runs in a step of the rank. kernels: shapes of its
    kernels. matches: operators that fit the word.
    """

    word: str
    name: str
    phase: str
    layer: str
    rank: int
    precision: str
    operator_ps: int
    evidence: str
    count: int
    kernels: Kernels
    matches: int

    @property
    def words(self) -> str:
        """Description in one line."""
        return f"{self.name} of {self.layer or 'no layer'}, {self.phase}, in {self.precision}"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An operator that the rank runs. time_ps: alone."""

    operator: Operator
    phase: str
    time_ps: int
    evidence: str


def names_operator(result: Result, word: str) -> bool:
    """Return whether the first part of a word of ``--zoom`` names operators, not collectives."""
    first = word.split(",")[0].strip()
    graph = result.graph
    collectives = {name for label in graph.collectives for name in (label.kind, label.axis)}
    if first in collectives:
        return False
    return first == KERNEL or first in _FAMILIES or first in _names(graph.operator_names)


def _names(operator_names: Sequence[str]) -> set[str]:
    return {*operator_names, *(name.rpartition("::")[2] for name in operator_names)}


def choose_operator(setup: Setup, result: Result, word: str) -> StepOperator:
    """Return the longest matching operator of the slowest rank.

    word: ``kernel``, a family (``gemm``, ``norm``, ``elementwise``, ...) or an operator's name; after commas a phase or
    a layer, as in ``gemm,backward,layers.1``.

    Raises InputError for a word that no operator of the rank fits, and for operators without a program.
    """
    if len(setup.gpu_names) > 1:
        raise InputError("the GPUs of the step differ: choose one model for a zoom into an operator")
    rank = result.slowest_rank
    context = setup.job_context(None)
    candidates = _of_rank(context, result, rank)
    matches = _matching(candidates, [part.strip() for part in word.split(",")])
    source = known_gpu(context.workload.gpu) if context.workload.has_gpu_times else None
    is_recorded = source is not None and context.workload.format != SYNTHESISED
    tf32_products = is_recorded and source is not None and has_tf32_products(context.workload, source)
    for candidate in sorted(matches, key=lambda each: -each.time_ps):
        operator = candidate.operator
        precision = precision_of(operator, context.workload.tensors, tf32_products)
        try:
            kernels = _kernels(context, candidate, precision)
        except InputError:
            if word != KERNEL:
                raise
            continue
        alike = [each for each in matches if _is_alike(each, candidate)]
        runs = 1 if operator.phase == OPTIMIZER else len(context.all_micro_batches)
        return StepOperator(
            word=word, name=operator.name, phase=candidate.phase, layer=operator.layer, rank=rank,
            precision=precision, operator_ps=candidate.time_ps, evidence=candidate.evidence,
            count=runs * len(alike), kernels=kernels, matches=len(matches),
        )  # fmt: skip
    raise InputError(f"no operator of rank {rank} has a program at the load-store level")


def _is_alike(one: _Candidate, other: _Candidate) -> bool:
    """Return whether two operators are of one kind and pass, and take the same time."""
    is_same_kind = one.operator.name == other.operator.name and one.phase == other.phase
    return is_same_kind and one.time_ps == other.time_ps


def _of_rank(context: JobContext, result: Result, rank: int) -> list[_Candidate]:
    """Return the operators that the rank runs in a step, in the workload's order."""
    graph = result.rank(rank).graph
    labels = graph.labels
    is_shown = (graph.kind == COMPUTE) & (graph.rank >= 0) & (labels.operator >= 0) & ~launches(graph)
    tasks = np.flatnonzero(is_shown)
    ran = set(zip(labels.phase[tasks].tolist(), labels.operator[tasks].tolist(), labels.layer[tasks].tolist(),
                  strict=True))  # fmt: skip
    named = set()
    for phase, operator, layer in ran:
        layer_name = graph.layer_names[layer] if layer >= 0 else ""
        named.add((PHASE_NAMES[phase] if phase >= 0 else "", graph.operator_names[operator], layer_name))
    candidates = []
    batch = context.all_micro_batches[0]
    for operator in context.workload.operators:
        if (operator.phase, operator.name, operator.layer) not in named:
            continue
        share = optimizer_share(context) if operator.phase == OPTIMIZER else WHOLE
        time_ps, evidence = context.work.duration(operator, batch, share)
        if time_ps:
            candidates.append(_Candidate(operator, operator.phase, time_ps, evidence))
    return candidates


def _matching(candidates: list[_Candidate], parts: list[str]) -> list[_Candidate]:
    """Return the candidates that each part of the word describes. Raises InputError without one."""
    first, *others = parts
    matches = [one for one in candidates if _fits(one, first)]
    if not matches:
        names = dict.fromkeys(one.operator.name for one in candidates)
        raise InputError(f"the rank runs no operator that is called {first[:80]!r}{nearest(first[:80], names)}")
    for part in others:
        phases = {one.phase for one in matches}
        layers = [one.operator.layer for one in matches]
        numbers = layers_called(part, layers)
        if part in phases:
            matches = [one for one in matches if one.phase == part]
        elif numbers:
            matches = [matches[number] for number in sorted(numbers)]
        else:
            hint = nearest(part[:80], [*phases, *dict.fromkeys(layers)])
            raise InputError(f"no {first[:80]} of the rank is of phase or layer {part[:80]!r}{hint}")
    return matches


def _fits(candidate: _Candidate, word: str) -> bool:
    operator = candidate.operator
    family = family_of(kind_of(operator))
    if word == KERNEL:
        return family not in LOOP_FAMILIES
    return family in _FAMILIES.get(word, ()) or word in (operator.name, operator.name.rpartition("::")[2])


def _kernels(context: JobContext, candidate: _Candidate, precision: str) -> Kernels:
    operator = candidate.operator
    share = optimizer_share(context) if operator.phase == OPTIMIZER else WHOLE
    split = context.work.split(operator, context.all_micro_batches[0], share)
    return kernels_of(Sizing(context.workload).sizes(operator, split), precision)
