"""Sensitivity of a training step: its time at both ends of each input's likely range.

The ranges and their sources: presets/sensitivity.yaml, bands of the collective libraries, data sheets of links.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from trine.cluster.load import rescaled
from trine.cluster.parts import HOST_LINK, SCALE_OUT, SCALE_UP
from trine.cluster.presets import load_links
from trine.collectives.nccl.parameters import load_library
from trine.common.arguments import takes
from trine.common.inputs import PRESETS
from trine.common.observer import unobserved
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.common.units import format_bandwidth, format_time
from trine.graph.workload import SYNTHESISED
from trine.parallel.plan import Plan
from trine.results.columns import to_row
from trine.results.report import Report, Row, Table, seconds
from trine.results.screen import Listing, Screen
from trine.results.summary import question
from trine.results.text import WIDE, columns, width, wrapped_at
from trine.training import simulate
from trine.training.options import SimulateOptions
from trine.training.setup import Setup, setup_of
from trine.training.software import is_model

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.cluster.parts import Link
    from trine.common.evidence import Evidence
    from trine.graph.workload import Workload
    from trine.results import Result

#: Note in the profile of a run with another factor.
_VARIED = "a sensitivity run"
#: Fields of a link that vary: the word, and the function that writes a value.
_LINK_FIELDS: dict[str, tuple[str, Callable[[int], str]]] = {
    "bytes_per_s": ("bandwidth", format_bandwidth), "latency_ps": ("latency", format_time),
}  # fmt: skip
_CLASS_NAMES = {SCALE_UP: "links between GPUs", SCALE_OUT: "links between nodes", HOST_LINK: "PCIe and host links"}


Factor = Annotated[float, Field(ge=0, le=100)]


class FactorRange(Spec):
    """Ends of an input as factors of its value, and their source."""

    low: Factor
    high: Factor
    source: str


class LaunchRange(FactorRange):
    """The range of a launch's CPU time for profiles with this time."""

    cpu_us: Factor


class RangesFile(Spec):
    """Contents of presets/sensitivity.yaml. operator_time: by evidence."""

    operator_time: dict[str, FactorRange]
    launch: list[LaunchRange]
    latency: FactorRange
    gpu_spread: FactorRange


@cache
def ranges() -> RangesFile:
    """Return the ranges of presets/sensitivity.yaml."""
    return read_spec(PRESETS / "sensitivity.yaml", RangesFile)


def operator_time_range(evidence: Iterable[Evidence]) -> FactorRange:
    """Return the range of operator times: the geometric mean over the kinds of evidence, weighted by their shares."""
    known = ranges().operator_time
    shares = {row.kind: row.share or 0.0 for row in evidence if row.what == "operator time" and row.kind in known}
    total = sum(shares.values()) or 1.0
    ends = []
    for end in ("low", "high"):
        ends.append(prod(getattr(known[kind], end) ** (share / total) for kind, share in shares.items()))
    source = "; ".join(f"{share / total:.0%} {kind}: {known[kind].source}" for kind, share in shares.items())
    return FactorRange(low=ends[0], high=ends[1], source=source)


def launch_range(cpu_us: float) -> FactorRange:
    """Return the range of the CPU time of a launch, of the entry nearest to ``cpu_us``."""
    return min(ranges().launch, key=lambda entry: (abs(entry.cpu_us - cpu_us), entry.cpu_us))


def collective_range(machine: Cluster) -> FactorRange | None:
    """Return the range of the times of large collectives, from the library's measured band; None without a library."""
    if machine.library is None:
        return None
    bands = load_library(machine.library).bands
    name = "measured-net" if machine.has_fabric and "measured-net" in bands else "measured"
    _, low, high = bands[name][-1]
    source = f"80 % of measured collectives above 1 MiB ({machine.library}, {name})"
    return FactorRange(low=low, high=high, source=source)


def bandwidth_range(links: Iterable[Link], machine: Cluster, nodes: int) -> FactorRange:
    """Return the range of the bandwidth of links of one class.

    The upper end is the data sheet's bandwidth. The lower end comes from the slowest of 80 % of measured collectives,
    or from measurements of a shared fabric.
    """
    catalogue, first = load_links(), min(links, key=lambda link: (link.medium or "", link.bytes_per_s))
    kind = catalogue.get(first.medium or "")
    peak = first.peak_bytes_per_s or first.bytes_per_s
    band = collective_range(machine)
    low, why = (0.8, "assumed: a fifth less") if band is None else (1 / band.high, f"slowest of {band.source}")
    if kind is not None and kind.sharing is not None and nodes > kind.sharing.beyond_nodes:
        share_low, share_high = kind.sharing.all_reduce
        used = first.bytes_per_s / peak
        return FactorRange(low=share_low / used, high=max(share_high / used, 1.0), source=kind.sharing.source)
    return FactorRange(
        low=low, high=max(1.0, peak / first.bytes_per_s), source=f"{why}; data sheet of {first.medium or 'the link'}"
    )


@dataclass(frozen=True, slots=True)
class Variation:
    """An input, its value and likely ends in words, the source of the range, and the plan and options at both ends."""

    name: str
    value: str
    low: str
    high: str
    source: str
    runs: tuple[tuple[Plan, SimulateOptions], tuple[Plan, SimulateOptions]]


@dataclass(frozen=True, slots=True)
class Effect:
    """The step time at both ends of an input's range."""

    input: Variation
    low_ps: int
    high_ps: int

    def swing_ps(self, step_ps: int) -> int:
        """Return the largest distance among both ends and the step."""
        times = (self.low_ps, self.high_ps, step_ps)
        return max(times) - min(times)


@dataclass(frozen=True, kw_only=True, repr=False)
class Sensitivity(Report):
    """Inputs of a step, the one with the largest effect first. left_out: inputs without a range here, as sentences."""

    SCHEMA: ClassVar[str] = "sensitivity"

    base: Result
    effects: tuple[Effect, ...]
    left_out: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The input with the largest effect."""
        if not self.effects:
            return "no input of this step has a likely range"
        first, step_ps = self.effects[0], self.base.step_time_ps
        return (
            f"step {format_time(step_ps)}; largest effect: {first.input.name} "
            f"({first.input.low} to {first.input.high}), {format_time(first.low_ps)} to {format_time(first.high_ps)}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"not varied: {text}" for text in self.left_out)

    def _table(self, first: str = "input") -> list[tuple[str, ...]]:
        table: list[tuple[str, ...]] = [(first, "likely range", "at low", "at high")]
        for each in self.effects:
            ends = (_change(ps, self.base.step_time_ps) for ps in (each.low_ps, each.high_ps))
            table.append((each.input.name, f"{each.input.low} to {each.input.high}", *ends))
        return table

    def summary(self) -> str:
        """Return the inputs on one screen."""
        return Screen(
            question=f"sensitivity of {question(self.base)}",
            numbers=[("step", format_time(self.base.step_time_ps), "at the values that trine uses")],
            listings=(Listing(title="one input at a time", rows=self._table(""), spare=(1,)),),
            closing=(
                ("not varied", "; ".join(self.left_out)),
                ("next", "--details (sources of the ranges); --json; trine help decide"),
            ),
        ).text()

    def details(self) -> str:
        """Return the table and the source of each range."""
        lines = [f"sensitivity of {question(self.base)}", "", *columns(self._table()), "", "sources of the ranges"]
        for each in (effect.input for effect in self.effects):
            lines += wrapped_at("", f"{each.name} (value: {each.value}): {each.source}", 0)
        return "\n".join([*lines, *self.notes])

    def document(self) -> Row:
        """Return the table as plain data (docs/reference/decide-json.md)."""
        return {"step_time_s": self.base.step_time_s, **self.tables(), "not_varied": list(self.left_out)}

    def tables(self) -> dict[str, Table]:
        """Return ``inputs``: one row per input."""
        return {"inputs": [self._row(each) for each in self.effects]}

    def _row(self, effect: Effect) -> Row:
        swing_ps, step_ps = effect.swing_ps(self.base.step_time_ps), self.base.step_time_ps
        return {
            "input": effect.input.name, **to_row(effect.input, "value", "low", "high"),
            "step_at_low_s": seconds(effect.low_ps), "step_at_high_s": seconds(effect.high_ps),
            "effect_s": seconds(swing_ps), "effect_share": swing_ps / step_ps if step_ps else 0.0,
            "source": effect.input.source,
        }  # fmt: skip


@takes(SimulateOptions)
def sensitivity(
    workload: Workload | str | os.PathLike[str],
    plan: Plan | None = None,
    *,
    base: Result | None = None,
    on_run: Callable[[int, int], object] | None = None,
    options: SimulateOptions,
) -> Sensitivity:
    """Simulate a step at both ends of each input's likely range, one input at a time; rank the inputs by their effect.

    workload, plan, options: as of :func:`trine.simulate`. base: the result at the usual values, if known.
    on_run: called with the number of finished runs and of all runs.

    Raises the errors of :func:`trine.simulate`.
    """
    quiet = replace(options, compare=False, progress=None, on_compile=None, on_stage=None, on_job=None)
    with unobserved():
        setup = setup_of(workload, plan, quiet)
        start = simulate(workload, plan, options=quiet) if base is None else base
        variations, left_out = _variations(setup, quiet, start)
        source = _without_software(workload)
        times: list[int] = []
        for variation in variations:
            for layout, changed in variation.runs:
                times.append(simulate(source, layout, options=changed).step_time_ps)
                if on_run is not None:
                    on_run(len(times), 2 * len(variations))
    effects = [Effect(each, *times[2 * number : 2 * number + 2]) for number, each in enumerate(variations)]
    ranked = sorted(effects, key=lambda each: -each.swing_ps(start.step_time_ps))  # stable: ties keep their order
    return Sensitivity(base=start, effects=tuple(ranked), left_out=left_out)


def _without_software(workload: Workload | str | os.PathLike[str]) -> Workload | str | os.PathLike[str]:
    """Return a model's name without its ``software=``, because the runs name a profile themselves."""
    if not isinstance(workload, str) or not is_model(workload):
        return workload
    return ",".join(part for part in workload.split(",") if not part.startswith("software="))


def _variations(setup: Setup, options: SimulateOptions, base: Result) -> tuple[list[Variation], tuple[str, ...]]:
    """Return the inputs to vary, and sentences about those without a range here."""
    profile, plan = setup.software.profile, setup.plan
    at_once = replace(options, software=profile) if profile is not None else options
    found = [*_of_network(setup, at_once), *_of_layout(setup, at_once)]
    if profile is None:
        return found, ("operator times, launches and collectives (no software profile scales them)",)
    # a trace that gives the launches: no factor of a profile scales them
    is_recorded = setup.workload.format != SYNTHESISED and setup.workload.has_gpu_times
    left_out = (("experts' load", plan.ep > 1), ("recorded launches", setup.launch is not None and is_recorded))
    found += _of_software(setup, at_once, base, is_recorded)
    return found, tuple(text for text, is_left_out in left_out if is_left_out)


def _of_software(setup: Setup, options: SimulateOptions, base: Result, is_recorded: bool) -> Iterator[Variation]:
    """Yield the inputs that a factor of the profile scales: operator times, launches, collectives."""
    profile, machine = setup.software.profile, setup.machine
    assert profile is not None
    cpu_us = profile.launch.cpu_us_per_kernel
    has_launch = setup.launch is not None and cpu_us and options.launch_cost_ps is None and not is_recorded
    band = None if machine is None or setup.plan.num_ranks == 1 else collective_range(machine)
    has_band = options.collective_costs in ("auto", "library")
    launch_ends = launch_range(cpu_us) if has_launch else None
    band_ends = band if has_band else None
    for name, factor, value, ends in (
        ("operator times", "gpu", "as predicted", operator_time_range(base.evidence)),
        ("CPU time of a launch", "cpu", f"{cpu_us:g} us", launch_ends),
        ("time of collectives", "communication", "as predicted", band_ends),
    ):
        if ends is not None:
            low, high = ((setup.plan, replace(options, software=profile.scaled({factor: end}, _VARIED)))
                         for end in (ends.low, ends.high))  # fmt: skip
            yield Variation(name, value, f"x {ends.low:.3g}", f"x {ends.high:.3g}", ends.source, (low, high))


def _of_network(setup: Setup, options: SimulateOptions) -> Iterator[Variation]:
    """Yield bandwidth and latency of the links of each class between the job's GPUs."""
    machine = setup.machine
    if machine is None or setup.plan.num_ranks == 1 or not isinstance(options.collective_costs, str):
        return
    nodes = len(np.unique(machine.node_of[np.asarray(machine.gpus, np.int64)[setup.places]]))
    classes = {link.link_class for link in machine.link_table.numbers}
    inner_class = SCALE_UP if SCALE_UP in classes else HOST_LINK
    outer_classes = [SCALE_OUT] if nodes > 1 else []
    for link_class in (inner_class, *outer_classes):
        links = [link for link in machine.link_table.numbers if link.link_class == link_class]
        if not links:
            continue
        least = min(links, key=lambda link: link.bytes_per_s)
        for field, ends in (("bytes_per_s", bandwidth_range(links, machine, nodes)), ("latency_ps", ranges().latency)):
            (word, write), value = _LINK_FIELDS[field], getattr(least, field)
            low, high = ((setup.plan, replace(options, cluster=rescaled(machine, {link_class: {field: end}})))
                         for end in (ends.low, ends.high))  # fmt: skip
            usual, least_words, most = (write(round(value * end)) for end in (1.0, ends.low, ends.high))
            name = f"{word} of {_CLASS_NAMES[link_class]}"
            yield Variation(name, usual, least_words, most, ends.source, (low, high))


def _of_layout(setup: Setup, options: SimulateOptions) -> Iterator[Variation]:
    """Yield the overlap model, and the spread of GPU speeds."""
    plan = setup.plan
    if plan.num_ranks > 1 and plan.overlap == "modelled":
        ends = ((replace(plan, overlap="ideal"), options), (replace(plan, overlap="none"), options))
        source = "contention between none and the whole kernel (trine help overlap)"
        yield Variation("overlap", "modelled", "ideal", "none", source, ends)
    if setup.slower:
        spread = ranges().gpu_spread
        low, high = ((plan, replace(options, gpu_spread=end)) for end in (spread.low, spread.high))
        value = "1.48%" if options.gpu_spread is None else f"{options.gpu_spread:.2%}"
        words = (f"{spread.low:.2%}", f"{spread.high:.2%}")
        yield Variation("spread of GPU speeds", value, *words, spread.source, (low, high))


def _change(ps: int, step_ps: int) -> str:
    """Return the time and its distance from the step; on a narrow terminal, the distance alone."""
    share = f"{(ps - step_ps) / step_ps:+.1%}" if step_ps else ""
    return f"{format_time(ps)} ({share})" if width() == WIDE else share
