"""The numbers of links whose file has none: from the user, entry by entry, or from the catalogue where asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from trine.cluster.importers.wiring import Rates
from trine.cluster.links import LinkType, link_named
from trine.errors import InputError, SpecError, nearest
from trine.units import parse_bandwidth, parse_time

#: What a link's name and description say of its medium, first match first (docs/formats/infragraph.md has the table).
_SAYS = (
    (r"nvlink[-_ ]?c2c|\bc2c", "nvlink-c2c"),
    (r"nvlink[-_ ]?(\d)", "nvlink{0}"),
    (r"xgmi[-_ ]?(\d)", "xgmi{0}"),
    (r"pci[-_ ]?e(?:xpress)?.*?gen[-_ ]?(\d)", "pcie{0}"),
    (r"pci[-_ ]?e?[-_ ]?(\d)", "pcie{0}"),
    (r"infinity[-_ ]?fabric", "infinity-fabric"),
    (r"\bupi\b", "upi"),
    (r"\bqpi\b", "qpi"),
    (r"\bddr\d?\b", "ddr"),
    (r"\b(?:ib|infiniband)[-_ ]?(edr|hdr|ndr|xdr)\b", "ib-{0}"),
    (r"\broce[-_ ]?(\d+)\b", "roce-{0}"),
    (r"\bslingshot[-_ ]?(\d+)\b", "slingshot-{0}"),
    (r"\b(?:eth|ethernet)[-_ ]?(\d+)\b", "ethernet-{0}"),
)
_ENTRY = re.compile(r"([A-Za-z][\w.-]*?)(?:\*(\d+(?:\.\d+|/\d+)?))?")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Numbers for one kind of link: a catalogue entry with so many lanes, or a bandwidth and a latency."""

    text: str
    entry: LinkType | None = None
    lanes: Fraction | None = None
    bytes_per_s: int | None = None
    latency_ps: int | None = None

    def rates(self, link_class: str, share: int = 1, *, hop: bool = False) -> Rates:
        """Bytes/s and ps of one link. Unless lanes were given, ``share`` links share the lanes that are usual.

        ``hop``: the link joins two switches, which some kinds cross faster than from a NIC.
        """
        if self.entry is None:
            assert self.bytes_per_s is not None
            assert self.latency_ps is not None
            return Rates(self.bytes_per_s, self.latency_ps, link_class)
        lanes = Fraction(self.entry.lanes, share) if self.lanes is None else self.lanes
        return Rates(
            round(self.entry.bytes_per_s * lanes),
            self.entry.hop_ps if hop else self.entry.latency_ps,
            self.entry.link_class,
            self.entry.name,
            round(self.entry.peak_bytes_per_s * lanes),
        )


def parse_choice(text: str, field_name: str = "links") -> Choice:
    """Read ``nvlink4``, ``nvlink4*2`` (two lanes, ``18/4`` and ``4.5`` work too) or ``50 GB/s, 1 us``.

    Raises
    ------
    SpecError: an unknown catalogue entry, or no lanes.
    UnitError: a bandwidth or latency that cannot be read.
    """
    if "," in text:
        bandwidth, _, latency = text.partition(",")
        return Choice(
            text=text,
            bytes_per_s=parse_bandwidth(bandwidth, f"the bandwidth of {field_name}"),
            latency_ps=parse_time(latency, f"the latency of {field_name}"),
        )
    match = _ENTRY.fullmatch(text.strip())
    if match is None:
        raise SpecError(
            f"cannot read {text!r}: give a catalogue entry ('nvlink4', 'nvlink4*2') or 'BANDWIDTH, LATENCY'",
            field=field_name,
        )
    lanes = None if match[2] is None else Fraction(match[2])
    if lanes is not None and not 0 < lanes <= 1024:
        raise SpecError(f"the lanes in {text!r} must be above 0 and at most 1024", field=field_name)
    return Choice(text=text.strip(), entry=link_named(match[1]), lanes=lanes)


@dataclass
class LinkChoices:
    """What the user chose for links that their file leaves without numbers.

    ``given`` maps the name of a link in the file, or ``device.link``, to what :func:`parse_choice` reads.
    ``from_catalogue`` allows guessing the entry from the link's name and description. Each use is kept in ``used``
    (what: where it is from), so that the cluster can say it.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    from_catalogue: bool = False
    used: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parsed = {name: parse_choice(text, f"links[{name}]") for name, text in self.given.items()}
        self._touched: set[str] = set()

    def choice(self, scope: str, name: str, description: str = "") -> Choice | None:
        """The choice for link ``name`` of device type ``scope``, None if there is none."""
        label = f"link {scope}.{name}" if scope else f"link {name}"
        for key in (f"{scope}.{name}", name):
            if key in self._parsed:
                self._touched.add(key)
                choice = self._parsed[key]
                self.used[label] = f"chosen for this import: {choice.text}"
                return choice
        if not self.from_catalogue:
            return None
        entry = guessed_entry(f"{name} {description}")
        if entry is None:
            return None
        self.used[label] = f"catalogue entry {entry}, from the name and description of the link"
        return Choice(text=entry, entry=link_named(entry))

    def check_all_used(self, known: set[str]) -> None:
        """Raise SpecError for a choice that fits no link of the file; ``known`` names the file's links."""
        for name in self._parsed:
            if name not in self._touched and name not in known:
                raise SpecError(f"the file has no link {name!r}{nearest(name, known)}", field="links")


def guessed_entry(text: str) -> str | None:
    """The catalogue entry that a link's name and description speak of, None if they do not or it is not known."""
    for pattern, template in _SAYS:
        match = re.search(pattern, text.lower())
        if match:
            name = template.format(*match.groups())
            try:
                link_named(name)
            except InputError:
                return None
            return name
    return None
