"""Software profiles: the behaviour and the costs of a framework (presets/software/NAME.yaml, or a user's file).

Each number comes from the software's code, documentation or profiles, and names its source. At most three numbers, the
factors, may be fitted on measured steps; a fitted factor names the rows of its fit and its leave-out error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from trine.common.inputs import PRESETS, preset_names
from trine.common.schema import Field, Spec
from trine.common.spec import check, merged, read_spec, with_bases
from trine.errors import InputError, SpecError, as_known, nearest
from trine.software.choices import GRADIENT_DTYPES, LossStyle, ProfileChoices
from trine.software.conditions import LayoutConstraints

#: Transformer operator families; a profile may set launches and passes for each.
FAMILIES = (
    "norm", "rms_norm", "head_norm", "rotary", "activation", "gated", "linear", "product", "attention", "softmax",
    "dropout", "residual", "embedding", "loss", "optimizer", "accumulation", "router", "dispatch", "combine", "copy",
    "conv", "pool", "other",
)  # fmt: skip
FACTORS = ("gpu", "cpu", "communication", "scale_up")
#: Factors that are fitted by default.
USUAL_FACTORS = FACTORS[:3]
#: Plan fields of experts that a profile may offer to a search.
SWITCH_FIELDS = ("expert_overlap", "shared_expert_overlap", "dispatch")
#: Plan fields that a profile may set.
PLAN_FIELDS = ("schedule", "dp_overlap", "overlap", "userbuffers", "defer_head_gradient", "dispatch")
#: ``--software none``: fused operators, no CPU side, no fixed costs.
NO_SOFTWARE = "none"

Count = Annotated[float, Field(ge=0, le=1000)]
Microseconds = Annotated[float, Field(ge=0, le=1e7)]
#: Counts for the forward and the backward pass.
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
Positive = Annotated[float, Field(gt=0, le=100)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]


class OperatorStyle(Spec):
    """Implementation of a transformer's operators.

    attention: ``flash`` keeps no scores; ``unfused`` writes scores, masked softmax, dropout and product to memory.
    attention_kernel: generation of the fused kernel. loss: ``unfused`` makes a float32 copy of the logits; ``native``
    is Megatron-core's compiled loss, also on a float32 copy; ``te`` is Transformer Engine's, whose gradient replaces
    the logits. loss_all_reduces: all-reduces of the loss over a sharded vocabulary. master: float32 copy of the weights
    in the optimizer: ``float32`` (12 bytes of state per parameter), or ``remainder``: the 16 bits that a bf16 weight
    lacks (10 bytes). biases: the GEMM adds the biases of queries, keys, values and up projections (``fused``), or a
    kernel after it does (``separate``). bias_gradients: the GEMM of the weight gradient sums them, or a kernel does.
    part_gradients: fused attention writes the gradients of queries, keys and values into one tensor (``in-place``), or
    a copy joins them (``joined``; the backward pass of torch.split).
    gradient_dtype: dtype for accumulating and reducing gradients. accumulation: ``fused`` into the weight-gradient
    GEMM, or ``separate``: a pass over all gradients after each micro-batch. checkpoint: full recomputation runs
    the ``whole`` layer again, or stops once the backward pass has all its inputs (``early-stop``). optimizer: a
    step recorded on a CPU, with one operator per tensor, runs on a GPU as ``foreach`` operators or as one
    ``fused`` operator. sequence_gathers: with sequence parallelism, tokens are not the leading dimension, so they
    are ``copied`` whole after a gather or before a scatter. head_norms: with tensor parallelism, queries and keys
    are ``gathered`` forward after the head norms, and each rank rotates them whole. kernels: launches per
    operator of a family, forward and backward (default 1). passes: memory traffic of an unfused operator as a
    multiple of its own bytes, forward and backward (default 1). Launches and passes of ``head_norm`` add to those
    for ``rotary``, and ``rms_norm`` replaces ``norm`` for RMS norms. grouped_mlp: precisions in which the GEMMs
    of experts apply the activation and cast its result, forward and backward, without a kernel between them, and
    one kernel computes the GEMMs of all experts. head_casts, attention_casts: precisions in which the product of the
    head is cast as those of layers are, and in which fused attention casts its inputs.
    expert_sorts: tokens are ``copied`` into the order of a rank's experts after an all-to-all, and back before
    one. expert_padding: with a precision, the tokens of each expert are ``copied`` to a multiple of its block,
    and back after the experts. expert_biases: an operator adds the biases of all experts after each GEMM
    (``added``), or that of the up projection is part of the activation, and that of the down projection is
    weighted and added expert by expert in float32 (``looped``). vocabulary_multiple: the vocabulary is padded to a
    multiple of it; tensor parallelism pads further. expert_shares: what the router's shares of a token multiply: the
    results of its experts (``results``), which are then kept, or the input of their second GEMM (``activation``),
    whose operands are kept anyway.
    """

    attention: Literal["flash", "unfused"] = "flash"
    attention_kernel: Literal["flash-1", "flash-2", "flash-3", "cudnn", "triton"] = "flash-2"
    loss: Literal["fused", "unfused", "native", "te"] = "fused"
    loss_all_reduces: Annotated[int, Field(ge=1, le=8)] = 1
    logits_dtype: Literal["float32", "model"] = "model"
    dropout: bool = False
    biases: Literal["fused", "separate"] = "fused"
    bias_gradients: Literal["fused", "separate"] = "fused"
    part_gradients: Literal["in-place", "joined"] = "in-place"
    gradient_dtype: Literal["float32", "model"] = "model"
    accumulation: Literal["fused", "separate"] = "separate"
    checkpoint: Literal["whole", "early-stop"] = "whole"
    optimizer: Literal["foreach", "fused"] = "fused"
    master: Literal["float32", "remainder"] = "float32"
    sequence_gathers: Literal["plain", "copied"] = "plain"
    head_norms: Literal["sharded", "gathered"] = "sharded"
    grouped_mlp: list[str] = Field(default_factory=list)
    head_casts: list[str] = Field(default_factory=list)
    attention_casts: list[Literal["mxfp8"]] = Field(default_factory=list)
    expert_sorts: Literal["none", "copied"] = "none"
    expert_padding: Literal["none", "copied"] = "none"
    expert_biases: Literal["added", "looped"] = "added"
    vocabulary_multiple: Annotated[int, Field(ge=1, le=65536)] = 1
    expert_shares: Literal["results", "activation"] = "results"
    kernels: dict[str, Pair] = Field(default_factory=dict)
    passes: dict[str, Pair] = Field(default_factory=dict)


#: Parts of a step that CUDA graphs may capture: the attention of each layer, its router (with the norm before it),
#: whole layers, or the forward and backward passes of the whole step.
GRAPHS = ("attention", "router", "layers", "step")


class LaunchStyle(Spec):
    """CPU costs of the launching thread.

    cpu_us_per_kernel: CPU time of one launch, including Python and the dispatcher. layer_us: extra time per pass of a
    layer (hooks, wrappers, autograd nodes without kernels). expert_us: further time for the GEMM and for the casts of
    each expert of a rank, if the library launches them one by one; 0 if one kernel serves all experts. graphs: parts of
    a step (:data:`GRAPHS`) whose launches CUDA graphs replace by one launch for adjacent operators of a layer and pass;
    with ``step``, nothing in its passes takes the thread's time. communication_us: time per
    collective, including its launch. message_us: time per pipeline message, sent or received. crossing_us: extra time
    for each collective of a tensor-parallel group, per rank of the group, if pipeline messages leave the node.
    queue_limit: maximum lead of the thread over the GPU when a pass begins, in launches. synchronises: the points at
    which the thread waits for the GPU to finish all launched work: at each pipeline message and the end of a step
    (``pass``), also after each forward
    pass (``forward``), after each backward pass and step (``micro-batch``), after each step, or never.
    interleaved_messages: with virtual stages, messages are ``batched`` as without, or ``separate`` sends and receives
    for which the thread waits only at the end of a step.
    process: each ``rank`` has its own process, or one process launches for all stages of a ``pipeline``. Its threads
    share the interpreter lock, so with p stages each of these times becomes p times as long.
    """

    cpu_us_per_kernel: Microseconds = 0.0
    layer_us: Microseconds = 0.0
    expert_us: Microseconds = 0.0
    graphs: Annotated[list[Literal["attention", "router", "layers", "step"]], Field(max_length=4)] = Field(
        default_factory=list
    )
    communication_us: Microseconds = 0.0
    message_us: Microseconds = 0.0
    crossing_us: Microseconds = 0.0
    queue_limit: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    synchronises: Literal["none", "pass", "forward", "micro-batch", "step"] = "step"
    process: Literal["rank", "pipeline"] = "rank"
    interleaved_messages: Literal["batched", "separate"] = "batched"

    def on_virtual_stages(self) -> LaunchStyle:
        """Return the costs with virtual stages: ``separate`` messages never stop the launching thread."""
        if self.interleaved_messages == "batched" or self.synchronises not in ("pass", "forward"):
            return self
        return self.model_copy(update={"synchronises": "step"})


class FixedCost(Spec):
    """Cost of a step, or of each micro-batch, besides its operators.

    cpu_us: time of the launching thread. kernels_per_weight: launches for each trained weight of the rank.
    gradient_passes, parameter_passes: number of reads or writes of all gradients, parameters of a rank. all_reduces:
    number of one-element all-reduces over ``axis`` (an axis of the rank grid; ``world``: all ranks; ``model``: the
    ranks of one replica). whole: the passes cover a micro-batch's whole gradients, even if replicas shard them.
    """

    name: str
    when: Literal["step", "micro-batch"] = "step"
    cpu_us: Microseconds = 0.0
    kernels_per_weight: Count = 0.0
    gradient_passes: Count = 0.0
    parameter_passes: Count = 0.0
    all_reduces: Count = 0.0
    axis: str = "world"
    whole: bool = False


class ZeroStyle(Spec):
    """Exchanges of gradients and parameters in ZeRO 1 and 2.

    gradients: with ``scatter``, each rank gets only the sum of its part; with ``all-reduce``, every rank gets the whole
    sum, even if it needs only a part (ZeRO 1). parameters: each bucket is gathered after the optimizer (``gather``), or
    the ranks broadcast in turn the whole weights that they update (``broadcast``). Weights are assigned largest first,
    each to the rank with the fewest bytes at that point. bucket_bytes, bucket_elements: size limit of a gradient bucket
    in bytes, or in elements of the reduced dtype, if the plan has DDP's default bucket sizes. gather_beside: buckets
    are gathered one after the other after the ``optimizer``, or beside the ``next-forward`` pass, whose operators wait
    for their weights. A step then begins with the gathers of the step before it.
    """

    gradients: Literal["scatter", "all-reduce"] = "scatter"
    parameters: Literal["gather", "broadcast"] = "gather"
    bucket_bytes: Annotated[int, Field(ge=1, le=2**40)] | None = None
    bucket_elements: Annotated[int, Field(ge=1, le=2**40)] | None = None
    gather_beside: Literal["optimizer", "next-forward"] = "optimizer"


class SelectiveStyle(Spec):
    """Results that operator-level selective recomputation keeps (``MemoryStyle.selective`` not ``attention``).

    products: GEMM outputs of a block: the first, third, ... in the order queries, keys, values, output, gate, up, down;
    or all. grouped: GEMMs of experts. exchanged: tokens that expert parallelism has sent.
    """

    attention: Literal["kept", "recomputed"] = "kept"
    products: Literal["every-second", "kept", "recomputed"] = "every-second"
    grouped: Literal["kept", "recomputed"] = "recomputed"
    router: Literal["kept", "recomputed"] = "recomputed"
    exchanged: Literal["kept", "recomputed"] = "kept"


class ShardStyle(Spec):
    """Storage, gathering and reduction of sharded parameters in FSDP and ZeRO 3.

    weights: ``copy``: a half-precision shard beside the optimizer's float32 shard; ``master``: only the float32 shard,
    cast when it is gathered (FSDP2). gathers: ``in-place``, or a ``copy`` into the parameters, with a buffer that is
    freed at the next copy. scatters: ``in-place``, or a ``copy`` of a unit's gradients in the reduction dtype, freed at
    the next reduce-scatter. pools: gathered buffers and reduced gradients come from the cached blocks of all streams
    (``shared``), or each from its stream's blocks (``own``).
    """

    weights: Literal["copy", "master"] = "copy"
    gathers: Literal["in-place", "copy"] = "in-place"
    scatters: Literal["in-place", "copy"] = "in-place"
    pools: Literal["shared", "own"] = "shared"


class MemoryStyle(Spec):
    """Memory besides tensors, and tensors that this software's autograd keeps.

    context_bytes: the CUDA context and loaded kernels, outside the allocator. communicator_bytes: NCCL buffers per
    communicator, also outside the allocator. workspace_bytes: library workspaces, in the allocator from the first
    operator on. rounding_bytes: allocation granularity; block sizes are multiples of it. expandable_segments: reserved
    memory grows and shrinks page by page, so that none is lost between blocks. fragmentation: fraction of reserved
    memory that the modelled allocator does not account for. error: relative error of modelled against measured memory,
    90th percentile. logits_bytes: live bytes per logit when the loss's backward pass begins; trine then assumes that
    copies of the logits after the first are made in place. gradient_buffer: all gradients are accumulated in one
    persistent buffer. weight_gradients: lifetime of a gradient that a backward operator makes: kept until the ``step``
    ends; added to the buffer and dropped when the ``backward`` pass of a micro-batch ends, or immediately
    (``operator``); ``fused`` into the GEMM, which leaves one dummy per shape. buckets: when DDP's buckets exist beside
    the gradients: if no state is sharded (``unsharded``), always, or never. parameter_gather: whether updated parts of
    ZeRO 1 and 2 are gathered ``in-place`` or through a ``copy``. keeps: extra memory kept for the backward operator, in
    multiples of the forward operator's output, by family; ``key_values``: copies of keys and values, if keys and
    queries have the same number of heads. selective: tensors that selective recomputation keeps: all except the core of
    ``attention`` (Megatron-LM); or the results of each block named in ``selective_keeps`` (torchtitan); ``compiled``:
    only those its backward pass reads. loss_chunks: number of token chunks; head and loss run forward and backward on
    one chunk at a time. states: whether the optimizer's moments exist ``before`` the first step, or are made at its end
    (``first-step``). At the end they occupy memory that activations used, so the next step's activations get different
    blocks. gathered_inputs: with sequence parallelism, the whole input of a GEMM is gathered ``again`` in the backward
    pass, which takes time, or ``kept``. expert_inputs: the same for experts that tensor parallelism divides. fsdp:
    parameters sharded over replicas. record_streams: a block used by a tensor-parallel collective becomes free once the
    collective has ended before the launching thread requests memory, not when the thread frees it (PyTorch before April
    2025). dispatcher: ``allgather`` gathers the tokens of the tensor-parallel ranks before it routes them to experts
    that are not spread over ranks. Each rank then keeps the routed input and output of its part of the experts for all
    tokens. router_bytes: kept for each token and expert, beside the logits of the router. expert_workspace_bytes:
    workspaces of the GEMMs of experts, from the first operator on.
    """

    context_bytes: Bytes = 0
    workspace_bytes: Bytes = 0
    communicator_bytes: Bytes = 0
    rounding_bytes: Annotated[int, Field(ge=1, le=2**30)] = 512
    expandable_segments: bool = False
    fragmentation: Annotated[float, Field(ge=0, le=1)] = 0.0
    error: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    logits_bytes: Count | None = None
    parallel_logits_bytes: Count | None = None
    gradient_buffer: bool = False
    weight_gradients: Literal["step", "backward", "operator", "fused"] = "step"
    buckets: Literal["unsharded", "always", "never"] = "unsharded"
    parameter_gather: Literal["in-place", "copy"] = "in-place"
    keeps: dict[str, Count] = Field(default_factory=dict)
    selective: Literal["attention", "products", "compiled"] = "attention"
    selective_keeps: SelectiveStyle = SelectiveStyle()
    loss_chunks: Annotated[int, Field(ge=1, le=1024)] = 1
    states: Literal["before", "first-step"] = "before"
    gathered_inputs: Literal["again", "kept"] = "again"
    expert_inputs: Literal["again", "kept"] = "again"
    fsdp: ShardStyle = ShardStyle()
    record_streams: bool = False
    dispatcher: Literal["alltoall", "allgather"] = "alltoall"
    router_bytes: Count = 0
    expert_workspace_bytes: Bytes = 0


class Factor(Spec):
    """Multiplier for all costs of one kind; 1 unless fitted."""

    value: Positive = 1.0
    fitted_on: str | None = None
    left_out_error: Annotated[float, Field(ge=0, le=10)] | None = None


class Factors(Spec):
    """gpu: times of compute operators. cpu: CPU time of launches. communication: times of collectives and messages.
    scale_up: an additional factor inside one domain (NVLink, xGMI, PCIe of a node), where kernels are the bottleneck.
    """

    gpu: Factor = Factor()
    cpu: Factor = Factor()
    communication: Factor = Factor()
    scale_up: Factor = Factor()


class Software(Spec):
    """A software profile.

    stages: the default rule for cutting a pipeline into stages (:class:`trine.Plan`, ``balance``). plan: this
    software's defaults for the fields PLAN_FIELDS of a plan. switches: further values of the fields SWITCH_FIELDS that
    the software offers; a search tries them for models with experts. constraints: layouts that the software can run.
    sources: field -> source of its number. base: profile whose fields this file keeps unless it sets them. losses: the
    implementations of the loss that ``choices`` and ``--loss`` select. container: the release whose code the profile
    describes.
    """

    name: str
    description: str
    base: str | None = None
    container: str = ""
    losses: dict[str, LossStyle] = Field(default_factory=dict)
    choices: ProfileChoices = ProfileChoices()
    operators: OperatorStyle = OperatorStyle()
    launch: LaunchStyle = LaunchStyle()
    step: list[FixedCost] = Field(default_factory=list)
    stages: Literal["time", "layers", "blocks", "nanotron"] = "time"
    plan: dict[str, bool | int | str] = Field(default_factory=dict)
    switches: dict[str, list[bool | str]] = Field(default_factory=dict)
    constraints: LayoutConstraints = LayoutConstraints()
    zero: ZeroStyle = ZeroStyle()
    memory: MemoryStyle = MemoryStyle()
    factors: Factors = Factors()
    sources: dict[str, str] = Field(default_factory=dict)

    def plan_fields(self) -> dict[str, object]:
        """Return this software's defaults for fields of a plan."""
        return {"balance": self.stages, **self.plan}

    def fitted_factors(self) -> list[tuple[str, Factor]]:
        """Return (name, factor) for each factor that is not 1."""
        return [(name, getattr(self.factors, name)) for name in FACTORS if getattr(self.factors, name).value != 1]

    def communication_factors(self) -> tuple[float, float]:
        """Return the factors for collectives and messages between domains, and inside one domain."""
        factors = self.factors
        return factors.communication.value, factors.communication.value * factors.scale_up.value

    def scaled(self, by: Mapping[str, float], fitted_on: str, left_out_error: float | None = None) -> Software:
        """Return the profile with its factors multiplied by the values of ``by``, fitted on ``fitted_on``.

        Raises InputError for an unknown factor.
        """
        for name in by:
            if name not in FACTORS:
                raise InputError(f"unknown factor {name[:40]!r}{nearest(name[:80], FACTORS)}", field="factors")
        factors = {}
        for name, value in by.items():
            scaled = getattr(self.factors, name).value * value
            try:
                factors[name] = Factor(value=scaled, fitted_on=fitted_on, left_out_error=left_out_error)
            except ValueError as error:
                path = f"{name}.{getattr(error, 'path', '') or 'value'}"
                raise InputError(
                    f"the fit is beyond limits: {path} {error}: check the measured times", field="factors"
                ) from None
        return self.model_copy(update={"factors": self.factors.model_copy(update=factors)})


def with_choices(profile: Software, loss: str | None, gradient_dtype: str | None) -> Software:
    """Return the profile with another loss and another dtype of gradients; None leaves one as it is.

    Raises InputError for a value that does not exist, or a loss that the software does not offer.
    """
    if loss is not None:
        profile = _with_loss(profile, loss)
    if gradient_dtype is not None:
        if gradient_dtype not in GRADIENT_DTYPES:
            raise InputError(
                f"unknown gradient dtype {gradient_dtype[:40]!r}: allowed are {' and '.join(GRADIENT_DTYPES)}",
                field="gradient_dtype",
            )
        style = profile.operators.model_copy(update={"gradient_dtype": GRADIENT_DTYPES[gradient_dtype]})
        profile = profile.model_copy(update={"operators": style})
    return profile


def with_graphs(profile: Software, graphs: Sequence[str]) -> Software:
    """Return the profile with CUDA graphs of other parts of a step (:data:`GRAPHS`).

    Raises InputError for an unknown part.
    """
    for part in graphs:
        if part not in GRAPHS:
            raise InputError(f"unknown part {part[:40]!r}{nearest(part[:80], GRAPHS)}", field="graphs")
    return profile.model_copy(update={"launch": profile.launch.model_copy(update={"graphs": list(graphs)})})


def _with_loss(profile: Software, name: str) -> Software:
    if name not in profile.losses:
        offered = f"allowed are {', '.join(profile.losses)}" if profile.losses else "it has only one"
        raise InputError(f"profile {profile.name} has no loss {name[:40]!r}: {offered}", field="loss")
    loss = profile.losses[name]
    operators: dict[str, Any] = {
        "loss": name,
        "kernels": profile.operators.kernels | {"loss": loss.kernels},
        "passes": profile.operators.passes | {"loss": loss.passes},
        "loss_all_reduces": loss.all_reduces,
    }
    return profile.model_copy(
        update={
            "operators": profile.operators.model_copy(update=operators),
            "memory": profile.memory.model_copy(update={"logits_bytes": loss.logits_bytes}),
        }
    )


_FOLDER = PRESETS / "software"
_SUFFIXES = (".yaml", ".yml", ".json")
#: Fields that a profile does not take from its base.
_OF_ONE_FILE = ("name", "description", "container")


@cache
def known_software() -> tuple[str, ...]:
    """Return the sorted names of the profiles that come with trine."""
    return preset_names(_FOLDER)


def load_software(name_or_path: str | os.PathLike[str]) -> Software:
    """Return a profile by its name, or read a profile file (its path ends in .yaml, .yml or .json).

    Raises SpecError for an unknown name (suggests the nearest) or an invalid file (names file and field).
    """
    text = os.fspath(name_or_path)
    if text.endswith(_SUFFIXES):
        return _read_profile(Path(text))
    if text == NO_SOFTWARE:
        raise SpecError(
            f"{NO_SOFTWARE!r} stands for no profile: name one of {', '.join(known_software())}", field="software"
        )
    text = as_known(text, known_software())
    if text not in known_software():
        hint = nearest(text.lower()[:80], (*known_software(), NO_SOFTWARE), command="trine software list")
        raise SpecError(f"unknown software {text[:80]!r} (a file ends in .yaml){hint}", field="software")
    return _preset(text)


def software_file(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the file of a profile that :func:`load_software` accepts."""
    text = os.fspath(name_or_path)
    return Path(text) if text.endswith(_SUFFIXES) else _FOLDER / f"{text}.yaml"


@cache
def _preset(name: str) -> Software:
    return _read_profile(_FOLDER / f"{name}.yaml")


def _merged_layers(files: Sequence[tuple[Path, object]]) -> object:
    """Return the fields of a profile over those of its bases; name, description and container are never inherited."""
    data: object = {}
    for file, layer in reversed(files):
        placeholder = {"name": "", "description": ""}
        check(Software, merged(placeholder, layer), file)  # a fault names the file that has it
        if isinstance(data, dict):
            below = {key: value for key, value in data.items() if key not in _OF_ONE_FILE}
        else:
            below = {}
        data = merged(below, layer)
    return data


def _find_base(base: object, path: Path) -> Path:
    """Return the file of a base profile: a name, or a path relative to the file that names it."""
    text = str(base)
    if text.endswith(_SUFFIXES):
        return path.parent / text
    if text not in known_software():
        hint = nearest(text[:80], known_software(), command="trine software list")
        raise SpecError(f"unknown software {text[:80]!r} (a file ends in .yaml){hint}", file=path, field="base")
    return software_file(text)


def _read_profile(path: Path) -> Software:
    files = with_bases(path, _find_base)
    for file, layer in files:
        if isinstance(layer, dict) and "vboost" in layer:
            raise SpecError(
                "nvidia-smi boost-slider is not modelled: no machine was measured with and without it",
                file=file,
                field="vboost",
            )
    profile = check(Software, files[0][1] if len(files) == 1 else _merged_layers(files), path)
    profile = with_choices(profile, profile.choices.loss, profile.choices.gradient_dtype)
    style = profile.operators
    for field, families in (("operators.kernels", style.kernels), ("operators.passes", style.passes),
                            ("memory.keeps", profile.memory.keeps)):  # fmt: skip
        for family in families:
            if family not in (*FAMILIES, *(() if families is style.kernels else ("key_values",))):
                raise SpecError(
                    f"unknown family {family[:40]!r}{nearest(family[:80], FAMILIES)}", file=path, field=field
                )
    for name in profile.plan:
        if name not in PLAN_FIELDS:
            raise SpecError(f"cannot set {name[:40]!r}{nearest(name[:80], PLAN_FIELDS)}", file=path, field="plan")
    for name in profile.switches:
        if name not in SWITCH_FIELDS:
            raise SpecError(f"no switch {name[:40]!r}{nearest(name[:80], SWITCH_FIELDS)}", file=path, field="switches")
    for name, factor in profile.fitted_factors():
        if factor.fitted_on is None:
            raise SpecError("a factor other than 1 must name the rows of its fit", file=path, field=f"factors.{name}")
    return profile


class UsualRule(Spec):
    """Default profile for one kind of workload on one vendor's GPUs."""

    workload: Literal["transformer", "other"]
    vendor: Literal["nvidia", "amd"]
    software: str
    reason: str
    source: str


class UsualSoftware(Spec):
    """rules: the first match wins. proposals: profiles to suggest in an error, in this order. common: profiles whose
    steps an answer compares, each with the profiles of the same family that it stands for."""

    rules: list[UsualRule]
    proposals: list[str]
    common: dict[str, list[str]] = Field(default_factory=dict)

    def rule_for(self, workload: str, vendor: str) -> UsualRule:
        """Return the rule for a workload and a vendor; for an unknown vendor, the workload's first rule."""
        rules = [rule for rule in self.rules if rule.workload == workload]
        return next((rule for rule in rules if rule.vendor == vendor), rules[0])


@cache
def usual_software() -> UsualSoftware:
    """Return the default-profile rules that come with trine."""
    return read_spec(PRESETS / "usual_software.yaml", UsualSoftware)
