"""Catalogue entries for a machine's names: GPU models, SM versions, PCIe speeds, processor vendors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from trine.cluster.parts import HOST_LINK, SCALE_UP, Link
from trine.cluster.presets import LinkType, known_links, link_named
from trine.common.units import parse_bandwidth, parse_time
from trine.errors import InputError, SpecError, nearest

#: Compute capability (SM version) from, to: NVLink generation. NCCL's topo.h uses the same ranges.
_BY_SM = ((60, 69, "nvlink1"), (70, 79, "nvlink2"), (80, 89, "nvlink3"), (90, 99, "nvlink4"), (100, 129, "nvlink5"))
#: AMD's graphics target: generation of Infinity Fabric links between GPUs. HIP before ROCm 5.7 numbers gfx90a 910.
_BY_GFX = {
    "gfx906": "xgmi1", "gfx908": "xgmi1", "gfx90a": "xgmi2", "gfx910": "xgmi2", "gfx940": "xgmi3", "gfx941": "xgmi3",
    "gfx942": "xgmi3", "gfx950": "xgmi4",
}  # fmt: skip
_BY_MODEL = (("mi1", "xgmi1"), ("mi2", "xgmi2"), ("mi300", "xgmi3"), ("mi325", "xgmi3"), ("mi35", "xgmi4"))
_NVLINK_BY_MODEL = {
    "p100": "nvlink1", "v100": "nvlink2", "a100": "nvlink3", "a800": "nvlink3", "h100": "nvlink4", "h200": "nvlink4",
    "h800": "nvlink4", "h20": "nvlink4", "gh200": "nvlink4", "b200": "nvlink5", "b300": "nvlink5", "gb200": "nvlink5",
    "gb300": "nvlink5",
}  # fmt: skip
_MODEL = re.compile(r"\b(?:P100|V100|A[18]00|G?H[128]00|H20|G?B[23]00|MI\d{2,3}[XA]?)\b", re.IGNORECASE)
#: Compute capability from, to: generation of the GPU's PCIe (data sheets of P100 to B200).
_PCIE_BY_SM = ((60, 79, 3), (80, 89, 4), (90, 129, 5))
#: GT/s per lane: PCIe generation.
_BY_TRANSFERS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
#: GB/s of data per lane after encoding, by generation.
_LANE_GBPS = {3: 8 * 128 / 130 / 8, 4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8, 6: 8.0}
#: Names of the link kinds that connect GPUs.
SCALE_UP_NAMES = ("nvlink", "xgmi")
#: NVSwitches of these generations reduce and multicast (NVLink SHARP, "NVLS").
REDUCING = ("nvlink4", "nvlink5")


def nvlink_of_sm(sm: int) -> str | None:
    """Return the NVLink generation of a compute capability, such as 90; None if it is not known."""
    return next((name for low, high, name in _BY_SM if low <= sm <= high), None)


def xgmi_of_gfx(text: str) -> str | None:
    """Return the Infinity Fabric generation of ``gfx942``, also written ``942``; None if it is not known."""
    return _BY_GFX.get(text if text.startswith("gfx") else f"gfx{text}")


def link_of_gpu_name(name: str) -> str | None:
    """Return the link generation of a driver's GPU name, such as ``Tesla V100-SXM3-32GB``; None if it is not known."""
    match = _MODEL.search(name)
    if match is None:
        return None
    model = match[0].lower()
    return _NVLINK_BY_MODEL.get(model) or xgmi_of_model(model)


def xgmi_of_model(gpu: str) -> str | None:
    """Return the Infinity Fabric generation of a GPU model of the presets, None for other vendors' models."""
    return next((name for start, name in _BY_MODEL if gpu.startswith(start)), None)


def pcie_of_sm(sm: int) -> int | None:
    """Return the PCIe generation of a compute capability, such as 90; None if it is not known."""
    return next((generation for low, high, generation in _PCIE_BY_SM if low <= sm <= high), None)


def pcie_of_speed(text: str) -> int | None:
    """Return the generation of ``"16.0 GT/s PCIe"``, or None if the file has no known speed."""
    match = re.match(r"\s*(\d{1,4}(?:\.\d*)?)\s*GT/s", text, re.ASCII)
    return None if match is None else _BY_TRANSFERS.get(f"{float(match[1]):g}")


def pcie_rates(generation: int, lanes: Fraction) -> Link:
    """Return a PCIe link with ``lanes`` lanes, scaled from the catalogue's x16 (generations 1 and 2 from 3's)."""
    entry = link_named(f"pcie{min(max(generation, 3), 6)}")
    return _lanes_of(entry, lanes / 16 * Fraction(2) ** min(generation - 3, 0))


def pcie_of_bandwidth(gb_per_s: float) -> Link:
    """Return a PCIe link that carries ``gb_per_s`` GB/s of data, in the smallest generation whose x16 can."""
    generation = next((g for g, lane in _LANE_GBPS.items() if gb_per_s <= 16 * lane * 1.01), 6)
    return pcie_rates(generation, Fraction(round(1000 * gb_per_s / _LANE_GBPS[generation]), 1000))


def socket_of(media: Media, vendor: str) -> Link:
    """Return the link between a machine's sockets, by processor vendor; for other vendors assume UPI."""
    text = vendor.lower()
    if "amd" in text or "hygon" in text:
        return media.of("socket", "infinity-fabric", f"processors of {vendor}")
    why = f"processors of {vendor or 'no vendor'}"
    return media.of("socket", "upi", why if "intel" in text else f"assumed, {why}; choose with --link socket=ENTRY")


def check_links_from(links_from: str | None) -> None:
    """Check ``links_from``: these formats name their media, so the catalogue is always used for them."""
    if links_from not in (None, "catalogue"):
        raise SpecError(f"must be 'catalogue', got {links_from!r}", field="links_from")


class Media:
    """Numbers for the link kinds of one machine: the user's choice, or else the entry that the file implies."""

    def __init__(self, choices: LinkChoices, file: object) -> None:
        self.choices, self.file = choices, file
        self.missing: dict[str, str] = {}

    def of(self, name: str, implied: str | None, why: str, lanes: Fraction | int | None = None) -> Link:
        """Return a link of the kind ``name`` with ``lanes`` lanes (None: the usual number).

        ``implied`` is the catalogue entry that the file implies, and ``why`` the text that implies it. A kind without
        an entry is recorded for :meth:`check` to report.
        """
        choice = self.chosen(name)
        if choice is not None and (choice.entry is None or choice.lanes is not None):
            return choice.rates(SCALE_UP if name in SCALE_UP_NAMES else HOST_LINK)
        if choice is not None:
            entry = choice.entry
        else:
            entry = link_named(implied) if implied in known_links() else None
            self.choices.used[f"link {name}"] = f"catalogue entry {implied}: {why}"
        if entry is None:
            self.missing[name] = why
            return Link(bytes_per_s=1, latency_ps=0, link_class=HOST_LINK)
        return _lanes_of(entry, Fraction(entry.lanes if lanes is None else lanes))

    def pcie(self, generation: int | None, lanes: Fraction) -> Link:
        """Return a PCIe link from the generation and lanes in the file."""
        choice = self.chosen("pcie")
        if choice is not None:
            return choice.rates(HOST_LINK)
        if generation is None or lanes <= 0:
            self.missing["pcie"] = "the file has a PCIe link without speed or width"
            return Link(bytes_per_s=1, latency_ps=0, link_class=HOST_LINK)
        self.choices.used["link pcie"] = "speed and width from the file, achieved share from the catalogue"
        return pcie_rates(generation, lanes)

    def chosen(self, name: str) -> LinkChoice | None:
        """Return the user's choice for ``nvlink``, ``xgmi``, ``c2c``, ``pcie`` or ``socket``, or None."""
        return self.choices.choice("", name) if name in self.choices.given else None

    def check(self) -> None:
        """Raise SpecError for link kinds without numbers, and for choices that no link needed."""
        if self.missing:
            lacking = "; ".join(f"{name} ({why})" for name, why in self.missing.items())
            first = next(iter(self.missing))
            raise SpecError(
                f"no numbers for: {lacking}. Give each one, as in --link {first}=ENTRY or "
                f"--link '{first}=50 GB/s, 1 us' (links={{...}} in Python)",
                file=self.file,
            )
        self.choices.check_all_used(set())


def _lanes_of(entry: LinkType, lanes: Fraction) -> Link:
    return LinkChoice(text=entry.name, entry=entry, lanes=lanes).rates(entry.link_class)


#: Patterns in a link's name and description -> its medium, first match first (table in docs/formats/infragraph.md).
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
_ENTRY = re.compile(r"([A-Za-z][\w.-]*?)(?:\*(\d{1,9}(?:\.\d{1,9}|/\d{1,9})?))?")


@dataclass(frozen=True, kw_only=True)
class LinkChoice:
    """Numbers for one kind of link: a catalogue entry with a number of lanes, or a bandwidth and a latency."""

    text: str
    entry: LinkType | None = None
    lanes: Fraction | None = None
    bytes_per_s: int | None = None
    latency_ps: int | None = None

    def rates(self, link_class: str, share: int = 1, *, hop: bool = False) -> Link:
        """Return one link in bytes/s and ps. Unless lanes were given, ``share`` links share the usual lanes.

        ``hop``: the link joins two switches; for some kinds such a hop has a lower latency than one from a NIC.
        """
        if self.entry is None:
            assert self.bytes_per_s is not None
            assert self.latency_ps is not None
            return Link(bytes_per_s=self.bytes_per_s, latency_ps=self.latency_ps, link_class=link_class)
        lanes = Fraction(self.entry.lanes, share) if self.lanes is None else self.lanes
        return Link(
            bytes_per_s=round(self.entry.bytes_per_s * lanes),
            latency_ps=self.entry.hop_ps if hop else self.entry.latency_ps,
            link_class=self.entry.link_class,
            medium=self.entry.name,
            peak_bytes_per_s=round(self.entry.peak_bytes_per_s * lanes),
        )


def parse_choice(text: str, field_name: str = "links") -> LinkChoice:
    """Read ``nvlink4``, ``nvlink4*2`` (two lanes, ``18/4`` and ``4.5`` work too) or ``50 GB/s, 1 us``.

    Raises SpecError for an unknown catalogue entry or no lanes, UnitError for an unreadable bandwidth or latency.
    """
    if "," in text:
        bandwidth, _, latency = text.partition(",")
        return LinkChoice(
            text=text,
            bytes_per_s=parse_bandwidth(bandwidth, f"the bandwidth of {field_name}"),
            latency_ps=parse_time(latency, f"the latency of {field_name}"),
        )
    match = _ENTRY.fullmatch(text.strip())
    if match is None:
        remedy = "give a catalogue entry ('nvlink4', 'nvlink4*2') or 'BANDWIDTH, LATENCY'"
        raise SpecError(f"cannot read {text!r}: {remedy}", field=field_name)
    try:
        lanes = None if match[2] is None else Fraction(match[2])
    except ZeroDivisionError:
        lanes = Fraction(0)
    if lanes is not None and not 0 < lanes <= 1024:
        raise SpecError(f"the lanes in {text!r} must be above 0 and at most 1024", field=field_name)
    return LinkChoice(text=text.strip(), entry=link_named(match[1]), lanes=lanes)


@dataclass
class LinkChoices:
    """The user's choices for links that have no numbers in their file.

    ``given`` maps the name of a link in the file, or ``device.link``, to an argument of :func:`parse_choice`.
    ``from_catalogue`` allows guessing the entry from the link's name and description. Each use is recorded in ``used``
    (link: origin of its numbers), so that the cluster can report it.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    from_catalogue: bool = False
    used: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parsed = {name: parse_choice(text, f"links[{name}]") for name, text in self.given.items()}
        self._touched: set[str] = set()

    def choice(self, scope: str, name: str, description: str = "") -> LinkChoice | None:
        """Return the choice for link ``name`` of device type ``scope``, or None."""
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
        return LinkChoice(text=entry, entry=link_named(entry))

    def check_all_used(self, names: set[str]) -> None:
        """Raise SpecError for a choice that fits no link of the file; ``names`` names the file's links."""
        for name in self._parsed:
            if name not in self._touched and name not in names:
                raise SpecError(f"the file has no link {name!r}{nearest(name, names)}", field="links")


def guessed_entry(text: str) -> str | None:
    """Return the catalogue entry that a link's name and description imply, or None."""
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
