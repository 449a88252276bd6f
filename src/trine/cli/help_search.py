"""The search of ``trine help WORD``: glossary, headings and tables of the pages, and options of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trine.cli.commands import COMMANDS
from trine.cli.parameters import all_parameters
from trine.common.inputs import read_text

#: Entries of one kind that are shown.
MAX_SHOWN = 8
_HEADING = re.compile(r"^(#{1,4}) (.+)$", re.M)
_CELL = re.compile(r"^\|([^|\n]+)\|", re.M)
_CODE = re.compile(r"^```.*?^```", re.S | re.M)


class WordPlace(NamedTuple):
    """A place that is about a word. kind: its title in the answer; page: topic of ``trine help``, or a command."""

    kind: str
    page: str
    text: str


def find_word(word: str, pages: Mapping[str, Path]) -> list[WordPlace]:
    """Return the places about a word: terms of the glossary, options, headings, then first cells of tables.

    Headings seldom have abbreviations: those about the full term of the glossary, or its noun, stand for them.
    """
    pattern = _start_of(word)
    texts = {name: _CODE.sub("", read_text(path)) for name, path in pages.items()}
    glossary = texts.get("glossary", "")
    headings = _lines("Pages", texts, _HEADING, pattern)
    for term in _spelled_out(glossary, word):
        headings = headings or _lines("Pages", texts, _HEADING, _start_of(term))
    return [*_terms(glossary, pattern), *_options(pattern), *headings, *_lines("Tables", texts, _CELL, pattern)]


def _start_of(word: str) -> re.Pattern[str]:
    """Return the pattern of words that begin so."""
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(word.lower().lstrip('-'))}", re.I)


def _lines(kind: str, texts: Mapping[str, str], mark: re.Pattern[str], pattern: re.Pattern[str]) -> list[WordPlace]:
    """Return the marked lines of all pages (headings, or first cells of tables) that match, each once a page."""
    found = []
    for name, text in texts.items():
        lines = (_plain(match[match.lastindex or 0]) for match in mark.finditer(text))
        found += [WordPlace(kind, name, line) for line in dict.fromkeys(lines) if pattern.search(line)]
    return found


def _spelled_out(glossary: str, abbreviation: str) -> list[str]:
    """Return the term behind an abbreviation of the glossary, then its noun in the singular; empty without one."""
    found = re.search(rf"\*\*([^*(]+) \({re.escape(abbreviation)}\)", glossary, re.I)
    if found is None:
        return []
    return [found[1], found[1].split()[-1].removesuffix("s")]


def known_words(pages: Mapping[str, Path]) -> set[str]:
    """Return the terms of the glossary, the names of all options and their values, for words typed nearly right."""
    terms = re.findall(r"\*+([^*\n]+)\*+", read_text(pages["glossary"]))
    words = {term.lower() for term in terms}
    for command in COMMANDS:
        for each in all_parameters(command.function()):
            if not each.option.is_argument:
                words.add(each.long.lstrip("-"))
                words.update(re.findall(r"[a-z][a-z0-9-]{2,}", each.option.metavar or ""))
    return words


def answer(word: str, found: list[WordPlace]) -> str:
    """Return the findings as text, at most MAX_SHOWN of a kind."""
    lines = [f"No page is called {word!r}. These places are about it:"]
    for kind in dict.fromkeys(each.kind for each in found):
        group = [each for each in found if each.kind == kind]
        lines += ["", f"{kind}:"]
        found_lines = []
        for each in group[:MAX_SHOWN]:
            found_lines.append(f"  {each.text}" if kind == "Glossary" else f"  {each.page}: {each.text}")
        lines += found_lines
        if len(group) > MAX_SHOWN:
            lines.append(f"  ... {len(group) - MAX_SHOWN} more")
    pages = [each.page for each in found if each.kind in ("Pages", "Tables")]
    if pages:
        lines += ["", f"next: trine help {pages[0]}"]
    return "\n".join(lines)


def _terms(glossary: str, pattern: re.Pattern[str]) -> Iterator[WordPlace]:
    """Yield the entries of the glossary whose term, or a second word in italics, matches."""
    for entry in re.split(r"\n(?=- \*\*|\n|#)", glossary):
        terms = re.findall(r"\*+([^*]+)\*+", entry)
        if entry.strip().startswith("- **") and any(map(pattern.search, terms)):
            yield WordPlace("Glossary", "glossary", _plain(entry.strip().removeprefix("- ")))


def _options(pattern: re.Pattern[str]) -> Iterator[WordPlace]:
    """Yield the options whose name or list of values matches, with the commands that have them; names first."""
    commands: dict[tuple[bool, str, str], list[str]] = {}
    for command in COMMANDS:
        for each in all_parameters(command.function()):
            name, values = each.long.lstrip("-"), each.option.metavar or ""
            is_name = pattern.search(name) is not None
            if not each.option.is_argument and (is_name or pattern.search(values)):
                text = each.option.help if is_name else f"{values}: {each.option.help}"
                commands.setdefault((not is_name, each.long, text), []).append(command.words)
    for (_, name, text), words in sorted(commands.items(), key=lambda item: item[0][0]):
        more = f" and {len(words) - 2} more" if len(words) > 2 else ""
        yield WordPlace("Options", f"{name} of {', '.join(words[:2])}{more}", text)


def _plain(text: str) -> str:
    """Return one line without the marks of Markdown."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*`]", "", " ".join(text.split()))
