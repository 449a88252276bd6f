"""Hooks of mkdocs: pages that are generated from the code and from json-keys.csv, and links that leave docs/.

mkdocs.yml names this file; `make docs` builds the site. Generated pages: reference/commands.md (all commands with all
options), reference/python.md (the public names, and the other names that pages import), reference/json-keys.md.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from json_reference import read_rows, tables
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.S | re.M)
#: Names at the start of an entry of a docstring: arguments, fields, errors.
ENTRY = re.compile(r"(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*): (?=\S)")
#: Wider than the theme's: command lines and tables of keys are long.
STYLE = ".md-grid { max-width: 76rem; }\n.md-typeset table:not([class]) code { word-break: normal; }\n"
#: Pages that point to a generated page: hand-written pages must not, as GitHub and `trine help` lack these.
POINTERS = {
    "background/accuracy.md": "[All errors, with a chart of each row](../assets/accuracy.html).",
    "reference/cli.md": "All options of all commands: [All commands](commands.md). Python: [Python](python.md).",
    "reference/json.md": "Keys of all answers: [All keys](json-keys.md).",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/commands.md": commands_page,
        "reference/python.md": python_page,
        "reference/json-keys.md": keys_page,
    }
    for path, make in pages.items():
        files.append(File.generated(config, path, content=make()))
    files.append(File.generated(config, "assets/site.css", content=STYLE))
    files.append(File.generated(config, "assets/accuracy.html", content=accuracy()))
    shim = ROOT / "tools" / "iframe-worker.js"  # search without a server
    files.append(File.generated(config, f"assets/{shim.name}", content=shim.read_text("utf-8")))
    return files


def accuracy() -> str:
    """Return the page of all errors, with a chart of each row."""
    sys.path.insert(0, str(ROOT))
    from trine.report.html import render
    from validation.accuracy import figures
    from validation.accuracy_page import accuracy_page

    return render(accuracy_page(figures())).decode()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ into code, and add the pointers to generated pages."""
    path = page.file.src_uri
    if page.file.generated_by is None:
        markdown = without_outer_links(markdown, Path(config.docs_dir) / path, Path(config.docs_dir))
    return f"{markdown}\n\n{POINTERS[path]}\n" if path in POINTERS else markdown


def without_outer_links(text: str, page: Path, docs: Path) -> str:
    """Return a page with its links to files outside docs/ as code: ``text (`path`)``. Links in code blocks stay."""

    def link(match: re.Match[str]) -> str:
        _, shown, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        file = (page.parent / target.partition("#")[0]).resolve()
        if file.is_relative_to(docs.resolve()):
            return match[0]
        path = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else target
        name = shown.strip("`")
        return f"`{path}`" if path.endswith(name) else f"{shown} (`{path}`)"

    parts, last = [], 0
    for code in FENCE.finditer(text):
        if code[0].startswith("```"):
            parts += [LINK.sub(link, text[last : code.start()]), code[0]]
            last = code.end()
    return "".join([*parts, LINK.sub(link, text[last:])])


# Commands.


def commands_page() -> str:
    """Return every command: its sentence, its example, its arguments and options with their defaults."""
    from trine.cli.commands import ABOUT, COMMANDS, GROUPS

    parts = [f"# All commands\n\n{ABOUT} `trine COMMAND --help-all` prints the same.\n"]
    seen = set[str]()
    for command in COMMANDS:
        group = command.words.partition(" ")[0]
        if group in GROUPS and group not in seen:
            parts.append(f"## trine {group}\n\n{GROUPS[group][1]}\n")
        seen.add(group)
        parts.append(_command(command.words, command.about, command.function(), 3 if group in GROUPS else 2))
    return "\n".join(parts)


def _command(words: str, about: str, function: Callable[..., Any], level: int) -> str:
    from trine.cli.help import _row, _usage
    from trine.cli.parameters import all_parameters

    text, _, example = inspect.cleandoc(function.__doc__ or "").partition("Example: ")
    parameters = all_parameters(function)
    usage = " ".join(["trine", words, "[OPTIONS]", *(_usage(each) for each in parameters if each.option.is_argument)])
    lines = [f"{'#' * level} trine {words}", "", about]
    more = " ".join(text.split())
    if more.removeprefix(about).strip():
        lines += ["", markdown(text.strip().removeprefix(about).strip() if more.startswith(about) else text.strip())]
    lines += ["", f"    {usage}"]
    if example.strip():
        lines += ["", "Example:", "", f"    $ {example.strip()}"]
    panels: dict[str, list[str]] = {}
    for row in map(_row, parameters):
        value = f" `{row.value}`" if row.value else ""
        panels.setdefault(row.panel, []).append(f"| `{row.names}`{value} | {cell(escaped(row.text))} |")
    for name, rows in sorted(panels.items(), key=lambda item: item[0] != "Arguments"):
        lines += ["", f"| {name} | |", "|---|---|", *rows]
    return "\n".join([*lines, ""])


# Python.


def python_page() -> str:
    """Return the names of ``trine``, and the names of its modules that pages import: signatures and docstrings."""
    import trine

    parts = [
        "# Python\n",
        "Names of `trine` itself, then names of its modules that these pages use.\n",
    ]
    parts += ["## trine\n", *(_name(getattr(trine, name), name) for name in trine.__all__)]
    for module, names in sorted(imported_names().items()):
        home = import_module(module)
        new = [name for name in names if name not in trine.__all__]
        if new:
            parts += [
                f"## {module}\n",
                first_paragraph(home) + "\n",
                *(_name(getattr(home, name), name) for name in new),
            ]
    return "\n".join(parts)


def imported_names() -> dict[str, list[str]]:
    """Return module -> names that Python code of the pages imports from modules of trine."""
    found: dict[str, set[str]] = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for module, names in re.findall(r"^\s*from (trine\.[\w.]+) import ([\w, ]+)$", page.read_text("utf-8"), re.M):
            found.setdefault(module, set()).update(name.strip() for name in names.split(","))
    return {module: sorted(names) for module, names in found.items()}


def _name(value: Any, name: str) -> str:
    if inspect.isclass(value):
        return _class(value, name)
    if inspect.isroutine(value):
        return f"### {name}\n\n{_call(name, value)}\n\n{docstring(value)}\n"
    if isinstance(value, int | float | str):
        return f"### {name}\n\n    {name} = {value!r}\n"
    about = first_paragraph(type(value)) if type(value).__module__.startswith("trine") else ""
    return f"### {name}\n\nA `{type(value).__name__}`. {about}\n"


def _call(name: str, value: Callable[..., Any]) -> str:
    """Return a signature as a code block; a long one in several lines."""
    lines = textwrap.wrap(f"{name}{_signature(value)}", 90, subsequent_indent="    ", break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), "    ")


def _class(value: type, name: str) -> str:
    lines = [f"### {name}", ""]
    if not issubclass(value, BaseException) and "__init__" in vars(value):
        lines += [_call(name, value), ""]
    elif issubclass(value, BaseException):
        lines += [f"Subclass of `{value.__mro__[1].__name__}`.", ""]
    lines += [docstring(value), ""]
    options = [each for each in _fields(value) if "help" in each.metadata]
    if options:
        lines += ["| option | default | |", "|---|---|---|"]
        lines += [f"| `{each.name}` | {_default(each)} | {cell(escaped(each.metadata['help']))} |" for each in options]
        lines.append("")
    members = list(_members(value))
    if members:
        lines += ["| method or property | |", "|---|---|"]
        lines += [f"| `{shown}` | {cell(text)} |" for shown, text in members]
        lines.append("")
    return "\n".join(lines)


def _fields(value: type) -> Iterable[dataclasses.Field[Any]]:
    return dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()


def _default(each: dataclasses.Field[Any]) -> str:
    if each.default is not dataclasses.MISSING:
        return f"`{each.default!r}`"
    return "" if each.default_factory is dataclasses.MISSING else f"`{each.default_factory()!r}`"


def _members(value: type) -> Iterator[tuple[str, str]]:
    """Return (signature, first paragraph) of the public methods and properties that trine defines."""
    if issubclass(value, BaseException):
        return
    for name in dict.fromkeys(
        name for base in value.__mro__ if base.__module__.startswith("trine") for name in vars(base)
    ):
        member = inspect.getattr_static(value, name)
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and inspect.getdoc(function):
            yield f"{name}{_signature(getattr(value, name), is_method=function is member)}", first_paragraph(function)
        elif isinstance(member, property) or type(member).__name__ == "cached_property":
            yield name, first_paragraph(member)


def _signature(value: Callable[..., Any], is_method: bool = False) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())[is_method:]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return re.sub(r"<[^<>]*>", "...", str(signature.replace(parameters=bare, return_annotation=signature.empty)))


def docstring(value: Any) -> str:
    """Return a docstring as Markdown."""
    return markdown(inspect.getdoc(value) or "")


def first_paragraph(value: Any) -> str:
    """Return the first paragraph of a docstring as one line of Markdown."""
    return escaped(" ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()))


def markdown(text: str) -> str:
    """Return a docstring's text: sections in bold, ``name: meaning`` as list entries, examples as code."""
    lines: list[str] = []
    source = text.split("\n")
    is_entry = False
    for at, line in enumerate(source):
        following = source[at + 1] if at + 1 < len(source) else ""
        may_begin = is_entry or not at or not source[at - 1].strip("- ")
        if re.fullmatch(r"-{3,}", line):
            continue
        if re.fullmatch(r"-{3,}", following):
            lines += ["", f"**{line}**", ""]
            is_entry = False
        elif may_begin and (entry := ENTRY.match(line)):
            lines += [] if is_entry else [""]
            lines.append(f"- `{entry[1]}`: {escaped(line[entry.end() :])}")
            is_entry = True
        elif is_entry and line.startswith("    "):
            lines.append(f"    {escaped(line.strip())}")
        elif line.startswith(("    ", ">>>")):
            lines += [""] if lines and lines[-1] and not lines[-1].startswith("    ") else []
            lines.append(line if line.startswith("    ") else f"    {line}")
            is_entry = False
        else:
            lines += [""] if is_entry and line else []
            lines.append(escaped(line))
            is_entry = False
    return "\n".join(lines).strip()


def escaped(text: str) -> str:
    """Return reStructuredText as Markdown: roles and double backticks as code, marks of Markdown escaped elsewhere."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[])", r"\\\1", part) for part in parts)


def cell(text: str) -> str:
    """Return Markdown for a cell of a table: bars outside code are escaped."""
    parts = re.split(r"(`[^`]*`)", text.replace("\n", " "))
    return "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)


# JSON keys.


def keys_page() -> str:
    """Return the tables of all JSON answers."""
    rows = read_rows()
    parts = ["# All JSON keys\n", "Answers by the NAME of their schema, `trine/NAME/1` ([about JSON](json.md)).\n"]
    for answer in dict.fromkeys(row.answer for row in rows):
        parts.append(f"## {answer}\n\n{tables(rows, answer)}")
    return "\n".join(parts)
