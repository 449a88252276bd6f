"""Sensitivity of a training step: its time at both ends of each input's likely range."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trine.cluster.parts import HOST_LINK, SCALE_OUT, SCALE_UP
from trine.common.arguments import takes
from trine.common.observer import unobserved
from trine.common.units import format_bandwidth, format_time
from trine.decide.answers import narrowed
from trine.decide.ranges import (
    FactorRange,
    bandwidth_range,
    collective_range,
    launch_range,
    operator_time_range,
    ranges,
)
from trine.graph.workload import SYNTHESISED
from trine.parallel.plan import Plan
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
    from trine.graph.workload import Workload
    from trine.results import Result
    from trine.software.profile import Software

#: Note in the profile of a run with another factor.
_VARIED = "a sensitivity run"
_CLASS_NAMES = {SCALE_UP: "links between GPUs", SCALE_OUT: "links between nodes", HOST_LINK: "PCIe and host links"}


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

    def _cells(self) -> list[tuple[str, ...]]:
        step_ps = self.base.step_time_ps
        return [
            (each.input.name, f"{each.input.low} to {each.input.high}", _change(each.low_ps, step_ps),
             _change(each.high_ps, step_ps))
            for each in self.effects
        ]  # fmt: skip

    def summary(self) -> str:
        """Return the inputs on one screen."""
        rows = [("", "likely range", "at low", "at high"), *self._cells()]
        return Screen(
            question=f"sensitivity of {question(self.base)}",
            numbers=[("step", format_time(self.base.step_time_ps), "at the values that trine uses")],
            listings=(Listing(title="one input at a time", rows=narrowed(rows, (1,))),),
            closing=(
                ("not varied", "; ".join(self.left_out)),
                ("next", "--details (sources of the ranges); --json; trine help decide"),
            ),
        ).text()

    def details(self) -> str:
        """Return the table and the source of each range."""
        rows = [("input", "likely range", "at low", "at high"), *self._cells()]
        lines = [f"sensitivity of {question(self.base)}", "", *columns(rows), "", "sources of the ranges"]
        for each in self.effects:
            lines += wrapped_at("", f"{each.input.name} (value: {each.input.value}): {each.input.source}", 0)
        return "\n".join([*lines, *self.notes])

    def document(self) -> Row:
        """Return the table as plain data (docs/reference/decide-json.md)."""
        return {"step_time_s": self.base.step_time_s, **self.tables(), "not_varied": list(self.left_out)}

    def tables(self) -> dict[str, Table]:
        """Return ``inputs``: one row per input."""
        step_ps = self.base.step_time_ps
        return {
            "inputs": [
                {
                    "input": each.input.name, "value": each.input.value, "low": each.input.low, "high": each.input.high,
                    "step_at_low_s": seconds(each.low_ps), "step_at_high_s": seconds(each.high_ps),
                    "effect_s": seconds(each.swing_ps(step_ps)),
                    "effect_share": each.swing_ps(step_ps) / step_ps if step_ps else 0.0,
                    "source": each.input.source,
                }
                for each in self.effects
            ]
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
    profile, plan = setup.software.profile, setup.plan
    at_once = replace(options, software=profile) if profile is not None else options
    found = [*_of_network(setup, at_once), *_of_layout(setup, at_once)]
    if profile is None:
        return found, ("operator times, launches and collectives (no software profile scales them)",)
    found += _of_software(setup, at_once, profile, base)
    left_out = (("experts' load", plan.ep > 1), ("recorded launches", setup.launch is not None and _is_recorded(setup)))
    return found, tuple(text for text, is_left_out in left_out if is_left_out)


def _is_recorded(setup: Setup) -> bool:
    """Return whether a trace gives the launches, so that no factor of a profile scales them."""
    return setup.workload.format != SYNTHESISED and setup.workload.has_gpu_times


def _of_software(setup: Setup, options: SimulateOptions, profile: Software, base: Result) -> Iterator[Variation]:
    """Yield the inputs that a factor of the profile scales: operator times, launches, collectives."""

    def scaled(name: str, factor: str, value: str, ends: FactorRange) -> Variation:
        low, high = (
            (setup.plan, replace(options, software=profile.scaled({factor: end}, _VARIED)))
            for end in (ends.low, ends.high)
        )
        return Variation(name, value, f"x {ends.low:.3g}", f"x {ends.high:.3g}", ends.source, (low, high))

    yield scaled("operator times", "gpu", "as predicted", operator_time_range(base.evidence))
    cpu_us = profile.launch.cpu_us_per_kernel
    if setup.launch is not None and cpu_us and options.launch_cost_ps is None and not _is_recorded(setup):
        yield scaled("CPU time of a launch", "cpu", f"{cpu_us:g} us", launch_range(cpu_us))
    band = None if setup.machine is None or setup.plan.num_ranks == 1 else collective_range(setup.machine)
    if band is not None and options.collective_costs in ("auto", "library"):
        yield scaled("time of collectives", "communication", "as predicted", band)


def _of_network(setup: Setup, options: SimulateOptions) -> Iterator[Variation]:
    """Yield bandwidth and latency of the links of each class between the job's GPUs."""
    machine = setup.machine
    if machine is None or setup.plan.num_ranks == 1 or not isinstance(options.collective_costs, str):
        return
    gpu_nodes = machine.node_of[np.asarray(machine.gpus, np.int64)[setup.places]]
    nodes = len(np.unique(gpu_nodes))
    classes = {link.link_class for link in machine.link_table.numbers}
    wanted = [SCALE_UP if SCALE_UP in classes else HOST_LINK, *([SCALE_OUT] if nodes > 1 else [])]
    for link_class in wanted:
        links = [link for link in machine.link_table.numbers if link.link_class == link_class]
        if not links:
            continue
        name, least = _CLASS_NAMES[link_class], min(links, key=lambda link: link.bytes_per_s)
        ends = bandwidth_range(links, machine, nodes)
        yield _of_links(setup, options, f"bandwidth of {name}", link_class, "bytes_per_s", least, ends)
        yield _of_links(setup, options, f"latency of {name}", link_class, "latency_ps", least, ranges().latency)


def _of_links(
    setup: Setup, options: SimulateOptions, name: str, link_class: str, field: str, link: Link, ends: FactorRange
) -> Variation:
    assert setup.machine is not None
    write = format_bandwidth if field == "bytes_per_s" else format_time
    value = getattr(link, field)
    low, high = (
        (setup.plan, replace(options, cluster=_scaled(setup.machine, link_class, field, end)))
        for end in (ends.low, ends.high)
    )
    usual, least, most = (write(round(value * end)) for end in (1.0, ends.low, ends.high))
    return Variation(name, usual, least, most, ends.source, (low, high))


def _scaled(machine: Cluster, link_class: str, field: str, factor: float) -> Cluster:
    """Return the cluster with ``field`` of all links of a class multiplied; data-sheet bandwidths rise with it."""

    def change(link: Link) -> Link:
        if link.link_class != link_class:
            return link
        value = max(1, round(getattr(link, field) * factor)) if getattr(link, field) else 0
        changes: Any = {field: value}
        changed = replace(link, **changes)
        is_above = changed.peak_bytes_per_s is not None and changed.bytes_per_s > changed.peak_bytes_per_s
        return replace(changed, peak_bytes_per_s=changed.bytes_per_s) if is_above else changed

    table = machine.link_table
    return replace(machine, links=replace(table, numbers=tuple(map(change, table.numbers))))


def _of_layout(setup: Setup, options: SimulateOptions) -> Iterator[Variation]:
    """Yield the overlap model, and the spread of GPU speeds."""
    plan = setup.plan
    if plan.num_ranks > 1 and plan.overlap == "modelled":
        ends = ((replace(plan, overlap="ideal"), options), (replace(plan, overlap="none"), options))
        source = "contention between none and the whole kernel (trine help overlap)"
        yield Variation("overlap", "modelled", "ideal", "none", source, ends)
    if setup.slower:
        ends_of_spread = ranges().gpu_spread
        low, high = ((plan, replace(options, gpu_spread=end)) for end in (ends_of_spread.low, ends_of_spread.high))
        value = "1.48%" if options.gpu_spread is None else f"{options.gpu_spread:.2%}"
        words = (f"{ends_of_spread.low:.2%}", f"{ends_of_spread.high:.2%}")
        yield Variation("spread of GPU speeds", value, *words, ends_of_spread.source, (low, high))


def _change(ps: int, step_ps: int) -> str:
    """Return the time and its distance from the step; on a narrow terminal, the distance alone."""
    share = f"{(ps - step_ps) / step_ps:+.1%}" if step_ps else ""
    return f"{format_time(ps)} ({share})" if width() == WIDE else share
