"""A software profile: one file (presets/software/NAME.yaml, or a user's own) with what a framework does and its cost.

Numbers come from what the software does (its code, documentation or profiles), each with its source. At most three of
them, the factors, may be fitted on measured steps; a fitted factor names its rows and the error that leaving rows out
gives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from trine.errors import InputError, SpecError, as_known, nearest
from trine.inputs import PRESETS, preset_names
from trine.schema import Field, Spec
from trine.software.conditions import LayoutConstraints
from trine.spec import read_spec

#: Families of operators of a transformer that a profile may say launches and passes of.
FAMILIES = (
    "norm", "head_norm", "rotary", "activation", "gated", "linear", "product", "attention", "softmax", "dropout",
    "residual", "embedding", "loss", "optimizer", "accumulation", "router", "copy", "conv", "pool", "other",
)  # fmt: skip
FACTORS = ("gpu", "cpu", "communication", "scale_up")
#: Those that are fitted unless somebody says which.
USUAL_FACTORS = FACTORS[:3]
#: Fields of a plan that a profile may set.
PLAN_FIELDS = ("schedule", "dp_overlap", "overlap")
#: ``--software none``: operators of a fused implementation, no CPU side, no fixed costs.
NO_SOFTWARE = "none"

Count = Annotated[float, Field(ge=0, le=1000)]
Microseconds = Annotated[float, Field(ge=0, le=1e7)]
#: Of the forward and of the backward pass.
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
Positive = Annotated[float, Field(gt=0, le=100)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]


class OperatorStyle(Spec):
    """How the operators of a transformer are written.

    attention: ``flash`` keeps no scores; ``unfused`` has scores, masked softmax, dropout and product through memory.
    attention_kernel: the generation of the fused kernel. loss: ``unfused`` goes through a float32 copy of the logits.
    biases: of queries, keys, values and the products up are added by the product (``fused``) or in a kernel behind it
    (``separate``). gradient_dtype: what gradients are accumulated and reduced in. accumulation: ``fused`` into the
    product of the gradient, or ``separate``: a pass over all gradients after each micro-batch. checkpoint: full
    recomputation runs a layer again as a ``whole``, or stops when all that the backward pass needs is there
    (``early-stop``). optimizer: a step recorded on a CPU, one operator for each tensor, runs on a GPU as ``foreach``
    operators or as one ``fused`` operator. sequence_gathers: with sequence parallelism, gathers and scatters of tokens,
    which are no leading dimension, are ``copied`` whole behind, or before. head_norms: with tensor parallelism, queries
    and keys are ``gathered`` forward behind the norms of heads, and rotated whole on each rank. kernels: launches of an
    operator of a family, forward and backward (1 where nothing is said). passes: how many times its own bytes an
    operator that is not fused moves, forward and backward (1 where nothing is said). Those of ``head_norm`` come on top
    of those of ``rotary``.
    """

    attention: Literal["flash", "unfused"] = "flash"
    attention_kernel: Literal["flash-1", "flash-2", "flash-3", "cudnn", "triton"] = "flash-2"
    loss: Literal["fused", "unfused"] = "fused"
    logits_dtype: Literal["float32", "model"] = "model"
    dropout: bool = False
    biases: Literal["fused", "separate"] = "fused"
    gradient_dtype: Literal["float32", "model"] = "model"
    accumulation: Literal["fused", "separate"] = "separate"
    checkpoint: Literal["whole", "early-stop"] = "whole"
    optimizer: Literal["foreach", "fused"] = "fused"
    sequence_gathers: Literal["plain", "copied"] = "plain"
    head_norms: Literal["sharded", "gathered"] = "sharded"
    kernels: dict[str, Pair] = Field(default_factory=dict)
    passes: dict[str, Pair] = Field(default_factory=dict)


class LaunchStyle(Spec):
    """The thread that launches.

    cpu_us_per_kernel: CPU time of one launch with all that Python and the dispatcher do for it. layer_us: more for each
    pass of a layer (hooks, wrappers, autograd nodes without kernels). communication_us: for each collective, its launch
    included; message_us: for each message of a pipeline, sent or received. crossing_us: more for each collective of a
    tensor-parallel group and each of its ranks, where messages of the pipeline leave the node. queue_limit: launches
    that the thread may be ahead of the GPU when a pass begins. synchronises: where it waits until the GPU has done all
    that was launched: with each message of a pipeline and the end of a step (``pass``), besides behind each
    forward pass (``forward``), behind each backward pass and step (``micro-batch``), behind each step, or never.
    """

    cpu_us_per_kernel: Microseconds = 0.0
    layer_us: Microseconds = 0.0
    communication_us: Microseconds = 0.0
    message_us: Microseconds = 0.0
    crossing_us: Microseconds = 0.0
    queue_limit: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    synchronises: Literal["none", "pass", "forward", "micro-batch", "step"] = "step"


class FixedCost(Spec):
    """What a step, or each of its micro-batches, costs besides its operators.

    cpu_us: time of the launching thread. kernels_per_weight: launches for each trained weight of the rank.
    gradient_passes, parameter_passes: times that all gradients, parameters of a rank are read or written. all_reduces:
    of one number, over ``axis`` (as in the rank grid; ``world``: all ranks; ``model``: those of one replica). whole: of
    a micro-batch, also where replicas keep only a part of the gradients.
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
    """How ZeRO 1 and 2 exchange.

    gradients: ``scatter``: each rank gets the sum of its part alone; ``all-reduce``: every rank that of all, also where
    it needs a part (ZeRO 1). parameters: each bucket's are gathered behind the optimizer (``gather``), or each rank
    broadcasts those that it updates, one rank after the other (``broadcast``): whole weights, each given to the rank
    with the fewest bytes so far, the largest first. bucket_bytes: cap of a bucket of gradients, where the plan has that
    of DDP.
    """

    gradients: Literal["scatter", "all-reduce"] = "scatter"
    parameters: Literal["gather", "broadcast"] = "gather"
    bucket_bytes: Annotated[int, Field(ge=1, le=2**40)] | None = None


class SelectiveStyle(Spec):
    """What selective recomputation by operators keeps of a block (``MemoryStyle.selective`` not ``attention``).

    products: the first, third, ... of those of queries, keys, values, output, gate, up, down; or all. grouped: products
    of experts. exchanged: tokens that expert parallelism has sent.
    """

    attention: Literal["kept", "recomputed"] = "kept"
    products: Literal["every-second", "kept", "recomputed"] = "every-second"
    grouped: Literal["kept", "recomputed"] = "recomputed"
    router: Literal["kept", "recomputed"] = "recomputed"
    exchanged: Literal["kept", "recomputed"] = "kept"


class ShardStyle(Spec):
    """How FSDP and ZeRO 3 keep, gather and reduce the parameters that replicas share out.

    weights: ``copy``: a shard in half precision beside the optimizer's float32 one; ``master``: the latter alone, cast
    when it is gathered (FSDP2). gathers: ``in-place``, or a ``copy`` into the parameters, with a buffer that is freed
    at the next copy. scatters: ``in-place``, or a ``copy`` of a unit's gradients in the dtype of the reduction, freed
    at the next reduce-scatter. pools: gathered buffers and reduced gradients come from the cached blocks of all streams
    (``shared``), or of their own.
    """

    weights: Literal["copy", "master"] = "copy"
    gathers: Literal["in-place", "copy"] = "in-place"
    scatters: Literal["in-place", "copy"] = "in-place"
    pools: Literal["shared", "own"] = "shared"


class MemoryStyle(Spec):
    """What memory holds besides tensors, and what this software's autograd keeps.

    context_bytes: the CUDA context and loaded kernels, outside the allocator. communicator_bytes: buffers of NCCL, a
    communicator, outside it too. workspace_bytes: of libraries, in the allocator from the first operator on.
    rounding_bytes: blocks are multiples of it. fragmentation: part of the reserved memory beyond what the modelled
    allocator reserves. error: of the modelled memory against measured, at the 90th percentile. logits_bytes: bytes a
    logit that are alive when the loss's backward pass begins; copies of the logits beyond the first are then taken to
    be made in place. gradient_buffer: gradients are accumulated in a buffer for all of them that lasts.
    weight_gradients: what becomes of the gradient that the backward operator makes: kept until the ``step`` ends; added
    to the buffer and dropped when the ``backward`` pass of a micro-batch ends, or at once (``operator``); ``fused``
    into the product, which leaves one dummy of each shape. buckets: whether DDP's buckets are beside the gradients:
    where no state is sharded, always, or never.
    parameter_gather: whether updated parts of ZeRO-1 and 2 are gathered ``in-place`` or through a ``copy``.
    keeps: by family of forward operators, how many times its output more is kept for its backward operator;
    ``key_values``: copies of keys and values where there are as many heads of them as of queries.
    selective: what selective recomputation keeps: all but the core of ``attention`` (Megatron-LM); or of each block the
    results that ``selective_keeps`` names (torchtitan), ``compiled`` only those that its backward pass reads.
    loss_chunks: parts of the tokens for which head and loss run, forward and backward, one after the other.
    states: whether the optimizer's moments are there ``before`` the first step, or made when it ends, in memory that
    activations had, so that those of the next step find other blocks.
    gathered_inputs: with sequence parallelism the whole input of a product is gathered ``again`` in the backward pass,
    which takes time, or ``kept``. fsdp: parameters that replicas share out.
    record_streams: a block that a tensor-parallel collective uses is free again when the collective has ended before
    the launching thread asks for memory, not when the thread frees it (PyTorch before April 2025). dispatcher:
    ``allgather`` gathers the tokens of the tensor-parallel ranks before it routes them to experts that are not spread,
    so that each rank keeps the routed input and output of its part of the experts for all tokens.
    """

    context_bytes: Bytes = 0
    workspace_bytes: Bytes = 0
    communicator_bytes: Bytes = 0
    rounding_bytes: Annotated[int, Field(ge=1, le=2**30)] = 512
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
    fsdp: ShardStyle = ShardStyle()
    record_streams: bool = False
    dispatcher: Literal["alltoall", "allgather"] = "alltoall"


class Factor(Spec):
    """A number that everything of one kind is multiplied by; 1 unless fitted."""

    value: Positive = 1.0
    fitted_on: str | None = None
    left_out_error: Annotated[float, Field(ge=0, le=10)] | None = None


class Factors(Spec):
    """gpu: times of compute operators. cpu: CPU time of launches. communication: time of collectives and messages;
    scale_up: besides, of those among GPUs of one domain (NVLink, xGMI, PCIe of a node), where kernels are what bounds.
    """

    gpu: Factor = Factor()
    cpu: Factor = Factor()
    communication: Factor = Factor()
    scale_up: Factor = Factor()


class Software(Spec):
    """A profile.

    stages: the rule by which a pipeline is cut where the plan does not say (:class:`trine.Plan`, ``balance``). plan:
    schedule, dp_overlap and overlap of a plan, as this software has them unless the user says. constraints: which
    layouts it runs. sources: field -> where its number comes from.
    """

    name: str
    description: str
    operators: OperatorStyle = OperatorStyle()
    launch: LaunchStyle = LaunchStyle()
    step: list[FixedCost] = Field(default_factory=list)
    stages: Literal["time", "layers", "blocks", "nanotron"] = "time"
    plan: dict[str, bool | int | str] = Field(default_factory=dict)
    constraints: LayoutConstraints = LayoutConstraints()
    zero: ZeroStyle = ZeroStyle()
    memory: MemoryStyle = MemoryStyle()
    factors: Factors = Factors()
    sources: dict[str, str] = Field(default_factory=dict)

    def plan_fields(self) -> dict[str, object]:
        """Fields of a plan that this software sets unless the user does."""
        return {"balance": self.stages, **self.plan}

    def fitted_factors(self) -> list[tuple[str, Factor]]:
        """Factors that are not 1, by name."""
        return [(name, getattr(self.factors, name)) for name in FACTORS if getattr(self.factors, name).value != 1]

    def communication_factors(self) -> tuple[float, float]:
        """On the time of collectives and messages between domains, and in one."""
        factors = self.factors
        return factors.communication.value, factors.communication.value * factors.scale_up.value

    def scaled(self, by: Mapping[str, float], fitted_on: str, left_out_error: float | None = None) -> Software:
        """The profile with the factors that ``by`` names multiplied; these are then fitted on what ``fitted_on`` says.

        Raises InputError for an unknown factor.
        """
        for name in by:
            if name not in FACTORS:
                raise InputError(f"unknown factor {name[:40]!r}{nearest(name[:80], FACTORS)}", field="factors")
        own = {}
        for name, value in by.items():
            scaled = getattr(self.factors, name).value * value
            try:
                own[name] = Factor(value=scaled, fitted_on=fitted_on, left_out_error=left_out_error)
            except ValueError as error:
                what = f"{name}.{getattr(error, 'path', '') or 'value'}"
                raise InputError(
                    f"the fit is beyond limits: {what} {error}: check the measured times", field="factors"
                ) from None
        return self.model_copy(update={"factors": self.factors.model_copy(update=own)})


_FOLDER = PRESETS / "software"
_SUFFIXES = (".yaml", ".yml", ".json")


@cache
def known_software() -> tuple[str, ...]:
    """Names of the profiles that come with trine, sorted."""
    return preset_names(_FOLDER)


def load_software(name_or_path: str | os.PathLike[str]) -> Software:
    """Return a profile by its name, or read a profile file (a path ends in .yaml, .yml or .json).

    Raises SpecError for an unknown name (names the nearest) and for a file with a fault (names file and field).
    """
    text = os.fspath(name_or_path)
    if text.endswith(_SUFFIXES):
        return _read(Path(text))
    if text == NO_SOFTWARE:
        raise SpecError(
            f"{NO_SOFTWARE!r} stands for no profile: name one of {', '.join(known_software())}", field="software"
        )
    text = as_known(text, known_software())
    if text not in known_software():
        hint = nearest(text.lower()[:80], (*known_software(), NO_SOFTWARE))
        raise SpecError(f"unknown software {text[:80]!r} (a file ends in .yaml){hint}", field="software")
    return _preset(text)


def software_file(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a profile that :func:`load_software` takes."""
    text = os.fspath(name_or_path)
    return Path(text) if text.endswith(_SUFFIXES) else _FOLDER / f"{text}.yaml"


@cache
def _preset(name: str) -> Software:
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> Software:
    profile = read_spec(path, Software)
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
    for name, factor in profile.fitted_factors():
        if factor.fitted_on is None:
            raise SpecError("a factor other than 1 must name the rows of its fit", file=path, field=f"factors.{name}")
    return profile


class UsualRule(Spec):
    """The profile of one kind of workload on the GPUs of one vendor."""

    workload: Literal["transformer", "other"]
    vendor: Literal["nvidia", "amd"]
    software: str
    reason: str
    source: str


class UsualSoftware(Spec):
    """rules: the first that fits counts. proposals: profiles to name in an error, in this order."""

    rules: list[UsualRule]
    proposals: list[str]

    def rule_for(self, workload: str, vendor: str) -> UsualRule:
        """Return the rule for a kind of workload and a vendor; of another vendor the first for the workload."""
        rules = [rule for rule in self.rules if rule.workload == workload]
        return next((rule for rule in rules if rule.vendor == vendor), rules[0])


@cache
def usual_software() -> UsualSoftware:
    """Return the rules that come with trine."""
    return read_spec(PRESETS / "usual_software.yaml", UsualSoftware)
