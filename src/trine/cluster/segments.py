"""Segments: groups of hosts of equal size, each within one rack, as a batch system allocates them.

Slurm places a job in segments of ``--segment`` hosts (topology/block plugin, sbatch manual). NeMo asks for the largest
divisor of the job's hosts that fits into a rack (``scripts/performance/executors.py``): 32 trays of racks with 18 are
2 x 16, so that all racks look alike, and not 18 + 14.
"""

from __future__ import annotations

from dataclasses import dataclass

from trine.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentedHosts:
    """The hosts of each rack that a job uses, in segments of ``segment`` hosts."""

    segment: int
    hosts_by_rack: tuple[int, ...]


def divisors_up_to(number: int, limit: int) -> list[int]:
    """Return the divisors of ``number`` up to ``limit``, ascending."""
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


def segmented_hosts(hosts: int, hosts_of_rack: int, racks: int | None, segment: int | None) -> SegmentedHosts | None:
    """Return the distribution of ``hosts`` over racks of ``hosts_of_rack`` hosts.

    segment: hosts of a segment; None for the largest divisor of ``hosts`` with which the segments use all racks.
    racks: the number of racks; None for as few as the segments need.

    Returns None if no segment spreads over ``racks``. Raises SpecError for a segment that does not divide ``hosts``, is
    larger than a rack, or does not spread over ``racks``.
    """
    divisors = divisors_up_to(hosts, hosts_of_rack)
    if segment is None:
        for candidate in reversed(divisors):
            counts = _hosts_by_rack(hosts, hosts_of_rack, racks, candidate)
            if counts is not None:
                return SegmentedHosts(segment=candidate, hosts_by_rack=counts)
        return None
    if segment not in divisors:
        allowed = ", ".join(map(str, divisors))
        raise SpecError(
            f"segment {segment} must divide the job's {hosts} hosts and fit a rack of {hosts_of_rack}: {allowed}"
        )
    counts = _hosts_by_rack(hosts, hosts_of_rack, racks, segment)
    if counts is None:
        raise SpecError(f"{hosts // segment} segments of {segment} hosts do not spread over {racks} racks")
    return SegmentedHosts(segment=segment, hosts_by_rack=counts)


def _hosts_by_rack(hosts: int, hosts_of_rack: int, racks: int | None, segment: int) -> tuple[int, ...] | None:
    """Return the hosts of each rack: racks filled with whole segments in order, or all alike; None if neither."""
    segments = hosts // segment
    most = hosts_of_rack // segment
    needed = -(-segments // most)
    if racks is None or racks == needed:
        filled = [most] * (segments // most)
        if segments % most:
            filled.append(segments % most)
        return tuple(count * segment for count in filled)
    if segments % racks == 0 and segments // racks <= most:
        return (segments // racks * segment,) * racks
    return None
