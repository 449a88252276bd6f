"""``trine.plan``: the best parallel layouts of a model on a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from trine.cluster import load_cluster
from trine.cluster.parts import SCALE_OUT
from trine.common.arguments import check_whole, option, takes
from trine.common.evidence import ASSUMED, Evidence
from trine.common.units import MAX_GPUS
from trine.compute.origin import known_gpu
from trine.errors import InputError
from trine.graph.workload import Workload
from trine.parallel.constraints import LayoutFacts, resolve_layout
from trine.parallel.plan import MAX_BATCH, Plan
from trine.search.fabric_note import fabric_error, fabric_note
from trine.search.flags import check_dialect, has_name
from trine.search.limits import check_weights
from trine.search.ranked import Ranked
from trine.search.report import PlanSearch, pareto
from trine.search.screened import ScreenedSearch
from trine.search.search import Search, workers
from trine.search.space import Layout, Space
from trine.search.stage_layout import PLACEMENT
from trine.search.switches import switch_settings
from trine.search.usual_batch import usual_batch
from trine.search.worker import PackedJob, SearchJob, simulate_layout
from trine.training.options import SimulateOptions
from trine.training.setup import JobMachine, setup_machine, setup_workload
from trine.training.software import is_model

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.software.profile import Software

#: Most layouts of an answer.
MAX_TOP = 1000
#: The machine of a search that names only a number of GPUs.
USUAL_CLUSTER = "dgx-h100"
#: The assumption about the machine of a request that has none.
ASSUMED_MACHINE = Evidence("machine", ASSUMED, f"{USUAL_CLUSTER}, since the request has only a number of GPUs")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """Options of a search.

    gpus: number of GPUs; None: all of the cluster. global_batch: samples per step of all replicas; None: as published
    for the model, or 4 Mi tokens (presets/training_batches.yaml). cluster: a Cluster, a preset or a file; a preset or
    file gets the nodes for ``gpus``; None: USUAL_CLUSTER, if ``gpus`` are given. precision, trainable: as in
    :class:`trine.training.options.SimulateOptions`. fix: fields of :class:`trine.Plan` that
    every layout has. top: layouts in the answer; each must beat no other simulated one. software, gradient_dtype, loss,
    gpu: as in :class:`trine.training.options.SimulateOptions`; one profile holds for all layouts. pareto: search the
    frontier of time against memory, too. exact: simulate all layouts that no bound excludes. Otherwise a screen orders
    the layouts of a space of over 1,000, and only the best ones are simulated.
    executor: runs the simulations; None: one process per CPU (``workers``: their number).
    given: a layout that takes part in the search, with the fields of :class:`trine.Plan`; the answer compares it with
    the best one. most_simulated: end the search after this many simulations, once a layout fits. emit: a launch dialect
    (``megatron``): the space has only layouts that it can express, and without ``software`` its profile's rules hold.
    with_power: outcomes have the power of the GPUs.
    """

    global_batch: int | None = option(None, "Set the samples per step of all replicas [as published, or 4 Mi tokens].")
    gpus: int | None = option(None, "Use N GPUs, filling nodes in order [the cluster's].")
    cluster: Cluster | str | os.PathLike[str] | None = None
    fix: Mapping[str, Any] = option(factory=dict, help="Fix a field of all layouts, such as tp=8; repeatable.")
    top: int = option(5, "Rank the N best layouts.")
    software: Software | str | os.PathLike[str] | None = option(
        None, "Choose the software profile of all layouts: name or file [by workload]."
    )
    gradient_dtype: str | None = option(None, "Accumulate and reduce gradients in this dtype [profile's].")
    loss: str | None = option(None, "Choose the implementation of the loss [profile's].")
    precision: str | None = option(None, "Cast the products of layers: fp8, mxfp8, nvfp4, ...")
    trainable: str | None = option(None, "Train adapters alone: lora:RANK[:qkv+out+up+down][/nf4].")
    gpu: str | None = option(None, "Predict for this GPU in place of the cluster's.")
    pareto: bool = option(False, "Search the frontier of time against memory, too.")
    exact: bool = option(False, "Simulate until lower bounds exclude all other layouts.")
    executor: Executor | None = None
    workers: int | None = option(None, "Simulate in N processes [one per CPU].")
    given: Mapping[str, Any] | None = None
    most_simulated: int | None = None
    emit: str | None = None
    with_power: bool = False


@takes(PlanOptions)
def plan(model: Workload | str | os.PathLike[str], *, options: PlanOptions) -> PlanSearch:
    """Search the parallel layouts of a model for the fastest that fit in memory.

    Parameters
    ----------
    model: the name of a model (``llama-3-70b``), or any workload of :func:`trine.simulate`.
    options: fields of :class:`PlanOptions` as keywords, or one instance of it.

    ``.to_frame()`` of the result is a pandas data frame with one row per layout.

    Raises
    ------
    InputError for wrong options; PlanError, naming the constraint, if no layout is valid or none fits.
    """
    _check(options)
    cluster = _cluster(options)
    gpus = options.gpus or len(cluster.gpus)
    dialect = None if options.emit is None else check_dialect(options.emit)
    chosen = options.software if options.software or dialect is None else dialect.profile
    settings = SimulateOptions(
        cluster=cluster, gpu=options.gpu, software=chosen, gradient_dtype=options.gradient_dtype, loss=options.loss,
        compare=False, precision=options.precision, trainable=options.trainable,
    )  # fmt: skip
    machine = setup_machine(Plan(dp=gpus), settings)
    workload, software = setup_workload(model, machine, settings)
    target = known_gpu(machine.target)
    for name, value in options.fix.items():
        if dialect is not None and not has_name(dialect, name, value):
            raise InputError(f"{options.emit} has no name for {name} {value}: fix another value", field="fix")
    settings_of_experts = switch_settings(software.profile, workload, options.fix, target)
    switches = [
        each for each in settings_of_experts
        if dialect is None or all(has_name(dialect, *pair) for pair in each.items())
    ]  # fmt: skip
    facts, domain = LayoutFacts(workload), _domain(cluster)
    assumptions = [] if options.cluster else [ASSUMED_MACHINE]
    batch = options.global_batch or (options.given or {}).get("global_batch")
    if batch is None:
        usual = usual_batch(str(workload.metadata.get("model", "")), facts.sequence, gpus, domain)
        batch = usual.samples
        assumptions.append(Evidence("global batch", ASSUMED, f"{batch:,} samples; {usual.source}"))
    space = Space(gpus, batch, facts, software.profile, options.fix, domain,
                  None if dialect is None else partial(has_name, dialect), switches)  # fmt: skip
    check_weights(workload, gpus, memory_of(machine), not any(each != "none" for each in space.offloads))
    job = PackedJob(SearchJob(workload=workload, options=settings, gpus=gpus, with_power=options.with_power))
    with workers(options.executor, options.workers, job) as executor:
        search = ScreenedSearch(job, space, memory_of(machine), executor, options.top, options.pareto, options.exact,
                                options.most_simulated)  # fmt: skip
        given = None if options.given is None else _simulate_given(options.given, search, space)
        if given is not None:
            search.add(given)
        search.run()
    name = str(model) if is_model(model) else workload.name
    return PlanSearch(
        model=name.removeprefix("model:"), gpus=gpus, gpu=target.name if target else machine.target or "GPU",
        cluster=cluster.name, software=software.name, global_batch=batch,
        sequence=space.facts.sequence, layers=space.facts.layers,
        num_layouts=search.num_layouts, num_screened=search.num_screened, num_simulated=search.num_simulated,
        ranked=tuple(search.answer()), simulated=tuple(search.ranked), given=given,
        rejected=dict(search.rejected), node_gpus=search.node_gpus, screen_errors=tuple(search.errors),
        frontier=pareto(search.ranked) if options.pareto else (),
        command=train_command(name, search.ranked[0].layout, batch, options.cluster or USUAL_CLUSTER,
                              _num_nodes(cluster), space.fixed),
        assumptions=tuple(assumptions),
        fabric=fabric_note(cluster, search.ranked), fabric_error=fabric_error(cluster),
        plan=resolve_layout(space.plan(search.ranked[0].layout), software.profile, space.facts)[0],
    )  # fmt: skip


def memory_of(machine: JobMachine) -> int:
    """Return the memory of the machine's GPU in bytes, 0 if it is unknown."""
    spec = known_gpu(machine.target)
    return 0 if spec is None else spec.memory_bytes


def _check(options: PlanOptions) -> None:
    if options.global_batch is not None:
        check_whole("global_batch", options.global_batch, 1, MAX_BATCH)
    check_whole("top", options.top, 1, MAX_TOP)
    for name in ("gpus", "workers", "most_simulated"):
        if getattr(options, name) is not None:
            check_whole(name, getattr(options, name), 1, MAX_GPUS)
    if options.cluster is None and options.gpus is None:
        message = "a search needs a machine or a number of GPUs: a preset such as dgx-h100, or a file"
        raise InputError(message, field="cluster")


def _cluster(options: PlanOptions) -> Cluster:
    from trine.cluster import Cluster

    cluster = options.cluster
    if isinstance(cluster, Cluster):
        if options.gpus is not None and options.gpus > len(cluster.gpus):
            raise InputError(f"the cluster has {len(cluster.gpus)} GPUs, got {options.gpus}", field="gpus")
        return cluster
    return load_cluster(cluster or USUAL_CLUSTER, gpus=options.gpus)


def _num_nodes(cluster: Cluster) -> int:
    return len(set(cluster.node_of[list(cluster.gpus)].tolist()))


def _domain(cluster: Cluster) -> int:
    """Return the most GPUs that links inside of nodes (or racks) join; all of a cluster without a fabric."""
    if not any(link.link_class == SCALE_OUT for link in cluster.link_table.numbers):
        return len(cluster.gpus)
    counts: dict[int, int] = {}
    for node in cluster.node_of[list(cluster.gpus)].tolist():
        counts[node] = counts.get(node, 0) + 1
    return max(counts.values())


def _simulate_given(values: Mapping[str, Any], search: Search, space: Space) -> Ranked:
    """Simulate the layout of a configuration file. Raises InputError if it is for another job."""
    if values.get("global_batch", space.global_batch) != space.global_batch:
        raise InputError(f"the configuration has a global batch of {values['global_batch']}, not {space.global_batch}")
    stages = values.get("virtual_stages") or _stages_of(values, space)
    names = {each: values[each] for each in Layout._fields if each in values} | {"virtual_stages": stages}
    if names.get("pp", 1) > 1 and "schedule" not in names:
        names["schedule"] = "interleaved" if stages > 1 else "1f1b"
    degrees = {name: names.get(name, 1) for name in ("tp", "pp", "cp", "ep")}
    ranks = degrees["tp"] * degrees["pp"] * degrees["cp"]
    dp, rest = divmod(space.gpus, ranks)
    if rest or names.get("dp", dp) != dp:
        raise InputError(f"the configuration has tp x pp x cp = {ranks}, which does not make {space.gpus} GPUs")
    if space.global_batch % dp:
        raise InputError(f"the configuration has {dp} replicas, which do not divide the batch {space.global_batch}")
    defaults: dict[str, Any] = {
        "etp": None, "sharding": "none", "shard_ways": None, "schedule": None, "virtual_stages": 1,
        "micro_batch": 1, "sequence_parallel": None, "recompute": "none", "offload": "none",
    }  # fmt: skip
    layout = Layout(**{**defaults, **degrees, **names, "dp": dp})
    placement = {name: values[name] for name in PLACEMENT if name in values}
    return Ranked(layout, simulate_layout(search.packed, space.plan(layout, **placement)), 0)


def _stages_of(values: Mapping[str, Any], space: Space) -> int:
    """Return the virtual stages of a configuration that gives layers per stage."""
    layers, pp = values.get("layers_per_stage"), values.get("pp", 1)
    if values.get("stage_layers"):
        return max(1, int(len(values["stage_layers"]) // pp))
    return 1 if not layers or not space.facts.layers else max(1, space.facts.layers // (layers * pp))


def train_command(
    model: str, layout: Layout, global_batch: int, cluster: object, nodes: int, fixed: Mapping[str, Any]
) -> str:
    """Return the ``trine train`` command that simulates a layout in detail. fixed: further fields of the plan."""
    plan_fields = {each.name: each.default for each in fields(Plan)}
    values = {**layout._asdict(), **{n: v for n, v in fixed.items() if n in plan_fields}}
    parts = ["trine", "train", model, "--global-batch", str(global_batch)]
    for name, value in values.items():
        if value in (None, plan_fields[name]) or value is False or (name == "schedule" and layout.pp == 1):
            continue
        flag = f"--{name.removesuffix('_bytes').replace('_', '-')}"
        parts += [flag] if value is True else [flag, str(value)]
    if isinstance(cluster, str):
        parts += ["--cluster", cluster, *(["--nodes", str(nodes)] if nodes > 1 else [])]
    return " ".join(parts)
