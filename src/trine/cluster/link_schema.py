"""What an entry of the link catalogue holds. Imports pydantic, so it is itself imported only when the file is read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trine.spec import Bandwidth, Duration, Spec

LinkClass = Literal["scale-up", "host", "scale-out"]


class LinkTypeSpec(Spec):
    """One kind of link; bandwidths are those of one lane and direction."""

    link_class: LinkClass = Field(alias="class")
    bandwidth: Bandwidth
    peak: Bandwidth
    latency: Duration
    hop: Duration | None = None
    request: Duration | None = None
    lanes: int = Field(ge=1)
    evidence: dict[Literal["bandwidth", "latency", "request"], Literal["measured", "modelled", "assumed"]]
    sources: dict[Literal["bandwidth", "peak", "latency", "request"], str]
