"""Samples and FLOPs of a step, and the likely range of its time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.parts import SCALE_OUT
from trine.cluster.presets import load_links
from trine.collectives.bus_bandwidth import bus_factor
from trine.common.arrays import distinct
from trine.common.evidence import ASSUMED, MEASURED
from trine.common.kept import keep
from trine.common.precision import HALVES
from trine.common.units import PS_PER_S, format_bandwidth, whole_number
from trine.compute import uses_recorded_times
from trine.compute.cost import work
from trine.compute.kinds import family_of, is_compute_bound, kind_of
from trine.compute.origin import known_gpu
from trine.compute.roofline import derived_peak, has_tf32_products, precision_of
from trine.graph.grid import RankGrid
from trine.graph.workload import FORWARD, SYNTHESISED, Workload
from trine.parallel.recompute import recomputed
from trine.results.headline import (
    Band,
    CommunicationBand,
    StepBand,
    StepWork,
    WidenedBand,
    cnn_band,
    kind_band,
    mfu,
    nearest_band,
)
from trine.results.published_mfu import best_public_mfu, mfu_warning
from trine.software.profile import FACTORS
from trine.training.facts import gpu_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trine.cluster import Cluster
    from trine.cluster.presets import Sharing
    from trine.common.arrays import Int64
    from trine.common.evidence import Evidence
    from trine.parallel.build import BuildReport
    from trine.results import Result
    from trine.training.setup import Setup

#: 10th and 90th percentile of measured time over time scaled from another GPU, for held-out shapes or GPUs. Scaled by
#: the ratio of measured tables (12 ordered pairs of 4 GPUs), and by data sheets (6 pairs).
#: tests/unit/training/test_headline.py recomputes them.
MOVED_BY_TABLES, MOVED_BY_SHEETS = (0.87, 1.15), (0.75, 1.82)
#: Forward plus backward FLOPs over forward FLOPs: the backward pass has twice the GEMM work.
WITH_BACKWARD = 3


def step_work(setup: Setup, report: BuildReport) -> StepWork:
    """Return the whole job's work per step: FLOPs from the operators' shapes, scaled to the batch."""
    workload, plan = setup.workload, setup.plan
    flops = _forward_flops(workload)
    forward = [op for op in workload.operators if op.phase == FORWARD]
    samples = report.samples(plan.dp)
    per_sample = sum(flops.values()) / workload.batch * (WITH_BACKWARD if workload.is_training else 1)
    if workload.is_training and "trainable" in workload.metadata:
        per_sample -= _frozen_flops(workload, flops) / workload.batch
    extra = 0.0
    if workload.is_training and plan.recompute != "none":
        segments = recomputed(workload, replace(plan, recompute_layers=None), forward)
        if plan.recompute_layers is not None:
            segments = segments[: plan.recompute_layers * plan.pp * plan.virtual_stages]
        extra = sum(flops.get(op.id, 0) for ops in segments for op in ops) / workload.batch
    dtype, peak_flops = _peak(setup, _dtype(workload))
    gpu = known_gpu(setup.gpu_names[0]) if len(setup.gpu_names) == 1 else None
    sequence = workload.metadata.get("sequence", "")
    tokens = None if (length := whole_number(str(sequence))) is None else samples * length
    gpu_name = None if gpu is None else gpu.name
    return StepWork(
        samples=samples, tokens=tokens, num_gpus=plan.num_ranks, model_flops=per_sample * samples,
        hardware_flops=(per_sample + extra) * samples, gpu=gpu_name, dtype=dtype, peak_flops=peak_flops,
    )  # fmt: skip


def _frozen_flops(workload: Workload, flops: Mapping[int, int]) -> int:
    """Return the forward FLOPs of products with frozen matrices, whose weight gradients are not computed."""
    weights = {each.weight for each in workload.parameters if each.gradient_operator is None}
    frozen = {weight for weight in weights if len(workload.tensors[weight].shape) > 1}
    forward = (op for op in workload.operators if op.id in flops and family_of(kind_of(op)) in ("linear", "matmul"))
    return sum(flops[op.id] for op in forward if frozen & set(op.inputs))


def _peak(setup: Setup, dtype: str) -> tuple[str, float | None]:
    """Return the precision of the GEMMs, and the mean peak FLOP/s of the ranks in it, or None if unknown."""
    if setup.mixed is not None:
        counts = [count for _, count in setup.gpus.counted()]
    else:
        counts = [setup.plan.num_ranks]
    precision, total = dtype, 0.0
    for name, count in zip(setup.gpu_names, counts, strict=True):
        gpu, precision = known_gpu(name), dtype
        if gpu is not None and dtype == "tfloat32" and dtype not in gpu.flop_per_s:
            precision = "float32"  # a GPU without TF32 runs it as float32
        rate = None if gpu is None else gpu.flop_per_s.get(precision)
        if rate is None and gpu is not None:
            rate = derived_peak(gpu, precision)
        if rate is None:
            return precision, None
        total += float(rate) * count
    return precision, total / setup.plan.num_ranks


@keep
def _forward_flops(workload: Workload) -> dict[int, int]:
    """Return the FLOPs of compute-bound forward operators, by id; equal operators are computed once."""
    flops: dict[int, int] = {}
    cache: dict[object, int] = {}
    for op in workload.operators:
        if op.phase != FORWARD or not is_compute_bound(kind_of(op)):
            continue
        tensors = [workload.tensors[i] for i in (*op.inputs, *op.outputs)]
        attributes = tuple((name, str(value)) for name, value in sorted(op.attributes.items()))
        key = (op.name, attributes, tuple((t.shape, t.role) for t in tensors))
        if key not in cache:
            cache[key] = work(op, workload).flops
        flops[op.id] = cache[key]
    return flops


@keep
def _dtype(workload: Workload) -> str:
    """Return the precision with the most FLOPs. Float32 convolutions run in TF32; GEMMs do if their times show it."""
    totals: dict[str, int] = {}
    flops = _forward_flops(workload)
    source = known_gpu(workload.gpu) if workload.has_gpu_times and workload.format != SYNTHESISED else None
    tf32_products = source is not None and has_tf32_products(workload, source)
    for op in workload.operators:
        if op.id in flops:
            name = precision_of(op, workload.tensors, tf32_products)
            totals[name] = totals.get(name, 0) + flops[op.id]
    return max(totals, key=lambda name: totals[name], default="float32")


def band_of(setup: Setup, work: StepWork, evidence: Sequence[Evidence]) -> StepBand | CommunicationBand | None:
    """Return the likely range: from published steps if synthesised, from GPUs and collectives if recorded.

    Times scaled to another GPU, even on only some of a machine's GPUs, use the spread of held-out operators. Predicted
    times that replace recorded ones have unknown errors; the range is then None.
    """
    machine = setup.machine
    shares = {row.kind: row.share for row in evidence if row.what == "operator time"}
    if setup.times.moved_to:  # the ranks with scaled times decide
        return _scaled_band(setup, {ASSUMED if ASSUMED in shares else MEASURED: 1.0})
    if setup.workload.format == SYNTHESISED:
        nodes = 1
        if machine is not None:
            nodes = len(distinct(machine.node_of[np.asarray(machine.gpus, np.int64)[setup.places]]))
        profile = setup.software.profile
        errors = []
        if profile is not None:
            factors = [getattr(profile.factors, name) for name in FACTORS]
            errors = [factor.left_out_error for factor in factors if factor.left_out_error is not None]
        if work.tokens is None:
            band = cnn_band(nodes)
        else:
            is_shared = machine is not None and _sharing(machine) is not None
            bands = (
                nearest_band(name, setup.software.name, nodes, bool(errors), is_shared) for name in _spec_names(setup)
            )
            band = _band_union(bands)
            own = kind_band(_kind_of_step(setup.workload, work))
            if own is not None and band is not None:
                band = own
        files = ", ".join(measured.spec.name for measured in gpu_files(setup))
        if band is not None and files:
            band = replace(band, gpu_file=files)
        return band if band is None or not errors else band.at_least(max(errors))
    if not setup.times.is_recorded:
        return _scaled_band(setup, shares)
    is_recorded, gpus = set(shares) == {MEASURED}, setup.plan.num_ranks
    if machine is None or gpus == 1 or machine.library is None:
        exact = {"small": (1.0, 1.0), "large": (1.0, 1.0)}
        return CommunicationBand(library=None, is_recorded=is_recorded, gpus=gpus, **exact)
    from trine.collectives.nccl.parameters import load_library

    rows = load_library(machine.library).bands
    (_, *small), (_, *large) = rows["measured-net" if machine.has_fabric and "measured-net" in rows else "measured"]
    ends: dict[str, tuple[float, float]] = {"small": (small[0], small[1]), "large": (large[0], large[1])}
    return CommunicationBand(library=machine.library, is_recorded=is_recorded, gpus=gpus, **ends)


def _scaled_band(setup: Setup, shares: dict[str, float | None]) -> StepBand | None:
    """Return the range of recorded times scaled to another GPU, weighted by the share of each scaling method."""
    if not uses_recorded_times(setup.compute):
        return None
    weights = {}
    for kind, share in shares.items():
        weights[kind] = 1.0 if share is None else share
    part = weights.get(ASSUMED, 0.0) / max(sum(weights.values()), 1e-9)
    low, high = (a ** (1 - part) * b**part for a, b in zip(MOVED_BY_TABLES, MOVED_BY_SHEETS, strict=True))
    basis = "the ratio of measured tables" if part < 0.5 else "the ratio of the data sheets"
    reason = f"80 % of held-out operators fall this close to their time scaled to another GPU, mostly by {basis}"
    return StepBand(low=low, high=high, level="operators moved to another GPU", num_rows=0, reason=reason)


def _spec_names(setup: Setup) -> list[str | None]:
    """Return trine's names of the ranks' GPU models, None for unknown ones."""
    specs = [known_gpu(name) for name in setup.gpu_names]
    names = []
    for spec in specs:
        names.append(None if spec is None else spec.name)
    return names


def _band_union(bands: Iterable[StepBand | None]) -> StepBand | None:
    """Return the range that covers the ranges of several GPU models, or None if any range is missing."""
    ranges = list(bands)
    valid = [band for band in ranges if band is not None]
    if len(valid) < len(ranges) or len(ranges) == 1:
        return ranges[0] if len(ranges) == 1 else None
    low = min(band.low for band in valid)
    high = max(band.high for band in valid)
    levels = {band.level for band in valid}
    num_rows = sum(band.num_rows for band in valid)
    return replace(valid[0], low=low, high=high, level="; ".join(sorted(levels)), num_rows=num_rows)


def _kind_of_step(workload: Workload, work: StepWork) -> str:
    """Return the kind of a transformer's step, as :func:`trine.results.headline.kind_band` names them."""
    if "trainable" in workload.metadata:
        return "adapters"
    return "experts" if "num_experts" in workload.metadata else work.dtype


def foreign_band(result: Result, workload: Workload) -> tuple[str, ...]:
    """Warn if no published step behind the range has the result's precision or GPU.

    Convolutional networks have their own rows.
    """
    work, band = result.work, result.band
    if work is None or work.tokens is None or not isinstance(band, StepBand) or band.reason:
        return ()
    differences = []
    kind = _kind_of_step(workload, work)
    if kind not in HALVES and kind_band(kind) is None:
        differences.append(kind)
    if band.is_of_all and work.gpu is not None:
        differences.append(f"the {work.gpu} or its generation")
    if not differences:
        return ()
    return (
        "the likely range may be too narrow: it comes from published 16-bit transformer steps on NVIDIA GPUs, not "
        f"from {' or '.join(differences)}",
    )


def public_mfu(result: Result) -> tuple[str, ...]:
    """Warn about an MFU above all published ones."""
    if result.work is None or not result.plan.get("is_training"):
        return ()
    return tuple(filter(None, (mfu_warning(result.work.gpu, result.work.dtype, mfu(result)),)))


def band_with_doubt(result: Result, band: Band | None) -> Band | None:
    """Return the likely range, widened to the best published MFU if the step's MFU is above it."""
    if not public_mfu(result):
        return band
    work, reached = result.work, mfu(result)
    assert work is not None
    assert reached is not None
    best = best_public_mfu(work.gpu, work.dtype)
    assert best is not None
    step_ps = result.step_time_ps
    reason = f"its MFU is above the best published one, {best.mfu:.1%}"
    return WidenedBand(inner=band, low_ps=step_ps, high_ps=round(step_ps * reached / best.mfu), reason=reason)


def band_on_shared_fabric(result: Result, setup: Setup) -> Band | None:
    """Return the likely range, widened by the measured spread of a shared fabric.

    The upper end assumes fully exposed collectives between nodes at the 5th percentile of the measured bandwidth.
    """
    machine = setup.machine
    if machine is None:
        return result.band
    sharing = _sharing(machine)
    gpu_nodes = machine.node_of[np.asarray(machine.gpus, np.int64)].astype(np.int64)
    node = gpu_nodes[setup.places]
    if sharing is None or len(np.unique(node)) <= sharing.beyond_nodes:
        return result.band
    ports, per_node = _port_bytes_per_s(machine), len(gpu_nodes) / len(np.unique(gpu_nodes))
    grid, longer_ps = RankGrid(setup.plan.axes), 0.0
    for use in result.collectives:
        members = _members_on_a_node(grid, use.axes, node)
        if members:
            rate = sharing.of(use.kind)[0] * ports * members / per_node
            slow_ps = use.count * use.size_bytes * bus_factor(use.kind, use.group_size) / rate * PS_PER_S
            longer_ps += max(0.0, slow_ps - use.time_ps)
    step_ps, (low, high) = result.step_time_ps, (part * ports for part in sharing.of("all_reduce"))
    low_text, high_text, peak = (format_bandwidth(round(rate)) for rate in (low, high, ports))
    rates = f"{low_text} to {high_text} of {peak} a node"
    reason = f"the fabric decides: traffic of others left all-reduces {rates} ({sharing.source})"
    return WidenedBand(inner=result.band, low_ps=step_ps, high_ps=step_ps + round(longer_ps), reason=reason)


def band_under_cap(result: Result, band: Band | None, setup: Setup) -> Band | None:
    """Return the likely range, widened by the range of a power cap's slowdown on compute-bound operators."""
    cap = setup.cap
    if cap is None or cap.slowdown <= 1:
        return band
    bound_ps = result.compute_s * PS_PER_S * cap.compute_share
    low, high = (result.step_time_ps + round(bound_ps * (factor / cap.slowdown - 1)) for factor in cap.range)
    reason = f"power cap: compute-bound operators {cap.range[0] - 1:.1%} to {cap.range[1] - 1:.1%} longer"
    return WidenedBand(inner=band, low_ps=low, high_ps=high, reason=reason)


def band_with_spread(result: Result, band: Band | None, setup: Setup) -> Band | None:
    """Return the likely range, widened by the spread of the cluster's collectives (``spread`` of its file).

    Both ends hold the exposed communication at the 10th and 90th percentile of its time.
    """
    spread = None if setup.machine is None else setup.machine.spread
    if not spread:
        return band
    exposed_ps, step_ps = round(result.exposed_communication_s * PS_PER_S), result.step_time_ps
    from statistics import NormalDist  # it also imports random and fractions

    far = math.exp(NormalDist().inv_cdf(0.9) * spread)
    reason = f"exposed communication varies by {spread:.1%} from run to run (fitted to logs of this cluster)"
    ends = step_ps - round(exposed_ps * (1 - 1 / far)), step_ps + round(exposed_ps * (far - 1))
    return WidenedBand(inner=band, low_ps=ends[0], high_ps=ends[1], reason=reason)


def _sharing(machine: Cluster) -> Sharing | None:
    """Return measurements of the link type between nodes under shared use, or None if the fabric is not shared."""
    kinds = {link.medium for link in machine.link_table.numbers if link.link_class == SCALE_OUT and link.medium}
    return next((kind.sharing for name in sorted(kinds) if (kind := load_links().get(name)) and kind.sharing), None)


def _port_bytes_per_s(machine: Cluster) -> float:
    """Return the total peak bandwidth of a node's ports."""
    table = machine.link_table
    peak = np.array([(x.peak_bytes_per_s or x.bytes_per_s) * (x.link_class == SCALE_OUT) for x in table.numbers], float)
    node = machine.node_of[np.asarray(table.source)]
    return float(peak[table.number][node >= 0].sum() / max(1, len(np.unique(node[node >= 0]))))


def _members_on_a_node(grid: RankGrid, axes: Sequence[str], node: Int64) -> int:
    """Return how many ranks of a group along ``axes`` share the node of its first; 0 if one node holds them all."""
    names = [part for axis in axes for part in axis.split("+")]
    if any(name not in grid.sizes for name in names):
        names = list(grid.sizes)
    ranks = np.arange(grid.num_ranks, dtype=np.int64)
    group = ranks[ranks == sum(grid.coordinates(ranks, name) * grid.strides[name] for name in dict.fromkeys(names))]
    count = int((node[group] == node[group[0]]).sum())
    return 0 if count == len(group) else count
