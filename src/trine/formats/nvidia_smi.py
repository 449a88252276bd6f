"""Reader of the matrix of ``nvidia-smi topo -m``, as people paste it (docs/formats/imports.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, NIC, SWITCH, Device
from trine.cluster.presets import known_links, link_named, load_gpu
from trine.cluster.tiers import joined_sets
from trine.common.schema import show
from trine.errors import SpecError, nearest
from trine.formats.gpu_names import gpu_of_text, listed_gpus
from trine.formats.media import REDUCING, LinkChoices, Media, check_links_from
from trine.formats.nvidia_p2p import CODES, PeerAccess, split_peer_access
from trine.formats.reader import TopologyBuilder, assemble, gpu_named

#: Distances of two devices over PCIe, nearest first; old drivers print SOC for SYS.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_CODE = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV(\d{1,3})")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[(?:0|4|1|24)m")
_AFFINITY_WORDS = {"CPU", "NUMA", "Affinity", "GPU", "ID"}
_EXPLAINED = re.compile(r"^\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|NV#)\s*=", re.MULTILINE)
#: A label of each line (a comment sign, the prefix of a launcher or of grep), seen before the row of GPU0.
_LABEL = re.compile(r"^((?:(?!GPU\d)[^\n])*?\S)\s*GPU0\s+X\s", re.MULTILINE)
#: Cells of a markdown table before its first device.
_CELLS_BEFORE = re.compile(r"^[ \t]*\|.*?(?=\b(?:GPU|NIC|mlx)\d)", re.MULTILINE)
#: A name in the header without a space before the next one, as in tables of vLLM's collect_env.
_GLUED = re.compile(r"((?:GPU|NIC)\d+)(?=GPU|NIC|CPU)")
_NIC_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$", re.MULTILINE)
MAX_COLUMNS = 1024


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Device names, the code of each pair (``"NV4"``, ``"PIX"``), and each GPU's CPU affinity.

    ``leaves_out_nvlinks``: ``topo -mp`` wrote it, whose legend does not explain ``NV#``.
    """

    names: tuple[str, ...]
    codes: Mapping[tuple[str, str], str]
    affinity: Mapping[str, str]
    nic_names: Mapping[str, str]
    leaves_out_nvlinks: bool = False

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if re.fullmatch(r"GPU\d+", name))


def nvidia_smi_cluster(
    text: str, file: str, gpu: str | None = None, links: Mapping[str, str] | None = None, links_from: str | None = None
) -> Cluster:
    """Read the output of ``nvidia-smi topo -m``, also beside that of ``topo -p2p`` and in environment dumps.

    gpu: the GPU model, such as ``"h100-sxm"``; it sets the generation of NVLink and PCIe, which the matrix lacks.
        None: the model that the text around the matrix names for all GPUs, if it names one.
    links: numbers of ``nvlink`` (a lane), ``pcie`` and ``socket`` (between processors) instead: a catalogue entry
        or ``"BANDWIDTH, LATENCY"`` (of the whole link).
    links_from: as for the other readers; the catalogue is used in any case.

    Raises SpecError: not a topology matrix, truncated, contradictory, or links without numbers.
    """
    check_links_from(links_from)
    rest, access = split_peer_access(_ESCAPES.sub("", text))
    matrix = parse_matrix(rest, file)
    choices = LinkChoices(given=links or {})
    named = gpu_of_text(text) if gpu is None else None
    if named is not None:
        choices.used["GPU model"] = f"{named}, from the text{listed_gpus(text)}"
    return build_machine(matrix, Path(file).stem, gpu or named, choices, file, access)


def parse_matrix(text: str, file: str) -> Matrix:
    """Return the matrix in a text, which may have other text before it, wrapped lines, and colours.

    Raises SpecError: no matrix, an unknown code, a truncated or missing row, or a pair with two different codes.
    """
    text = _ESCAPES.sub("", text)
    if label := _LABEL.search(text):
        text = "\n".join(line.removeprefix(label[1]) for line in text.split("\n"))
    table, _, legend = text.partition("Legend:")
    tokens = _GLUED.sub(r"\1 ", _CELLS_BEFORE.sub("", table).replace("|", " ")).split()
    starts = [i for i, token in enumerate(tokens) if token == "GPU0"]
    if not starts:
        raise SpecError("is no output of `nvidia-smi topo -m`: no GPU0", file=file)
    if len(starts) == 1:
        raise SpecError("has the header of a topology matrix, but no row of GPU0", file=file)
    header, body = tokens[starts[0] : starts[1]], tokens[starts[1] :]
    names = tuple(token for token in header if token not in _AFFINITY_WORDS and token.strip("-:"))
    if len(names) > MAX_COLUMNS or len(set(names)) != len(names):
        raise SpecError("names a device twice, or has more than 1024 columns", file=file)
    rows = _rows(body, names, file)
    codes = _codes(rows, names, file)
    affinity = {name: " ".join(row[len(names) :][:1]) for name, row in rows.items() if name.startswith("GPU")}
    return Matrix(
        names=names, codes=codes, affinity=affinity, nic_names=dict(_NIC_LEGEND.findall(legend)),
        leaves_out_nvlinks=_leaves_out_nvlinks(legend),
    )  # fmt: skip


def _leaves_out_nvlinks(legend: str) -> bool:
    """Return whether a legend of more than one line does not explain ``NV#``."""
    explained = list(_EXPLAINED.finditer(legend))
    if not explained or any(match[1] == "NV#" for match in explained):
        return False
    return len(explained) > 1 or bool(legend[explained[0].end() :].partition("\n")[2].strip())


def _rows(body: list[str], names: tuple[str, ...], file: str) -> dict[str, list[str]]:
    """Return the cells of each row and the words after them; a row begins with a column's name."""
    rows: dict[str, list[str]] = {}
    current: list[str] = []
    columns = set(names)
    for token in body:
        if token not in columns:
            current.append(token)
            continue
        if token in rows:
            raise SpecError(f"has two rows {token!r}; give one machine a file", file=file)
        current = rows[token] = []
    for name in names:
        if re.fullmatch(r"GPU\d+", name) and name not in rows:
            raise SpecError(f"the row of {name} is missing", file=file)
    return rows


def _codes(rows: Mapping[str, list[str]], names: tuple[str, ...], file: str) -> dict[tuple[str, str], str]:
    codes: dict[tuple[str, str], str] = {}
    for row, cells in rows.items():
        if len(cells) < len(names):
            raise SpecError(f"the row of {row} has {len(cells)} cells, there are {len(names)} columns", file=file)
        for column, cell in zip(names, cells, strict=False):
            if cell in CODES:
                raise SpecError("is of `nvidia-smi topo -p2p`, which shows no links: give `topo -m`", file=file)
            if _CODE.fullmatch(cell) is None:
                hint = nearest(cell, ("X", *LEVELS, "NV1"))
                raise SpecError(f"{row}, {column}: unknown code {show(cell)}{hint}", file=file)
            if (cell == "X") != (row == column):
                raise SpecError(f"{row}, {column}: the code X is for a device and itself", file=file)
            code = "SYS" if cell == "SOC" else cell
            if row != column and codes.setdefault((column, row), code) != code:
                raise SpecError(f"{row} and {column} have two entries: {code} and {codes[column, row]}", file=file)
            if row != column:
                codes[row, column] = code
    return codes


NODE = "node0"


def build_machine(
    matrix: Matrix, name: str, gpu: str | None, choices: LinkChoices, file: str, access: PeerAccess | None = None
) -> Cluster:
    """Return a cluster of one node from the matrix.

    access: what ``topo -p2p`` shows of the same machine, None if unknown.

    Raises SpecError: a matrix that contradicts itself, more NVLinks than the GPU model has, links without numbers.
    """
    gpu = gpu_named(gpu)
    machine = _Machine(matrix, gpu, Media(choices, file), file)
    machine.build()
    machine.media.check()
    structure = "nvidia-smi topo -m: PCIe switches, host bridges and sockets as its codes allow"
    sources, draft = {"structure": structure, **choices.used}, machine.draft
    notes = machine.notes if access is None else [*machine.notes, access.words()]
    cluster = assemble(name, draft.devices, draft.wires, file=file, sources=sources, notes=notes, library="nccl")
    return cluster if access is None else replace(cluster, peer_access=access.is_possible)


class _Machine:
    def __init__(self, matrix: Matrix, gpu: str | None, media: Media, file: str) -> None:
        self.matrix, self.gpu, self.media, self.file = matrix, gpu, media, file
        self.draft = TopologyBuilder(file)
        self.notes: list[str] = []
        self.nvlink = None if gpu is None else load_gpu(gpu).nvlink
        self.why = f"GPU model {gpu}" if gpu else "generation unknown: add the GPU model (--gpu)"

    def build(self) -> None:
        index = {name: self.draft.add(self.device(name)) for name in self.matrix.names}
        self.join_nvlinks(index)
        self.join_pcie(index)

    def device(self, name: str) -> Device:
        if name in self.matrix.gpus:
            return Device(name=name.lower(), kind=GPU, gpu=self.gpu, node=NODE)
        label = self.matrix.nic_names.get(name, name.lower() if name.startswith("NIC") else name)
        return Device(name=label, kind=NIC, node=NODE, forwards=True)

    def join_nvlinks(self, index: dict[str, int]) -> None:
        gpus = self.matrix.gpus
        if not any(code.startswith("NV") for code in self.matrix.codes.values()):
            self.join_unseen_nvlinks(index)
            return
        lanes = {}
        for a, b in combinations(gpus, 2):
            if (code := self.matrix.codes[a, b]).startswith("NV"):
                lanes[(a, b)] = int(code[2:])
        for members in _groups(gpus, lanes):
            if len(members) > 1:
                self.join_island(members, lanes, index)
            else:
                self.notes.append(f"{members[0]} shows no NVLink, other GPUs do")

    def join_unseen_nvlinks(self, index: dict[str, int]) -> None:
        """Join all GPUs by the user's choice of NVLinks; else note their absence, or refuse it for ``topo -mp``."""
        gpus = self.matrix.gpus
        if len(gpus) < 2:
            return
        if self.media.chosen("nvlink") is not None:
            usual = self.usual_lanes() or 1
            self.join_switch(dict.fromkeys(gpus, usual), index, "all GPUs joined, as chosen, by an NVSwitch")
        elif self.matrix.leaves_out_nvlinks and (self.gpu is None or self.nvlink):
            raise SpecError(
                "is of `nvidia-smi topo -mp`, which leaves NVLinks out: give `topo -m`, or the GPUs' NVLinks "
                "(--link nvlink=ENTRY joins all through an NVSwitch)",
                file=self.file,
            )
        elif self.nvlink:
            self.notes.append(
                f"no NVLinks, which {self.gpu} can have: a virtual machine or `topo -mp` hides them; "
                "--link nvlink=ENTRY joins the GPUs through a switch"
            )

    def join_island(self, members: Sequence[str], lanes: dict[tuple[str, str], int], index: dict[str, int]) -> None:
        """Join GPUs with NVLinks: through an NVSwitch if they show more lanes than a GPU has, else directly."""
        usual = self.usual_lanes()
        total = {}
        for gpu in members:
            total[gpu] = sum(count for pair, count in lanes.items() if gpu in pair)
        peaks = {}
        for gpu in members:
            peaks[gpu] = max(count for pair, count in lanes.items() if gpu in pair)
        is_full = all(pair in lanes for pair in combinations(members, 2))
        if usual is not None and max(total.values()) > usual:
            if not is_full or max(peaks.values()) > usual:
                self.refuse_lanes(total, usual)
            text = f"{max(peaks.values())} links to every peer: assumed to be an NVSwitch"
            self.join_switch(peaks, index, f"{', '.join(members)}: {text}")
            self.note_missing(peaks, lanes)
            return
        for (a, b), count in lanes.items():
            if a in members:
                rates = self.media.of("nvlink", self.nvlink, self.why, Fraction(count))
                self.draft.join(index[a], index[b], rates)
        self.notes.append(f"{', '.join(members)}: NVLinks taken as direct, they are not more than a GPU has")

    def refuse_lanes(self, total: Mapping[str, int], usual: int) -> None:
        gpu = next(gpu for gpu, count in total.items() if count > usual)
        choice = self.media.chosen("nvlink")
        kind = choice.text if choice else self.nvlink
        text = f"{gpu} shows {total[gpu]} NVLinks, but a GPU has {usual} of {kind}: is the GPU model right?"
        raise SpecError(text, file=self.file)

    def note_missing(self, peaks: Mapping[str, int], lanes: Mapping[tuple[str, str], int]) -> None:
        """Note GPUs with fewer links to the NVSwitch than others, and pairs with fewer links than both their GPUs."""
        most = max(peaks.values())
        for gpu, count in peaks.items():
            if count < most:
                self.notes.append(f"{gpu} shows {count} of {most} NVLinks: {most - count} down or missing")
        odd = [f"{a} and {b} ({n})" for (a, b), n in lanes.items() if a in peaks and n < min(peaks[a], peaks[b])]
        if odd:
            self.notes.append(f"fewer NVLinks than both GPUs have to others: {', '.join(odd)}")

    def join_switch(self, peaks: Mapping[str, int], index: dict[str, int], note: str) -> None:
        """Join GPUs to a new NVSwitch; ``peaks``: lanes of each GPU."""
        rates = {gpu: self.media.of("nvlink", self.nvlink, self.why, Fraction(count)) for gpu, count in peaks.items()}
        num_switches = sum(device.name.startswith("nvswitch") for device in self.draft.devices)
        name = f"nvswitch{num_switches}" if num_switches else "nvswitch"
        reduces = any(link.medium in REDUCING for link in rates.values())
        switch = self.draft.add(Device(name=name, kind=SWITCH, node=NODE, forwards=True, reduces=reduces))
        for gpu, link in rates.items():
            self.draft.join(index[gpu], switch, link)
        self.notes.append(note + (" that adds up and multicasts (NVLS)" if reduces else ""))

    def usual_lanes(self) -> int | None:
        choice = self.media.chosen("nvlink")
        if choice is not None:
            return choice.entry.lanes if choice.entry else None
        return link_named(self.nvlink).lanes if self.nvlink in known_links() else None

    def join_pcie(self, index: dict[str, int]) -> None:
        """Add a processor per NUMA node, a PCIe switch per group under a bridge, and one above several groups."""
        pcie = None if self.gpu is None else load_gpu(self.gpu).pcie
        rates = self.media.of("pcie", pcie, self.why)
        sockets = self.sockets()
        cpus = [Device(name=f"cpu{i}", kind=HOST, node=NODE, forwards=True) for i in range(len(sockets))]
        hosts = [self.draft.add(cpu) for cpu in cpus]
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
                above = switch(host) if len(under_bridges) > 1 else host
                for part in parts:
                    place = switch(above) if len(parts) > 1 else above
                    for name in part:
                        self.draft.join(index[name], place, rates)
        for a, b in combinations(hosts, 2):
            why = "not in the text, assumed; choose with --link socket=ENTRY"
            self.draft.join(a, b, self.media.of("socket", "upi", why))

    def sockets(self) -> list[tuple[str, ...]]:
        """Group devices by NUMA node: joined by a code nearer than SYS, or GPUs of equal CPU affinity.

        A virtual machine with one visible NUMA node shows the same affinity everywhere; then only the codes count.
        """
        groups = self.grouped(self.matrix.names, lambda a, b: self.is_near(a, b) or self.has_same_affinity(a, b))
        if self.contradiction(groups) is not None:
            groups = self.grouped(self.matrix.names, self.is_near)
            if (pair := self.contradiction(groups)) is not None:
                a, b = pair
                raise SpecError(f"{a} and {b} are SYS apart, but others put them at one processor", file=self.file)
            self.notes.append("GPUs of the same CPU affinity are SYS apart, as in a virtual machine: the codes count")
        return groups

    def is_near(self, a: str, b: str) -> bool:
        code = self.matrix.codes.get((a, b), "SYS")
        return code != "SYS" and not code.startswith("NV")

    def has_same_affinity(self, a: str, b: str) -> bool:
        """Return whether NVLinks hide the PCIe distance of two GPUs of the same CPU affinity."""
        affinity = self.matrix.affinity
        hidden = self.matrix.codes.get((a, b), "SYS").startswith("NV")
        return hidden and bool(affinity.get(a)) and affinity.get(a) == affinity.get(b)

    def contradiction(self, groups: Iterable[tuple[str, ...]]) -> tuple[str, str] | None:
        """Return two devices of a group that are SYS apart, or None."""
        pairs = (pair for members in groups for pair in combinations(members, 2))
        return next((pair for pair in pairs if self.matrix.codes.get(pair) == "SYS"), None)

    def near(self, names: Sequence[str], level: str) -> list[tuple[str, ...]]:
        """Return groups joined by codes up to a level."""
        allowed = LEVELS[: LEVELS.index(level) + 1]
        return self.grouped(names, lambda a, b: self.matrix.codes.get((a, b), "") in allowed)

    def grouped(self, names: Sequence[str], together: Callable[[str, str], bool]) -> list[tuple[str, ...]]:
        return _groups(names, {pair for pair in combinations(names, 2) if together(*pair)})


def _groups(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return groups of names joined by pairs, directly or not, in the order of the names."""
    place = {name: i for i, name in enumerate(names)}
    groups: dict[int, list[str]] = {}
    for name, group in zip(names, joined_sets(len(names), ((place[a], place[b]) for a, b in pairs)), strict=True):
        groups.setdefault(group, []).append(name)
    return [tuple(group) for group in groups.values()]
