"""Does the documentation site build without warnings, offline? Is every page two clicks from the start?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
GENERATED = {"reference/commands.md", "reference/python.md", "reference/json-keys.md"}


def pages_of_navigation():
    """Return the pages that mkdocs.yml lists; PyYAML's safe loader does not know the slugs' function."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"\S+\.md", navigation)


def test_every_page_is_in_the_navigation_once():
    files = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} | GENERATED
    listed = Counter(pages_of_navigation())
    assert set(listed) == files
    assert [page for page, count in listed.items() if count > 1] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n(needs mkdocs: pip install -e '.[test]')"
    assert not done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_nothing_is_loaded_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(pages_of_navigation())
    loaded = [
        (page.name, tag)
        for page in pages
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf-8"))
        if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)
    ]
    assert loaded == []
    styles = [style.read_text(encoding="utf-8") for style in site.rglob("*.css")]
    assert not [style for style in styles if re.search(r"url\([\"']?(?:https?:)?//|@import", style)]


@pytest.mark.slow
def test_the_search_finds_every_page(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert found == {address(page) for page in pages_of_navigation()}
    assert (site / "search" / "search_index.js").exists()  # without a server
    assert (site / "assets" / "iframe-worker.js").exists()


def address(page):
    return page.replace("README.md", "index.html").removesuffix(".md").removesuffix(".html") + ".html"


@pytest.mark.slow
def test_every_page_is_two_clicks_from_the_start(site):
    """The first click opens a tab; its page lists all pages of the tab."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "navigation.tabs" in text
    assert "navigation.sections" in text  # groups of pages are open
    tabs = [re.findall(r"\S+\.md", tab) for tab in re.split(r"\n- ", text.partition("\nnav:\n")[2])]
    assert [page for tab in tabs for page in tab] == pages_of_navigation()
    start = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="([^"]+)" class="md-tabs__link"', start) == [address(tab[0]) for tab in tabs]
    for first, *others in tabs:
        assert {address(page) for page in others} <= links(site, address(first)), first


def links(site, page):
    """Return the targets of a page's links."""
    text = (site / page).read_text(encoding="utf-8")
    found = {(site / page).parent / target for target in re.findall(r'href="([^":#]+\.html)', text)}
    return {str(target.resolve().relative_to(site.resolve())) for target in found}


@pytest.mark.slow
def test_links_that_leave_the_pages_are_code(site):
    text = (site / "guides" / "check.html").read_text(encoding="utf-8")
    assert "<code>examples/08_check_log.py</code>" in text
    assert not [page for page in site.rglob("*.html") if 'href="../../' in page.read_text(encoding="utf-8")]


@pytest.mark.slow
def test_generated_pages_have_all_commands_and_names(site):
    import trine
    from trine.cli.commands import COMMANDS

    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert [each.words for each in COMMANDS if f'id="trine-{each.words.replace(" ", "-")}"' not in commands] == []
    assert "--micro-batch" in commands
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in trine.__all__ if f'id="{name.lower()}"' not in python] == []
