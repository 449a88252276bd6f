"""``lstopo file.xml`` of hwloc 2: sockets, PCIe bridges, GPUs and NICs (docs/formats/imports.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, NIC, SWITCH, Device, Link
from trine.cluster.presets import load_gpu
from trine.errors import SpecError
from trine.formats.media import (
    REDUCING,
    LinkChoices,
    Media,
    check_links_from,
    pcie_of_bandwidth,
    socket_entry,
)
from trine.formats.reader import TopologyBuilder, gpu_named, read_out
from trine.formats.xml_tree import Element, parse_xml
from trine.schema import show

NODE = "node0"
#: Vendors of GPUs that compute; the VGA of a board's controller is a display too.
_GPU_VENDORS = ("10de", "1002", "8086")
_COMPUTE = ("cuda", "nvml", "rsmi", "opencl", "levelzero")
#: ``0302 [10de:2330] [10de:16c1] a1``: class, vendor and device.
_PCI_TYPE = re.compile(r"([0-9a-f]{4})\s*\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)


def lstopo_cluster(
    text: str,
    file: str,
    gpu: str | None = None,
    links: Mapping[str, str] | None = None,
    links_from: str | None = None,
) -> Cluster:
    """Read the XML of ``lstopo`` (hwloc 2).

    Parameters
    ----------
    gpu: the GPU model, which the file at best has as a marketing name.
    links: numbers of ``pcie`` (all PCIe links), ``socket``, and ``nvlink``: the file has no NVLinks, this joins all
        GPUs through an NVSwitch, each with the entry's usual lanes or as many as ``"nvlink3*4"`` says.
    links_from: as for the other readers; the catalogue is used in any case.

    Raises
    ------
    SpecError: not such a file, hwloc 1, no GPU, links without numbers.
    """
    check_links_from(links_from)
    root = parse_xml(text, file)
    if root.tag != "topology":
        raise SpecError(f"is no XML of lstopo: the root is <{root.tag[:40]}>, not <topology>", file=file)
    if not root.get("version").startswith("2"):
        raise SpecError("is of hwloc 1; write it anew with hwloc 2 (lstopo file.xml)", file=file)
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

    def read(self, root: Element) -> None:
        machine = next((child for child in root.all("object") if child.get("type") == "Machine"), None)
        if machine is None:
            raise SpecError("has no Machine", file=self.file)
        packages = [item for item in _walk(machine, "Package") if item.get("type") == "Package"]
        self.vendor = next((info for package in packages or [machine] if (info := _info(package, "CPUVendor"))), "")
        sockets = [(i, self.draft.add(_host(i))) for i in range(max(len(packages), 1))]
        for number, package in enumerate(packages):
            self.bridges(package, sockets[number][1])
        self.bridges(machine, sockets[0][1], skip_packages=bool(packages), many=len(packages) > 1)
        if not any(device.kind == GPU for device in self.draft.devices):
            raise SpecError("has no GPU: lstopo must see I/O devices (lstopo --whole-io file.xml)", file=self.file)
        for (_, a), (_, b) in combinations(sockets, 2):
            why = f"processors of {self.vendor or 'no vendor'}"
            self.draft.join(a, b, self.media.of("socket", socket_entry(self.vendor), why))
        self.join_nvlinks()
        if self.slow:
            self.notes.append(
                "the PCIe link of a GPU shows less than generation 3 x8: an idle GPU slows its link down; "
                "take the file under load, or choose (--link pcie=pcie4)"
            )

    def bridges(self, parent: Element, above: int, *, skip_packages: bool = False, many: bool = False) -> None:
        """Host bridges at or below a package, die, group or machine; their PCI devices hang at the processor."""
        for child in parent.all("object"):
            kind = child.get("type")
            if kind == "Package" and skip_packages:
                continue
            if kind == "Bridge" and child.get("bridge_type").startswith("0-"):
                if many and self.holds_devices(child):
                    self.notes.append(f"line {child.line}: a host bridge of no processor, put at the first")
                for below in child.all("object"):
                    self.pci(below, above)
            elif kind not in ("PU", "Core", "PCIDev", "Bridge"):
                self.bridges(child, above, skip_packages=skip_packages, many=many)

    def holds_devices(self, bridge: Element) -> bool:
        return any(self.wanted(item) for item in _walk(bridge, "PCIDev"))

    def pci(self, item: Element, above: int) -> None:
        """A PCI bridge with what is below it, or a device; bridges with nothing of interest below are left out."""
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
        """``gpu``, ``nic`` or nothing, by PCI class and by what the operating system made of the device."""
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
        self.draft.join(above, self.draft.add(device), self.rates(item))

    def rates(self, item: Element) -> Link:
        """Of the link above an item: its speed in GB/s, or the user's choice."""
        choice = self.media.chosen("pcie")
        if choice is not None:
            return choice.rates("host")
        text = item.get("pci_link_speed", "0") or "0"
        try:
            speed = float(text)
        except ValueError:
            speed = -1.0
        if not 0 <= speed <= 1000:
            raise SpecError(f"cannot read pci_link_speed {show(text)}", file=f"{self.file}:{item.line}")
        if speed == 0:
            self.media.missing["pcie"] = f"line {item.line}: lstopo could not see the speed, run it as root"
            return Link(bytes_per_s=1, latency_ps=0, link_class="host")
        self.slow |= speed < 7 and self.wanted(item) == GPU
        self.media.choices.used["link pcie"] = "GB/s from the file, what is reached of it from the catalogue"
        return pcie_of_bandwidth(speed)

    def join_nvlinks(self) -> None:
        gpus = [i for i, device in enumerate(self.draft.devices) if device.kind == GPU]
        if self.media.chosen("nvlink") is None:
            if self.gpu and load_gpu(self.gpu).nvlink and len(gpus) > 1:
                self.notes.append("lstopo does not show NVLinks; --link nvlink=ENTRY joins the GPUs through a switch")
            return
        rates = self.media.of("nvlink", None, "chosen")
        reduces = rates.medium in REDUCING
        switch = self.draft.add(Device(name="nvswitch", kind=SWITCH, node=NODE, forwards=True, reduces=reduces))
        for gpu in gpus:
            self.draft.join(gpu, switch, rates)
        self.notes.append("all GPUs joined by an NVSwitch, as chosen: the file does not show NVLinks")


def _host(number: int) -> Device:
    return Device(name=f"cpu{number}", kind=HOST, node=NODE, forwards=True)


def _vendor(item: Element) -> str:
    match = _PCI_TYPE.match(item.get("pci_type"))
    return match[2].lower() if match else ""


def _info(item: Element, name: str) -> str:
    return next((info.get("value") for info in item.all("info") if info.get("name") == name), "")


def _walk(item: Element, kind: str) -> Iterator[Element]:
    """Items of a type below one, not further below those."""
    for child in item.all("object"):
        if child.get("type") == kind:
            yield child
        else:
            yield from _walk(child, kind)


def _branches(bridge: Element, reader: _MachineReader) -> Iterator[Element]:
    """What directly below a bridge is or leads to devices; a bridge with one of these is only a port."""
    for child in bridge.all("object"):
        if reader.wanted(child) or (child.get("type") == "Bridge" and reader.holds_devices(child)):
            yield child
