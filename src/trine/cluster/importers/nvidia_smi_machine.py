"""The machine behind a matrix of ``nvidia-smi topo -m``: NVLinks or an NVSwitch, PCIe switches, sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations

from trine.cluster.cluster import Cluster
from trine.cluster.importers.choices import LinkChoices
from trine.cluster.importers.media import REDUCING, Media, nvlink_of_model, pcie_of_model
from trine.cluster.importers.nvidia_smi import LEVELS, Matrix
from trine.cluster.importers.reading import gpu_named
from trine.cluster.importers.wiring import Draft, assemble
from trine.cluster.links import known_links, link_named
from trine.cluster.parts import GPU, HOST, NIC, SWITCH, Device
from trine.errors import SpecError

NODE = "node0"


def build_machine(matrix: Matrix, name: str, gpu: str | None, choices: LinkChoices, file: str) -> Cluster:
    """One node of what the matrix shows.

    Raises
    ------
    SpecError: a matrix that contradicts itself, more NVLinks than the GPU model has, links without numbers.
    """
    gpu = gpu_named(gpu)
    machine = _Machine(matrix, gpu, Media(choices, file), file)
    machine.build()
    machine.media.check()
    sources = {
        "structure": "nvidia-smi topo -m: PCIe switches, host bridges and sockets as its codes allow",
        **choices.used,
    }
    return assemble(
        name,
        machine.draft.devices,
        machine.draft.wires,
        file=file,
        sources=sources,
        notes=machine.notes,
        library="nccl",
    )


class _Machine:
    def __init__(self, matrix: Matrix, gpu: str | None, media: Media, file: str) -> None:
        self.matrix, self.gpu, self.media, self.file = matrix, gpu, media, file
        self.draft = Draft(file)
        self.notes: list[str] = []
        self.nvlink = None if gpu is None else nvlink_of_model(gpu)
        self.why = f"GPU model {gpu}" if gpu else "the text does not say the generation; give the GPU model (--gpu)"

    def build(self) -> None:
        index = {name: self.draft.add(self.device(name)) for name in self.matrix.names}
        self.join_nvlinks(index)
        self.join_pcie(index)

    def device(self, name: str) -> Device:
        if name in self.matrix.gpus:
            return Device(name=name.lower(), kind=GPU, gpu=self.gpu, node=NODE)
        shown = self.matrix.nic_names.get(name, name.lower() if name.startswith("NIC") else name)
        return Device(name=shown, kind=NIC, node=NODE, forwards=True)

    def join_nvlinks(self, index: dict[str, int]) -> None:
        lanes = {
            (a, b): int(code[2:])
            for a, b in combinations(self.matrix.gpus, 2)
            if (code := self.matrix.codes[a, b]).startswith("NV")
        }
        for members in _groups(self.matrix.gpus, lanes):
            if len(members) > 1:
                self.join_island(members, lanes, index)

    def join_island(self, members: Sequence[str], lanes: dict[tuple[str, str], int], index: dict[str, int]) -> None:
        """GPUs joined by NVLink: through an NVSwitch if they show more lanes than a GPU has, else directly."""
        each = {lanes.get(pair, 0) for pair in combinations(members, 2)}
        alike = min(each) if len(each) == 1 else 0
        usual = self.usual_lanes()
        if usual is not None and alike * (len(members) - 1) > usual:
            self.join_switch(members, alike, index)
            return
        for gpu in members:
            shown = sum(count for pair, count in lanes.items() if gpu in pair)
            if usual is not None and shown > usual:
                choice = self.media.chosen("nvlink")
                kind = choice.text if choice else self.nvlink
                text = f"{gpu} shows {shown} NVLinks, but a GPU has {usual} of {kind}: is the GPU model right?"
                raise SpecError(text, file=self.file)
        for (a, b), count in lanes.items():
            if a in members:
                rates = self.media.of("nvlink", self.nvlink, self.why, Fraction(count))
                self.draft.join(index[a], index[b], rates)
        self.notes.append(f"{', '.join(members)}: NVLinks taken as direct, they are not more than a GPU has")

    def join_switch(self, members: Sequence[str], count: int, index: dict[str, int]) -> None:
        rates = self.media.of("nvlink", self.nvlink, self.why, Fraction(count))
        taken = sum(device.name.startswith("nvswitch") for device in self.draft.devices)
        name = f"nvswitch{taken}" if taken else "nvswitch"
        reduces = rates.medium in REDUCING
        switch = self.draft.add(Device(name=name, kind=SWITCH, node=NODE, forwards=True, reduces=reduces))
        for gpu in members:
            self.draft.join(index[gpu], switch, rates)
        self.notes.append(
            f"{', '.join(members)}: {count} NVLinks to each of the others are more than a GPU has, taken as an NVSwitch"
            + (" that adds up and multicasts (NVLS)" if reduces else "")
        )

    def usual_lanes(self) -> int | None:
        choice = self.media.chosen("nvlink")
        if choice is not None:
            return choice.entry.lanes if choice.entry else None
        return link_named(self.nvlink).lanes if self.nvlink in known_links() else None

    def join_pcie(self, index: dict[str, int]) -> None:
        """A processor for each NUMA node, a PCIe switch for each group under a bridge, one more above several."""
        pcie = None if self.gpu is None else pcie_of_model(self.gpu)
        rates = self.media.of("pcie", pcie, self.why)
        sockets = self.sockets()
        hosts = [
            self.draft.add(Device(name=f"cpu{i}", kind=HOST, node=NODE, forwards=True)) for i in range(len(sockets))
        ]
        switches = 0

        def switch(above: int) -> int:
            nonlocal switches
            new = self.draft.add(Device(name=f"pcie{switches}", kind=SWITCH, node=NODE, forwards=True))
            switches += 1
            self.draft.join(above, new, rates)
            return new

        for host, members in zip(hosts, sockets, strict=True):
            for under_bridges in self.near(members, "PXB"):
                parts = self.near(under_bridges, "PIX")
                above = host
                if len(under_bridges) > 1:
                    above = switch(host)
                for part in parts:
                    place = switch(above) if len(parts) > 1 else above
                    for name in part:
                        self.draft.join(index[name], place, rates)
        for a, b in combinations(hosts, 2):
            why = "not in the text, assumed; choose with --link socket=ENTRY"
            self.draft.join(a, b, self.media.of("socket", "upi", why))

    def sockets(self) -> list[tuple[str, ...]]:
        """Devices by NUMA node: those that a code nearer than SYS joins, and GPUs of equal CPU affinity."""
        affinity = self.matrix.affinity

        def together(a: str, b: str) -> bool:
            code = self.matrix.codes.get((a, b), "SYS")
            if code.startswith("NV"):
                return bool(affinity.get(a)) and affinity.get(a) == affinity.get(b)
            return code != "SYS"

        groups = self.grouped(self.matrix.names, together)
        for members in groups:
            for a, b in combinations(members, 2):
                if self.matrix.codes.get((a, b)) == "SYS":
                    raise SpecError(f"{a} and {b} are SYS apart, but others put them at one processor", file=self.file)
        return groups

    def near(self, names: Sequence[str], level: str) -> list[tuple[str, ...]]:
        """Groups joined by codes up to a level."""
        allowed = LEVELS[: LEVELS.index(level) + 1]
        return self.grouped(names, lambda a, b: self.matrix.codes.get((a, b), "") in allowed)

    def grouped(self, names: Sequence[str], together: Callable[[str, str], bool]) -> list[tuple[str, ...]]:
        return _groups(names, {pair for pair in combinations(names, 2) if together(*pair)})


def _groups(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Names that pairs join, directly or not, in the order of the names."""
    leader = {name: name for name in names}

    def of(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for a, b in pairs:
        leader[of(b)] = of(a)
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(of(name), []).append(name)
    return sorted((tuple(group) for group in found.values()), key=lambda group: _order(names, group))


def _order(names: Sequence[str], group: Sequence[str]) -> int:
    return min(names.index(name) for name in group)
