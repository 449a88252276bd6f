"""Options of :func:`trine.simulate`, besides the workload and its plan."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trine.common.arguments import named_arguments, option
from trine.common.observer import observing

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.collectives.nccl.steps import StepCosts
    from trine.common.observer import OnCompile, OnStage, Progress
    from trine.compute import Calibration
    from trine.compute.clock import StepClock
    from trine.engine.models import Network
    from trine.graph.program import Job
    from trine.parallel.stragglers import Stragglers
    from trine.software.profile import Software

F = TypeVar("F", bound=Callable[..., Any])


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class SimulateOptions:
    """Options for simulating one job.

    cluster: a Cluster, the name of a preset, or a file. More than one rank needs a cluster.
    compute: ``auto`` (recorded times at the trace's sizes, linear at other sizes), ``recorded``, ``linear``, or
        ``roofline`` (from the shapes, for ``gpu``, else the cluster's GPU, else the trace's). Traces of a CPU or of
        meta tensors support only ``roofline``.
    gpu: predict for this GPU instead of the trace's GPU. If the cluster has another GPU than the trace, name one of
        the two: the cluster's (times are predicted) or the trace's (recorded times are kept).
    trace_gpu: the GPU of the trace, if the trace does not name it and the cluster names its GPUs.
    network: ``fair`` (max-min), ``equal`` (TrioSim's per-link equal split), ``fifo`` (store and forward, each link
        serves whole messages in turn), ``circuit`` (the circuits of the cluster), or a custom model, which needs
        ``engine="reference"``. None: ``circuit`` if the cluster has circuits, else ``fair``.
    collective_costs: ``library``: an uncontended collective takes the time of NCCL or RCCL (``trine collective``), as
        flows on the links of its algorithm. With a requested algorithm, or a network other than ``fair`` and
        ``equal``, the library's software costs are added to the messages of a schedule instead. ``links``: schedules
        on bare links. ``auto``: the library if the links are of a known kind.
        ``loadstore``: an uncontended collective takes the time of its GPU program at the load-store level; durations
        are kept in the user's cache. A :class:`trine.gpu.collective.LoadStoreCosts` is accepted too.
    cpu: whether operators wait for the launching CPU thread; None: only if the trace has a CPU side.
    launch_cost_ps: CPU time of every launch, instead of the trace's.
    software: the profile of the training software (:mod:`trine.software`): an object, a name, a file, or ``none``. It
        sets the options that the plan omits. For a synthesised workload it also sets the operators and their launch
        costs on the CPU. None: the workload's profile, else the default for the workload and GPU.
    precision: recipe that casts the products of a synthesised transformer's layers (presets/precisions.yaml). None: as
        the workload has it.
    trainable: adapters to train beside the frozen weights of a synthesised transformer, ``lora:RANK[:TARGETS][/nf4]``
        (:mod:`trine.workload.synthesis.adapters`). None: as the workload has them, by default all weights.
    documents: lengths of documents packed into each sample of a synthesised transformer: ``LENGTH``, ``uniform:A:B``,
        or a file with one length per line. Attention sees only its own document
        (:mod:`trine.workload.synthesis.documents`). None: as the workload has them, by default one per sample.
    gradient_dtype: dtype of the buffer and the reduction of gradients, ``bf16`` or ``fp32``, instead of the profile's.
        Needs a transformer in bf16 that trine writes.
    loss: implementation of the loss, ``native``, ``te`` or ``unfused``, instead of the profile's; the profile must
    offer
        it (``losses`` in its file).
    calibration: fits over several traces, from :func:`trine.calibrate`.
    engine: ``compiled`` or ``reference``, its plain-Python twin.
    fold: ``on`` simulates one of each set of identical ranks, exactly, or gives an estimate if a few slow links make
        very many different ranks; few micro-batches that stand for many, exactly or within a stated bound; and few
        steps that stand for many, exactly. ``ranks`` folds ranks, and simulates every micro-batch and step. ``exact``
        simulates every step, and accepts no bound, and no estimate while memory suffices; ``off`` simulates every rank,
        micro-batch and step; ``verify`` runs both, and compares every task (docs/design/folding.md).
    placement: the GPU of each rank: ``packed`` (the default: rank i on GPU i), ``round-robin`` over the nodes,
        ``random:SEED``, a list of positions among the cluster's GPUs, or a file with one position per line.
    stragglers: slow ranks and jitter of compute durations.
    gpu_spread: relative standard deviation of speed among GPUs of one model; a step waits for its slowest GPU
        (:mod:`trine.compute.spread`). None: 1.48 % if operator times come from tables and there is no jitter (jitter
        already describes how ranks differ), else 0.
    power_cap_w: power limit of each GPU in watts. Compute-bound operators take longer, by public measurements of power
        against clock (:mod:`trine.compute.power`); the GPUs' energy then rests on them too. None: the default limit.
    clocks: the clock of the step by GPU, instead of the power balance of the job's own step: for a short job that
        stands for a longer one (:mod:`trine.search.step_clocks`). An empty mapping keeps the times of the tables.
    progress, on_compile: callbacks, see :func:`trine.engine.run`. on_stage: called with a sentence each time the
        classes of ranks are known. on_job: called with the rank programs before they run, for example to write them
        (:mod:`trine.formats.chakra`).
    warnings: sentences to carry into the result.
    compare: simulate small steps again without each option meant to save time or memory (overlap of tensor
        parallelism, gathers further ahead, recomputation, offload of activations), and report options without savings
        (:mod:`trine.training.run`).
    """

    cluster: Cluster | str | os.PathLike[str] | None = None
    gpu: str | None = option(None, "Predict for this GPU; the trace's own keeps its times.")
    trace_gpu: str | None = option(None, "Name the GPU of the trace if the trace does not.")
    compute: str = option("auto", "Choose the source of operator times.")
    calibration: Calibration | None = option(None, "Use a file written by trine calibrate.")
    precision: str | None = option(None, "Cast the products of layers: fp8, mxfp8, nvfp4, ...")
    trainable: str | None = option(None, "Train adapters alone: lora:RANK[:qkv+out+up+down][/nf4].")
    documents: str | None = option(None, "Pack documents of LENGTH, uniform:A:B or FILE into each sample.")
    cpu: bool | None = option(None, "Simulate the CPU thread that launches kernels.")
    launch_cost_ps: int | None = option(None, 'Set the CPU time of a launch, e.g. "5 us" [the trace\'s].')
    network: str | Network | None = option(None, "Choose how flows share links [fair; circuit if any].")
    collective_costs: str | StepCosts = option(
        "auto", "Choose the cost model of collectives: library, links or loads and stores."
    )
    placement: str | os.PathLike[str] | Sequence[int] | None = option(
        None, "Choose which GPU runs which rank [packed]."
    )
    engine: str = "compiled"
    fold: str = "on"
    stragglers: Stragglers | None = None
    gpu_spread: float | None = option(
        None, "Set the spread of GPU speeds; all wait for the slowest [1.48% with tables]."
    )
    power_cap_w: int | None = option(None, 'Limit the power of each GPU, e.g. "500 W": lower clocks, longer operators.')
    clocks: Mapping[str, StepClock] | None = None
    progress: Progress | None = None
    on_compile: OnCompile | None = None
    on_stage: OnStage | None = None
    on_job: Callable[[Job], None] | None = None
    software: Software | str | os.PathLike[str] | None = option(
        None, "Choose the software profile: name or file [by workload]."
    )
    gradient_dtype: str | None = option(None, "Accumulate and reduce gradients in this dtype [profile's].")
    loss: str | None = option(None, "Choose the implementation of the loss [profile's].")
    warnings: tuple[str, ...] = ()
    compare: bool = option(False, "Also simulate without each option that may not pay, and report it.")


def observed(function: F) -> F:
    """Let the runs of a function with a parameter ``options`` call the options' callbacks."""

    @functools.wraps(function)
    def wrapper(*args: Any, options: SimulateOptions, **kwargs: Any) -> Any:
        quiet = replace(options, progress=None, on_compile=None, on_stage=None, on_job=None)
        with observing(
            progress=options.progress, on_compile=options.on_compile, on_stage=options.on_stage, on_job=options.on_job
        ):
            return function(*args, options=quiet, **kwargs)

    return cast(F, wrapper)
