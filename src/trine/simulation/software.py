"""Which software profile a simulation has: what was asked for, the workload's profile, or the usual one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.errors import InputError
from trine.graph.workload import SYNTHESISED, Workload
from trine.software.profile import NO_SOFTWARE, Software, load_software, usual_software

if TYPE_CHECKING:
    from trine.compute import LaunchCosts
    from trine.simulation.options import SimulateOptions

#: As :data:`trine.workload.synthesis.model.PREFIX`, which imports what reads models.
_PREFIX = "model:"


@dataclass(frozen=True, slots=True)
class ChosenSoftware:
    """A profile (None: none) and who chose it, in words."""

    profile: Software | None
    reason: str

    @property
    def name(self) -> str:
        return NO_SOFTWARE if self.profile is None else self.profile.name


def is_model(workload: Workload | str | os.PathLike[str]) -> bool:
    """Whether it is the name of a model that is yet to be written."""
    return isinstance(workload, str) and workload.startswith(_PREFIX)


def as_software(asked: Software | str | os.PathLike[str]) -> Software | None:
    """A profile by its name or file; None for ``none``. Raises SpecError as :func:`trine.software.load_software`."""
    if isinstance(asked, Software):
        return asked
    return None if asked == NO_SOFTWARE else load_software(asked)


def usual_for(workload: Workload | str | os.PathLike[str], gpu: str | None) -> ChosenSoftware:
    """Return the profile for a workload and GPU for which nobody names one, whatever the layout."""
    rule = usual_software().rule_for("transformer" if _is_transformer(workload) else "other", _vendor(gpu))
    return ChosenSoftware(load_software(rule.software), rule.reason)


def _vendor(gpu: str | None) -> str:
    """Return the vendor of a GPU by its names; NVIDIA if they do not tell."""
    from trine.compute.origin import known_gpu

    spec = known_gpu(gpu)
    names = (gpu or "", *(() if spec is None else spec.aliases))
    return "amd" if any(name.lower().startswith(("amd", "mi")) for name in names) else "nvidia"


def software_of(
    asked: Software | str | os.PathLike[str] | None, workload: Workload | str | os.PathLike[str], gpu: str | None
) -> ChosenSoftware:
    """Return the profile that ``workload`` on ``gpu`` is simulated with.

    A named profile counts; then the one that a synthesised workload was written for; then the default. Raises
    InputError if the workload was written for another profile than the named one.
    """
    said = _said(workload)
    if asked is None:
        return usual_for(workload, gpu) if said is None else ChosenSoftware(said[0], "the workload's profile")
    chosen = ChosenSoftware(as_software(asked), "as requested")
    if said is not None and said[0] != chosen.profile:
        name = NO_SOFTWARE if said[0] is None else said[0].name
        raise InputError(f"the workload was written for {name!r}, so not for {chosen.name!r}", field="software")
    return chosen


def _is_transformer(workload: Workload | str | os.PathLike[str]) -> bool:
    """Whether it is a synthesised model that is no convolutional network."""
    if isinstance(workload, Workload):
        return workload.format == SYNTHESISED and "image" not in workload.metadata
    if not isinstance(workload, str) or not is_model(workload):
        return False
    from trine.workload.synthesis.spec import ConvNet, load_model

    spec = load_model(workload.removeprefix(_PREFIX).partition(",")[0])
    return not isinstance(spec, ConvNet)


def _said(workload: Workload | str | os.PathLike[str]) -> tuple[Software | None] | None:
    """The profile that a synthesised workload was written for (in a tuple: it may be none), if somebody said which."""
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
    """A synthesised workload with the operators of the profile; any other as it is."""
    recipe = workload.recipe
    if workload.format != SYNTHESISED or recipe is None or recipe.software == chosen.profile:
        return workload
    return recipe.again(workload, chosen.profile)


def launches_of(
    workload: Workload, chosen: ChosenSoftware, options: SimulateOptions, crosses: bool
) -> LaunchCosts | None:
    """Launches of a workload without recorded ones by its profile; None where that says nothing of the CPU.

    Such a workload is synthesised, or was recorded on a machine without a GPU. None too where the user says otherwise.

    crosses: messages of the pipeline leave the node.
    """
    from trine.compute.launch import software_launches

    profile = chosen.profile
    has_own = workload.format != SYNTHESISED and workload.has_gpu_times
    if profile is None or has_own or options.cpu is False or options.launch_cost_ps is not None:
        return None
    style = profile.launch
    if not (style.cpu_us_per_kernel or style.layer_us or style.communication_us or style.message_us):
        return None
    stragglers = options.stragglers
    may_shrink = stragglers is not None and (
        stragglers.jitter is not None or any(factor < 1 for _, factor in stragglers.slow)
    )
    return software_launches(workload, profile, merges=not may_shrink, crosses=crosses)
