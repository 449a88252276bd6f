"""Reader of ``lstopo file.xml`` (hwloc 2, 3): sockets, PCIe bridges, GPUs, NICs, NVLinks (docs/formats/imports.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, NIC, SWITCH, Device, Link
from trine.cluster.presets import known_links, link_named, load_gpu
from trine.common.schema import show
from trine.common.units import finite_number, whole_number
from trine.errors import SpecError
from trine.formats.media import (
    REDUCING,
    LinkChoices,
    Media,
    check_links_from,
    link_of_gpu_name,
    pcie_of_bandwidth,
    socket_of,
    xgmi_of_model,
)
from trine.formats.reader import Element, TopologyBuilder, gpu_named, join_by_nvswitch, parse_xml, read_out

NODE = "node0"
#: Vendors of compute GPUs; a display device may also be the VGA of a board's controller.
_GPU_VENDORS = ("10de", "1002", "8086")
_COMPUTE = ("cuda", "nvml", "rsmi", "opencl", "levelzero")
#: ``0302 [10de:2330] [10de:16c1] a1``: class, vendor and device.
_PCI_TYPE = re.compile(r"([0-9a-f]{4})\s*\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)


def lstopo_cluster(
    text: str, file: str, gpu: str | None = None, links: Mapping[str, str] | None = None, links_from: str | None = None
) -> Cluster:
    """Read the XML of ``lstopo`` (hwloc 2 and 3).

    gpu: the GPU model; the file has at most its marketing name.
    links: numbers of ``pcie`` (all PCIe links), ``socket``, and ``nvlink``, ``xgmi``. In a file without their
        bandwidths ``nvlink`` joins all GPUs through an NVSwitch, each with the entry's usual lanes or the number in
        ``"nvlink3*4"``; else it names the entry whose lanes carry the file's bandwidths.
    links_from: as for the other readers; the catalogue is used in any case.

    Raises SpecError: not an lstopo file, hwloc 1, no GPU, links without numbers.
    """
    check_links_from(links_from)
    root = parse_xml(text, file)
    if root.tag != "topology":
        raise SpecError(f"is no XML of lstopo: the root is <{root.tag[:40]}>, not <topology>", file=file)
    version = root.get("version")
    if version.partition(".")[0] not in ("2", "3"):
        written_by = f"hwloc {version[:10]}" if version else "hwloc 1"
        raise SpecError(f"is of {written_by}; write it anew with hwloc 2 or 3 (lstopo file.xml)", file=file)
    reader = _MachineReader(file, gpu_named(gpu), Media(LinkChoices(given=links or {}), file))
    reader.read(root)
    return read_out(reader, "written by lstopo")


class _MachineReader:
    def __init__(self, file: str, gpu: str | None, media: Media) -> None:
        self.file, self.gpu, self.media = file, gpu, media
        self.draft = TopologyBuilder(file)
        self.notes: list[str] = []
        self.vendor = ""
        self.slow = False
        self.library: str | None = None
        self.by_object: dict[str, int] = {}
        self.models: set[str] = set()

    def read(self, root: Element) -> None:
        machine = next((child for child in root.all("object") if child.get("type") == "Machine"), None)
        if machine is None:
            raise SpecError("has no Machine", file=self.file)
        packages = [item for item in _walk(machine, "Package") if item.get("type") == "Package"]
        self.vendor = next((info for package in packages or [machine] if (info := _info(package, "CPUVendor"))), "")
        sockets = [(i, self.draft.add(_host(i))) for i in range(max(len(packages), 1))]
        for number, package in enumerate(packages):
            self.by_object[package.get("gp_index")] = sockets[number][1]
            self.bridges(package, sockets[number][1])
        self.bridges(machine, sockets[0][1], skip_packages=bool(packages), has_several=len(packages) > 1)
        if not any(device.kind == GPU for device in self.draft.devices):
            devices = sum(1 for _ in _walk(machine, "PCIDev"))
            why = f"its {devices} PCI devices include no GPU" if devices else "lstopo must see I/O devices"
            raise SpecError(f"has no GPU: {why} (lstopo --whole-io file.xml)", file=self.file)
        for (_, a), (_, b) in combinations(sockets, 2):
            self.draft.join(a, b, socket_of(self.media, self.vendor))
        if not self.join_distances(root):
            models = [model for model in sorted(self.models) if "PCI" not in model.upper()]  # cards may have a bridge
            usual_link = next((link for model in models if (link := link_of_gpu_name(model))), "nvlink")
            name = "XGMI links" if usual_link.startswith("xgmi") else "NVLinks"
            join_by_nvswitch(self, self.gpu, f"the file does not show {name}", may_have=usual_link != "nvlink")
        self.note_partitions(machine)
        if self.slow:
            self.notes.append(
                "the PCIe link of a GPU shows less than generation 3 x8: an idle GPU slows its link down; "
                "take the file under load, or choose (--link pcie=pcie4)"
            )

    def note_partitions(self, machine: Element) -> None:
        """Note logical GPUs that share a PCI device: partitions such as CPX of the MI300A."""
        gpus = sum(device.kind == GPU for device in self.draft.devices)
        for kind in ("cuda", "rsmi"):
            logical = sum(bool(re.fullmatch(rf"{kind}\d+", item.get("name"))) for item in _walk(machine, "OSDev"))
            if logical > gpus:
                self.notes.append(f"{logical} logical GPUs on {gpus} GPUs: the partitions of a GPU count as one")

    def bridges(self, parent: Element, above: int, *, skip_packages: bool = False, has_several: bool = False) -> None:
        """Attach the PCI devices of host bridges at or below a package, die, group or machine to the processor."""
        for child in parent.all("object"):
            kind = child.get("type")
            if kind == "Package" and skip_packages:
                continue
            if kind == "Bridge" and child.get("bridge_type").startswith("0-"):
                if has_several and self.holds_devices(child):
                    self.notes.append(f"line {child.line}: a host bridge of no processor, put at the first")
                for below in child.all("object"):
                    self.pci(below, above)
            elif kind not in ("PU", "Core", "PCIDev", "Bridge"):
                self.bridges(child, above, skip_packages=skip_packages, has_several=has_several)

    def holds_devices(self, bridge: Element) -> bool:
        return any(self.wanted(item) for item in _walk(bridge, "PCIDev"))

    def pci(self, item: Element, above: int) -> None:
        """Add a PCI bridge and its children, or a device; bridges without GPUs or NICs below are skipped."""
        if item.get("type") == "Bridge":
            if not self.holds_devices(item):
                return
            switch = above
            if sum(1 for _ in _branches(item, self)) > 1:
                name = f"pci-{item.get('pci_busid')}"
                switch = self.draft.add(Device(name=name, kind=SWITCH, node=NODE, forwards=True))
                self.draft.join(above, switch, self.rates(item))
            for below in item.all("object"):
                self.pci(below, switch)
        elif item.get("type") == "PCIDev" and (kind := self.wanted(item)):
            self.add(item, kind, above)

    def wanted(self, item: Element) -> str:
        """Return ``gpu``, ``nic`` or an empty text, from the PCI class and the operating system's devices."""
        if item.get("type") != "PCIDev":
            return ""
        match = _PCI_TYPE.match(item.get("pci_type"))
        if match is None:
            raise SpecError(f"cannot read pci_type {show(item.get('pci_type'))}", file=f"{self.file}:{item.line}")
        pci_class, vendor = match[1].lower(), match[2].lower()
        if pci_class in ("0302", "1200") or (pci_class in ("0300", "0380") and vendor in _GPU_VENDORS):
            drives = [f"{device.get('subtype')} {device.get('name')}".lower() for device in item.all("object")]
            computes = any(word in text for text in drives for word in _COMPUTE)
            return GPU if computes or (vendor != "8086" and pci_class != "0300") or vendor == "10de" else ""
        return NIC if pci_class in ("0207", "0200", "0280") else ""

    def add(self, item: Element, kind: str, above: int) -> None:
        if kind == GPU:
            self.library = {"10de": "nccl", "1002": "rccl"}.get(_vendor(item), self.library)
            number = sum(device.kind == GPU for device in self.draft.devices)
            device = Device(name=f"gpu{number}", kind=GPU, gpu=self.gpu, node=NODE)
        else:
            names = [child.get("name") for child in item.all("object") if child.get("type") == "OSDev"]
            fabric = [name for name in names if re.match(r"(mlx|bnxt_re|hfi|efa|irdma|roce|rdma|qedr|ionic|cxi)", name)]
            label = (fabric or names or [item.get("pci_busid")])[0]
            name = label if label not in self.draft.index else f"{label}-{item.get('pci_busid')}"
            device = Device(name=name, kind=NIC, node=NODE, forwards=True)
        index = self.draft.add(device)
        self.draft.join(above, index, self.rates(item))
        if kind == GPU:
            self.models |= {_info(child, "GPUModel") for child in item.all("object")}
            for part in (item, *item.all("object")):
                self.by_object[part.get("gp_index")] = index

    def join_distances(self, root: Element) -> bool:
        """Join devices by hwloc's bandwidths between GPUs; return whether the file has any."""
        has_links = False
        for kind in ("nvlink", "xgmi"):
            for matrix in bandwidths(root, kind, self.file):
                entry, why = self.generation(kind, matrix)
                for (a, b), mb_per_s in self.link_ends(kind, matrix).items():
                    self.draft.join(a, b, self.rates_of(kind, entry, why, mb_per_s))
                    has_links = True
        return has_links

    def link_ends(self, kind: str, matrix: Mapping[tuple[str, str], int]) -> dict[tuple[int, int], int]:
        """Return MB/s by pairs of devices, each pair once. All NVSwitches count as one, as in NCCL."""
        totals: dict[tuple[int, int], int] = {}
        switch = None
        for (first, second), mb_per_s in matrix.items():
            a, b = self.by_object.get(first), self.by_object.get(second)
            if a is None or a == b or self.draft.devices[a].kind != GPU or (b is None and kind != "nvlink"):
                continue
            if b is None:
                if switch is None:
                    switch = self.draft.add(Device(name="nvswitch", kind=SWITCH, node=NODE, forwards=True))
                    self.notes.append("all NVSwitches of the file are one here, with all links of each GPU")
                totals[a, switch] = totals.get((a, switch), 0) + mb_per_s
            elif (b, a) not in totals:
                totals[a, b] = mb_per_s
        return totals

    def generation(self, kind: str, matrix: Mapping[tuple[str, str], int]) -> tuple[str | None, str]:
        """Return the links' catalogue entry: from the user's GPU model, the file's model, or the bandwidth."""
        if kind == "nvlink" and self.gpu and load_gpu(self.gpu).nvlink:
            return load_gpu(self.gpu).nvlink, f"GPU model {self.gpu}"
        if kind == "xgmi" and self.gpu and (entry := xgmi_of_model(self.gpu)):
            return entry, f"GPU model {self.gpu}"
        for model in sorted(self.models):
            if entry := link_of_gpu_name(model):
                return entry, f"GPU model {model}"
        lane = min(matrix.values())
        links_of_kind = [n for n in known_links() if n.startswith(kind)]
        candidates = sorted(links_of_kind, key=lambda n: (n == "nvlink1", n))
        entry = next((n for n in candidates if lane * 10**6 % link_named(n).peak_bytes_per_s == 0), None)
        return entry, f"links of {lane / 1000:g} GB/s"

    def rates_of(self, kind: str, entry: str | None, why: str, mb_per_s: int) -> Link:
        """Return the numbers of a link with a data-sheet speed of ``mb_per_s``, as lanes of the entry."""
        choice = self.media.chosen(kind)
        name = choice.entry.name if choice is not None and choice.entry else entry
        lanes = Fraction(mb_per_s * 10**6, link_named(name).peak_bytes_per_s) if name else None
        rates, place = self.media.of(kind, entry, why, lanes), self.draft.index.get("nvswitch")
        if place is not None and rates.medium in REDUCING:
            self.draft.devices[place] = replace(self.draft.devices[place], reduces=True)
        return rates

    def rates(self, item: Element) -> Link:
        """Return the numbers of the link above an item, from its speed in GB/s or the user's choice."""
        choice = self.media.chosen("pcie")
        if choice is not None:
            return choice.rates("host")
        text = item.get("pci_link_speed", "0") or "0"
        speed = finite_number(text, 0, 1000)
        if speed is None:
            raise SpecError(f"cannot read pci_link_speed {show(text)}", file=f"{self.file}:{item.line}")
        if speed == 0:
            self.media.missing["pcie"] = f"line {item.line}: lstopo could not see the speed, run it as root"
            return Link(bytes_per_s=1, latency_ps=0, link_class="host")
        self.slow |= speed < 7 and self.wanted(item) == GPU
        self.media.choices.used["link pcie"] = "GB/s from the file, achieved share from the catalogue"
        return pcie_of_bandwidth(speed)


def _host(number: int) -> Device:
    return Device(name=f"cpu{number}", kind=HOST, node=NODE, forwards=True)


def bandwidths(root: Element, kind: str, file: str) -> Iterator[dict[tuple[str, str], int]]:
    """Yield the matrices of hwloc's distances of a kind of link: MB/s by the two objects' numbers, without zeros.

    Raises SpecError: a matrix of another size than its objects, or an entry that is no number.
    """
    for element in root.children:
        if not element.tag.startswith("distances2") or element.get("name").lower() != f"{kind}bandwidth":
            continue
        if element.tag == "distances2" and element.get("indexing") not in ("gp", ""):
            continue  # for NUMA nodes or processing units, which have no NVLinks or XGMI
        names = [word.rpartition(":")[2] for part in element.all("indexes") for word in part.text.split()]
        words = [word for part in element.all("u64values") for word in part.text.split()]
        numbers = []
        for word in words:
            if (number := whole_number(word, most=10**9)) is not None:
                numbers.append(number)
        if len(numbers) != len(words) or len(numbers) != len(names) ** 2:
            counts = f"{len(words)} values for {len(names)} objects"
            raise SpecError(f"has {counts}", file=f"{file}:{element.line}", field=element.get("name"))
        cells = zip(product(names, names), numbers, strict=True)
        matrix = {pair: number for pair, number in cells if number and pair[0] != pair[1]}
        if matrix:
            yield matrix


def _vendor(item: Element) -> str:
    match = _PCI_TYPE.match(item.get("pci_type"))
    return match[2].lower() if match else ""


def _info(item: Element, name: str) -> str:
    return next((info.get("value") for info in item.all("info") if info.get("name") == name), "")


def _walk(item: Element, kind: str) -> Iterator[Element]:
    """Yield items of a type below ``item``, but not below another such item."""
    for child in item.all("object"):
        if child.get("type") == kind:
            yield child
        else:
            yield from _walk(child, kind)


def _branches(bridge: Element, reader: _MachineReader) -> Iterator[Element]:
    """Yield the children of a bridge that are, or lead to, devices; a bridge with only one is just a port."""
    for child in bridge.all("object"):
        if reader.wanted(child) or (child.get("type") == "Bridge" and reader.holds_devices(child)):
            yield child
