"""The matrix that ``nvidia-smi topo -m`` prints, as people paste it (docs/formats/imports.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trine.cluster.cluster import Cluster
from trine.errors import SpecError, nearest
from trine.inputs import read_text
from trine.spec import show

#: How near two devices are over PCIe, nearest first; SOC is what old drivers call SYS.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_CODE = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV(\d{1,3})")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[(?:0|4|1|24)m")
_AFFINITY_WORDS = {"CPU", "NUMA", "Affinity", "GPU", "ID"}
_NIC_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$", re.MULTILINE)
MAX_COLUMNS = 1024


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What the text says: device names, the code of each pair (``"NV4"``, ``"PIX"``), each GPU's CPU affinity."""

    names: tuple[str, ...]
    codes: Mapping[tuple[str, str], str]
    affinity: Mapping[str, str]
    nic_names: Mapping[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if re.fullmatch(r"GPU\d+", name))


def read_nvidia_smi(
    path: str | os.PathLike[str],
    *,
    gpu: str | None = None,
    links: Mapping[str, str] | None = None,
    links_from: str | None = None,
) -> Cluster:
    """Read what ``nvidia-smi topo -m`` printed.

    Parameters
    ----------
    gpu: the GPU model, such as ``"h100-sxm"``, which says the generation of NVLink and PCIe: the text does not.
    links: numbers of ``nvlink`` (a lane), ``pcie`` and ``socket`` (between processors) instead: a catalogue entry
        or ``"BANDWIDTH, LATENCY"`` (of the whole link).
    links_from: as for the other readers; the catalogue is used in any case.

    Raises
    ------
    SpecError: not such a matrix, cut short, contradictory, or links without numbers.
    """
    file = os.fspath(path)
    return nvidia_smi_cluster(read_text(path), file, gpu, links, links_from)


def nvidia_smi_cluster(
    text: str,
    file: str,
    gpu: str | None = None,
    links: Mapping[str, str] | None = None,
    links_from: str | None = None,
) -> Cluster:
    """As :func:`read_nvidia_smi`, from text."""
    from trine.cluster.importers.choices import LinkChoices
    from trine.cluster.importers.media import check_links_from
    from trine.cluster.importers.nvidia_smi_machine import build_machine

    check_links_from(links_from)
    matrix = parse_matrix(text, file)
    return build_machine(matrix, Path(file).stem, gpu, LinkChoices(given=links or {}), file)


def parse_matrix(text: str, file: str) -> Matrix:
    """The matrix in a text, whatever comes before it, in whatever lines it is wrapped, coloured or not.

    Raises
    ------
    SpecError: no matrix, an unknown code, a row that is cut short or missing, or a pair that is told in two ways.
    """
    text = _ESCAPES.sub("", text)
    table, _, legend = text.partition("Legend:")
    tokens = table.split()
    starts = [i for i, token in enumerate(tokens) if token == "GPU0"]
    if not starts:
        raise SpecError("is no output of `nvidia-smi topo -m`: no GPU0", file=file)
    if len(starts) == 1:
        raise SpecError("has the header of a topology matrix, but no row of GPU0", file=file)
    header, body = tokens[starts[0] : starts[1]], tokens[starts[1] :]
    names = tuple(token for token in header if token not in _AFFINITY_WORDS)
    if len(names) > MAX_COLUMNS or len(set(names)) != len(names):
        raise SpecError("names a device twice, or has more than 1024 columns", file=file)
    rows = _rows(body, names, file)
    codes = _codes(rows, names, file)
    affinity = {name: " ".join(row[len(names) :][:1]) for name, row in rows.items() if name.startswith("GPU")}
    return Matrix(names=names, codes=codes, affinity=affinity, nic_names=dict(_NIC_LEGEND.findall(legend)))


def _rows(body: list[str], names: tuple[str, ...], file: str) -> dict[str, list[str]]:
    """Cells and what follows them, by row; a row begins with the name of a column."""
    rows: dict[str, list[str]] = {}
    current: list[str] = []
    known = set(names)
    for token in body:
        if token not in known:
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
            if _CODE.fullmatch(cell) is None:
                hint = nearest(cell, ("X", *LEVELS, "NV1"))
                raise SpecError(f"{row}, {column}: unknown code {show(cell)}{hint}", file=file)
            if (cell == "X") != (row == column):
                raise SpecError(f"{row}, {column}: the code X is for a device and itself", file=file)
            code = "SYS" if cell == "SOC" else cell
            if row != column and codes.setdefault((column, row), code) != code:
                raise SpecError(f"{row} and {column} are told apart by {code} and {codes[column, row]}", file=file)
            if row != column:
                codes[row, column] = code
    return codes
