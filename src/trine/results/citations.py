"""Citations for a result: trine, and the works behind its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from trine.common._version import __version__
from trine.common.arguments import named_arguments
from trine.common.inputs import PRESETS
from trine.common.shown import folded, page, titled
from trine.errors import InputError
from trine.results.report import Report

_TRACES = PRESETS / "traces"
_ARXIV = re.compile(r"arxiv[: ]*(\d{4}\.\d{4,5})", re.I)


@dataclass(frozen=True, slots=True)
class CitedWork:
    """One work. key, kind, fields: its BibTeX entry; why: the part of the result that uses it."""

    key: str
    kind: str
    fields: tuple[tuple[str, str], ...]
    why: str

    @property
    def bibtex(self) -> str:
        rows = "".join(f"  {name} = {{{value}}},\n" for name, value in self.fields)
        return f"@{self.kind}{{{self.key},\n{rows}}}"

    @property
    def text(self) -> str:
        entry = dict(self.fields)
        author = entry["author"].strip("{}").replace(" and ", "; ")
        parts = [entry[name] for name in ("booktitle", "year", "version", "doi", "url") if name in entry]
        parts += [f"arXiv {entry['eprint']}"] if "eprint" in entry else []
        return f"{author}: {entry['title'].replace('{', '').replace('}', '')}, {', '.join(parts)} ({self.why})"


def _work(key: str, kind: str, why: str, **fields: str) -> CitedWork:
    return CitedWork(key=key, kind=kind, fields=tuple(fields.items()), why=why)


def _paper(key: str, number: str, why: str, author: str, title: str) -> CitedWork:
    year = f"20{number[:2]}"
    return _work(key, "misc", why, author=author, title=title, year=year, eprint=number, archiveprefix="arXiv")


_TRINE = _work(
    "trine", "software", "the simulator", author="{trine contributors}",
    title="{trine}: how long a deep-learning job takes on many {GPU}s, and why", version=__version__,
)  # fmt: skip
_ASTRA = _paper(
    "astrasim3", "2606.10440", "the load-store level", "{The ASTRA-sim authors}", "{ASTRA-sim} 3.0"
)  # fmt: skip
_EIDOLA = _paper("eidola", "2606.12638", "the replay of peers", "{The Eidola authors}", "Eidola")
_HOP = _work(
    "hop2019", "inproceedings", "the protocol of decentralised training",
    author="Luo, Qinyi and Lin, Jinkun and Zhuo, Youwei and Qian, Xuehai",
    title="Hop: Heterogeneity-aware Decentralized Training", booktitle="ASPLOS", year="2019",
    doi="10.1145/3297858.3304009",
)  # fmt: skip
_TRIOSIM = _work(
    "triosim", "inproceedings", "traces, or a model of operators or of a network that it gives",
    author="{The TrioSim authors}",
    title="{TrioSim}: A Lightweight Simulator for Large-Scale {DNN} Workloads on Multi-{GPU} Systems",
    booktitle="ISCA", year="2025", url="https://github.com/sarchlab/triosim",
)  # fmt: skip
_CHAKRA = _work(
    "chakra", "misc", "the format of the traces", author="{MLCommons}", title="Chakra execution traces",
    url="https://github.com/mlcommons/chakra",
)  # fmt: skip
_MEASURED = _work(
    "collectivesmeasured", "misc", "measured times of collectives, used to fit the library's costs",
    author="{ai-dynamo; microsoft; vTrain authors; users of nccl-tests}",
    title="Measurements of aiconfigurator, vidur and vTrain, and published tables of nccl-tests and rccl-tests",
    note="each with its source and licence in trine/presets/measured",
)  # fmt: skip

#: Works behind each type of result, by its schema name.
_OF_SCHEMA = {
    "loadstore": (_ASTRA,),
    "loadstore-collective": (_ASTRA,),
    "fidelity": (_ASTRA, _MEASURED),
    "study": (_ASTRA,),
    "eidolon": (_EIDOLA, _ASTRA),
    "eidolon-sweep": (_EIDOLA, _ASTRA),
    "hop": (_HOP,),
    "check": (_MEASURED,),
    "validate-collectives": (_MEASURED,),
}
#: Patterns in a result's sources, evidence and notes, and the work that each refers to.
_OF_WORDS = (
    (re.compile(r"TrioSim", re.I), _TRIOSIM),
    (re.compile(r"Chakra", re.I), _CHAKRA),
    (re.compile(r"ASTRA-sim 3|2606\.10440", re.I), _ASTRA),
    (re.compile(r"Eidola\b|2606\.12638", re.I), _EIDOLA),
    (re.compile(r"software costs|fitted on measurements|nccl-tests|aiconfigurator|vidur|vTrain"), _MEASURED),
)


@dataclass(frozen=True, slots=True, repr=False)
class Citations:
    """Citations for one result, trine first. ``str()`` gives plain text."""

    references: tuple[CitedWork, ...]

    @property
    def bibtex(self) -> str:
        """All entries for a ``.bib`` file."""
        return "\n\n".join(each.bibtex for each in self.references) + "\n"

    @property
    def text(self) -> str:
        """Plain text, one line per work."""
        return "\n".join(each.text for each in self.references)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return titled(self, ", ".join(each.key for each in self.references))

    def _repr_html_(self) -> str:
        lines = (each.text for each in self.references)
        return page(
            f"{len(self.references)} works to cite", folded("plain text", lines), folded("BibTeX", [self.bibtex])
        )


@named_arguments
def cite(result: Report) -> Citations:
    """Return the works to cite for a result: trine, and the works behind its numbers.

    They follow from the type of the result, its evidence, its notes, and the sources of its inputs. Data sheets appear
    only in ``result.evidence``. Raises InputError if ``result`` is not a trine result.
    """
    if not isinstance(result, Report):
        raise InputError(f"needs a result of trine, got {type(result).__name__}", field="result")
    return Citations(tuple(dict.fromkeys((_TRINE, *_works(result)))))


def _works(result: Report) -> Iterator[CitedWork]:
    yield from _OF_SCHEMA.get(result.SCHEMA, ())
    words = "\n".join((*result.sources, *(f"{each.what} {each.detail}" for each in result.evidence), *result.notes))
    words += "".join(_source_of_trace(name) for name in re.findall(r"bundled:([\w.-]+)", words))
    cited = set()
    for pattern, work in _OF_WORDS:
        if pattern.search(words):
            yield work
    for each in (_ASTRA, _EIDOLA):
        cited.add(dict(each.fields)["eprint"])
    for number in dict.fromkeys(_ARXIV.findall(words)):
        if number not in cited:
            yield _paper(f"arxiv{number.replace('.', '')}", number, "a number of a model", "{see arXiv}", number)


@cache
def _source_of_trace(name: str) -> str:
    """Return the SOURCE.md of a bundled trace, or "" without one."""
    path = _TRACES / name / "SOURCE.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
