"""``trine.plan_serving``: the layouts of a served model with the most tokens/s per GPU under latency limits."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from trine.cluster import Cluster, load_cluster
from trine.common.arguments import check_whole, takes
from trine.common.units import MAX_GPUS, format_bytes
from trine.errors import InputError, PlanError
from trine.inference.communication import Communication, gpu_of
from trine.inference.deployment import resolve, served_model
from trine.inference.engines import load_engine
from trine.inference.job import ServingJob, ServingLayout
from trine.inference.launch_commands import launch_rules
from trine.inference.layouts import copies_of, copy_sizes, layouts_of, node_sizes
from trine.inference.limits import NoRoomError, limits_of
from trine.inference.plan_answer import ServingPlan, layout_words
from trine.inference.point_search import PointSearch, tied
from trine.inference.precision_choice import precisions_of
from trine.inference.screen import seconds_words
from trine.inference.serving_goal import ServingGoal
from trine.inference.serving_points import ServedCopy
from trine.inference.steps import StepTimer
from trine.results.text import gpus_words
from trine.workload.architecture.model import Architecture

#: Most layouts of an answer.
MAX_TOP = 1000


@dataclass(frozen=True, slots=True)
class ServingSpace:
    """Copies of the model that fit. rejected: numbers of layouts by reason."""

    copies: list[ServedCopy]
    rejected: Counter[str]


@takes(ServingGoal)
def plan_serving(
    model: Architecture | str,
    cluster: Cluster | str | os.PathLike[str],
    gpus: int | None = None,
    top: int = 5,
    *,
    options: ServingGoal,
) -> ServingPlan:
    """Search the layouts of a served model for the most tokens/s per GPU under limits of TTFT and TPOT.

    Parameters
    ----------
    model: name of a bundled model, path of a config.json, or an architecture.
    cluster: a cluster, a preset or a file; a preset or file gets the nodes for ``gpus``.
    gpus: number of GPUs; None: all of the cluster. Copies of the model fill them.
    top: layouts in the answer.
    options: fields of :class:`ServingGoal` as keywords, or one instance of it.

    Raises
    ------
    InputError for wrong options; PlanError, with the missing bytes or the times that are possible, if no layout fits or
    none meets the limits.
    """
    check_whole("top", top, 1, MAX_TOP)
    machine = load_machine(cluster, gpus)
    limits = options.limits()
    space = serving_space(model, machine, options)
    search = PointSearch(space.copies, limits)
    ranked = search.best(top, lambda _, per_gpu: (-per_gpu,))
    if not ranked:
        raise_unmet(search)
    return ServingPlan(
        goal=options, limits=limits, gpus=len(machine.gpus), ranked=tuple(ranked), front=tuple(search.front()),
        simulated=tuple(search.meeting), num_tied=tied(ranked), num_layouts=len(space.copies),
        num_points=search.num_points, num_simulated=search.num_simulated, rejected=dict(space.rejected),
        model_name="" if isinstance(model, Architecture) else str(model),
        cluster_name="" if isinstance(cluster, Cluster) else str(cluster),
    )  # fmt: skip


def load_machine(cluster: Cluster | str | os.PathLike[str], gpus: int | None) -> Cluster:
    """Return the cluster with ``gpus`` GPUs. Raises InputError if it has fewer."""
    if gpus is not None:
        check_whole("gpus", gpus, 1, MAX_GPUS)
    if not isinstance(cluster, Cluster):
        return load_cluster(cluster, gpus=gpus)
    if gpus is not None and gpus != len(cluster.gpus):
        raise InputError(f"the cluster has {len(cluster.gpus)} GPUs, got {gpus}", field="gpus")
    return cluster


def serving_space(
    model: Architecture | str, machine: Cluster, goal: ServingGoal, sizes: list[int] | None = None
) -> ServingSpace:
    """Return all copies of the model that fit on a machine; sizes: numbers of GPUs of a copy, None: all that fill it.

    Copies that leave GPUs idle count only if no other fits. Raises PlanError, with the missing bytes, if none fits.
    """
    builder = _CopyBuilder(model, machine, goal)
    for each in [sizes] if sizes is not None else [copy_sizes(machine, False), copy_sizes(machine, True)]:
        for size in each:
            builder.add(size)
        if builder.copies:
            return ServingSpace(builder.copies, builder.rejected)
    raise PlanError(builder.problem(), field="gpus")


class _CopyBuilder:
    """Copies of one model on one machine, which share the times of collectives."""

    def __init__(self, model: Architecture | str, machine: Cluster, goal: ServingGoal) -> None:
        self._model, self._machine, self._goal = served_model(model), machine, goal
        name, _, self._version = goal.engine.partition(":")
        self._engine = load_engine(name, self._version)
        self._rules = launch_rules(name)
        self._communication = Communication(machine, self._engine)
        self._precisions = precisions_of(self._model, gpu_of(machine), goal.precision or "")
        self._nodes = node_sizes(machine)
        self.copies: list[ServedCopy] = []
        self.rejected: Counter[str] = Counter()
        self._nearest: tuple[int, str] | None = None

    def add(self, size: int) -> None:
        """Add the copies of ``size`` GPUs."""
        for layout in layouts_of(self._model, size, self._rules):
            for precision in self._precisions:
                self._add_copy(layout, precision)

    def _add_copy(self, layout: ServingLayout, precision: str) -> None:
        goal = self._goal
        job = ServingJob(
            model=self._model, cluster=self._machine, input_tokens=goal.input_tokens, output_tokens=goal.output_tokens,
            concurrency=1, prefix_tokens=goal.prefix_tokens, layout=layout, precision=precision,
            kv_precision=goal.kv_precision, engine=self._engine.name, engine_version=self._version,
        )  # fmt: skip
        try:
            deployment = resolve(job)
        except InputError as error:
            if error.field not in ("tp", "pp", "ep", "tp x attention_dp / ep"):
                raise
            self.rejected["that do not divide the model"] += 1
            return
        try:
            limits = limits_of(job, deployment)
        except NoRoomError as error:
            self.rejected["without room for one request"] += 1
            nearest = error.missing_bytes, f"{layout_words(layout)}, {precision}"
            self._nearest = min(self._nearest or nearest, nearest)
            return
        if limits.running < layout.pp:
            self.rejected["without room for a request of each stage"] += 1
            return
        copies = copies_of(self._nodes, layout.gpus)
        timer = StepTimer(deployment, self._communication)
        nodes = max(1, layout.gpus // max(self._nodes))
        self.copies.append(ServedCopy(job, deployment, limits, timer, copies, len(self._machine.gpus), nodes))

    def problem(self) -> str:
        """Return why no copy fits."""
        gpus, goal = len(self._machine.gpus), self._goal
        if self._nearest is None:
            return f"no layout of {self._model.name} on {gpus_words(gpus)} divides the model"
        missing, words = self._nearest
        tokens = goal.input_tokens + goal.output_tokens
        return (
            f"{self._model.name} has no room for one request of {tokens:,} tokens on {gpus_words(gpus)}: each GPU "
            f"needs {format_bytes(missing)} more with {words}, the nearest layout"
        )


def raise_unmet(search: PointSearch) -> None:
    """Raise PlanError for a limit below the fastest time, or if no layout meets the limits together."""
    limits = search.limits
    alone = [search.simulate(copy, 1) for copy in search.copies]
    for field, limit_s, what in (("ttft", limits.ttft_s, "prefill"), ("tpot", limits.tpot_s, "decoding")):
        fastest = min(alone, key=lambda each: getattr(each, f"{field}_s"))
        fastest_s = getattr(fastest, f"{field}_s")
        if limit_s is not None and fastest_s > limit_s:
            raise PlanError(
                f"{seconds_words(limit_s)} is below the fastest possible {what}: {seconds_words(fastest_s)} "
                f"({layout_words(fastest.answer.job.layout)}, {fastest.answer.precision})", field=field,
            )  # fmt: skip
    assert limits.ttft_s is not None
    prompt = [each for each in alone if each.ttft_s <= limits.ttft_s]
    lowest = min(prompt, key=lambda each: each.tpot_s)
    raise PlanError(
        f"no layout meets both limits: with a TTFT of at most {seconds_words(limits.ttft_s)}, TPOT is at least "
        f"{seconds_words(lowest.tpot_s)} ({layout_words(lowest.answer.job.layout)}, {lowest.answer.precision})"
    )
