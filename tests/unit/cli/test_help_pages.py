"""Does `trine help` print every page of the documentation, and does every answer name a page that exists?"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in ("README.md", "index.md")]
#: Topics that texts of the package or the documentation name.
NAMED = sorted(
    {
        topic
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.yaml"), *(ROOT / "docs").rglob("*.md")]
        for topic in re.findall(r"\btrine help ([a-z][\w-]+(?:/[\w-]+)?)", path.read_text())
    }
)


def ask(*words: str):
    return CliRunner().invoke(app, ["help", *words])


def test_the_list_has_a_line_for_every_page_with_its_title():
    lines = ask().output.splitlines()[1:]
    assert len(lines) == len(PAGES)
    titles = {page.read_text().partition("\n")[0].removeprefix("# ") for page in PAGES}
    assert all(any(line.endswith(title) for line in lines) for title in titles)
    for line in lines:
        assert ask(line.split()[0]).exit_code == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_is_printed_without_links_to_files(page):
    topic = page.stem if page.parent.name == "docs" else f"{page.parent.name}/{page.stem}"
    answer = ask(topic)
    assert answer.exit_code == 0
    assert answer.output.startswith(page.read_text().partition("\n")[0])
    prose = re.sub(r"^```.*?^```", "", answer.output, flags=re.S | re.M)
    assert not re.findall(r"\]\((?!https?://)[^)]*\.md[^)]*\)", prose)


def test_a_name_that_several_pages_have_is_that_of_the_guide_and_names_the_others():
    answer = ask("memory").output
    assert answer.startswith((ROOT / "docs/guides/memory.md").read_text().partition("\n")[0])
    assert answer.rstrip().endswith("Other pages of this name: background/memory")


def test_topics_that_texts_name_exist():
    assert len(NAMED) >= 6
    assert not [topic for topic in NAMED if ask(topic).exit_code]


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("fsdp", ["Glossary", "--sharding of train", "trine help"]), ("mfu", ["Glossary", "trine help"]),
        ("sharp", ["SHARP"]),
        ("latency", ["--latency of", "Options", "trine help"]), ("Micro-Batch", ["Glossary", "--micro-batch of"]),
        ("--recompute", ["--recompute of train"]), ("bubble", ["Glossary"]),
    ],
)  # fmt: skip
def test_a_word_without_a_page_is_searched(word, texts):
    done = ask("--", word)
    assert done.exit_code == 0, done.output
    assert all(text in done.output for text in texts), done.output
    for topic in re.findall(r"^next: trine help (\S+)$", done.output, re.M):
        assert ask(topic).exit_code == 0


def test_another_word_leads_to_the_nearest_page():
    answer = ask("memry")
    assert answer.exit_code == 2
    assert answer.stderr == "error: no page 'memry'; did you mean 'memory'?\n"


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("fspd", "did you mean 'fsdp'?"), ("mfuu", "did you mean 'mfu'?"), ("nvlss", "did you mean 'nvls'?"),
        ("qqqzzz", "'trine help' lists the pages"),
    ],
)  # fmt: skip
def test_a_word_typed_nearly_right_is_found_among_terms_and_options(topic, hint):
    assert CliRunner().invoke(app, ["help", topic]).stderr == f"error: no page {topic!r}; {hint}\n"


def test_the_wheel_carries_the_pages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"docs": "trine/docs"}


def test_an_abbreviation_finds_the_headings_of_its_term():
    answer = ask("moe").output
    assert "guides/parallelism: Expert parallelism\n" in answer
    assert answer.rstrip().endswith("next: trine help guides/parallelism")


def test_several_words_are_one_search():
    assert "mixture of experts (MoE): " in ask("mixture", "of", "experts").output
    assert ask("expert", "paralelism").exit_code == 2
