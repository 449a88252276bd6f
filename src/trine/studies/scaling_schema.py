"""The form of presets/scaling.yaml."""

from __future__ import annotations

from typing import Annotated

from trine.schema import Field, Spec

Positive = Annotated[float, Field(gt=0)]


class HorovodFile(Spec):
    """How Horovod reduces: every ``cycle_ms`` milliseconds what is ready, ``fusion_mib`` MiB at once."""

    cycle_ms: Positive
    fusion_mib: Annotated[int, Field(ge=1)]


class HostFile(Spec):
    """Milliseconds a step on the first machine in full precision; factors of machines and of mixed precision.

    rows: how many pairs it is fitted on. left_out_error: mean absolute error of pairs that a fit left out.
    """

    step_ms: Positive
    machines: dict[str, Positive]
    amp: Positive
    evidence: str
    rows: Annotated[int, Field(ge=0)]
    left_out_error: Annotated[float, Field(ge=0)]


class ScalingFile(Spec):
    """What more GPUs cost beside collectives."""

    horovod: HorovodFile
    host: HostFile
    sources: dict[str, str]
