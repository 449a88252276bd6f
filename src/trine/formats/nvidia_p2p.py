"""The matrix of ``nvidia-smi topo -p2p`` beside that of ``topo -m``: whether GPUs reach each other's memory."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

#: Codes of the matrix, as its legend explains them.
CODES = {
    "OK": "peer access", "CNS": "chipset not supported", "GNS": "GPU not supported", "TNS": "topology not supported",
    "NS": "not supported", "DR": "disabled by the registry", "U": "unknown",
}  # fmt: skip
#: A header: GPU0 and the next name, not a row of the matrix.
_HEADER = re.compile(r"^[^\w\n]*GPU0[^\S\n|]*\|?[^\S\n]*GPU1\b", re.MULTILINE)
_ROW = re.compile(r"^\W*GPU\d+[\s|]+(.*)$", re.MULTILINE)
#: Queries about NVLinks or atomics, which do not tell about reads and writes.
_OTHER_QUERY = re.compile(r"topo\s+-p2p\s+[na]\b[^\n]*\n\s*\Z")


@dataclass(frozen=True, kw_only=True)
class PeerAccess:
    """Codes of all pairs of GPUs, each direction once."""

    counts: Counter[str]

    @property
    def is_possible(self) -> bool | None:
        """Whether all pairs have peer access; None if only some do."""
        if set(self.counts) == {"OK"}:
            return True
        return None if self.counts["OK"] else False

    def words(self) -> str:
        """Return the finding as a note."""
        codes = ", ".join(f"{count} x {code} ({CODES[code]})" for code, count in self.counts.most_common())
        effect = {
            True: "GPUs have peer access",
            False: "no peer access, so that messages between GPUs without NVLinks pass through host memory",
            None: "trine takes peer access as usual for the GPU model",
        }[self.is_possible]
        return f"topo -p2p: {codes}: {effect}"


def split_peer_access(text: str) -> tuple[str, PeerAccess | None]:
    """Return the text without its matrices of ``topo -p2p``, and the first of them; None if the text has none.

    The text has no colours. A text with only such a matrix stays as it is.
    """
    starts = [match.start() for match in _HEADER.finditer(text)]
    if not starts:
        return text, None
    parts = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    found = [_codes(part) for part in parts]
    if not any(found) or all(found):
        return text, None
    kept = [text[: starts[0]], *(part for part, codes in zip(parts, found, strict=True) if not codes)]
    before = [text[:start] for start in starts]
    about_memory = [
        codes for codes, lead in zip(found, before, strict=True) if codes and not _OTHER_QUERY.search(lead[-200:])
    ]
    return "".join(kept), PeerAccess(counts=Counter(about_memory[0])) if about_memory else None


def _codes(part: str) -> list[str]:
    """Return the codes of a matrix of ``topo -p2p``; empty for another matrix."""
    codes: list[str] = []
    for row in _ROW.finditer(part.partition("Legend:")[0]):
        cells = row[1].replace("|", " ").split()
        if "X" in cells:
            codes += [cell for cell in cells if cell != "X"]
    if codes and all(code in CODES for code in codes):
        return codes
    return []
