"""Workloads synthesised from a model's published shapes, without a recorded trace. docs/guides/models.md."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import gcd, prod
from typing import TYPE_CHECKING

from trine.cluster import load_gpu
from trine.cluster.presets import GpuSpec
from trine.common.arguments import check_whole, takes
from trine.common.not_modelled import VALUES, not_modelled
from trine.common.precision import PRECISIONS
from trine.common.units import whole_number
from trine.compute.roofline import ROOFLINE, TABLES, Shares
from trine.compute.tables.machine import generation_of
from trine.errors import InputError, SpecError, nearest
from trine.graph.workload import EVEN_EXPERTS, SYNTHESISED, Operator, Workload
from trine.software.precision import CastRecipe, known_precisions, load_precision
from trine.software.profile import NO_SOFTWARE, OperatorStyle, Software, load_software
from trine.workload.synthesis.adapters import Adapters, parse_adapters
from trine.workload.synthesis.graph import Graph
from trine.workload.synthesis.model_files import check_transformer, load_model
from trine.workload.synthesis.padding import padding_words, with_padded_vocabulary
from trine.workload.synthesis.spec import Bert, ConvNet, Convolutional, EncoderDecoder, ModelSpec, Stacked, Transformer
from trine.workload.synthesis.times import FITTED, TIMES, with_roofline_times, with_table_times
from trine.workload.synthesis.transformer import transformer

if TYPE_CHECKING:
    from trine.compute import Calibration
    from trine.workload.architecture.model import Architecture, Tower
    from trine.workload.synthesis.documents import Documents


#: This prefix marks a model in place of a trace file: ``model:llama-3-8b,sequence=4096``.
PREFIX = "model:"
DEFAULT_GPU = "h100-sxm"
#: Default software profile of a model on one GPU; data-parallel replicas use it, too.
USUAL = "pytorch-eager"
DTYPES = {name: each.name for each in PRECISIONS if each.holds_weights for name in (each.word, each.name)}
_WEIGHT_WORDS = " or ".join(", ".join(each.word for each in PRECISIONS if each.holds_weights).rsplit(", ", 1))
#: dtypes of convolutional networks, and their precisions in :func:`trine.workload.synthesis.convnet.convnet`.
CONV_DTYPES = {
    "fp32": "float32", "float32": "float32", "tf32": "tfloat32", "tfloat32": "tfloat32", "amp": "amp",
}  # fmt: skip
#: Options that change how a model is built, and their values.
_CHOICES = {
    "tied": ("yes", "no"), "biases": ("none", "qkv", "all"), "positions": ("rotary", "learned"),
    "dropout": ("yes", "no"),
}  # fmt: skip
_WHOLE = ("sequence", "target", "batch", "layers", "image", "mtp")
# Upper limits, well beyond any GPU's memory: a larger value is probably a mistake.
_MAX = {"sequence": 2**24, "target": 2**24, "batch": 10**6, "layers": 10_000, "image": 4096, "mtp": 16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Synthesis:
    """Arguments of :func:`synthesize`; None selects the model's default."""

    gpu: str = DEFAULT_GPU
    sequence: int | None = None
    target: int | None = None
    batch: int | None = None
    dtype: str | None = None
    layers: int | None = None
    mtp: int | None = None
    image: int | None = None
    times: str | None = None
    shares: Mapping[str, float] | None = None
    software: Software | str | os.PathLike[str] | None = None
    tied: str | None = None
    biases: str | None = None
    positions: str | None = None
    dropout: str | None = None
    documents: Documents | str | None = None
    precision: str | None = None
    trainable: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.documents, str):  # read now, so that equal options describe equal documents
            from trine.workload.synthesis.documents import parse_documents

            object.__setattr__(self, "documents", parse_documents(self.documents))
        for name, values in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in values:
                raise InputError(f"must be one of {', '.join(values)}, got {str(value)[:40]!r}", field=name)
        for name in _WHOLE:
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, _MAX[name])
        dtypes = DTYPES | CONV_DTYPES
        if self.dtype is not None and self.dtype not in dtypes:
            reason = not_modelled(VALUES, str(self.dtype))
            hint = f"; {reason}" if reason else nearest(self.dtype, dtypes)
            if self.dtype in known_precisions():
                hint = f": weights stay in 16 bits; give precision={self.dtype}"
            raise InputError(f"unknown dtype {self.dtype!r}{hint}", field="dtype")
        if self.precision is not None:
            load_precision(self.precision)
        if self.trainable is not None and parse_adapters(self.trainable).is_four_bits and self.precision is not None:
            text = f"/nf4 stores frozen weights in four bits, and {self.precision} casts them from 16 bits: give one"
            raise InputError(text, field="trainable")


@takes(Synthesis)
def synthesize(
    model: ModelSpec | str | os.PathLike[str], *, calibration: Calibration | None = None, options: Synthesis
) -> Workload:
    """Write one training step of a model on one GPU from its shapes, in the form of a loaded trace.

    model: the name of a bundled model (``trine trace models`` lists them), a model file, or the result of
        :func:`load_model`.
    gpu: the GPU that times are predicted for; any name that :func:`trine.load_gpu` knows.
    sequence: tokens per sample; default: the model's sequence length. Transformers only.
    target: tokens per sample that the decoder of an encoder-decoder reads; default: the model's fraction of
        ``sequence``.
    batch: samples per step; default: 1 for a transformer, 128 images for a convolutional network.
    dtype: for transformers ``bf16`` (default), ``fp16`` or ``fp32``. For convolutional networks ``fp32`` (no TF32),
        ``tf32`` (convolutions and matrix products) or ``amp`` (float16 with float32 weights and a scaled loss);
        default: float32 with convolutions in TF32, as in PyTorch.
    layers: number of transformer layers to keep (in each stack of an encoder-decoder): a smaller model with the same
        shapes.
    mtp: number of the model's layers for multi-token prediction to train; default: none. They lie behind the head.
    image: side of an image in pixels; default: 224. Convolutional networks only.
    times: ``tables`` (public measurements of operators; the default for transformers and for convolutional networks
        with a dtype), ``roofline`` (the data sheet; the default with ``shares``) or ``fitted`` (laws fitted on recorded
        traces; the default for convolutional networks without a dtype).
    shares: fractions of the data sheet's peaks for the roofline, see :class:`trine.compute.Shares`.
    calibration: traces for the fit of ``fitted`` times; default: the bundled traces.
    software: profile of the training software that writes the operators (:func:`trine.software.load_software`), or
        ``none``. Default: the single-GPU profile; :func:`trine.simulate` uses the layout's profile.
    tied: ``yes`` or ``no``: whether embedding and head share one table; default: as in the model.
    biases: biases of a transformer's linear layers, ``none``, ``qkv`` or ``all`` (norms too); default: as in the model.
    positions: ``rotary`` or ``learned`` (a table with a row for each token); default: as in the model.
    dropout: ``yes`` or ``no``; default: as in the software profile.
    documents: lengths of documents packed into each sample, ``LENGTH``, ``uniform:A:B`` or a file with one length per
        line; attention then sees only its own document (:mod:`trine.workload.synthesis.documents`). Default: one
        document per sample.
    precision: recipe that casts the products of layers, such as ``fp8`` (presets/precisions.yaml); default: none.
    trainable: weights to train, ``lora:RANK[:qkv+out+up+down][/nf4]``: adapters beside frozen weights, which /nf4
        stores in four bits (:mod:`trine.workload.synthesis.adapters`); default: all weights.

    Times are predictions; ``Workload.assumptions`` lists their basis. Raises InputError with the field's name for an
    unknown model, GPU or value, and for an option that does not apply to the model.
    """
    asked = replace(options, shares=dict(options.shares or {}), software=None)
    profile = usual_profile() if options.software is None else profile_of(options.software)
    spec = load_model(model) if isinstance(model, str | os.PathLike) else model
    return ModelRecipe(spec, asked, calibration, profile, options.software is not None).write()


def from_text(text: str, gpu: str | None = None, software: Software | str | None = None) -> Workload:
    """Return the workload of ``model:NAME[,option=value...]``, with options of :func:`synthesize`.

    gpu, software: defaults for a text without them (software None: the single-GPU profile). Raises InputError like
    :func:`synthesize`, and for unknown options.
    """
    name, *parts = text.removeprefix(PREFIX).split(",")
    names = [f.name for f in fields(Synthesis) if f.name != "shares"]
    values: dict[str, object] = {} if gpu is None else {"gpu": gpu}
    keys: set[str] = set()
    for option in parts:
        key, equals, value = option.partition("=")
        if key not in names or not equals or not value or key in keys:
            hint = nearest(key[:40], names) if key not in names else ": give option=value, each once"
            raise InputError(f"cannot use {option[:80]!r} of {text[:80]!r}{hint}")
        keys.add(key)
        values[key] = _parse_count(key, value) if key in _WHOLE else value
    options = Synthesis(**values)  # type: ignore[arg-type]
    style = options.software or software
    profile = usual_profile() if style is None else profile_of(style)
    recipe = ModelRecipe(load_model(name), options, None, profile, options.software is not None, "gpu" in values)
    packed = pickle.dumps(recipe)
    workload = _WRITTEN.pop(packed, None) or recipe.write()
    _WRITTEN[packed] = workload  # the latest ones stay, with all that is kept about them
    if len(_WRITTEN) > MAX_WRITTEN:
        del _WRITTEN[next(iter(_WRITTEN))]
    return workload


def profile_of(software: Software | str | os.PathLike[str]) -> Software | None:
    """Return a profile by name or file; None for ``none``. Raises SpecError for unknown names and invalid files."""
    if isinstance(software, Software):
        return software
    return None if software == NO_SOFTWARE else load_software(software)


def usual_profile() -> Software | None:
    """Return the default profile of a single GPU."""
    return load_software(USUAL)


#: The latest workloads of :func:`from_text`, by pickled recipe: a sweep asks for the same few again and again.
_WRITTEN: dict[bytes, Workload] = {}
MAX_WRITTEN = 4


@dataclass(frozen=True)
class ModelRecipe:
    """Model, synthesis options and software profile from which a workload is written.

    is_said: whether the user chose the software; has_gpu: whether the user chose the GPU.
    """

    spec: ModelSpec
    asked: Synthesis
    calibration: Calibration | None
    software: Software | None
    is_said: bool
    has_gpu: bool = True
    operators: tuple[Operator, ...] = ()

    def write(self) -> Workload:
        """Return the workload, with this recipe attached."""
        if self.asked.precision is not None:
            check_precision(self.asked.precision, load_gpu(self.asked.gpu))
        workload = _timed(*_untimed(self.spec, self.asked, self.software), self.asked, self.calibration)
        name = NO_SOFTWARE if self.software is None else self.software.name
        gpu_note = f"assumed GPU {self.asked.gpu}: set another with --gpu, gpu= or the cluster"
        return replace(
            workload,
            assumptions=(*(() if self.has_gpu else (gpu_note,)), *workload.assumptions),
            metadata={**workload.metadata, "software": name},
            recipe=replace(self, operators=workload.operators),
        )

    def on(self, workload: Workload, gpu: str) -> Workload | None:
        """Return ``workload`` with its times on another GPU; None if this recipe did not write its operators."""
        if workload.operators is not self.operators:
            return None
        return replace(self, asked=replace(self.asked, gpu=gpu), has_gpu=True).write()

    def packed(self, documents: str) -> Workload:
        """Write the model with packed documents. Raises InputError if the model's options name some too."""
        if self.asked.documents is not None:
            raise InputError("the model's name has documents already: give them once", field="documents")
        return replace(self, asked=replace(self.asked, documents=documents)).write()

    def cast(self, precision: str) -> Workload:
        """Write the model with a recipe's casts. Raises InputError if the model's options name another recipe."""
        if self.asked.precision not in (None, precision):
            raise InputError(f"the model's name says {self.asked.precision}: give one precision", field="precision")
        return replace(self, asked=replace(self.asked, precision=precision)).write()

    def tuned(self, trainable: str) -> Workload:
        """Write the model with adapters. Raises InputError if the model's options name other ones."""
        if self.asked.trainable not in (None, trainable):
            raise InputError(f"the model's name says {self.asked.trainable}: give it once", field="trainable")
        return replace(self, asked=replace(self.asked, trainable=trainable)).write()

    def again(self, workload: Workload, software: Software | None) -> Workload:
        """Write the model for other software; return ``workload`` if this recipe did not write its operators."""
        return workload if workload.operators is not self.operators else replace(self, software=software).write()


def _parse_count(key: str, value: str) -> int:
    number = whole_number(value, most=10**12)
    if number is None:
        raise InputError(f"must be a whole number, got {value[:40]!r}", field=key)
    return number


def written(spec: ModelSpec, options: Synthesis | None = None, software: Software | None = None) -> Workload:
    """Return a model's operators under ``software`` without times, for callers that need only shapes."""
    return _untimed(spec, options or Synthesis(), software)[1]


def _untimed(spec: ModelSpec, options: Synthesis, software: Software | None) -> tuple[ModelSpec, Workload]:
    """Return the model variant and its operators, without times."""
    spec, software = _variant(spec, options), _with_dropout(options, software)
    if isinstance(spec, ConvNet):
        return spec, _convnet_workload(spec, options, software)
    padded = with_padded_vocabulary(spec, software)
    if isinstance(padded, Stacked):
        workload = _transformer_workload(padded, options, software)
    else:
        workload = _layered_workload(padded, options, software)
    return spec, replace(workload, assumptions=(*workload.assumptions, *padding_words(spec, software)))


def _variant(spec: ModelSpec, asked: Synthesis) -> ModelSpec:
    """Return the model with the requested embeddings, biases and positions."""
    names = [name for name in ("tied", "biases", "positions") if getattr(asked, name) is not None]
    if not names:
        return spec
    if not isinstance(spec, Transformer):
        raise InputError(f"{spec.name} is no decoder-only transformer: it has no use for {names[0]}", field=names[0])
    rows = spec.max_positions or max(asked.sequence or spec.sequence, spec.sequence)
    tied = spec.tied_embeddings if asked.tied is None else asked.tied == "yes"
    if asked.positions is None:
        positions = spec.max_positions
    elif asked.positions == "learned":
        positions = rows
    else:
        positions = None
    variant = replace(
        spec,
        tied_embeddings=tied,
        biases=asked.biases or spec.biases,  # type: ignore[arg-type]
        max_positions=positions,
        alibi=spec.alibi and asked.positions is None,
        parameters=None,
    )
    check_transformer(variant, variant.file)
    return variant


def _with_dropout(options: Synthesis, software: Software | None) -> Software | None:
    """Return the profile with the requested dropout."""
    if options.dropout is None:
        return software
    if software is None:
        raise InputError("dropout needs a software profile: the fused operators have no dropout", field="dropout")
    operators = software.operators.model_copy(update={"dropout": options.dropout == "yes"})
    return software.model_copy(update={"operators": operators})


def _transformer_workload(
    spec: Transformer | Bert | EncoderDecoder, options: Synthesis, software: Software | None
) -> Workload:
    is_two_stacks = isinstance(spec, EncoderDecoder)
    _refuse(spec, options, ("image", "documents") if is_two_stacks else ("image", "target"))
    if options.mtp is not None:
        raise InputError(f"{spec.name} has no layers for multi-token prediction", field="mtp")
    for name in ("precision", "trainable"):
        if getattr(options, name) is not None and not isinstance(spec, Transformer):
            raise InputError(f"{spec.name} is no decoder-only transformer: it takes no {name}", field=name)
    if options.dtype is not None and options.dtype not in DTYPES:
        raise InputError(f"{spec.name} is a transformer: its dtype is {_WEIGHT_WORDS}", field="dtype")
    sequence, layers, positions = options.sequence or spec.sequence, options.layers or spec.layers, None
    if not isinstance(spec, EncoderDecoder):
        positions = spec.max_positions
    if positions is not None and sequence > positions:
        raise InputError(f"{spec.name} has learned positions for {positions} tokens; got {sequence}", field="sequence")
    if layers > spec.layers:
        raise InputError(f"{spec.name} has {spec.layers} layers; got {layers}", field="layers")
    dtype, batch = DTYPES[options.dtype or "bf16"], options.batch or 1
    facts = {"sequence": str(sequence), "layers": str(layers), "hidden": str(spec.hidden), "dtype": dtype}
    if isinstance(spec, EncoderDecoder):
        target = options.target or -(-spec.target * sequence // spec.sequence)
        lengths = sequence, target
        from trine.workload.synthesis.encoder import encoder_decoder

        graph = encoder_decoder(
            spec, batch=batch, lengths=lengths, layers=options.layers, dtype=dtype, software=software
        )
        facts |= {"target": str(target), "tokens": str(gcd(sequence, target))}
    elif isinstance(spec, Bert):
        from trine.workload.synthesis.encoder import bert

        graph = bert(spec, batch=batch, sequence=sequence, layers=layers, dtype=dtype, software=software)
    else:
        graph = transformer(
            spec, batch=batch, sequence=sequence, layers=layers, dtype=dtype, software=software,
            precision=_recipe_of(options, dtype), adapters=_adapters_of(options),
        )  # fmt: skip
        if spec.experts is not None:
            facts |= {"num_experts": str(spec.experts.count), "top_k": str(spec.experts.top_k)}
    facts |= _precision_facts(options)
    assumptions = (*_transformer_assumptions(spec, layers, dtype, software), *_precision_words(options, software))
    workload = _workload(spec, graph, batch, facts, assumptions)
    return _packed(workload, options, sequence)


def _recipe_of(options: Synthesis, dtype: str) -> CastRecipe | None:
    """Return the recipe that casts products. Raises InputError if the model's dtype cannot be cast."""
    if options.precision is None:
        return None
    if dtype == "float32":
        raise InputError("float32 products are not cast: give dtype=bf16 or fp16", field="precision")
    return load_precision(options.precision)


def _adapters_of(options: Synthesis) -> Adapters | None:
    return None if options.trainable is None else parse_adapters(options.trainable)


def check_precision(name: str, gpu: GpuSpec) -> None:
    """Raise InputError for a recipe that the tensor cores of a GPU do not run."""
    generation = generation_of(gpu.name)
    if generation in load_precision(name).generations:
        return
    known = ", ".join(each for each, recipe in known_precisions().items() if generation in recipe.generations)
    hint = f"it runs {known}" if known else "it runs none of the recipes, so leave precision out"
    raise InputError(f"{gpu.name} does not run {name}: {hint}", field="precision")


def _precision_facts(options: Synthesis) -> dict[str, str]:
    facts = {} if options.precision is None else {"recipe": options.precision}
    return facts if options.trainable is None else {**facts, "trainable": options.trainable}


def _uncast_modules(precision: str, software: Software | None) -> str:
    """Return the modules that a recipe leaves in 16 bits with a profile, in words."""
    style = OperatorStyle() if software is None else software.operators
    modules = ["head"] if precision not in style.head_casts else []
    modules += ["router", "embedding", "norms"]
    modules += ["attention"] if precision not in style.attention_casts else []
    return f"{', '.join(modules[:-1])} and {modules[-1]}"


def _precision_words(options: Synthesis, software: Software | None) -> tuple[str, ...]:
    """Return the assumptions that a recipe and adapters make."""
    words: tuple[str, ...] = ()
    if options.trainable is not None:
        adapters = parse_adapters(options.trainable)
        base = "in 16 bits"
        if adapters.is_four_bits:
            base = "matrices of layers in four bits (NF4), expanded before each product, and the others in 16 bits"
        targets = ", ".join(adapters.targets)
        words = (
            f"adapters of rank {adapters.rank} beside {targets} are trained; all other weights are frozen, {base}",
        )
    if options.precision is None:
        return words
    recipe = load_precision(options.precision)
    weights = "of the weights once per step" if options.trainable is None else "no cast of the frozen weights in a step"
    return (
        *words,
        f"{recipe.title}: the products of layers run in {recipe.products}, with a cast of each input and gradient, and "
        f"{weights}; {_uncast_modules(options.precision, software)} stay in 16 bits; messages and "
        "optimizer as without it",
    )


def _packed(workload: Workload, options: Synthesis, sequence: int) -> Workload:
    """Return the workload with the lengths of the documents that its sequences are packed from, if any."""
    if options.documents is None or isinstance(options.documents, str):
        return workload
    from trine.workload.synthesis.documents import pack_documents

    return pack_documents(workload, options.documents, sequence)


def _tower_words(name: str, tower: Tower) -> str:
    """Return the name of a tower that a step leaves out, with its number of parameters."""
    return f"its {name} tower ({sum(weight.size for weight in tower.weights()) / 1e9:.2f}B parameters)"


def _layers_ahead(count: int) -> str:
    return f"{count} {'layer' if count == 1 else 'layers'} for multi-token prediction"


def _layered_workload(model: Architecture, options: Synthesis, software: Software | None) -> Workload:
    """Return the operators of a model described as layers over blocks."""
    _refuse(model, options, ("image", "target"))
    if not model.head or not model.vocab:
        raise InputError(f"{model.name} has no head for tokens: trine support counts it, but has no step of it")
    if options.dtype is not None and options.dtype not in DTYPES:
        raise InputError(f"{model.name} is a transformer: its dtype is {_WEIGHT_WORDS}", field="dtype")
    sequence, layers = options.sequence or model.sequence, options.layers or len(model.layers)
    if model.positions and sequence > model.positions:
        raise InputError(
            f"{model.name} has learned positions for {model.positions} tokens; got {sequence}", field="sequence"
        )
    if layers > len(model.layers):
        raise InputError(f"{model.name} has {len(model.layers)} layers; got {layers}", field="layers")
    predicted = options.mtp or 0
    if predicted > len(model.predicted):
        has = f"{model.name} has {_layers_ahead(len(model.predicted))}"
        raise InputError(f"{has}; got {predicted}", field="mtp")
    dtype, batch = DTYPES[options.dtype or "bf16"], options.batch or 1
    from trine.workload.architecture.blocks import KimiDelta, LinearAttention, Mamba, Mamba2, Mixture
    from trine.workload.synthesis.layered import layered

    graph = layered(
        model, batch=batch, sequence=sequence, layers=layers, dtype=dtype, software=software,
        precision=_recipe_of(options, dtype), adapters=_adapters_of(options), predicted=predicted,
    )  # fmt: skip
    facts = {"sequence": str(sequence), "layers": str(layers), "hidden": str(model.hidden), "dtype": dtype}
    facts |= _precision_facts(options)
    experts = next((layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, Mixture)), None)
    if experts is not None:
        facts |= {"num_experts": str(experts.experts), "top_k": str(experts.top_k)}
    assumptions = [*_usual_assumptions(dtype, software), *_precision_words(options, software)]
    if experts is not None:
        assumptions.append(EVEN_EXPERTS)
    if layers < len(model.layers):
        assumptions.append(f"{layers} of the model's {len(model.layers)} layers")
    left_out = [_tower_words(name, tower) for name, tower in model.towers.items()]
    if predicted:
        facts["mtp"] = str(predicted)
        assumptions.append(f"with {_layers_ahead(predicted)}, behind the head")
    if count := len(model.predicted) - predicted:
        left_out.append(_layers_ahead(count))
    reads_earlier = any(layer.reads_earlier for layer in model.layers)
    left_out += ["attention over earlier layers"] if reads_earlier else []
    if left_out:
        assumptions.append(f"without {', '.join(left_out)}")
    if any(isinstance(mixer, LinearAttention | KimiDelta | Mamba2 | Mamba) for mixer in model.mixers()):
        assumptions.append("chunked scans take the time of their memory traffic, four passes over inputs and outputs")
    workload = _workload(model, graph, batch, facts, tuple(assumptions))
    return _packed(workload, options, sequence)


_LOSSES = {
    "fused": "in one operator", "unfused": "on a float32 copy of the logits",
    "native": "compiled, on a float32 copy of the logits", "te": "in place (Transformer Engine)",
}  # fmt: skip
_MASTERS = {"float32": "a float32 copy of the weights", "remainder": "16 more bits of each weight"}


def _transformer_assumptions(
    spec: Transformer | Bert | EncoderDecoder, layers: int, dtype: str, software: Software | None
) -> tuple[str, ...]:
    assumptions = _usual_assumptions(dtype, software)
    if isinstance(spec, Bert):
        assumptions.append("logits are computed for all tokens, not for the masked ones alone")
    if isinstance(spec, EncoderDecoder):
        assumptions.append("the bias by relative position is computed once, and all layers of a stack read it")
    if isinstance(spec, Transformer) and spec.experts is not None:
        assumptions.append(EVEN_EXPERTS)
    if layers < spec.layers:
        assumptions.append(f"{layers} of the model's {spec.layers} layers")
    return tuple(assumptions)


def _usual_assumptions(dtype: str, software: Software | None) -> list[str]:
    """Return the sentences on the form of the operators and on precision."""
    writes = OperatorStyle() if software is None else software.operators
    attention = "FlashAttention" if writes.attention == "flash" else "attention with its scores in memory"
    loss = _LOSSES[writes.loss]
    source = "a fused implementation" if software is None else software.name
    dropout = "dropout" if writes.dropout else "no dropout"
    text = f"operators of {source}: {attention}, gate and up projection in one GEMM, cross entropy {loss}; {dropout}"
    assumptions = [text]
    if dtype != "float32":
        accumulated_dtype = dtype if writes.gradient_dtype == "model" else "float32"
        assumptions.append(
            f"weights and activations are {dtype}; operators compute gradients in {dtype}, which are accumulated and "
            f"reduced in {accumulated_dtype}; Adam keeps {_MASTERS[writes.master]} and two float32 moments"
        )
    return assumptions


def _convnet_workload(spec: Convolutional, options: Synthesis, software: Software | None) -> Workload:
    _refuse(spec, options, ("sequence", "target", "layers", "mtp", "dropout", "documents", "precision", "trainable"))
    if options.dtype is not None and options.dtype not in CONV_DTYPES:
        raise InputError("convolutional networks are synthesised in fp32, tf32 or amp", field="dtype")
    if options.image is not None:
        spec = replace(spec, image=options.image)
    if spec.image < 32:
        raise InputError(f"images must have at least 32 pixels a side, got {spec.image}", field="image")
    batch, precision = options.batch or 128, CONV_DTYPES.get(options.dtype or "", "")
    from trine.workload.synthesis.convnet import convnet

    graph = convnet(spec, batch=batch, precision=precision, software=software)
    facts = {"image": str(spec.image), "dtype": graph.dtype}
    if precision:
        facts["precision"] = precision
    text = "operators are those that TrioSim's tracer records of torchvision's model with torch.optim.Adam, "
    return _workload(spec, graph, batch, facts, (text + _PRECISION_TEXT[precision],))


_PRECISION_TEXT = {
    "": "in float32",
    "float32": "in float32, without TF32",
    "tfloat32": "in float32, with convolutions and products in TF32",
    "amp": "with PyTorch's autocast: activations in float16, weights, statistics, gradients and moments in float32",
}


def _refuse(spec: ModelSpec, options: Synthesis, names: Sequence[str]) -> None:
    for name in names:
        if getattr(options, name) is not None:
            kind = "a convolutional network" if isinstance(spec, ConvNet) else "a transformer"
            kind += " of two stacks" if isinstance(spec, EncoderDecoder) else ""
            raise InputError(f"{spec.name} is {kind}: it has no use for {name}", field=name)


def _workload(
    spec: ModelSpec, graph: Graph, batch: int, facts: Mapping[str, str], assumptions: tuple[str, ...]
) -> Workload:
    if graph.adapters is not None:
        graph.adapters.check(graph.targets)
    count = sum(prod(weight.shape) for weight in graph.weights.values())
    has_all_layers = isinstance(spec, ConvNet)
    if isinstance(spec, Stacked):
        has_all_layers = facts["layers"] == str(spec.layers)  # others: checked when the file was read
    if spec.parameters is not None and has_all_layers and not graph.frozen and count != spec.parameters:
        raise SpecError(f"says {spec.parameters:,}, but the shapes make {count:,}", file=spec.file, field="parameters")
    return Workload(
        name=spec.name, source=f"{PREFIX}{spec.name}", format=SYNTHESISED, gpu=None, batch=batch,
        operators=tuple(graph.operators), tensors=graph.tensors, parameters=graph.parameters(),
        assumptions=assumptions, metadata={"model": spec.name, "parameters": str(count), **facts},
    )  # fmt: skip


def _timed(spec: ModelSpec, workload: Workload, options: Synthesis, calibration: Calibration | None) -> Workload:

    is_conv, precision = isinstance(spec, ConvNet), workload.metadata.get("precision", "")
    usual = ROOFLINE if options.shares else TABLES
    times = options.times or (FITTED if is_conv and not precision else usual)
    if times not in TIMES:
        raise InputError(f"unknown times {times!r}{nearest(times, TIMES)}", field="times")
    if times == FITTED:
        if options.shares:
            raise InputError("fitted times use no shares of a data sheet: times=roofline does", field="shares")
        if options.documents is not None:
            raise InputError("fitted times know no packed documents: times=tables does", field="documents")
        if precision not in ("", "tfloat32"):
            text = "recorded operators are of float32 with convolutions in TF32: times=roofline has other precisions"
            raise InputError(text, field="times")
        if not is_conv and calibration is None:
            text = "the bundled traces have no operators of transformers to fit on"
            raise InputError(f"{text}: give a calibration, or times=roofline", field="times")
        from trine.workload.synthesis.fitted_times import with_fitted_times

        return with_fitted_times(workload, load_gpu(options.gpu), calibration)
    if calibration is not None:
        raise InputError(f"{times} times use no calibration: times=fitted does", field="calibration")
    if times == TABLES:
        if options.shares:
            raise InputError("tables use no shares of a data sheet: times=roofline does", field="shares")
        return with_table_times(workload, load_gpu(options.gpu))
    return with_roofline_times(workload, load_gpu(options.gpu), Shares.of(options.shares or {}))
