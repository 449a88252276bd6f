"""Reader of NCCL's and RCCL's topology XML (``NCCL_TOPO_DUMP_FILE``); docs/formats/imports.md lists the fields used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, HOST_LINK, NIC, SWITCH, Device, Link
from trine.cluster.presets import load_gpu
from trine.common.schema import show
from trine.common.units import whole_number
from trine.errors import SpecError, nearest
from trine.formats.media import (
    REDUCING,
    LinkChoices,
    Media,
    check_links_from,
    nvlink_of_sm,
    pcie_of_sm,
    pcie_of_speed,
    pcie_rates,
    socket_of,
    xgmi_of_gfx,
    xgmi_of_model,
)
from trine.formats.reader import Element, TopologyBuilder, gpu_named, join_by_nvswitch, parse_xml, read_out

#: Elements that NCCL 2.4 to 2.29 and RCCL write; newer NCCL adds ``gin``, without a bandwidth, to a NIC.
_KNOWN = ("system", "cpu", "pci", "gpu", "nvlink", "xgmi", "c2c", "nic", "net", "pcilink", "gin", "grp")
#: PCI classes of network controllers; vendors of GPUs (a file for NCCL_TOPO_FILE may omit the vendor).
_NIC_CLASSES, _GPU_VENDORS, _AMD = ("0x0200", "0x0207", "0x0280"), ("", "0x10de", "0x1002"), "0x1002"
#: Generation and lanes that NCCL assumes for a PCIe link without a speed (src/graph/topo.cc).
_DEFAULT_PCIE, _DEFAULT_LANES = 3, 16
#: PCI class prefixes of NVLink targets.
_NVSWITCH, _NVLINK_CPU, _GPU_CLASSES = "0x068000", "0x068001", ("0x03", "0x12")


def nccl_xml_cluster(
    text: str, file: str, gpu: str | None = None, links: Mapping[str, str] | None = None, links_from: str | None = None
) -> Cluster:
    """Read a topology that NCCL or RCCL dumped.

    gpu: the GPU model, which the file does not name. It does not change the links.
    links: rates of ``nvlink`` or ``xgmi`` (per lane), ``pcie``, ``c2c`` and ``socket``; they override the rates
        implied by the file's SM version, speeds and processor vendor.
    links_from: as for the other readers; the catalogue is used in any case.

    Raises SpecError: another kind of file, an unknown element, a link to a missing device, links without rates.
    """
    check_links_from(links_from)
    root = parse_xml(text, file)
    if root.tag != "system":
        raise SpecError(f"is no topology of NCCL: the root is <{root.tag[:40]}>, not <system>", file=file)
    reader = _SystemReader(file, gpu_named(gpu), Media(LinkChoices(given=links or {}), file))
    reader.read(root)
    return read_out(reader, "as NCCL saw the machine")


class _SystemReader:
    def __init__(self, file: str, gpu: str | None, media: Media) -> None:
        self.file, self.gpu, self.media = file, gpu, media
        self.draft = TopologyBuilder(file)
        self.notes: list[str] = []
        self.hosts: dict[str, str] = {}
        self.several = False
        self.library: str | None = "nccl"
        self.cpus: dict[str, list[tuple[int, Element]]] = {}
        self.by_bus: dict[tuple[str, str], int] = {}
        self.gpus: list[tuple[int, int, Element, int]] = []
        self.nics = 0
        self.bare: dict[int, int] = {}
        self.is_hidden = False

    def fault(self, element: Element, message: str) -> SpecError:
        return SpecError(message, file=f"{self.file}:{element.line}", field=f"<{element.tag}>")

    def read(self, root: Element) -> None:
        self.several = len({cpu.get("host_hash") for cpu in root.all("cpu")}) > 1
        self.find_bare_gpus(root)
        for child in self.children(root, ("cpu", "nic", "grp")):
            if child.tag == "cpu":
                self.cpu(child)
            else:
                self.notes.append(f"line {child.line}: <{child.tag}> outside any <cpu> left out")
        if not self.gpus:
            message = (
                "has no <gpu>, and no PCI device of a GPU's class: NCCL_TOPO_DUMP_FILE=topo.xml writes the topology"
            )
            raise SpecError(f"{message} with its GPUs", file=self.file)
        for index, _, element, cpu in self.gpus:
            self.gpu_links(index, element, cpu)
        self.join_chosen_nvlinks()
        for cpus in self.cpus.values():
            for (a, first), (b, _) in combinations(cpus, 2):
                vendor = first.get("vendor") or first.get("arch")
                self.draft.join(a, b, socket_of(self.media, vendor))
        self.order_by_rank()

    def find_bare_gpus(self, root: Element) -> None:
        """Find and number GPUs by bus if the file has no <gpu>, only PCI devices (as written for NCCL_TOPO_FILE)."""
        leaves = [element for element in _walk(root) if element.tag == "pci" and not element.children]
        if any(element.tag == "gpu" for element in _walk(root)):
            return
        gpu_leaves = [leaf for leaf in leaves if _is_gpu(leaf)]
        gpus = sorted(gpu_leaves, key=lambda leaf: leaf.get("busid").lower())
        self.bare = {id(leaf): number for number, leaf in enumerate(gpus)}
        if gpus:
            self.notes.append(f"{len(gpus)} GPUs by their PCI class, numbered by bus: the file has no <gpu>")

    def children(self, element: Element, allowed: tuple[str, ...]) -> list[Element]:
        for child in element.children:
            if child.tag not in _KNOWN:
                raise self.fault(child, f"unknown element{nearest(child.tag[:40], _KNOWN)}")
            if child.tag not in allowed:
                raise self.fault(child, f"cannot be inside <{element.tag}>")
        return element.children

    def host_of(self, cpu: Element) -> str:
        """Return the node of a processor; a file of several hosts has a hash per host."""
        return self.hosts.setdefault(cpu.get("host_hash"), f"node{len(self.hosts)}")

    def name(self, host: str, local: str) -> str:
        """Return a device's name, prefixed with its host if the file has several hosts."""
        return f"{host}.{local}" if self.several else local

    def cpu(self, cpu: Element) -> None:
        host = self.host_of(cpu)
        number = cpu.get("numaid", "0")
        if re.fullmatch(r"-?\d{1,6}", number) is None:
            raise self.fault(cpu, f"'numaid' must be a whole number, got {show(number)}")
        name = self.name(host, f"cpu{number}")
        index = self.draft.add(Device(name=name, kind=HOST, node=host, forwards=True))
        self.cpus.setdefault(host, []).append((index, cpu))
        for child in self.children(cpu, ("pci", "nic")):
            if child.tag == "pci":
                self.pci(child, index, host)
            else:
                self.nic(child, index, host, None)

    def pci(self, pci: Element, above: int, host: str) -> None:
        """Add a PCI device (a bridge with its children, a GPU or a NIC) and its upstream link."""
        bus = pci.get("busid")
        rates = self.rates(pci)
        children = self.children(pci, ("pci", "gpu", "nic", "pcilink"))
        bridges = [child for child in children if child.tag == "pci"]
        if id(pci) in self.bare:
            self.add_gpu(pci, bus, above, host, rates, self.bare[id(pci)], pci.get("vendor"))
        elif not children and pci.get("class").startswith(_NIC_CLASSES):
            self.draft.join(above, self.add_nic(f"nic{self.nics}", host), rates)
        elif bridges or not children:
            name = self.unused(self.name(host, f"pci-{bus}"), pci)
            switch = self.draft.add(Device(name=name, kind=SWITCH, node=host, forwards=True))
            self.draft.join(above, switch, rates)
            self.by_bus[host, bus.lower()] = switch
            for child in bridges:
                self.pci(child, switch, host)
            above = switch
        for child in children:
            if child.tag == "gpu":
                self.add_gpu(child, bus, above, host, rates, self.number(child, "dev"), pci.get("vendor"))
            elif child.tag == "nic":
                self.nic(child, above, host, rates)
            elif child.tag == "pcilink":
                self.notes.append(f"line {child.line}: <pcilink> (a shortcut of PCIe switches) left out")

    def unused(self, name: str, element: Element) -> str:
        """Return an unused device name, and add a note if a file has two devices on one bus."""
        if name not in self.draft.index:
            return name
        self.notes.append(f"line {element.line}: a second device on bus {element.get('busid')}")
        return next(f"{name}-{i}" for i in range(2, len(self.draft.index) + 3) if f"{name}-{i}" not in self.draft.index)

    def rates(self, pci: Element) -> Link:
        """Return a PCI device's upstream link; without a speed, the GPU model's PCIe or NCCL's default applies."""
        text, lanes = pci.get("link_speed"), self.width(pci)
        if text or self.media.chosen("pcie") is not None:
            return self.media.pcie(pcie_of_speed(text), lanes or Fraction(_DEFAULT_LANES))
        entry = load_gpu(self.gpu).pcie if self.gpu else None
        sm = next((whole_number(gpu.get("sm")) for gpu in pci.all("gpu")), None)
        reason = f"as of sm {sm}" if sm else "as NCCL does"
        generation, why = (pcie_of_sm(sm) if sm else None) or _DEFAULT_PCIE, reason
        if entry is not None:
            generation, why = int(entry.removeprefix("pcie")), f"as of {self.gpu}"
        note = f"PCIe links without a speed: generation {generation} x {_DEFAULT_LANES} assumed, {why}"
        if note not in self.notes:
            self.notes.append(note)
        return self.media.pcie(generation, lanes or Fraction(_DEFAULT_LANES))

    def width(self, pci: Element) -> Fraction:
        """Return the lanes of a link, or 0 if missing or impossible (as in virtual machines)."""
        text = pci.get("link_width", "0") or "0"
        lanes = whole_number(text, most=10**9)
        if lanes is None:
            raise self.fault(pci, f"'link_width' must be a number of lanes, got {show(text)}")
        return Fraction(lanes if lanes <= 32 else 0)

    def add_gpu(
        self, gpu: Element, bus: str, above: int, host: str, rates: Link, number: int, vendor: str
    ) -> None:  # fmt: skip
        name = self.unused(self.name(host, f"gpu{number}"), gpu)
        index = self.draft.add(Device(name=name, kind=GPU, gpu=self.gpu, node=host))
        self.draft.join(above, index, rates)
        self.by_bus[host, bus.lower()] = index
        cpu = self.cpus[host][-1][0]
        if gpu.get("gcn") or vendor.lower() == _AMD:
            self.library = "rccl"
        rank = number if id(gpu) in self.bare else self.number(gpu, "rank", -1)
        self.gpus.append((index, rank, gpu, cpu))

    def number(self, element: Element, name: str, missing: int | None = None) -> int:
        text = element.get(name)
        if not text and missing is not None:
            return missing
        number = whole_number(text, -(10**9), 10**9)
        if number is None:
            raise self.fault(element, f"{name!r} must be a whole number, got {show(text)}")
        return number

    def nic(self, nic: Element, above: int, host: str, rates: Link | None) -> None:
        """Add a NIC with its ports; without a PCI device it attaches to the processor at the speed of its ports."""
        ports = [port for port in self.children(nic, ("net", "gin")) if port.tag == "net"]
        if not ports:
            return
        label = ports[0].get("name") or f"net{ports[0].get('dev')}"
        index = self.add_nic(label, host)
        name = self.draft.devices[index].name
        speeds = [max(self.number(port, "speed", 0), 0) for port in ports]
        self.notes.append(f"{name}: {sum(speeds) / 1000:g} Gb/s" + (f", {len(ports)} ports" * (len(ports) > 1)))
        if rates is None:
            if not sum(speeds):
                raise self.fault(nic, "a NIC outside PCI needs the speed of its ports")
            latency_ps = pcie_rates(3, Fraction(16)).latency_ps
            rates = Link(bytes_per_s=sum(speeds) * 125_000, latency_ps=latency_ps, link_class=HOST_LINK)
        self.draft.join(above, index, rates)

    def add_nic(self, label: str, host: str) -> int:
        name = self.name(host, label)
        name = name if name not in self.draft.index else f"{name}-{self.nics}"
        self.nics += 1
        return self.draft.add(Device(name=name, kind=NIC, node=host, forwards=True))

    def gpu_links(self, index: int, gpu: Element, cpu: int) -> None:
        """Add the NVLink, xGMI and C2C links of a GPU; NVSwitches merge into one switch per host, as in NCCL."""
        host = str(self.draft.devices[index].node)
        lanes: dict[tuple[str, int], int] = {}
        for link in self.children(gpu, ("nvlink", "xgmi", "c2c")):
            if link.tag == "c2c":
                self.join_c2c(index, cpu, link)
                continue
            self.library = "rccl" if link.tag == "xgmi" else self.library
            target = self.link_target(link, host, cpu)
            if target == index:
                self.is_hidden = True
                self.notes.append(
                    f"line {link.line}: an NVLink of {self.draft.devices[index].name} to itself left out; virtual "
                    "machines hide the other end"
                )
                continue
            if target is not None:
                lanes[link.tag, target] = lanes.get((link.tag, target), 0) + self.number(link, "count")
        for (tag, target), count in lanes.items():
            if self.draft.devices[target].kind == GPU and target < index and self.names_back(target, index):
                continue  # already joined from the other GPU
            if count < 1:
                raise self.fault(gpu, f"an {tag} with {count} lanes")
            rates = self.media.of(tag, *self.generation(gpu, tag), Fraction(count))
            self.draft.join(index, target, rates)
            self.mark_reducing(target, rates)

    def names_back(self, target: int, index: int) -> bool:
        element = next(element for gpu, _, element, _ in self.gpus if gpu == target)
        host = str(self.draft.devices[target].node)
        return any(
            self.by_bus.get((host, link.get("target").lower())) == index
            for link in element.children
            if link.tag in ("nvlink", "xgmi")
        )

    def generation(self, gpu: Element, tag: str) -> tuple[str | None, str]:
        """Return the catalogue entry of a GPU's links, and the attribute of the file that implies it."""
        if tag == "xgmi":
            text = gpu.get("gcn") or gpu.get("arch")
            by_model = xgmi_of_model(self.gpu) if self.gpu else None
            return xgmi_of_gfx(text) or by_model, f"gcn {text or self.gpu}"
        sm = self.number(gpu, "sm", 0)
        return nvlink_of_sm(sm), f"sm {sm}"

    def link_target(self, link: Element, host: str, cpu: int) -> int | None:
        """Return the target of an NVLink: a GPU by its bus, the host's NVSwitch, or the processor."""
        kind, bus = link.get("tclass"), link.get("target").lower()
        if (host, bus) in self.by_bus and not kind.startswith(_NVSWITCH):
            return self.by_bus[host, bus]
        if kind.startswith(_NVSWITCH):
            return self.nvswitch(host)
        if kind.startswith(_NVLINK_CPU):
            return cpu
        if kind.startswith(_GPU_CLASSES):
            self.notes.append(f"line {link.line}: link to GPU {bus}, which the file does not have, left out")
            return None
        raise self.fault(link, f"unknown target {show(bus)} of class {show(kind)}")

    def nvswitch(self, host: str) -> int:
        name = self.name(host, "nvswitch")
        if name not in self.draft.index:
            self.draft.add(Device(name=name, kind=SWITCH, node=host, forwards=True))
        return self.draft.index[name]

    def mark_reducing(self, target: int, rates: Link) -> None:
        device = self.draft.devices[target]
        if device.kind == SWITCH and rates.medium in REDUCING and not device.reduces:
            self.draft.devices[target] = replace(device, reduces=True)
            self.notes.append(f"{device.name} taken to add up and multicast (NVLS), as switches of {rates.medium} do")

    def join_chosen_nvlinks(self) -> None:
        """Join GPUs by the NVLinks of ``--link nvlink=ENTRY`` if the file hides them, or note that they are missing."""
        has_links = any(child.tag in ("nvlink", "xgmi") for _, _, gpu, _ in self.gpus for child in gpu.children)
        is_hidden = bool(self.bare) or self.is_hidden
        if is_hidden or (not has_links and self.media.chosen("nvlink") is not None):
            join_by_nvswitch(self, self.gpu, "the file does not show where NVLinks end", may_have=is_hidden)

    def join_c2c(self, gpu: int, cpu: int, link: Element) -> None:
        """Join a GPU to the processor on its module, at count times MB/s if the file has both."""
        count, speed = self.number(link, "count", 1), self.number(link, "bw", 0)
        rates = self.media.of("c2c", "nvlink-c2c", "a <c2c> link", Fraction(1))
        if speed > 0 and count > 0 and self.media.chosen("c2c") is None:
            rates = replace(rates, bytes_per_s=speed * count * 10**6, peak_bytes_per_s=None)
        self.draft.join(gpu, cpu, rates)

    def order_by_rank(self) -> None:
        """Order GPUs by rank; keep the order of the file if ranks are missing or not unique."""
        ranks = [rank for _, rank, _, _ in self.gpus]
        indices = [index for index, _, _, _ in self.gpus]
        if min(ranks) < 0:
            return
        if len(set(ranks)) != len(ranks):
            self.notes.append("ranks are not one a GPU; GPUs stay in the order of the file")
            return
        order = [index for _, index in sorted(zip(ranks, indices, strict=True))]
        self.draft.gpus_in_order(order)


def _walk(root: Element) -> Iterator[Element]:
    """Yield all elements below one."""
    for child in root.children:
        yield child
        yield from _walk(child)


def _is_gpu(pci: Element) -> bool:
    """Return True if a PCI device is a compute GPU: a 3D controller, an accelerator, or AMD's display class."""
    kind, vendor = pci.get("class"), pci.get("vendor").lower()
    return kind.startswith(("0x0302", "0x0380", "0x12")) or (kind.startswith("0x03") and vendor in _GPU_VENDORS)
