"""Fit a software profile to your own measured steps: ``trine calibrate --step MEASURED.yaml``.

The file lists measured steps. trine fits at most three factors of the profile so that the simulated step times match
the measured ones (:mod:`trine.training.factor_fit`). docs/guides/calibrate-a-step.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml

from trine.common.arguments import named_arguments
from trine.common.outputs import write_text
from trine.common.schema import Duration, Field, Spec
from trine.common.spec import read_spec
from trine.common.units import PS_PER_S, format_time
from trine.errors import InputError, SpecError, nearest
from trine.parallel.plan import Plan
from trine.software.profile import FACTORS, NO_SOFTWARE, USUAL_FACTORS, Software, load_software
from trine.training import simulate
from trine.training.factor_fit import FELT, MAX_FACTORS, FactorFit, fit_factors, mean_error
from trine.training.software import software_of

if TYPE_CHECKING:
    from trine.common.observer import Progress

#: Maximum number of measured steps in a file; each is simulated about twenty times.
MAX_STEPS = 64


class MeasuredStep(Spec):
    """A measured step: its workload, its layout (fields of :class:`trine.Plan`), and its time."""

    workload: str
    step_time: Duration
    plan: dict[str, bool | int | float | str] = Field(default_factory=dict)
    cluster: str | None = None


class MeasuredSteps(Spec):
    """The file. software: the profile to start from; factors: factors to fit, else chosen by their effect."""

    steps: Annotated[list[MeasuredStep], Field(min_length=1, max_length=MAX_STEPS)]
    software: str | None = None
    cluster: str | None = None
    gpu: str | None = None
    factors: Annotated[list[str], Field(min_length=1, max_length=MAX_FACTORS)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFit:
    """A fitted profile, and its errors. measured_s, before_s, after_s: seconds of each step."""

    software: Software
    fit: FactorFit
    names: tuple[str, ...]
    measured_s: tuple[float, ...]
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]

    def text(self) -> str:
        """Return the fitted factors and the times of each step."""
        lines = [f"{name}: factor {self.fit.factors[name]:.4g}" for name in FACTORS if name in self.fit.factors]
        lines.append("")
        lines.append(f"{'step':<44} {'measured':>12} {'before':>12} {'after':>12}")
        for name, *times in zip(self.names, self.measured_s, self.before_s, self.after_s, strict=True):
            cells = "".join(f" {format_time(round(seconds * PS_PER_S)):>12}" for seconds in times)
            lines.append(f"{name[:44]:<44}{cells}")
        lines.append("")
        lines.append(
            f"mean error {mean_error(self.fit.before):.1%} before, {mean_error(self.fit.after):.1%} after the fit; "
            + (
                "no step is left over to test it"
                if self.fit.left_out_error is None
                else f"{self.fit.left_out_error:.1%} on held-out steps"
            )
        )
        if self.is_doubtful:
            lines.append(
                "warning: factors fitted on the other steps predict a step no better than none do: look at the steps "
                "(layout, sequence, software), or measure more; bands of this profile are as wide as that error"
            )
        return "\n".join(lines)

    @property
    def is_doubtful(self) -> bool:
        """Whether the fit predicts held-out steps worse than the profile without factors does."""
        error = self.fit.left_out_error
        return error is not None and error > mean_error(self.fit.before)

    def to_json(self) -> dict[str, object]:
        """Return the fit as plain data; times in seconds."""
        return {
            "software": self.software.name,
            "factors": dict(self.fit.factors),
            "mean_error_before": mean_error(self.fit.before),
            "mean_error_after": mean_error(self.fit.after),
            "left_out_error": self.fit.left_out_error,
            "steps": [
                {"name": name, "measured_s": measured, "before_s": before, "after_s": after}
                for name, measured, before, after in zip(
                    self.names, self.measured_s, self.before_s, self.after_s, strict=True
                )
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file for ``--software FILE``."""
        write_text(path, yaml.safe_dump(self.software.model_dump(), sort_keys=False, width=120))


@named_arguments
def calibrate_step(
    measured: str | os.PathLike[str],
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> StepFit:
    """Fit at most three factors of a software profile on the steps of a file.

    name: of the fitted profile (None: the file's name). progress: called with the number of finished simulations, and
    their approximate total.

    Raises InputError, naming file and field, for unusable values and for factors that the steps do not determine.
    """
    path = Path(measured)
    file = read_spec(path, MeasuredSteps)
    _check_factors(file, path)
    steps = [_Step.of(step, file, path, number) for number, step in enumerate(file.steps)]
    base = _base_profile(file, steps)
    simulations = _Simulations(base, steps, progress)
    times = [step.measured_s for step in steps]
    fit = fit_factors(simulations.seconds, times, _select_factors(file, path, simulations, len(steps)))
    fitted_on = f"{len(steps)} measured step{'s' if len(steps) > 1 else ''} of {path.name}"
    labels = {"name": name or path.stem, "description": f"{base.description}; factors fitted on {fitted_on}"}
    unit_factors = dict.fromkeys(fit.factors, 1.0)
    names = tuple(step.name for step in steps)
    before_s = tuple(simulations.seconds(unit_factors, number) for number in range(len(steps)))
    after_s = tuple(simulations.seconds(fit.factors, number) for number in range(len(steps)))
    return StepFit(
        software=base.scaled(fit.factors, fitted_on, fit.left_out_error).model_copy(update=labels),
        fit=fit,
        names=names,
        measured_s=tuple(times),
        before_s=before_s,
        after_s=after_s,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    workload: str
    plan: Plan
    cluster: str | None
    gpu: str | None
    measured_s: float

    @staticmethod
    def of(step: MeasuredStep, file: MeasuredSteps, path: Path, number: int) -> _Step:
        entry = f"steps[{number}]"
        if step.step_time <= 0:
            raise SpecError("must be above 0", file=path, field=f"{entry}.step_time")
        names = [each.name for each in fields(Plan)]
        for key in step.plan:
            if key not in names:
                raise SpecError(f"unknown key {key[:40]!r}{nearest(key[:80], names)}", file=path, field=f"{entry}.plan")
        try:
            plan = Plan(**step.plan)  # type: ignore[arg-type]
        except InputError as error:
            raise SpecError(str(error), file=path, field=f"{entry}.plan") from None
        name = f"{step.workload} on {plan.num_ranks} GPU{'s' if plan.num_ranks > 1 else ''}"
        return _Step(
            name, _locate(path, step.workload), plan, step.cluster or file.cluster, file.gpu, step.step_time / PS_PER_S
        )


def _locate(path: Path, workload: str) -> str:
    """Return the path of a trace next to the file that names it, if it exists there."""
    candidate = path.parent / workload
    return str(candidate) if candidate.is_file() else workload


def _base_profile(file: MeasuredSteps, steps: list[_Step]) -> Software:
    if file.software is not None:
        return load_software(file.software)
    profiles = [software_of(None, step.workload, None).profile for step in steps]
    profile_names = set()
    for profile in profiles:
        profile_names.add(NO_SOFTWARE if profile is None else profile.name)
    names = sorted(profile_names)
    if len(names) > 1 or profiles[0] is None:
        raise InputError(f"the steps are of {' and '.join(names)} by default: name the one to fit", field="software")
    return profiles[0]


class _Simulations:
    """Simulated steps under a profile with other factors, each run once."""

    def __init__(self, base: Software, steps: list[_Step], progress: Progress | None) -> None:
        self._base, self._steps, self._progress = base, steps, progress
        self._cache: dict[tuple[tuple[tuple[str, float], ...], int], float] = {}

    def seconds(self, factors: Mapping[str, float], number: int) -> float:
        """Return the seconds of a step with its profile's factors multiplied by ``factors``."""
        key = tuple(sorted(factors.items())), number
        if key not in self._cache:
            self._cache[key] = self._run(factors, self._steps[number])
        return self._cache[key]

    def _run(self, factors: Mapping[str, float], step: _Step) -> float:
        if self._progress is not None:
            runs, count = len(self._cache), len(self._steps)
            self._progress(runs, max(runs + count, 8 * count * min(count, MAX_FACTORS + 1)), 0)
        target: dict[str, Any] = {} if step.gpu is None else {"gpu": step.gpu}
        software = self._base.scaled(factors, "a fit under way")
        result = simulate(step.workload, step.plan, cluster=step.cluster, software=software, compare=False, **target)
        return result.step_time_s


def _check_factors(file: MeasuredSteps, path: Path) -> None:
    for name in file.factors or ():
        if name not in FACTORS:
            hint = nearest(name[:80], FACTORS)
            raise SpecError(f"unknown factor {name[:40]!r}{hint}", file=path, field="factors")


def _select_factors(file: MeasuredSteps, path: Path, steps: _Simulations, num_steps: int) -> list[str]:
    """Return the file's factors; else the factors with most effect, one fewer than steps, but at least one."""
    if file.factors is not None:
        return file.factors
    effects = {}
    for name in USUAL_FACTORS:
        ratios = [steps.seconds({name: 1.05}, step) / steps.seconds({}, step) - 1 for step in range(num_steps)]
        effects[name] = max(map(abs, ratios)) / 0.05
    felt = [name for name in USUAL_FACTORS if effects[name] >= 2 * FELT]
    names = sorted(felt, key=lambda name: -effects[name])
    if not names:
        raise InputError("no measured step depends on any factor of the profile", file=path)
    return names[: max(1, min(MAX_FACTORS, num_steps - 1))]
