"""Do the documents name existing files, modules and links, and use each word with one meaning?"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SRC = ROOT / "src" / "trine"
INSIDE = [path for path in SRC.rglob("README.md") if "presets" not in path.parts]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *INSIDE])
#: Pages that must use current names; the changelog mentions old ones.
TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]
REGISTRY = re.compile(r'Registry\(\s*"[^"]*",\s*"(trine\.\w+)"')
GROUPS = {group for path in SRC.rglob("*.py") for group in REGISTRY.findall(path.read_text())}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_modules_and_files_of_trine_exist(page):
    text = page.read_text()
    missing = [path for path in re.findall(r"\bsrc/trine/[\w/]+(?:\.\w+)?", text) if not (ROOT / path).exists()]
    for dotted in sorted(set(re.findall(r"(?<![\w./])trine(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?", text))):
        if not exists(dotted):
            missing.append(dotted)
    assert not missing


def exists(dotted: str) -> bool:
    """Return whether the name is a module, a module's attribute, an entry-point group or a file name."""
    if dotted == "trine.bib" or dotted in GROUPS:
        return True
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@pytest.mark.parametrize("name", ["design/architecture.md", "guides/extend.md"])
def test_files_named_by_their_room_exist(name):
    text = (ROOT / "docs" / name).read_text()
    paths = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)
    assert paths
    assert not [path for path in paths if not (SRC / path).exists()]


def test_architecture_is_one_page():
    assert len((ROOT / "docs" / "design" / "architecture.md").read_text().splitlines()) <= 125


def test_every_decision_is_in_the_list_and_every_page_of_design_in_the_architecture():
    decisions = ROOT / "docs" / "decisions"
    text = (decisions / "README.md").read_text()
    assert all(f"({page.name})" in text for page in decisions.glob("[0-9]*.md"))
    design = ROOT / "docs" / "design"
    text = (design / "architecture.md").read_text()
    assert all(f"({page.name})" in text for page in design.glob("*.md") if page.stem != "architecture")
