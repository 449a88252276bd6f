"""Likely ranges of the inputs of a training step, each with its source (presets/sensitivity.yaml and other presets)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Annotated

from trine.cluster.presets import load_links
from trine.collectives.nccl.parameters import load_library
from trine.common.inputs import PRESETS
from trine.common.schema import Field, Spec

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.cluster.parts import Link
    from trine.common.evidence import Evidence

Factor = Annotated[float, Field(ge=0, le=100)]


class FactorRange(Spec):
    """Ends of an input as factors of its value, and their source."""

    low: Factor
    high: Factor
    source: str


class LaunchRange(FactorRange):
    """The range of a launch's CPU time for profiles with this time."""

    cpu_us: Factor


class RangesFile(Spec):
    """Contents of presets/sensitivity.yaml. operator_time: by evidence."""

    operator_time: dict[str, FactorRange]
    launch: list[LaunchRange]
    latency: FactorRange
    gpu_spread: FactorRange


@cache
def ranges() -> RangesFile:
    """Return the ranges of presets/sensitivity.yaml."""
    from trine.common.spec import read_spec

    return read_spec(PRESETS / "sensitivity.yaml", RangesFile)


def operator_time_range(evidence: Iterable[Evidence]) -> FactorRange:
    """Return the range of operator times: the geometric mean over the kinds of evidence, weighted by their shares."""
    known = ranges().operator_time
    shares = {row.kind: row.share or 0.0 for row in evidence if row.what == "operator time" and row.kind in known}
    total = sum(shares.values()) or 1.0
    ends = [prod(getattr(known[kind], end) ** (share / total) for kind, share in shares.items())
            for end in ("low", "high")]  # fmt: skip
    source = "; ".join(f"{share / total:.0%} {kind}: {known[kind].source}" for kind, share in shares.items())
    return FactorRange(low=ends[0], high=ends[1], source=source)


def launch_range(cpu_us: float) -> FactorRange:
    """Return the range of the CPU time of a launch, of the entry nearest to ``cpu_us``."""
    return min(ranges().launch, key=lambda entry: (abs(entry.cpu_us - cpu_us), entry.cpu_us))


def collective_range(machine: Cluster) -> FactorRange | None:
    """Return the range of the times of large collectives, from the library's measured band; None without a library."""
    if machine.library is None:
        return None
    bands = load_library(machine.library).bands
    name = "measured-net" if machine.has_fabric and "measured-net" in bands else "measured"
    _, low, high = bands[name][-1]
    source = f"80 % of measured collectives above 1 MiB ({machine.library}, {name})"
    return FactorRange(low=low, high=high, source=source)


def bandwidth_range(links: Iterable[Link], machine: Cluster, nodes: int) -> FactorRange:
    """Return the range of the bandwidth of links of one class.

    The upper end is the data sheet's bandwidth. The lower end comes from the slowest of 80 % of measured collectives,
    or from measurements of a shared fabric.
    """
    catalogue, first = load_links(), min(links, key=lambda link: (link.medium or "", link.bytes_per_s))
    kind = catalogue.get(first.medium or "")
    peak = first.peak_bytes_per_s or first.bytes_per_s
    band = collective_range(machine)
    low, why = (0.8, "assumed: a fifth less") if band is None else (1 / band.high, f"slowest of {band.source}")
    if kind is not None and kind.sharing is not None and nodes > kind.sharing.beyond_nodes:
        share_low, share_high = kind.sharing.all_reduce
        used = first.bytes_per_s / peak
        return FactorRange(low=share_low / used, high=max(share_high / used, 1.0), source=kind.sharing.source)
    return FactorRange(
        low=low, high=max(1.0, peak / first.bytes_per_s), source=f"{why}; data sheet of {first.medium or 'the link'}"
    )
