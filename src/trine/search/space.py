"""Enumeration of the layouts of a job, and their check against the rules of one software profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

from trine.common.units import whole_number
from trine.errors import InputError, PlanError, nearest
from trine.parallel.axes import DEFAULT_ORDER
from trine.parallel.constraints import LayoutChecker, LayoutFacts, virtual_stage_counts
from trine.parallel.heads import check_heads
from trine.parallel.plan import FALLBACKS, Plan
from trine.parallel.schedules import SCHEDULES, Pipeline
from trine.software.profile import SWITCH_FIELDS, Software

#: Most layouts of one search: their enumeration takes some 20 us each.
MAX_LAYOUTS = 2_000_000
#: Largest micro-batch and fewest tokens per context-parallel rank of the default space; ``--fix`` takes any value.
MAX_MICRO_BATCH, MIN_TOKENS = 16, 1024
#: Shardings of the default space: zero2 and zero3 keep the state of zero1 and fsdp, and communicate more.
SHARDINGS = ("none", "zero1", "fsdp")
RECOMPUTE = ("none", "selective", "full")
OFFLOADS = ("none", "optimizer", "activations")
#: Fields of a plan that a search varies, in the order of the answer's columns.
VARIED = (
    "dp", "tp", "pp", "cp", "ep", "etp", "sharding", "shard_ways", "schedule", "virtual_stages", "micro_batch",
    "sequence_parallel", "recompute", "offload",
)  # fmt: skip
#: Fields that a plan checks without the others.
_ALONE = ("dp", "tp", "pp", "cp", "micro_batch", "recompute")
#: Fields that follow from others, or are no part of a layout.
_NOT_FIXED = ("batch", "steps", "replica_batches", "cuts", "stage_layers", "algorithm", "expert_shares", "data",
              "sync_every")  # fmt: skip


class Layout(NamedTuple):
    """One point of the space; fields as in :class:`trine.Plan`, sorted in the order of ties."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int | None
    sharding: str
    shard_ways: int | None
    schedule: str | None
    virtual_stages: int
    micro_batch: int
    sequence_parallel: bool | None
    recompute: str
    offload: str
    expert_overlap: bool = False
    shared_expert_overlap: bool = False
    dispatch: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The layout as a sortable key."""
        return tuple((value is not None, value if value is not None else 0) for value in self)


@dataclass(frozen=True, slots=True)
class Family:
    """Layouts with the same ranks, micro-batch and form of parallelism; they differ in pipeline, sharding and memory.

    layout: the first of them, without recomputation and offload. pipelines: pairs of schedule and virtual stages.
    """

    layout: Layout
    pipelines: tuple[tuple[str | None, int], ...]
    shardings: tuple[str, ...]
    recompute: tuple[str, ...]
    offload: tuple[str, ...]

    @property
    def num_layouts(self) -> int:
        """Number of layouts, valid or not."""
        return len(self.pipelines) * len(self.shardings) * len(self.recompute) * len(self.offload)

    def layouts(self) -> Iterator[Layout]:
        """Yield the layouts with the first offload, by default none; :meth:`Space.offloading` has the others."""
        for recompute, sharding, (schedule, stages) in product(self.recompute, self.shardings, self.pipelines):
            yield self.layout._replace(
                sharding=sharding, schedule=schedule, virtual_stages=stages, recompute=recompute,
                offload=self.offload[0],
            )  # fmt: skip


class Space:
    """The layouts of a search by families, and the rules against them. rejected: numbers of layouts by reason.

    switches: combinations of switches that the search tries on its best layouts (:mod:`trine.search.switches`).

    fixed: fields of every layout. is_allowed: whether a field may have a value (by default any), for a space of what
    one launch dialect can express. Raises PlanError if the fixed fields contradict each other.
    """

    def __init__(
        self, gpus: int, global_batch: int, facts: LayoutFacts, software: Software | None, fixed: Mapping[str, Any],
        most_tp: int | None = None, is_allowed: Callable[[str, Any], bool] | None = None,
        switches: Sequence[Mapping[str, Any]] = (),
    ) -> None:  # fmt: skip
        self.gpus, self.global_batch, self.fixed = gpus, global_batch, dict(fixed)
        self.facts, self.software = facts, software
        self.rejected: Counter[str] = Counter()
        self._rest = {name: value for name, value in fixed.items() if name not in VARIED}
        Plan(**{name: fixed[name] for name in _ALONE if name in fixed})
        self.most_tp, self._is_allowed = most_tp or gpus, is_allowed or _allow_all
        self.switches = switches
        self._fixed_switches = {name: fixed[name] for name in SWITCH_FIELDS if name in fixed}
        self._rules = _Rules(facts, software, self)

    def plan(self, layout: Layout, **changes: Any) -> Plan:
        """Return the plan of a layout. Raises PlanError if no job can have it."""
        values = {**layout._asdict(), "batch": self.global_batch // layout.dp, **self._rest, **changes}
        return Plan(**values)

    def reason(self, layout: Layout) -> str:
        """Return why a layout cannot run, or an empty string."""
        return self._rules.reason(layout)

    def has_schedule(self, schedule: str | None, pp: int) -> bool:
        """Return whether the software runs a schedule on ``pp`` stages at all; one stage has no schedule."""
        return pp == 1 or self._rules.has_schedule(schedule, pp)

    def offloading(self, layout: Layout) -> list[Layout]:
        """Return the layouts that equal one without offload except for their offload."""
        if layout.offload != "none" or "offload" in self.fixed or not self.facts.training:
            return []
        return [layout._replace(offload=offload) for offload in self.offloads if offload != "none"]

    @property
    def offloads(self) -> tuple[str, ...]:
        """The values of ``offload`` in the space."""
        return self._values("offload", OFFLOADS if self.facts.training else ["none"])

    def families(self) -> list[Family]:
        """Return the families whose ranks and batches are possible; count the others as rejected.

        Raises PlanError if no family is possible, InputError for too many layouts.
        """
        families, count = [], 0
        for layout in self._ranks():
            family = self._family(layout)
            if reason := self._rules.rank_reason(layout):
                self.rejected[reason] += family.num_layouts
                continue
            families.append(family)
            count += family.num_layouts
            if count > MAX_LAYOUTS:
                raise InputError(f"the space has over {MAX_LAYOUTS:,} layouts: narrow it with --fix, such as tp=8")
        if not families:
            raise PlanError(self.empty())
        return families

    def empty(self) -> str:
        """Return the error for a space without a valid layout."""
        if not self.rejected:
            degrees = " x ".join(f"{n} {self.fixed[n]}" for n in ("dp", "tp", "pp", "cp") if n in self.fixed)
            return f"no layout is valid: {degrees or 'the fixed fields'} cannot make {self.gpus} GPUs"
        reason, count = self.rejected.most_common(1)[0]
        total = self.rejected.total()
        part = f"all {total:,}" if count == total else f"{count:,} of {total:,}"
        return f"no layout is valid: {part} are rejected because {reason}"

    def _values(self, name: str, values: Sequence[Any]) -> tuple[Any, ...]:
        if name in self.fixed:
            return (self.fixed[name],)
        return tuple(value for value in values if self._is_allowed(name, value))

    def _ranks(self) -> Iterator[Layout]:
        """Yield every combination of degrees, micro-batch and sequence parallelism that makes the number of GPUs."""
        ways, experts = divisors(self.gpus), self.facts.experts or 0
        tps = self._values("tp", [n for n in ways if n <= self.most_tp])
        for tp, cp, pp in product(tps, self._values("cp", self._cps(ways)), self._values("pp", ways)):
            dp, rest = divmod(self.gpus, tp * cp * pp)
            if rest or self.fixed.get("dp", dp) != dp:
                continue
            for ep, etp, micro_batch, is_sequence in product(
                self._values("ep", divisors(experts) if experts else [1]),
                self._values("etp", [None, 1] if experts and tp > 1 else [None]),
                self._values("micro_batch", self._micro_batches(dp)),
                self._values("sequence_parallel", [True, False] if self.facts.attention.is_there else [None]),
            ):
                if tp == 1 and is_sequence is False and "sequence_parallel" not in self.fixed:
                    continue
                yield Layout(
                    dp, tp, pp, cp, ep, etp, "none", self.fixed.get("shard_ways"), None, 1, micro_batch,
                    is_sequence if tp > 1 else None, "none", "none", **self._fixed_switches,
                )  # fmt: skip

    def _cps(self, ways: list[int]) -> list[int]:
        sequence = self.facts.sequence
        if sequence is None or not self.facts.attention.is_there:
            return [1]
        return [n for n in ways if n == 1 or sequence >= n * MIN_TOKENS]

    def _micro_batches(self, dp: int) -> list[int]:
        batch = self.global_batch // dp
        return [n for n in range(1, min(batch, MAX_MICRO_BATCH) + 1) if batch % n == 0] or [1]

    def _family(self, layout: Layout) -> Family:
        replicas, training = layout.dp * layout.cp, self.facts.training
        recompute = self._values("recompute", RECOMPUTE if training else ["none"])
        offload = self.offloads
        return Family(
            layout=layout._replace(recompute=recompute[0], offload=offload[0]),
            pipelines=self._pipelines(layout.pp),
            shardings=self._values("sharding", self._shardings(replicas, layout.pp)),
            recompute=recompute,
            offload=offload,
        )

    def _shardings(self, replicas: int, pp: int) -> list[str]:
        """Return the shardings to search. With a pipeline, fsdp is searched if a rule of the profile allows it."""
        if replicas == 1:
            return ["none"]
        rules = () if self.software is None else self.software.constraints.rules
        names_fsdp = any("'fsdp'" in rule.require for rule in rules)
        return [s for s in SHARDINGS if s != "fsdp" or pp == 1 or names_fsdp]

    def _pipelines(self, pp: int) -> tuple[tuple[str | None, int], ...]:
        if pp == 1:
            return ((self.fixed.get("schedule"), self.fixed.get("virtual_stages", 1)),)
        if pp not in self._rules.pipelines:
            layers = self.facts.layers or pp
            counts = sorted({1, *virtual_stage_counts(self.software, layers, pp)})  # stages may be unequal
            self._rules.pipelines[pp] = tuple(
                (name, count)
                for name in self._values("schedule", SCHEDULES.names())
                for count in self._values("virtual_stages", counts)
                if "virtual_stages" in self.fixed or (count > 1) == SCHEDULES.get(name).takes_virtual_stages
            )
        return self._rules.pipelines[pp]


def parse_fixed(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return plan fields from texts such as ``tp=8``.

    Raises InputError for unknown fields, fields named twice, and fields that follow from the search.
    """
    known = {each.name: str(each.type) for each in fields(Plan) if each.name not in _NOT_FIXED}
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not equals or not value:
            raise InputError(f"--fix takes FIELD=VALUE, such as tp=8; got {text[:80]!r}")
        if name not in known:
            raise InputError(f"--fix has no field {name[:40]!r}{nearest(name[:80], known)}")
        if name in values:
            raise InputError(f"--fix {name} is given twice")
        values[name] = _value(name, known[name], value)
    return values


def _value(name: str, kind: str, text: str) -> Any:
    if "bool" in kind:
        if text.lower() not in ("true", "false", "on", "off", "yes", "no"):
            raise InputError(f"--fix {name} is on or off, got {text[:40]!r}")
        return text.lower() in ("true", "on", "yes")
    if "int" in kind:
        number = whole_number(text)
        if number is None:
            raise InputError(f"--fix {name} is a whole number, got {text[:40]!r}")
        return number
    return text.lower()


def _allow_all(field: str, value: Any) -> bool:
    return True


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


class _Rules:
    """Reasons against layouts: of the rank grid, the schedule, the model's heads, and the software."""

    def __init__(self, facts: LayoutFacts, software: Software | None, space: Space) -> None:
        self._facts, self._space = facts, space
        self._checker = LayoutChecker(software, facts)
        defaults = {**FALLBACKS, **({} if software is None else software.plan_fields())}
        names = ("balance", "cp_style", "tp_style", "tp_overlap", "overlap", "data", "order")
        self._constant: dict[str, Any] = {
            "balance": defaults["balance"], "overlap": defaults["overlap"], "cp_style": "ring", "tp_style": "auto",
            "tp_overlap": 1, "data": "ddp", "order": DEFAULT_ORDER, "cut": False, "local_sgd": False,
            **{name: space.fixed[name] for name in names if name in space.fixed},
        }  # fmt: skip
        self._etp: Any = defaults.get("etp")
        self.pipelines: dict[int, tuple[tuple[str | None, int], ...]] = {}
        self._heads: dict[int, str] = {}
        self._schedules: dict[tuple[object, ...], str] = {}
        self._has_schedule: dict[tuple[str | None, int], bool] = {}

    def rank_reason(self, layout: Layout) -> str:
        """Return why no layout with these ranks and micro-batches can run, or an empty string."""
        if self._space.global_batch % layout.dp:
            return "the replicas do not divide the global batch"
        if self._space.global_batch // layout.dp % layout.micro_batch:
            return "micro-batches do not divide the batch of a replica"
        layers, etp = self._facts.layers, self._etp_of(layout)
        if layers is not None and layout.pp > layers:
            return f"pipeline stages outnumber the {layers} layers"
        if (layout.ep > 1 or etp != layout.tp) and (layout.tp * layout.cp * layout.dp) % (etp * layout.ep):
            return "etp x ep does not divide the ranks of a stage"
        if etp != layout.tp and layout.tp > 1 and not layout.sequence_parallel:
            return "experts divided in their own way (etp) need sequence parallelism"
        return self._head_reason(layout.tp)

    def reason(self, layout: Layout) -> str:
        """Return why a layout of a possible family cannot run, or an empty string."""
        if layout.pp == 1 and layout.virtual_stages > 1:
            return "virtual stages need a pipeline"
        if layout.offload == "activations" and layout.recompute == "full":
            return "full recomputation leaves next to no activations to offload"
        return self._schedule_reason(layout) or self._software_reason(layout, self._etp_of(layout))

    def _etp_of(self, layout: Layout) -> int:
        etp: int = layout.etp or self._etp or layout.tp
        return etp

    def has_schedule(self, schedule: str | None, pp: int) -> bool:
        """Return whether no rule about schedules and stages alone excludes a schedule."""
        key = (schedule, pp)
        if key not in self._has_schedule:
            self._has_schedule[key] = not self._checker.excludes({"schedule": schedule, "pp": pp})
        return self._has_schedule[key]

    def _head_reason(self, tp: int) -> str:
        if tp not in self._heads:
            self._heads[tp] = ""
            if tp > 1:
                try:
                    check_heads(self._facts.attention, tp, are_divided=False)
                except PlanError:
                    self._heads[tp] = "tp does not fit the attention heads"
        return self._heads[tp]

    def _schedule_reason(self, layout: Layout) -> str:
        if layout.pp == 1:
            return ""
        batch = self._space.global_batch // layout.dp
        pipeline = Pipeline(layout.pp, batch // layout.micro_batch, layout.virtual_stages, self._facts.training)
        key = (layout.schedule, pipeline)
        if key not in self._schedules:
            self._schedules[key] = ""
            try:
                SCHEDULES.get(str(layout.schedule)).check(pipeline)
            except PlanError:
                self._schedules[key] = f"micro-batches or stages do not suit the {layout.schedule} schedule"
        return self._schedules[key]

    def _software_reason(self, layout: Layout, etp: int) -> str:
        batch = self._space.global_batch // layout.dp
        values = {
            **self._constant, **layout._asdict(), "etp": etp, "shard_ways": layout.shard_ways or layout.dp,
            "batch": batch, "micro_batches": batch // layout.micro_batch,
            "schedule": layout.schedule if layout.pp > 1 else "1f1b",
            "sequence_parallel": bool(layout.sequence_parallel),
        }  # fmt: skip
        rule = self._checker.violated(values)
        return "" if rule is None else rule.reason
