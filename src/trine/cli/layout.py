"""From the options of ``trine train`` to a plan and a machine, or what contradicts what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trine.errors import InputError, PlanError, nearest

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.parallel.plan import Plan

PARALLEL = ("dp", "ddp", "tp", "pp")


def with_ways(
    plan: Plan, gpus: int | None, parallel: str | None, dp: int | None, tp: int | None, pp: int | None
) -> Plan:
    """Put ways on the axes of ``plan``.

    ``parallel`` puts all ``gpus`` on one axis (``dp``: DataParallel); ``dp``, ``tp``, ``pp`` give the ways of each, and
    their product must be ``gpus`` where that is given too. Raises PlanError for what contradicts itself.
    """
    given = {name: ways for name, ways in (("dp", dp), ("tp", tp), ("pp", pp)) if ways is not None}
    for name, number in (("gpus", gpus), *given.items()):
        if number is not None and number < 1:
            raise PlanError(f"--{name} must be at least 1, got {number}")
    if parallel is not None:
        return _on_one_axis(plan, gpus, parallel, given)
    if not given:
        if gpus not in (None, 1):
            raise PlanError(f"{gpus} GPUs need a parallelism: --parallel dp|ddp|tp|pp, or --dp, --tp and --pp")
        return plan
    plan = replace(plan, dp=dp or 1, tp=tp or 1, pp=pp or 1)
    if gpus is not None and gpus != plan.num_ranks:
        raise PlanError(
            f"--dp {plan.dp} x --tp {plan.tp} x --pp {plan.pp} = {plan.num_ranks} GPUs contradicts --gpus {gpus}"
        )
    return plan


def _on_one_axis(plan: Plan, gpus: int | None, parallel: str, given: dict[str, int]) -> Plan:
    if parallel not in PARALLEL:
        raise PlanError(
            f"--parallel must be one of {', '.join(PARALLEL)}; got {parallel!r}{nearest(parallel, PARALLEL)}"
        )
    if given:
        raise PlanError(f"--parallel {parallel} puts all GPUs on one axis, so --{next(iter(given))} contradicts it")
    if gpus is None:
        raise PlanError(f"--parallel {parallel} needs --gpus N")
    if parallel in ("dp", "ddp"):
        return replace(plan, dp=gpus, data=parallel)
    return replace(plan, tp=gpus) if parallel == "tp" else replace(plan, pp=gpus)


def with_sizes(plan: Plan, batch: int | None, global_batch: int | None, bucket: str | None, cuts: str | None) -> Plan:
    """Put the batch of one replica, the bucket cap and the cuts into ``plan``."""
    if batch is not None and global_batch is not None:
        raise PlanError("--batch (one replica) and --global-batch (all replicas) contradict each other: give one")
    if global_batch is not None:
        if global_batch % plan.dp:
            raise PlanError(f"--global-batch {global_batch} does not divide into {plan.dp} equal replicas")
        batch = global_batch // plan.dp
    if bucket is not None:
        from trine.units import parse_bytes

        cap = parse_bytes(bucket, "--bucket")
        plan = replace(plan, first_bucket_bytes=cap, bucket_bytes=cap)
    names = tuple(name.strip() for name in cuts.split(",")) if cuts else ()
    if names and plan.pp == 1:
        raise PlanError("--cuts needs a pipeline: --pp P or --parallel pp")
    return replace(plan, batch=batch, cuts=names)


def machine_for(
    plan: Plan, cluster: str | None, topology: str | None, bandwidth: str | None, latency: str | None, gpu: str | None
) -> tuple[Cluster | str | None, list[str]]:
    """The cluster that the options describe, with sentences about what was assumed."""
    if topology is None:
        for name, value in (("--bandwidth", bandwidth), ("--latency", latency)):
            if value is not None:
                raise InputError(f"{name} describes the links of --topology, which was not given")
        return cluster, []
    if cluster is not None:
        raise InputError("--cluster and --topology both describe the machine: give one")
    if bandwidth is None:
        raise InputError(f'--topology {topology} needs --bandwidth, e.g. --bandwidth "65 GB/s"')
    from trine.cluster import build_topology

    warnings = [] if latency is not None else ["--latency was not given: links have none"]
    return build_topology(topology, bandwidth, latency if latency is not None else 0, plan.num_ranks, gpu), warnings
