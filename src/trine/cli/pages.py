"""``trine help``: pages of the documentation, which the wheel carries, and a search for other words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from trine.cli.options import argument
from trine.cli.output import show
from trine.common.inputs import read_text
from trine.errors import InputError, nearest
from trine.results.text import WIDE

#: Folders of pages; a name that several folders have means the page of the first of them.
FOLDERS = ("start", "guides", "background", "formats", "reference", "design", "decisions")
PAGES_LISTED = "; 'trine help' lists the pages"
#: Marks of generated tables, with the empty line that follows.
_COMMENT = re.compile(r"<!--.*?-->\n\n?", re.S)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def help_page(
    words: Annotated[
        list[str] | None,
        argument(
            "Page, such as memory or formats/cluster, or words; lists the pages if missing.",
            values=lambda: _pages(),
            metavar="[TOPIC]",
        ),
    ] = None,
) -> None:
    """Print a page of the documentation, or the places that are about a word.

    Example: trine help answer
    """
    pages = _pages()
    if not words:
        show("\n".join(_listed(pages)), None)
        return
    topic = " ".join(words)
    name = topic.lower().removeprefix("docs/").removesuffix(".md")
    page = pages.get(name) or next((path for key, path in pages.items() if key.endswith(f"/{name}")), None)
    if page is None:
        from trine.cli.help_search import answer, find_word, known_words

        if found := find_word(topic, pages):
            show(answer(topic, found), None)
            return
        known = {*pages, *(path.stem for path in pages.values()), *known_words(pages)}
        raise InputError(f"no page {topic!r:.60}{nearest(name, known, is_listed=True) or PAGES_LISTED}")
    text = _LINK.sub(_as_topic, _COMMENT.sub("", read_text(page))).rstrip()
    same_names = [key for key in pages if key.endswith(f"/{page.stem}") and pages[key] != page]
    if same_names and "/" not in name:
        text += f"\n\nOther pages of this name: {', '.join(same_names)}"
    if not sys.stdout.isatty():
        show(text, None)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text), width=min(WIDE, console.width))


def _pages() -> dict[str, Path]:
    """Return ``folder/name`` -> page, in the order of FOLDERS; the folder of an installed wheel, or of a checkout."""
    package = Path(__file__).parents[1]
    root = next(path for path in (package / "docs", package.parents[1] / "docs") if path.is_dir())
    pages = {
        f"{folder}/{path.stem}": path
        for folder in FOLDERS
        for path in sorted((root / folder).glob("*.md"))
        if path.stem != "README"
    }
    return pages | {"glossary": root / "glossary.md"}


def _listed(pages: dict[str, Path]) -> Iterable[str]:
    names = []
    for key, path in pages.items():
        num_alike = sum(other.endswith(f"/{path.stem}") for other in pages)
        names.append(key if num_alike > 1 else path.stem)
    widest = max(map(len, names))
    yield "trine help TOPIC prints one of these pages:"
    for name, path in zip(names, pages.values(), strict=True):
        title = read_text(path).partition("\n")[0].lstrip("# ")
        yield f"  {name.ljust(widest)}  {title}"


def _as_topic(link: re.Match[str]) -> str:
    """Return a link as its text, with the topic it leads to; nothing for pictures."""
    is_picture, text, target = link.groups()
    if is_picture:
        return ""
    page = target.partition("#")[0]
    if "://" in page or not page.endswith(".md"):
        return f"{text} ({target})" if "://" in page else text
    stem = Path(page).stem
    return text if stem in text.split() else f"{text} [{stem}]"
