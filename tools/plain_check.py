"""Check that the texts that users read are plain English: docs, help, presets, answers, messages and docstrings.

    python tools/plain_check.py            # a table of groups; exit 1 if one is above a limit
    python tools/plain_check.py --show 20  # the worst sentences of each group

A group fails above 3 hits per 1,000 words (``tools/plain.py`` has the patterns). Pages also fail if the median sentence
has more than 16 words, or one in ten more than 28; headings, tables, code and list items without a sentence do not
count. ``make check`` runs it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import plain
import yaml

ROOT = Path(__file__).resolve().parents[1]
MAX_RATE, MAX_MEDIAN, MAX_TENTH = 3.0, 16, 28
MIN_WORDS = 4


class Group(NamedTuple):
    """Texts that are judged together. is_pages: whether the length of their sentences counts."""

    name: str
    texts: list[str]
    is_pages: bool = False


class Verdict(NamedTuple):
    """The counts of a group, and the limits that it exceeds."""

    words: int
    rate: float
    median: int
    tenth: int
    problems: list[str]
    worst: list[tuple[int, str]]


def judge(group: Group) -> Verdict:
    """Count hits and the words of sentences, and compare them with the limits."""
    found = [s for text in group.texts for s in plain.sentences(text)]
    worst = sorted(((plain.hits_of(s).total(), s) for s in found), key=lambda row: -row[0])
    words = sum(map(plain.words_of, group.texts))
    rate = 1000 * sum(hits for hits, _ in worst) / max(1, words)
    lengths = sorted(n for text in group.texts for n in sentence_lengths(text)) if group.is_pages else []
    median, tenth = (lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]) if lengths else (0, 0)
    problems = [
        f"{name} {value:.1f}, at most {limit}"
        for name, value, limit in (
            ("hits per 1,000 words", rate, MAX_RATE),
            ("median words of a sentence", median, MAX_MEDIAN),
            ("90th percentile of words", tenth, MAX_TENTH),
        )
        if value > limit
    ]
    return Verdict(words, rate, median, tenth, problems, [row for row in worst if row[0]])


def sentence_lengths(page: str) -> list[int]:
    """Return the words of each sentence of a Markdown page; inline code counts as one word, a number as none."""
    lines = [line for line in page.splitlines() if not line.lstrip().startswith(("|", "#", "<", "!["))]
    text = re.sub(r"^\s*(?:[-*+]|\d+\.)\s", "\n", "\n".join(lines), flags=re.M)  # an item is a paragraph
    text = re.sub(r"\]\([^)]*\)|[\[*_]", "", re.sub(r"``?[^`]+``?", "code", text))
    found = [s for part in re.split(r"\n\s*\n", text) for s in re.split(r"(?<=[.!?:;])\s+", part)]
    lengths = [len(re.findall(r"[A-Za-z][\w'-]*", s)) for s in found if s.rstrip(") ").endswith((".", "!", "?"))]
    return [length for length in lengths if length > 2]


def groups() -> Iterator[Group]:
    """Collect the texts of each group."""
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    yield Group("README.md", _pages([ROOT / "README.md"]), True)
    yield Group("CONTRIBUTING.md", _pages([ROOT / "CONTRIBUTING.md"]), True)
    yield Group("examples/README.md", _pages([ROOT / "examples" / "README.md"]), True)
    yield Group("docs", _pages((ROOT / "docs").rglob("*.md")), True)
    yield Group("CHANGELOG.md, newest version", [plain.prose_of_markdown(newest)], True)
    yield Group("help pages", list(help_texts()))
    presets = ROOT / "src" / "trine" / "presets"
    pages = [path for path in presets.rglob("*.md") if "LICENSE" not in path.name]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = [yaml.load(path.read_bytes(), loader) for path in sorted(presets.rglob("*.yaml"))]
    yield Group("presets", _pages(pages) + [text for file in files for text in _strings(file)])
    outputs = sorted((ROOT / "examples").glob("*.out"))
    yield Group("answers (examples/*.out)", [path.read_text(encoding="utf-8") for path in outputs])
    package = ROOT / "src" / "trine"
    yield Group("READMEs in src", _pages(set(package.rglob("README.md")) - set(pages)), True)
    sources = sorted(package.rglob("*.py"))
    yield Group("messages in src", [text for path in sources for text in _messages(path)])
    yield Group("docstrings and comments in src", [text for path in sources for text in _docstrings(path)])
    tests = sorted((ROOT / "tests").rglob("*.py"))
    yield Group("docstrings and comments in tests", [text for path in tests for text in _docstrings(path)])


def help_texts() -> Iterator[str]:
    """Yield the texts of ``--help-all`` of each command, without importing click."""
    from trine.cli.commands import ABOUT, COMMANDS, GROUPS
    from trine.cli.parameters import VARIED, all_parameters

    yield from (ABOUT, *(about for _, about in GROUPS.values()))
    for command in COMMANDS:
        function = command.function()
        yield (function.__doc__ or "").partition("Example: ")[0]
        yield from (each.option.help or "" for each in all_parameters(function))
    yield from (each.option.help for each in VARIED)


def _pages(paths: Iterable[Path]) -> list[str]:
    return [plain.prose_of_markdown(path.read_text(encoding="utf-8")) for path in sorted(paths)]


def _messages(path: Path) -> list[str]:
    return plain.strings_of_python(path.read_text(encoding="utf-8"))[0]


def _docstrings(path: Path) -> list[str]:
    return plain.strings_of_python(path.read_text(encoding="utf-8"))[1]


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings of four words or more inside a YAML document."""
    if isinstance(value, str) and plain.words_of(value) >= MIN_WORDS:
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def main() -> int:
    """Print a table of the groups. Returns 1 if one is above a limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the N worst sentences of each group")
    options = parser.parse_args()
    has_failed = False
    print(f"{'':32}  words  hits per 1,000  median  90 %")
    for group in groups():
        found = judge(group)
        lengths = f"{found.median:6}  {found.tenth:4}" if group.is_pages else ""
        print(f"{group.name:32} {found.words:6}  {found.rate:14.1f}  {lengths}".rstrip())
        for problem in found.problems:
            print(f"  too high: {problem}")
        for hits, sentence in found.worst[: options.show]:
            print(f"  {hits}  {sentence[:300]}")
        has_failed |= bool(found.problems)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
