"""The software profile of a simulation: the requested one, the workload's own, or the default."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.common.kept import keep
from trine.errors import InputError
from trine.graph.workload import SYNTHESISED, Workload
from trine.software.profile import NO_SOFTWARE, Software, load_software, usual_software, with_choices
from trine.workload.load import is_model_name

if TYPE_CHECKING:
    from trine.compute import LaunchCosts
    from trine.training.options import SimulateOptions

#: Same as :data:`trine.workload.synthesis.model.PREFIX`, whose module imports the model readers.
_PREFIX = "model:"


@dataclass(frozen=True, slots=True)
class ChosenSoftware:
    """A profile (None: no profile) and the reason for it, in words."""

    profile: Software | None
    reason: str

    @property
    def name(self) -> str:
        return NO_SOFTWARE if self.profile is None else self.profile.name


def is_model(workload: Workload | str | os.PathLike[str]) -> bool:
    """Return whether ``workload`` is the name of a model still to be synthesised."""
    return is_model_name(workload)


def as_software(software: Software | str | os.PathLike[str]) -> Software | None:
    """Return a profile by name or file; None for ``none``. Raises SpecError as :func:`trine.software.load_software`."""
    if isinstance(software, Software):
        return software
    return None if software == NO_SOFTWARE else load_software(software)


def usual_for(workload: Workload | str | os.PathLike[str], gpu: str | None) -> ChosenSoftware:
    """Return the default profile for a workload and GPU, whatever the layout."""
    rule = usual_software().rule_for("transformer" if _is_transformer(workload) else "other", _vendor(gpu))
    return ChosenSoftware(load_software(rule.software), rule.reason)


def _vendor(gpu: str | None) -> str:
    """Return the vendor of a GPU from its names; NVIDIA if they do not show one."""
    from trine.compute.origin import known_gpu

    spec = known_gpu(gpu)
    names = (gpu or "", *(() if spec is None else spec.aliases))
    is_amd = any(name.lower().startswith(("amd", "mi")) for name in names)
    return "amd" if is_amd else "nvidia"


def software_of(
    software: Software | str | os.PathLike[str] | None,
    workload: Workload | str | os.PathLike[str],
    gpu: str | None,
    *,
    loss: str | None = None,
    gradient_dtype: str | None = None,
) -> ChosenSoftware:
    """Return the profile for simulating ``workload`` on ``gpu``, with another loss or dtype of gradients if requested.

    A named profile comes first, then the profile of a synthesised workload, then the default. Raises InputError if
    the workload was synthesised for another profile than the named one, or for a choice that the profile does not
    offer.
    """

    for field, value in (("loss", loss), ("gradient_dtype", gradient_dtype)):
        if value is not None and not _is_transformer(workload):
            name = workload.name if isinstance(workload, Workload) else workload
            raise InputError(
                f"{value[:40]!r} needs a transformer that trine writes, such as model:llama-3-8b; {name!s:.80} has "
                "its own operators",
                field=field,
            )

    def choose(profile: Software | None, reason: str) -> ChosenSoftware:
        return ChosenSoftware(_with_choices(profile, loss, gradient_dtype), reason)

    explicit = _explicit_profile(workload)
    if software is None:
        usual = usual_for(workload, gpu)
        return (
            choose(usual.profile, usual.reason) if explicit is None else choose(explicit[0], "the workload's profile")
        )
    chosen = choose(as_software(software), "as requested")
    if explicit is not None and choose(explicit[0], "").profile != chosen.profile:
        name = NO_SOFTWARE if explicit[0] is None else explicit[0].name
        raise InputError(f"the workload was written for {name!r}, so not for {chosen.name!r}", field="software")
    return chosen


def _with_choices(profile: Software | None, loss: str | None, gradient_dtype: str | None) -> Software | None:
    for name, value in (("loss", loss), ("gradient_dtype", gradient_dtype)):
        if value is not None and profile is None:
            raise InputError(f"{value[:40]!r} needs a software profile, not --software none", field=name)
    return None if profile is None else with_choices(profile, loss, gradient_dtype)


def check_choices(workload: Workload, options: SimulateOptions) -> None:
    """Raise InputError for a requested loss or dtype of gradients that cannot matter to the workload."""
    for name in ("loss", "gradient_dtype"):
        value = getattr(options, name)
        if value is None:
            continue
        if not workload.is_training:
            raise InputError(f"{value!r} is about training, and {workload.name!r} has no backward pass", field=name)
        dtype = workload.tensors[workload.parameters[0].weight].dtype if workload.parameters else "no"
        if name == "gradient_dtype" and dtype != "bfloat16":
            raise InputError(
                f"{value!r} needs bfloat16 weights; those of {workload.name!r} are {dtype}: leave it out", field=name
            )


def _is_transformer(workload: Workload | str | os.PathLike[str]) -> bool:
    """Return whether ``workload`` is a synthesised model other than a convolutional network."""
    if isinstance(workload, Workload):
        return workload.format == SYNTHESISED and "image" not in workload.metadata
    if not isinstance(workload, str) or not is_model(workload):
        return False
    from trine.workload.synthesis.model_files import load_model
    from trine.workload.synthesis.spec import ConvNet

    spec = load_model(workload.removeprefix(_PREFIX).partition(",")[0])
    return not isinstance(spec, ConvNet)


def _explicit_profile(workload: Workload | str | os.PathLike[str]) -> tuple[Software | None] | None:
    """Return the explicit profile of a synthesised workload in a tuple (it may be None), or None without one."""
    if isinstance(workload, str) and is_model(workload):
        options = dict(option.partition("=")[::2] for option in workload.split(",")[1:])
        return (as_software(options["software"]),) if "software" in options else None
    if not isinstance(workload, Workload) or workload.format != SYNTHESISED:
        return None
    if workload.recipe is not None:
        return (workload.recipe.software,) if workload.recipe.is_said else None
    name = workload.metadata.get("software", NO_SOFTWARE)
    try:
        return (as_software(name),)
    except InputError:
        return (None,)


def written_for(workload: Workload, chosen: ChosenSoftware) -> Workload:
    """Return a synthesised workload with the operators of the profile; return any other workload unchanged."""
    recipe = workload.recipe
    if workload.format != SYNTHESISED or recipe is None or recipe.software == chosen.profile:
        return workload
    return _written_again(workload, chosen.profile)


@keep
def _written_again(workload: Workload, profile: Software | None) -> Workload:
    assert workload.recipe is not None
    return workload.recipe.again(workload, profile)


def packed(workload: Workload, documents: str) -> Workload:
    """Return a synthesised transformer with packed documents. Raises InputError for any other workload."""
    _check_synthesised(
        workload, "documents", "packed documents need a synthesised model (model:NAME): a trace has the attention of "
        "its own documents",
    )  # fmt: skip
    return _packed_again(workload, documents)


def _check_synthesised(workload: Workload, field: str, message: str) -> None:
    """Raise InputError unless trine wrote the workload and can write it again."""
    if workload.recipe is None or workload.recipe.operators is not workload.operators:
        raise InputError(message, field=field)


def cast(workload: Workload, precision: str) -> Workload:
    """Return a synthesised transformer with the casts of a recipe. Raises InputError for any other workload."""
    if workload.metadata.get("recipe") == precision:
        return workload
    _check_synthesised(
        workload, "precision", "a precision needs a synthesised model (model:NAME): a trace has the precision it was "
        "recorded in",
    )  # fmt: skip
    return _cast_again(workload, precision)


@keep
def _cast_again(workload: Workload, precision: str) -> Workload:
    assert workload.recipe is not None
    return workload.recipe.cast(precision)


def tuned(workload: Workload, trainable: str) -> Workload:
    """Return a synthesised transformer that trains adapters alone. Raises InputError for any other workload."""
    if workload.metadata.get("trainable") == trainable:
        return workload
    _check_synthesised(
        workload, "trainable", "adapters need a synthesised model (model:NAME): a trace trains the weights that it "
        "trained when recorded",
    )  # fmt: skip
    return _tuned_again(workload, trainable)


@keep
def _tuned_again(workload: Workload, trainable: str) -> Workload:
    assert workload.recipe is not None
    return workload.recipe.tuned(trainable)


@keep
def _packed_again(workload: Workload, documents: str) -> Workload:
    assert workload.recipe is not None
    return workload.recipe.packed(documents)


def launches_of(
    workload: Workload,
    chosen: ChosenSoftware,
    options: SimulateOptions,
    crosses: bool,
    stages: int,
    interleaves: bool = False,
) -> LaunchCosts | None:
    """Return the profile's launches for a workload without recorded ones; None if the profile has no CPU costs.

    Such a workload is synthesised, or was recorded on a machine without a GPU. Returns None too if options override it.

    crosses: whether messages of the pipeline leave the node. stages: of the pipeline. interleaves: whether the
    pipeline has virtual stages.
    """
    profile = chosen.profile
    is_recorded = workload.format != SYNTHESISED and workload.has_gpu_times
    if profile is None or is_recorded or options.cpu is False or options.launch_cost_ps is not None:
        return None
    style = profile.launch
    if not (style.cpu_us_per_kernel or style.layer_us or style.communication_us or style.message_us):
        return None
    stragglers = options.stragglers
    may_shrink = stragglers is not None and (
        stragglers.jitter is not None or any(factor < 1 for _, factor in stragglers.slow)
    )
    if interleaves:
        profile = profile.model_copy(update={"launch": style.on_virtual_stages()})
    from trine.compute.launch import software_launches

    return software_launches(workload, profile, merges=not may_shrink, crosses=crosses, stages=stages)
