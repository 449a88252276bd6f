"""The checker of layouts: a software profile's rules, evaluated for a plan and a workload.

``why_not`` lists the violated rules and raises nothing: a search over layouts can call it for each candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trine.common.units import whole_number
from trine.compute import kind_of
from trine.compute.kinds import family_of
from trine.compute.resize import sequence_length
from trine.errors import PlanError, nearest_numbers
from trine.graph.workload import FORWARD, Workload
from trine.parallel.plan import Plan, micro_batches
from trine.parallel.token_partition import is_expert
from trine.software.conditions import PLAN_NAMES, LayoutRule, Value, evaluate, names_of
from trine.software.profile import Software, load_software, usual_software

if TYPE_CHECKING:
    from trine.parallel.heads import AttentionHeads, Heads

#: Degrees with a nearest valid number, in order of preference.
_DEGREES = ("tp", "ep", "etp", "cp", "pp", "virtual_stages", "micro_batch")
#: Degrees up to this many times the plan's are tried.
_MAX_TIMES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A violated rule. values: the names in the rule and their values, as text; nearest: degrees that meet the rule."""

    software: str
    rule: LayoutRule
    values: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f"; the nearest {self.nearest}" if self.nearest else ""
        return f"{self.rule.reason} ({self.values}; {self.rule.source}){hint}"


class LayoutFacts:
    """The properties of a workload that conditions can name, each computed on first use."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @property
    def batch(self) -> int:
        """Samples of a replica for a plan without a batch."""
        return self._workload.batch

    @cached_property
    def attention(self) -> AttentionHeads:
        """The heads of attention, each kind once."""
        from trine.parallel.heads import attention_of

        return attention_of(self._workload)

    @cached_property
    def experts(self) -> int | None:
        """Experts of a layer, 0 for none; None where operators do not tell."""
        expert = next((op for op in self._workload.operators if op.phase == FORWARD and is_expert(op)), None)
        count = 0 if expert is None else expert.attributes.get("num_experts")
        return count if isinstance(count, int) else None

    @cached_property
    def sequence(self) -> int | None:
        """Tokens of a sample."""
        return sequence_length(self._workload)

    @cached_property
    def layers(self) -> int | None:
        """Blocks of a synthesised model; None for a trace."""
        return whole_number(self._workload.metadata.get("layers", ""))

    @cached_property
    def tied(self) -> bool:
        """Whether the embedding and the head share a weight."""
        readers: dict[int, set[str]] = {}
        for op in self._workload.operators:
            if op.phase == FORWARD:
                for tensor in (self._workload.tensors[t] for t in op.inputs):
                    if tensor.role == "weight":
                        readers.setdefault(tensor.storage, set()).add(family_of(kind_of(op)))
        return any({"embedding", "linear"} <= families for families in readers.values())

    @cached_property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return self._workload.is_training


class LayoutChecker:
    """Rules of one profile for many layouts of one workload: each rule is evaluated once for the names in it.

    Raises nothing; a layout that passes may still be refused by :func:`check_layout` or by the build.
    """

    def __init__(self, software: Software | None, facts: LayoutFacts) -> None:
        rules = () if software is None else software.constraints.rules
        self._facts: dict[str, Value] = {}
        self._kinds: Sequence[Heads | None] = facts.attention.heads or (None,)
        self._rules = []
        for rule in (rule for rule in rules if rule.effect == "refuse"):
            names = tuple(dict.fromkeys((*names_of(rule.when), *names_of(rule.require))))
            cache: dict[tuple[Value, ...], bool] = {}
            self._rules.append((rule, names, cache))
            workload_names = ("experts", "layers", "sequence", "tied", "training")
            self._facts |= {name: getattr(facts, name) for name in workload_names if name in names}

    def violated(self, values: Mapping[str, Value]) -> LayoutRule | None:
        """Return the first rule that a layout violates. values: of all names in conditions that are about the plan."""
        for rule, names, cache in self._rules:
            key = tuple([values.get(name) for name in names])
            if key not in cache:
                cache[key] = self._is_met(rule, values)
            if not cache[key]:
                return rule
        return None

    def excludes(self, values: Mapping[str, Value]) -> bool:
        """Return whether these values alone violate a rule, whatever the other fields of a layout are."""
        about_them = (rule for rule, names, _ in self._rules if set(names) <= values.keys())
        return not all(self._is_met(rule, values) for rule in about_them)

    def _is_met(self, rule: LayoutRule, values: Mapping[str, Value]) -> bool:
        for heads in self._kinds:
            numbers = {} if heads is None else {"heads": heads.queries, "kv_heads": heads.keys}
            known = {**self._facts, **values, **numbers}
            if evaluate(rule.when, known) and evaluate(rule.require, known) in (False, 0):
                return False
        return True


class _Values(dict[str, Value]):
    """Values of the names in conditions, for a plan and one kind of heads; the workload's are computed on first use."""

    def __init__(self, plan: Plan, facts: LayoutFacts, heads: Heads | None) -> None:
        super().__init__({name: getattr(plan, name) for name in PLAN_NAMES})
        self._facts, batch = facts, plan.batch or facts.batch
        num_heads = None if heads is None else heads.queries
        num_kv_heads = None if heads is None else heads.keys
        self |= {
            "etp": plan.expert_tp, "shard_ways": plan.shard_ways or plan.dp, "cut": plan.has_cuts,
            "local_sgd": plan.sync_every is not None, "batch": batch,
            "micro_batch": plan.micro_batch or batch, "micro_batches": _num_micro_batches(plan, batch),
            "heads": num_heads, "kv_heads": num_kv_heads,
        }  # fmt: skip

    def __missing__(self, name: str) -> Value:
        value: Value = getattr(self._facts, name)
        self[name] = value
        return value

    def get(self, name: str, default: Value = None) -> Value:  # type: ignore[override]
        return self[name]


def _num_micro_batches(plan: Plan, batch: int) -> int | None:
    try:
        return len(micro_batches(batch, plan.micro_batch))
    except PlanError:
        return None


def resolve_layout(plan: Plan, software: Software | None, facts: LayoutFacts) -> tuple[Plan, tuple[str, ...]]:
    """Fill in the open fields of a plan as ``software`` does, and describe the defaults that its rules demand.

    Raises PlanError if the filled-in fields contradict the plan.
    """
    fields = {} if software is None else software.plan_fields()
    notes = []
    for default in () if software is None else software.constraints.defaults:
        if getattr(plan, default.field) is None and evaluate(default.when, _Values(plan, facts, None)):
            fields[default.field] = default.value
            words = f"{default.field.replace('_', ' ')} {_value_text(default.value)}"
            assert software is not None
            notes.append(f"{words}, the default of {software.name}: {default.reason} ({default.source})")
    return plan.filled(fields), tuple(notes)


def virtual_stage_counts(software: Software | None, layers: int, pp: int) -> list[int]:
    """Return the numbers of virtual stages whose chunks divide the layers, or do by a default of ``software``."""
    all_defaults = [] if software is None else software.constraints.defaults
    defaults = [d for d in all_defaults if d.field == "balance"]

    def divides(count: int) -> bool:
        values: dict[str, Value] = {"pp": pp, "virtual_stages": count, "layers": layers, "cut": False}
        return layers % (pp * count) == 0 or any(evaluate(default.when, values) for default in defaults)

    return [count for count in range(1, (layers + 2) // pp + 1) if divides(count)]


def default_balance(software: Software | None, layers: int | None, pp: int, virtual_stages: int) -> str:
    """Return the rule that cuts a pipeline without an explicit one."""
    values: dict[str, Value] = {"pp": pp, "virtual_stages": virtual_stages, "layers": layers, "cut": False}
    for default in [] if software is None else software.constraints.defaults:
        if default.field == "balance" and evaluate(default.when, values):
            return str(default.value)
    return "time" if software is None else software.stages


def ignored_options(request: Plan, plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each option of a plan that has no effect, as the filled-in plan shows."""
    notes = []
    if request.sequence_parallel and not plan.sequence_parallel:
        notes.append("sequence parallelism is ignored: with tp = 1 there is nothing to divide")
    if request.sharding != plan.sharding:
        notes.append(f"sharding {request.sharding} is ignored: a single replica holds everything")
    return tuple(notes)


def why_not(plan: Plan, software: Software | None, facts: LayoutFacts) -> tuple[Violation, ...]:
    """Return the rules of ``software`` that a filled-in plan does not meet; empty if it runs."""
    return _unmet(plan, software, facts, "refuse")


def met_with_settings(plan: Plan, software: Software | None, facts: LayoutFacts) -> tuple[str, ...]:
    """Return a sentence for each rule that a layout meets only with further settings of the software."""
    return tuple(f"{violation.software}: {violation}" for violation in _unmet(plan, software, facts, "note"))


def check_layout(request: Plan, plan: Plan, software: Software | None, facts: LayoutFacts) -> None:
    """Raise PlanError if ``software`` cannot run ``plan``; the message names profiles that run ``request``."""
    if plan.tp > 1:
        from trine.parallel.heads import check_heads

        check_heads(facts.attention, plan.tp, are_divided=False)
    violations = why_not(plan, software, facts)
    if violations:
        runs = profiles_that_run(request, facts)
        hint = f"; --software {' or '.join(runs[:2])} can" if runs else ""
        raise PlanError(f"{violations[0].software} cannot run this layout: {violations[0]}{hint}")


def profiles_that_run(request: Plan, facts: LayoutFacts) -> list[str]:
    """Return the proposed profiles that run a plan as the user gave it."""
    names = []
    for name in usual_software().proposals:
        profile = load_software(name)
        try:
            plan, _ = resolve_layout(request, profile, facts)
        except PlanError:
            continue
        if not why_not(plan, profile, facts):
            names.append(name)
    return names


def _unmet(plan: Plan, software: Software | None, facts: LayoutFacts, effect: str) -> tuple[Violation, ...]:
    if software is None:
        return ()
    unmet = []
    for rule in (rule for rule in software.constraints.rules if rule.effect == effect):
        for values in _cases(rule, plan, facts):
            if not _is_met(rule, values):
                pairs = ", ".join(f"{name} = {_value_text(values[name])}" for name in names_of(rule.require))
                unmet.append(Violation(software=software.name, rule=rule, values=pairs, nearest=_nearest(rule, values)))
                break
    return tuple(unmet)


def _cases(rule: LayoutRule, plan: Plan, facts: LayoutFacts) -> list[_Values]:
    """Return the values to check a rule with: one set for each kind of attention heads, if it names heads."""
    about_heads = {"heads", "kv_heads"} & {*names_of(rule.require), *names_of(rule.when)}
    kinds: Sequence[Heads | None] = facts.attention.heads if about_heads else (None,)
    return [_Values(plan, facts, heads) for heads in kinds]


def _is_met(rule: LayoutRule, values: _Values) -> bool:
    """Return whether a rule is met; a rule about unknown values is."""
    return not evaluate(rule.when, values) or evaluate(rule.require, values) not in (False, 0)


def _nearest(rule: LayoutRule, values: _Values) -> str:
    """Return the nearest number below and above for the first degree that can meet the rule by itself."""
    names = names_of(rule.require)
    for name in (name for name in _DEGREES if name in names and "micro_batches" not in names):
        degree = values[name]
        assert isinstance(degree, int)
        valid = []
        for number in range(1, degree * _MAX_TIMES + 1):
            values[name] = number
            if _is_met(rule, values):
                valid.append(number)
        values[name] = degree
        near = nearest_numbers(valid, degree)
        if near:
            return f"valid {name} is {' or '.join(map(str, near))}"
    return ""


def _value_text(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
