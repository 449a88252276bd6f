"""The parallel layout of a job: the degree and order of its axes, and the resulting rank grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache

from trine.common.arguments import named_arguments, option
from trine.common.shown import OneLine
from trine.common.units import MAX_GPUS, finite_number
from trine.errors import PlanError, nearest, nearest_numbers
from trine.parallel.axes import DEFAULT_ORDER, Axis, AxisGroups, check_order, grid_axes
from trine.parallel.layer_counts import ACCOUNTED
from trine.parallel.schedules import SCHEDULES, known_order
from trine.parallel.token_dispatch import ALL_TO_ALL, DISPATCHES

SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp")
#: Shardings that shard the parameters, and those that shard the gradients.
PARAMETERS_SHARDED = ("zero3", "fsdp")
GRADIENTS_SHARDED = ("zero2", *PARAMETERS_SHARDED)
CP_STYLES = ("ring", "all-gather", "ulysses")
BUFFERS = ("auto", "broadcast", "none")
BALANCED, ZIPF = "balanced", "zipf:"
MAX_EXPERTS = 65_536
#: Sizes in bytes of DDP's first and later buckets, PyTorch's defaults.
DEFAULT_BUCKETS = (1 * 2**20, 25 * 2**20)
#: Larger batches are rejected as mistakes; they would not fit any GPU.
MAX_BATCH = 10**9
#: Most micro-batches per step: each has at least one operator, and programs have at most 5 million.
MAX_MICRO_BATCHES = 5_000_000
#: With more chunks, each chunk of a GEMM would be shorter than a kernel launch on any GPU.
MAX_PIECES = 64
DATA_MODES = ("ddp", "dp")
TP_STYLES = ("auto", "column", "megatron")
INPUTS = ("step", "prefetch", "none")
TIME = "time"
BALANCES = (TIME, "layers", "blocks", *ACCOUNTED, "nanotron")
#: Most layers of a pipeline chunk, and most chunks; larger numbers are mistakes.
MAX_LAYERS = 100_000
RECOMPUTE = ("none", "full", "selective")
SYNCS = ("last", "each")
OVERLAPS = ("ideal", "modelled", "none")
OFFLOADS = ("none", "optimizer", "activations")
#: Defaults of options that neither the plan nor the software profile sets.
FALLBACKS: dict[str, object] = {
    "schedule": "gpipe", "balance": "time", "dp_overlap": True, "overlap": "ideal", "sequence_parallel": False,
    "userbuffers": False, "dispatch": ALL_TO_ALL,
}  # fmt: skip
_DEGREES = ("dp", "tp", "pp", "cp", "ep")
_BUCKETS = ("first_bucket_bytes", "bucket_bytes")
#: Options that are positive whole numbers.
_POSITIVE = (
    *_DEGREES, "steps", *_BUCKETS, "virtual_stages", "tp_overlap", "batch", "micro_batch", "recompute_layers",
    "shard_ways", "shard_unit_bytes", "sync_every", "etp", "first_stage_layers", "last_stage_layers",
)  # fmt: skip
_WORDS = {
    "data": DATA_MODES, "tp_style": TP_STYLES, "inputs": INPUTS, "balance": BALANCES, "recompute": RECOMPUTE,
    "sync": SYNCS, "overlap": OVERLAPS, "offload": OFFLOADS, "buffers": BUFFERS, "sharding": SHARDINGS,
    "cp_style": CP_STYLES, "dispatch": DISPATCHES,
}  # fmt: skip


@named_arguments
@dataclass(frozen=True, kw_only=True)
class Plan(OneLine):
    """Parallel layout of one job on ``dp * cp * tp * pp`` ranks.

    dp, tp, pp: degrees of data, tensor and pipeline parallelism. cp: degree of context parallelism, which splits the
        sequence of each sample.
    ep, etp: expert parallelism splits the experts over ep groups of etp ranks, and the features of each expert over the
        etp ranks of a group. Both reuse the tp x cp x dp ranks of a stage, so etp x ep must divide that number. etp
        None: the software profile's, else tp.
    order: the axes, fastest first: ``"tp-cp-ep-dp-pp"`` puts tensor-parallel ranks next to each other. Experts then use
        the ranks of a stage in the order etp, ep, replicas. In any other order ep must divide dp, and etp = tp.
    data: ``"ddp"`` (DistributedDataParallel) or ``"dp"`` (DataParallel: one process, scatter, replicate, gather).
    batch: samples per step of one data-parallel replica; None uses the trace's.
    replica_batches: samples of each data-parallel replica, if they differ; ``"time"`` divides ``dp * batch`` so that
        replicas on different GPU models take about the same time.
    micro_batch: samples of one micro-batch; None uses the whole batch. If the batch does not divide evenly, the last
        micro-batches are smaller by one sample.
    schedule: pipeline schedule: ``"gpipe"``, ``"1f1b"``, ``"interleaved"``, ``"zb-h1"``, ``"dualpipe"``, or one from a
        plug-in. Without a pipeline, each micro-batch runs forward and backward before the next.
    virtual_stages: model chunks per pipeline rank; consecutive chunks go to consecutive ranks.
    balance: rule that cuts the pipeline into stages if ``cuts`` is empty, between layers if the operators name them.
        ``"time"`` minimises the slowest stage's time. ``"layers"`` equalises the number of layers; embedding and head
        count as one each. ``"blocks"`` follows Megatron-LM: equal numbers of blocks, the embedding in the first stage,
        the head in the last. ``"blocks+embedding"``, ``"blocks+loss"`` and ``"blocks+embedding+loss"`` follow
        Megatron-core's ``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split``: the
        embedding and the loss count as one block each, and the sum must divide; a chunk may hold only one of them.
        ``"nanotron"`` follows nanotron: by the parameters of blocks and head.
        None: the software profile's, else ``"time"``. The same holds for schedule (else ``"gpipe"``) and both overlaps.
    recompute: activations recomputed right before the backward pass that needs them: ``"none"``; ``"full"`` keeps only
        the input of each layer; ``"selective"`` recomputes the core of attention.
    recompute_layers: number of layers at the start of each stage that full recomputation covers; None for all.
    sync: gradients are reduced over replicas after the ``"last"`` micro-batch or after ``"each"``.
    first_bucket_bytes, bucket_bytes: a DDP bucket closes when it reaches its size limit (PyTorch: 1 MiB, then 25 MiB).
    cuts: layers (of operators) at which the second and later stages begin; if empty, ``balance`` decides.
    stage_layers: blocks of each pipeline chunk, in the model's order (Megatron-core's
        ``pipeline_model_parallel_layout``). A chunk with 0 blocks passes activations on; the first also holds the
        embedding, the last the head and the loss.
    first_stage_layers, last_stage_layers: blocks of the first and the last pipeline rank, over all its chunks
        (Megatron-core's ``num_layers_in_first_pipeline_stage``, ``num_layers_in_last_pipeline_stage``); the other ranks
        have equal parts of the remainder.
    defer_head_gradient: the head's weight gradients of the first N micro-batches (0: of all) run after all passes of
        the last stage, in the drain bubble (Megatron-core's ``defer_embedding_wgrad_compute`` and
        ``wgrad_deferral_limit``); their logits' gradients stay in memory until then. None: the software profile's,
        else no deferral.
    tp_style: ``"column"`` splits every linear, convolution and embedding by output features and gathers the output;
        ``"megatron"`` follows a column split by a row split if only elementwise or per-head work lies between, and
        pads the vocabulary; ``"auto"``: megatron for a model with attention, column for any other.
    inputs: inputs are copied from host memory at the start of a ``"step"``, during the previous step (``"prefetch"``),
        or are already on the device (``"none"``).
    steps: training steps to run, one after the other.
    algorithm: (collective, algorithm) pairs; other collectives use their first registered algorithm.
    buffers: DDP's broadcast of buffers before the forward pass. ``"auto"``: one operation on all replicas, which ends
        when a chain would reach the last one. ``"broadcast"``: message by message, so that all replicas behave
        differently. ``"none"``: no broadcast.
    dp_overlap: True reduces gradients during the backward pass, False after it.
    sharding: state sharded over data-parallel ranks: ``"none"``; ``"zero1"``: optimizer state; ``"zero2"``:
        gradients too; ``"zero3"`` and ``"fsdp"``: parameters too, which are gathered unit by unit.
    shard_ways: hybrid sharding: shard within groups of this many ranks; None shards over all.
    reshard: with fsdp, whether gathered parameters are freed between the forward and the backward pass.
    prefetch: number of units gathered ahead (None: 1); at most one more is in memory. With zero1 and zero2: 1 gathers
        parameters during the next forward pass, 0 or None before it.
    shard_unit_bytes: a unit closes when its parameters reach this size; None makes each layer a unit.
    sequence_parallel: with tp_style ``"megatron"``, operators between the split ones run on a part of the sequence.
        None: the software profile's, else False. With tp = 1 it changes nothing.
    tp_overlap: number of chunks into which the collectives of sequence parallelism and the adjacent GEMMs are split, so
        that they overlap; 1 for no overlap.
    userbuffers: whether sequence parallelism overlaps by Transformer Engine's userbuffers instead of NCCL
        (:mod:`trine.parallel.userbuffers`). None: the software profile's, else False.
    cp_style: exchange for attention over the whole sequence: ``"ring"`` (keys and values pass around a ring),
        ``"all-gather"`` (of keys and values), ``"ulysses"`` (an all-to-all of heads).
    expert_imbalance: distribution of tokens over experts: ``"balanced"`` or ``"zipf:S"`` (expert n gets 1/n**S).
    expert_shares: a measured distribution: each expert's share of the tokens.
    dispatch: how tokens reach their experts: ``"all-to-all"`` (a copy for each expert) or ``"deepep"`` (a copy for each
        node or rank with such an expert; :mod:`trine.parallel.token_dispatch`). None: the software profile's, else an
        all-to-all.
    expert_overlap: whether the expert exchanges of each forward pass run beside the compute of another micro-batch's
        backward pass, and the reverse (:mod:`trine.parallel.expert_overlap`).
    shared_expert_overlap: whether shared experts compute beside the expert exchanges of their own layer
        (Megatron-core's ``moe_shared_expert_overlap``).
    capacity_factor: an expert takes at most this multiple of its even share of the tokens; the rest is dropped.
    overlap: effect of communication on concurrent compute: ``"ideal"``: neither slows the other; ``"modelled"``: its
        kernels take SMs and memory bandwidth from compute (docs/background/contention.md); ``"none"``: they take turns.
    offload: data kept in host memory: ``"optimizer"`` (states; the optimizer runs on the CPU, as in
        ZeRO-Offload) or ``"activations"`` (kept for the backward pass and fetched again before it).
    sync_every: local SGD: replicas average their parameters every N steps instead of reducing gradients.

    Raises PlanError for invalid or contradictory values.
    """

    dp: int = option(1, "Set the number of data-parallel replicas.")
    tp: int = option(1, "Split each layer over N GPUs.")
    pp: int = option(1, "Set the number of pipeline stages.")
    cp: int = option(1, "Split each sequence over N GPUs (context parallelism).")
    ep: int = option(1, "Spread experts over N ranks of tp, cp and dp.")
    etp: int | None = option(None, "Split each expert over N GPUs [the software's, else --tp].")
    order: str = option(DEFAULT_ORDER, "Order the axes of the rank grid, fastest first.")
    data: str = "ddp"
    batch: int | None = option(None, "Set the samples per step of one replica [the trace's].")
    replica_batches: tuple[int, ...] | str = option(
        (), "Set the samples of each replica (6,6,2,2), or balance their times (time)."
    )
    micro_batch: int | None = option(None, "Set the samples of one micro-batch.")
    steps: int = option(1, "Simulate N training steps; report the last.")
    inputs: str = option("step", "Choose when inputs are copied from the host.")
    schedule: str | None = option(None, "Choose the pipeline schedule [the software's, else gpipe].")
    virtual_stages: int = option(1, "Place N model chunks on each pipeline rank.")
    balance: str | None = option(None, "Choose what pipeline stages have in equal parts [the software's, else time].")
    cuts: tuple[str, ...] = option((), "Start pipeline stages at these layers, e.g. conv2d.5,linear.1.")
    stage_layers: tuple[int, ...] = option((), "Set the blocks of each pipeline chunk, e.g. 0,1*126,0.")
    first_stage_layers: int | None = option(None, "Set the blocks of the first pipeline rank.")
    last_stage_layers: int | None = option(None, "Set the blocks of the last pipeline rank.")
    defer_head_gradient: int | None = option(
        None, "Run the head's weight gradients of N micro-batches (0: all) in the drain bubble [the software's]."
    )
    sync: str = option("last", "Reduce gradients after the last or after each micro-batch.")
    recompute: str = option("none", "Recompute activations in the backward pass.")
    recompute_layers: int | None = option(
        None, "Recompute only the first N layers of each stage (with --recompute full)."
    )
    offload: str = option("none", "Keep optimizer states or activations in host memory [nothing].")
    first_bucket_bytes: int = DEFAULT_BUCKETS[0]
    bucket_bytes: int = option(DEFAULT_BUCKETS[1], "Limit the size of DDP buckets, e.g. 25MiB.")
    tp_style: str = option("auto", "Choose how linear layers are split [megatron with attention, else column].")
    sharding: str = option("none", "Shard optimizer states, gradients and parameters over replicas.")
    shard_ways: int | None = option(None, "Shard within groups of N replicas (hybrid sharding).")
    prefetch: int | None = option(None, "Gather N units of parameters ahead [1].")
    reshard: bool = option(True, "Free gathered parameters between forward and backward pass (fsdp).")
    shard_unit_bytes: int | None = option(None, "Set the size of a gathered unit, e.g. 100MiB [a layer].")
    dp_overlap: bool | None = option(None, "Reduce gradients during the backward pass [the software's, else yes].")
    buffers: str = option("auto", "Choose DDP's broadcast of buffers: one operation, messages or none.")
    sync_every: int | None = option(None, "Average parameters every N steps (local SGD).")
    sequence_parallel: bool | None = option(None, "Split tokens too (sequence parallelism) [the software's, else no].")
    tp_overlap: int = option(1, "Split each GEMM into N chunks and overlap them with communication.")
    userbuffers: bool | None = option(
        None, "Overlap tensor parallelism by Transformer Engine's userbuffers [the software's, else no]."
    )
    cp_style: str = option("ring", "Choose how attention gets the tokens of other ranks.")
    expert_imbalance: str = option(BALANCED, "Set the load of experts; a file has one share per line.")
    expert_shares: tuple[float, ...] = ()
    dispatch: str | None = option(
        None, "Choose how tokens reach their experts: all-to-all or deepep [the software's, else all-to-all]."
    )
    expert_overlap: bool = option(False, "Overlap expert exchanges with another micro-batch's compute.")
    shared_expert_overlap: bool = option(False, "Compute shared experts beside the expert exchanges.")
    capacity_factor: float | None = option(None, "Drop tokens beyond X times an expert's even share.")
    overlap: str | None = option(None, "Choose the model of overlap; range: all three [the software's, else ideal].")
    algorithm: tuple[tuple[str, str], ...] = option((), "Choose algorithms of collectives, e.g. all_reduce=ring.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", _names(self.cuts))
        object.__setattr__(self, "replica_batches", _batches(self.replica_batches))
        object.__setattr__(self, "algorithm", tuple((str(kind), str(name)) for kind, name in self.algorithm))
        object.__setattr__(self, "expert_shares", tuple(self.expert_shares))
        object.__setattr__(self, "stage_layers", tuple(self.stage_layers))
        _check_values(self)
        for name, is_allowed, why in _RULES:
            if getattr(self, name) != _DEFAULTS[name] and not is_allowed(self):
                raise PlanError(why if isinstance(why, str) else why(self))
        # The software profile may set etp. Until it is known, check the weakest condition: etp = 1.
        _check_expert_ranks(self, 1 if self.etp is None and self.ep > 1 else self.expert_tp)

    @property
    def _is_ideal(self) -> bool:
        """Whether communication and compute do not slow each other down."""
        return self.overlap in (None, "ideal")

    @property
    def _has_ddp_replicas(self) -> bool:
        """Whether several replicas reduce their gradients as DistributedDataParallel does."""
        return self.dp * self.cp > 1 and self.data == "ddp"

    @property
    def has_cuts(self) -> bool:
        """Whether the plan itself places the pipeline's cuts, so that no balance does."""
        return bool(self.cuts or self.stage_layers or self.first_stage_layers or self.last_stage_layers)

    def filled(self, software: Mapping[str, object] | None = None) -> Plan:
        """Return the plan with unset options filled from ``software`` if they have an effect, else from defaults."""
        values = {**FALLBACKS, **(software or {})}
        if self.pp == 1 or self.has_cuts:
            values["balance"] = FALLBACKS["balance"]
        if self.dp * self.cp == 1 or self.data == "dp" or self.sync_every is not None:
            values["dp_overlap"] = FALLBACKS["dp_overlap"]
        if self.num_ranks == 1 or self.data == "dp":
            values["overlap"] = FALLBACKS["overlap"]
        if self.virtual_stages > 1 and values["schedule"] == "1f1b":
            values["schedule"] = "interleaved"
        etp = values["etp"] = values.get("etp") if self.etp is None else self.etp
        values["sequence_parallel"] = self.tp > 1 and (bool(values["sequence_parallel"]) or etp not in (None, self.tp))
        is_split = values["sequence_parallel"] if self.sequence_parallel is None else self.sequence_parallel
        values["userbuffers"] = bool(values["userbuffers"] and is_split) and self.tp > 1 and self.tp_overlap == 1
        if self.ep == 1:
            values["dispatch"] = FALLBACKS["dispatch"]
        values["defer_head_gradient"] = self._usual_deferral(values)
        names = (*FALLBACKS, "etp", "defer_head_gradient")
        changes = {name: values[name] for name in names if getattr(self, name) is None is not values[name]}
        if self.tp == 1 and self.sequence_parallel:
            changes["sequence_parallel"] = False
        plan = replace(self, **changes) if changes else self  # type: ignore[arg-type]
        _check_expert_ranks(plan, plan.expert_tp)
        plan.groups  # noqa: B018 - raises PlanError if no grid of ranks has all these groups
        if plan.sharding == "none" or plan.num_replicas > 1:
            return plan
        return replace(plan, sharding="none", prefetch=None, reshard=True, shard_unit_bytes=None)

    def _usual_deferral(self, values: Mapping[str, object]) -> object:
        """Return ``defer_head_gradient`` of the software's ``values``; None where it has no effect, or for False."""
        count, schedule = values.get("defer_head_gradient", False), self.schedule or values["schedule"]
        is_possible = self.pp > 1 and not self.reduces_each and known_order(str(schedule)).alternates
        return count if is_possible and count is not False else None

    @property
    def is_filled(self) -> bool:
        """Whether no option is open or without effect, as in the results of :meth:`filled`."""
        return (
            all(getattr(self, name) is not None for name in FALLBACKS)
            and not (self.tp == 1 and self.sequence_parallel)
            and (self.sharding == "none" or self.num_replicas > 1)
        )

    @property
    def num_ranks(self) -> int:
        return self.dp * self.cp * self.tp * self.pp

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Axes of the rank grid with their sizes, fastest first, see :mod:`trine.parallel.axes`."""
        return tuple((axis.name, axis.size) for axis in self._grid())

    def _grid(self) -> tuple[Axis, ...]:
        degrees = (*((name, getattr(self, name)) for name in _DEGREES), ("etp", self.expert_tp))
        return _grid_axes(self.order, degrees, self.shard_ways)

    @cached_property
    def groups(self) -> AxisGroups:
        """The names of the communication groups."""
        return _axis_groups(self._grid(), self.shard_ways is not None)

    @property
    def expert_tp(self) -> int:
        """Ranks that divide each expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def folds_experts(self) -> bool:
        """Whether experts are laid out over the ranks of a stage differently from dense operators."""
        return self.ep > 1 or self.expert_tp != self.tp

    @property
    def num_replicas(self) -> int:
        """Largest number of ranks that hold the same weights of a stage, dense or expert weights."""
        replicas = self.dp * self.cp
        return max(replicas, replicas * self.tp // (self.expert_tp * self.ep)) if self.folds_experts else replicas

    @property
    def ways(self) -> str:
        """The degree of each axis as text."""
        degrees = [("dp", self.dp), ("cp", self.cp), ("tp", self.tp), ("pp", self.pp)]
        return " x ".join(f"{name} {ways}" for name, ways in degrees if ways > 1 or name != "cp")

    @property
    def splits_gradients(self) -> bool:
        """Whether each rank keeps only a part of the gradients."""
        return self.sharding in GRADIENTS_SHARDED

    @property
    def reduces_each(self) -> bool:
        """Whether gradients are reduced after each micro-batch, as sharded gradients require."""
        return self.sync == "each" or self.splits_gradients


def _check_values(plan: Plan) -> None:
    """Raise PlanError for a value that no layout may have. Options with the default None may be None."""
    for name in _POSITIVE:
        if (value := getattr(plan, name)) is not None or _DEFAULTS[name] is not None:
            _require_positive(name, value)
    if plan.num_ranks > MAX_GPUS:
        raise PlanError(f"{plan.num_ranks} ranks are more than the {MAX_GPUS} GPUs of the largest machine")
    if max(plan.batch or 0, plan.micro_batch or 0) > MAX_BATCH:
        raise PlanError(f"a batch is at most {MAX_BATCH} samples")
    kinds = [kind for kind, _ in plan.algorithm]
    if len(set(kinds)) < len(kinds):
        raise PlanError(f"algorithm names a collective twice: {', '.join(kinds)}")
    for name, allowed in _WORDS.items():
        if (value := getattr(plan, name)) is not None or _DEFAULTS[name] is not None:
            _require_one_of(name, value, allowed)
    if plan.schedule is not None and plan.schedule not in SCHEDULES:
        _require_one_of("schedule", plan.schedule, SCHEDULES.names())
    if plan.prefetch is not None and (isinstance(plan.prefetch, bool) or plan.prefetch < 0):
        raise PlanError(f"prefetch must be 0 or a positive whole number, got {plan.prefetch!r}")
    if (count := plan.defer_head_gradient) is not None and (isinstance(count, bool) or not 0 <= count <= MAX_BATCH):
        raise PlanError(f"defer_head_gradient must be 0 (all micro-batches) to {MAX_BATCH}, got {count!r}")
    for count in plan.stage_layers:
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_LAYERS:
            raise PlanError(f"stage_layers are whole numbers of 0 to {MAX_LAYERS}, got {count!r}")
    if plan.tp_overlap > MAX_PIECES:
        raise PlanError(f"tp_overlap is at most {MAX_PIECES} pieces, got {plan.tp_overlap}")
    check_order(plan.order)
    if isinstance(plan.replica_batches, tuple):
        for size in plan.replica_batches:
            _require_positive("replica_batches", size)
    elif plan.replica_batches:
        _require_one_of("replica_batches", plan.replica_batches, (TIME,))
    if plan.expert_imbalance != BALANCED:
        exponent(plan.expert_imbalance)


def _check_expert_ranks(plan: Plan, etp: int) -> None:
    """Raise PlanError unless ``etp`` x ep divides the ranks of a stage, and of a shard."""
    ranks, shard = plan.tp * plan.cp * plan.dp, plan.tp * plan.cp * (plan.shard_ways or plan.dp)
    if (plan.ep == 1 and etp == plan.tp) or not shard % (etp * plan.ep):
        return
    if not ranks % (etp * plan.ep):
        raise PlanError(
            f"hybrid sharding with experts: the tp x cp x shard_ways = {shard} ranks that share one copy are no "
            f"multiple of etp x ep = {etp * plan.ep}"
        )
    valid = [ep for ep in range(1, ranks + 1) if ranks % (etp * ep) == 0]
    near = nearest_numbers(valid, plan.ep)
    hint = f": the nearest valid ep is {' or '.join(map(str, near))}" if near else ""
    raise PlanError(
        f"experts are spread over the tp x cp x dp = {ranks} ranks of a stage, which etp x ep = {etp} x {plan.ep} does "
        f"not divide{hint}"
    )


_NO_EXPERTS = "cannot matter: ep = 1 has all experts on every rank"
_NO_GRADIENTS = "cannot matter: local SGD reduces no gradients"
_DEFAULTS = {each.name: each.default for each in fields(Plan)}
#: Rules for options that differ from their defaults, checked in this order: the field, whether its value is allowed
#: beside the other options, and the error if it is not. Both limits of buckets are one option of the command line.
_RULES: tuple[tuple[str, Callable[[Plan], object], str | Callable[[Plan], str]], ...] = (
    ("data", lambda p: p.tp == p.pp == 1,
     "DataParallel (dp) keeps one process with whole replicas, so it does not combine with tensor or pipeline "
     "parallelism: use ddp"),
    ("data", lambda p: p.micro_batch is None,
     "DataParallel (dp) runs the whole batch of a replica at once: micro-batches need ddp"),
    ("data", lambda p: p.recompute == "none" and p.sync == "last",
     "DataParallel (dp) is modelled without recomputation and accumulation: they need ddp"),
    ("data", lambda p: p.inputs != "prefetch",
     "DataParallel (dp) scatters inputs inside the step: copies ahead of it need ddp"),
    ("virtual_stages", lambda p: p.pp > 1, "virtual stages need a pipeline: pp must be above 1"),
    ("cuts", lambda p: len(p.cuts) == p.pp * p.virtual_stages - 1, lambda p:
     f"{(parts := p.pp * p.virtual_stages)} stages need {parts - 1} cuts, got {len(p.cuts)}: {', '.join(p.cuts)}"),
    ("balance", lambda p: p.balance == TIME or not p.has_cuts, lambda p:
     f"balance places the cuts of a pipeline, but {_cut_fields(p)[0]} say where"),
    *((name, lambda p: len(_cut_fields(p)) == 1, lambda p:
       f"{' and '.join(_cut_fields(p))} contradict each other: both place the cuts of the pipeline")
      for name in ("cuts", "stage_layers")),
    *((name, lambda p: p.pp > 1, f"{name} needs a pipeline: pp must be above 1")
      for name in ("stage_layers", "first_stage_layers", "last_stage_layers", "defer_head_gradient")),
    ("stage_layers", lambda p: len(p.stage_layers) == p.pp * p.virtual_stages, lambda p:
     f"stage_layers has one number for each of pp x virtual_stages = {p.pp * p.virtual_stages} chunks, got "
     f"{len(p.stage_layers)}"),
    ("defer_head_gradient", lambda p: not p.reduces_each, lambda p:
     "defer_head_gradient does not combine with gradients that are reduced after each micro-batch (sync each, "
     "zero2, zero3, fsdp)"),
    ("balance", lambda p: p.balance == TIME or p.pp > 1,
     "balance places the cuts of a pipeline, but pp = 1 has no cuts"),
    ("recompute_layers", lambda p: p.recompute == "full",
     lambda p: f"recompute_layers is about full recomputation, and recompute is {p.recompute!r}"),
    ("sync", lambda p: p.dp * p.cp > 1, "sync needs replicas: dp must be above 1"),
    ("overlap", lambda p: p._is_ideal or p.num_ranks > 1 or (p.offload != "none" and p.overlap == "none"),
     lambda p: f"overlap {p.overlap!r} needs communication, but there is one GPU"),
    ("data", lambda p: p._is_ideal,
     "DataParallel (dp) overlaps nothing with compute, so overlap cannot matter: it needs ddp"),
    ("data", lambda p: p.offload == "none", "DataParallel (dp) is modelled without offload: it needs ddp"),
    ("order", lambda p: p.ep not in (1, p.dp) or sum(degree > 1 for degree in (p.tp, p.cp, p.dp, p.pp)) > 1,
     "order cannot matter: there are not two axes to order"),
    ("data", lambda p: p.cp * p.ep == 1,
     "DataParallel (dp) keeps whole replicas in one process: context and expert parallelism need ddp"),
    ("buffers", lambda p: p._has_ddp_replicas, "buffers cannot matter: only DDP's replicas exchange them"),
    ("buffers", lambda p: p.sharding == "none",
     lambda p: f"buffers cannot matter: they are DDP's, and sharding is {p.sharding!r}"),
    ("dp_overlap", lambda p: p.dp_overlap or p._has_ddp_replicas,
     "dp_overlap cannot matter: there are no replicas that reduce gradients"),
    ("replica_batches", lambda p: p.dp > 1 and p.data == "ddp",
     "replica_batches gives each data-parallel replica its batch, and dp = 1 has one: set dp"),
    ("replica_batches", lambda p: p.ep == 1,
     "replica_batches does not combine with ep: experts exchange equally many tokens of each replica"),
    ("replica_batches", lambda p: p.replica_batches == TIME or len(p.replica_batches) == p.dp, lambda p:
     f"replica_batches has one batch for each of dp = {p.dp} replicas; got {len(p.replica_batches)}"),
    ("replica_batches", lambda p: p.replica_batches == TIME or p.batch is None,
     "batch (of each replica) and replica_batches contradict each other: give one"),
    ("replica_batches", lambda p: isinstance(p.replica_batches, str) or max(p.replica_batches) <= MAX_BATCH,
     f"a batch is at most {MAX_BATCH} samples"),
    ("shard_ways", lambda p: p.sharding != "none", "shard_ways cannot matter: shard_ways needs sharding"),
    ("data", lambda p: p.sharding == "none",
     lambda p: f"DataParallel (dp) keeps whole replicas: sharding {p.sharding!r} needs ddp"),
    ("shard_ways", lambda p: 1 < (ways := p.shard_ways or 1) < p.dp and not p.dp % ways, lambda p:
     f"hybrid sharding cuts the replicas into equal groups: shard_ways divides dp = {p.dp} and lies between 1 and it; "
     f"got {p.shard_ways}"),
    ("reshard", lambda p: p.sharding == "fsdp",
     "reshard cannot matter: only fsdp may keep gathered parameters until the backward pass"),
    ("shard_unit_bytes", lambda p: p.sharding in PARAMETERS_SHARDED,
     "shard_unit_bytes cannot matter: no parameters are gathered unit by unit"),
    *((name, lambda p: p.sharding not in PARAMETERS_SHARDED,
       lambda p: f"bucket_bytes cannot matter: {p.sharding} reduces gradients by the units of its parameters")
      for name in _BUCKETS),
    ("prefetch", lambda p: p.sharding != "none",
     "prefetch cannot matter: no parameters are gathered: set sharding"),
    ("prefetch", lambda p: p.sharding in PARAMETERS_SHARDED or p.prefetch in (0, 1), lambda p:
     f"with {p.sharding} all parameters are gathered behind the optimizer, beside the next forward pass (prefetch 1) "
     f"or before it (0); got {p.prefetch}"),
    ("sync", lambda p: p.sharding not in GRADIENTS_SHARDED,
     lambda p: f"{p.sharding} reduces gradients after each micro-batch anyway: leave sync out"),
    ("sequence_parallel", lambda p: not p.sequence_parallel or p.tp_style != "column",
     "sequence parallelism is a part of Megatron's tensor parallelism: set tp_style megatron"),
    ("tp_overlap", lambda p: p.sequence_parallel,
     "tp_overlap cuts the all-gathers and reduce-scatters of sequence parallelism into pieces: set sequence_parallel"),
    ("userbuffers", lambda p: not p.userbuffers or (p.tp > 1 and p.sequence_parallel is not False),
     "userbuffers overlap the all-gathers and reduce-scatters of sequence parallelism: set tp and sequence_parallel"),
    ("userbuffers", lambda p: not p.userbuffers or p.tp_overlap == 1,
     "userbuffers and tp_overlap contradict each other: userbuffers have pieces of their own; give one"),
    ("cp_style", lambda p: p.cp > 1, "cp_style cannot matter: cp = 1 leaves the sequence whole"),
    ("etp", lambda p: p.etp == p.tp or p.tp_style != "column",
     "experts that are divided in their own way (etp) need tp_style megatron"),
    ("etp", lambda p: p.tp in (1, p.etp) or p.sequence_parallel is not False, lambda p:
     f"etp {p.etp} with tp {p.tp} needs sequence parallelism: without it all tp ranks hold the same tokens"),
    ("expert_imbalance", lambda p: not p.expert_shares,
     "expert_imbalance and expert_shares contradict each other: give one"),
    ("expert_imbalance", lambda p: p.ep > 1, f"expert_imbalance {_NO_EXPERTS}"),
    ("expert_shares", lambda p: p.ep > 1, f"expert_imbalance {_NO_EXPERTS}"),
    ("capacity_factor", lambda p: p.ep > 1, f"capacity_factor {_NO_EXPERTS}"),
    ("dispatch", lambda p: p.dispatch in (None, ALL_TO_ALL) or p.ep > 1, f"dispatch {_NO_EXPERTS}"),
    ("expert_overlap", lambda p: p.ep > 1, f"expert_overlap {_NO_EXPERTS}"),
    ("shared_expert_overlap", lambda p: p.ep > 1, f"shared_expert_overlap {_NO_EXPERTS}"),
    ("shared_expert_overlap", lambda p: not p.expert_overlap,
     "shared_expert_overlap and expert_overlap both hide the exchanges of experts: give one"),
    ("expert_overlap", lambda p: p.pp == 1 or p.virtual_stages > 1,
     "expert_overlap in a pipeline needs virtual stages: with one chunk a rank, a forward pass waits for the backward "
     "pass beside it"),
    ("expert_overlap", lambda p: p.recompute != "full",
     "expert_overlap does not combine with full recomputation: set recompute none or selective"),
    ("expert_overlap", lambda p: p.defer_head_gradient is None,
     "expert_overlap and defer_head_gradient both change the backward passes: give one"),
    ("expert_shares", lambda p: len(p.expert_shares) <= MAX_EXPERTS and all(map(_is_share, p.expert_shares)),
     "expert_shares are the parts of the tokens that go to each expert: numbers not below 0"),
    ("expert_shares", lambda p: sum(p.expert_shares) > 0, "expert_shares add up to nothing"),
    ("capacity_factor", lambda p: _is_share(p.capacity_factor) and 0 < (p.capacity_factor or 0) <= MAX_EXPERTS,
     lambda p: f"capacity_factor must be a number above 0, got {p.capacity_factor!r}"),
    ("sync_every", lambda p: p.dp > 1 and p.data == "ddp",
     "sync_every needs DDP replicas, which average their parameters"),
    ("sync_every", lambda p: p.sharding == "none" and p.cp * p.ep == 1,
     "local SGD keeps whole replicas: sync_every does not combine with sharding, cp or ep"),
    ("dp_overlap", lambda p: p.dp_overlap or _reduces_gradients(p), f"dp_overlap {_NO_GRADIENTS}"),
    ("sync", lambda p: _reduces_gradients(p), f"sync {_NO_GRADIENTS}"),
    *((name, lambda p: _reduces_gradients(p), f"bucket_bytes {_NO_GRADIENTS}") for name in _BUCKETS),
    ("sync_every", lambda p: not p.steps % (p.sync_every or 1), lambda p:
     f"{p.steps} steps are not a multiple of sync_every = {p.sync_every}: take a multiple"),
)  # fmt: skip


def _cut_fields(plan: Plan) -> list[str]:
    """Return the options of a plan that place cuts; both ends of uneven stages are one option."""
    ends = [name for name in ("first_stage_layers", "last_stage_layers") if getattr(plan, name)]
    return [*(name for name in ("cuts", "stage_layers") if getattr(plan, name)), *(ends[:1])]


def _reduces_gradients(plan: Plan) -> bool:
    return plan.sync_every is None or plan.offload == "optimizer"


def form_facts(plan: Plan) -> dict[str, object]:
    """Return the forms of parallelism that a plan uses beyond dp, tp and pp, for the result."""
    replicas, is_sharded = plan.dp * plan.cp > 1, plan.sharding != "none"
    cp = plan.cp if plan.cp > 1 else None
    cp_style = plan.cp_style if plan.cp > 1 else None
    ep = plan.ep if plan.ep > 1 else None
    etp = plan.expert_tp if plan.expert_tp != plan.tp else None
    order = plan.order if plan.order != DEFAULT_ORDER else None
    sharding = plan.sharding if is_sharded else None
    reshard = plan.reshard if plan.sharding == "fsdp" else None
    overlap = plan.dp_overlap if replicas and not plan.dp_overlap else None
    buffers = plan.buffers if plan.buffers != "auto" else None
    facts = {
        "cp": cp,
        "cp_style": cp_style,
        "ep": ep,
        "etp": etp,
        "order": order,
        "sharding": sharding,
        "shard_ways": plan.shard_ways,
        "reshard": reshard,
        "prefetch": plan.prefetch,
        "shard_unit_bytes": plan.shard_unit_bytes,
        "dp_overlap": overlap,
        "buffers": buffers,
        "sync_every": plan.sync_every,
        "sequence_parallel": plan.sequence_parallel or None,
        "tp_overlap": plan.tp_overlap if plan.tp_overlap > 1 else None,
        "userbuffers": plan.userbuffers or None,
        "expert_imbalance": ("measured" if plan.expert_shares else plan.expert_imbalance) if plan.ep > 1 else None,
        "dispatch": plan.dispatch if plan.ep > 1 and plan.dispatch != ALL_TO_ALL else None,
        "expert_overlap": plan.expert_overlap or None,
        "shared_expert_overlap": plan.shared_expert_overlap or None,
        "capacity_factor": plan.capacity_factor,
        "stage_layers": list(plan.stage_layers) or None,
        "first_stage_layers": plan.first_stage_layers,
        "last_stage_layers": plan.last_stage_layers,
        "defer_head_gradient": plan.defer_head_gradient,
    }
    return {name: value for name, value in facts.items() if value is not None}


def exponent(imbalance: str) -> float:
    """Return the exponent of ``zipf:S``. Raises PlanError for any other text."""
    text = imbalance.removeprefix(ZIPF) if isinstance(imbalance, str) and imbalance.startswith(ZIPF) else ""
    value = finite_number(text)
    if value is None or not 0 < value <= 10:
        raise PlanError(
            f"expert_imbalance must be {BALANCED!r} or 'zipf:S' with an exponent S above 0 and at most 10; got "
            f"{imbalance!r}{nearest(str(imbalance), (BALANCED,))}"
        )
    return value


def _is_share(value: object) -> bool:
    """Return whether the value is a finite number that is not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


@lru_cache(maxsize=1024)
def _grid_axes(order: str, degrees: tuple[tuple[str, int], ...], shard_degree: int | None) -> tuple[Axis, ...]:
    return grid_axes(order, dict(degrees), shard_degree)


_axis_groups = lru_cache(maxsize=1024)(AxisGroups)


def micro_batches(batch: int, micro_batch: int | None) -> tuple[int, ...]:
    """Split ``batch`` samples into micro-batches of at most ``micro_batch``, with sizes that differ by at most one.

    Raises PlanError when a micro-batch would be larger than the batch.
    """
    if micro_batch is None:
        return (batch,)
    if micro_batch > batch:
        raise PlanError(f"a micro-batch of {micro_batch} samples is larger than the replica's batch of {batch}")
    count = -(-batch // micro_batch)
    if count > MAX_MICRO_BATCHES:
        raise PlanError(f"{count} micro-batches are more than {MAX_MICRO_BATCHES}: take a smaller batch or larger ones")
    size, extra = divmod(batch, count)
    return tuple(size + (i < extra) for i in range(count))


def _names(cuts: object) -> tuple[str, ...]:
    """Return a sequence of names as a tuple. Raises PlanError for a single string."""
    if isinstance(cuts, str) or not isinstance(cuts, Sequence):
        raise PlanError(f"cuts must be a sequence of layer names, got {cuts!r}")
    return tuple(str(name) for name in cuts)


def _batches(sizes: object) -> tuple[int, ...] | str:
    """Return sizes as a tuple, and text unchanged."""
    if isinstance(sizes, str):
        return sizes
    if not isinstance(sizes, Sequence):
        raise PlanError(f"replica_batches must be a sequence of batches, or 'time', got {sizes!r:.80}")
    return tuple(sizes)


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} must be a positive whole number, got {value!r}")


def _require_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(
            f"{name} must be one of {', '.join(allowed)}; got {value!r}{nearest(str(value), allowed, is_listed=True)}"
        )
