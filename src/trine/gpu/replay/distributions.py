"""Random arrival times of flags: the same seed gives the same picoseconds on every machine.

Draws come from the raw bits of PCG64, whose stream numpy guarantees (NEP 19), and become times here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trine.common.arrays import Float64, Int32, Int64
from trine.common.units import format_time, parse_time
from trine.errors import InputError, UnitError, nearest
from trine.gpu.replay.writes import WriteTable

#: Parameters of each kind, in text order.
KINDS = {
    "constant": ("time",),
    "uniform": ("least", "most"),
    "normal": ("mean", "deviation"),
    "exponential": ("mean",),
    "lognormal": ("median", "sigma"),
}
_CALL = re.compile(r"\s*([a-z]+)\s*\(([^()]{0,200})\)\s*")
_MAX_PS = 10**18


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """A distribution of times, ps. ``constant``: first. ``uniform``: from first to second. ``normal``: mean first,
    standard deviation second, redrawn while negative. ``exponential``: mean first. ``lognormal``: median first, and
    ``sigma`` of the logarithm.
    """

    kind: str
    first_ps: int
    second_ps: int = 0
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown distribution {self.kind!r}{nearest(self.kind, KINDS)}", field="distribution")
        if not 0 <= self.first_ps <= _MAX_PS or not 0 <= self.second_ps <= _MAX_PS or not 0 <= self.sigma <= 10:
            raise InputError("its times must be from 0 to 10^18 ps, its sigma from 0 to 10", field="distribution")
        if self.kind == "uniform" and self.second_ps < self.first_ps:
            raise InputError(
                f"uniform from {format_time(self.first_ps)} to {format_time(self.second_ps)}: the first must not be "
                "the larger",
                field="distribution",
            )


def parse_distribution(text: str) -> Distribution:
    """Parse ``uniform(5 us, 15 us)``, or a single constant time, ``10 us``.

    Raises InputError for an unknown name, a wrong number of parameters, or a parameter without its unit.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        try:
            return Distribution(kind="constant", first_ps=parse_time(text))
        except UnitError:
            raise InputError(
                f"must be a time, or one of {', '.join(KINDS)} such as 'uniform(5 us, 15 us)', got {text[:80]!r}",
                field="distribution",
            ) from None
    kind, parts = match[1], [part.strip() for part in match[2].split(",")]
    if kind not in KINDS:
        raise InputError(f"unknown distribution {kind!r}{nearest(kind, KINDS)}", field="distribution")
    names = KINDS[kind]
    if len(parts) != len(names):
        raise InputError(f"{kind} takes {' and '.join(names)}, got {match[2].strip()!r}", field="distribution")
    times = [
        parse_time(part, f"distribution: the {name} of {kind}")
        for part, name in zip(parts, names, strict=True)
        if name != "sigma"
    ]
    second_ps = times[1] if len(times) > 1 else 0
    sigma = _sigma(parts[1]) if names[-1] == "sigma" else 0.0
    return Distribution(kind=kind, first_ps=times[0], second_ps=second_ps, sigma=sigma)


def draw_times(distribution: Distribution, number: int, seed: int, peer: int) -> Int64:
    """Return one peer's draws, independent of the number of peers: int64[number], ps."""
    bits = np.random.PCG64(np.random.SeedSequence([_checked(seed), peer]))
    if distribution.kind == "constant":
        return np.full(number, distribution.first_ps, np.int64)
    first = float(distribution.first_ps)
    if distribution.kind == "uniform":
        times = first + _uniform(bits, number) * float(distribution.second_ps - distribution.first_ps)
    elif distribution.kind == "exponential":
        times = -np.log1p(-_uniform(bits, number)) * first
    elif distribution.kind == "lognormal":
        times = first * np.exp(distribution.sigma * _normal(bits, number))
    else:
        # Normal, cut off at 0: the mean is not negative, so at least half of the draws are kept
        deviation = float(distribution.second_ps)
        times = first + deviation * _normal(bits, number)
        while (redrawn := np.flatnonzero(times < 0)).size:
            times[redrawn] = first + deviation * _normal(bits, len(redrawn))
    return np.minimum(np.rint(times), float(_MAX_PS)).astype(np.int64)


def draw_writes(
    *,
    peer: Int32 | Int64,
    address: Int64,
    size_bytes: Int64 | int,
    value: Int64 | int,
    distribution: Distribution,
    seed: int,
    together: bool = False,
    base_ps: int = 0,
    offset_ps: Mapping[int, int] | None = None,
) -> WriteTable:
    """Return writes at random times: ``base_ps`` + a draw + the peer's offset (large for a *straggler*).

    The writes of a peer receive their draws in address order; their input order has no effect.
    together: one draw for all writes of a peer, so that they arrive at once.

    Raises InputError: an invalid seed, an offset of a peer that writes nothing, a time in the past.
    """
    offsets = dict(offset_ps or {})
    peers = np.unique(peer)
    for straggler in offsets:
        if straggler not in peers:
            raise InputError(f"rank {straggler} writes nothing", field="offset_ps")
    order = np.lexsort((np.broadcast_to(value, len(peer)), np.broadcast_to(size_bytes, len(peer)), address, peer))
    starts = np.searchsorted(peer[order], peers)
    counts = np.diff(np.append(starts, len(peer)))
    time_ps = np.zeros(len(peer), np.int64)
    for rank, start, count in zip(peers.tolist(), starts.tolist(), counts.tolist(), strict=True):
        draws = draw_times(distribution, 1 if together else count, seed, rank)
        time_ps[order[start : start + count]] = base_ps + draws + offsets.get(rank, 0)
    table = WriteTable()
    table.register_writes(peer=peer, address=address, size_bytes=size_bytes, value=value, time_ps=time_ps)
    return table


def _sigma(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"sigma must be a number without a unit, got {text!r}", field="distribution") from None


def _checked(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"must be a whole number from 0, got {seed!r}", field="seed")
    return seed


def _uniform(bits: np.random.PCG64, number: int) -> Float64:
    """Return uniform draws in [0, 1), in steps of 2^-53."""
    return np.asarray((np.asarray(bits.random_raw(number), np.uint64) >> np.uint64(11)) * 2.0**-53, np.float64)


def _normal(bits: np.random.PCG64, number: int) -> Float64:
    """Return normal draws by Box and Muller (1958), using the first of each pair."""
    radius = np.sqrt(-2.0 * np.log1p(-_uniform(bits, number)))
    return np.asarray(radius * np.cos(2.0 * np.pi * _uniform(bits, number)))
