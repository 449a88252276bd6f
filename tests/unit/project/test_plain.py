"""Does tools/plain_check.py fail texts that read like a translation or have long sentences, and pass plain ones?"""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"
GOOD = "trine assumes 60 us per kernel launch. The slowest GPU decides the step. Add --dp N to use more replicas. " * 4
BAD = "The time is what a collective takes, of which that of the links is said where there is none. " * 4
LONG = f"A step has {'many parts and '.join(' ' * 12)} ends."


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("plain_check", TOOLS / "plain_check.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules["plain_check"] = found
    spec.loader.exec_module(found)
    yield found
    for name in ("plain_check", "plain"):
        del sys.modules[name]
    sys.path.remove(str(TOOLS))


def test_a_plain_text_passes(tool):
    found = tool.judge(tool.Group("page", [GOOD], is_pages=True))
    assert (found.rate, found.median, found.problems) == (0, 6, [])


def test_a_text_like_a_translation_fails(tool):
    found = tool.judge(tool.Group("page", [BAD]))
    assert found.problems == [f"hits per 1,000 words {found.rate:.1f}, at most 3.0"]
    assert found.worst[0] == (7, BAD[: len(BAD) // 4].strip())


def test_long_sentences_fail_on_pages_alone(tool):
    assert [text.split(" 3")[0] for text in tool.judge(tool.Group("page", [LONG], is_pages=True)).problems] == [
        "median words of a sentence",
        "90th percentile of words",
    ]
    assert not tool.judge(tool.Group("answer", [LONG])).problems


def test_tables_code_headings_and_fragments_have_no_length(tool):
    page = f"# {LONG}\n\n| {LONG} |\n\n- compute, idle\n- One more sentence stands here.\n\n`a b c` is one word here."
    assert tool.sentence_lengths(page) == [5, 5]
    assert "x = 1" not in tool.plain.prose_of_markdown("Text.\n\n    x = 1\n\n```\nx = 1\n```\n")


def test_messages_are_strings_without_docstrings_and_comments(tool):
    code = (
        '"""What a module is."""\n\n'
        "# what a comment says\n"
        "def f(x):\n"
        '    r"""What a function does."""\n'
        '    name = "one two"\n'
        "    return f\"{x['a']} GPUs do not fit \" 'into the node: ' f\"use {x:,}\"  # not this\n"
    )
    messages, others = tool.plain.strings_of_python(code)
    assert messages == ["{} GPUs do not fit into the node: use {}"]
    assert others[:2] == ["What a module is.", "what a comment says"]
    assert "What a function does." in tool.plain.prose_of_python(code)


def test_texts_of_yaml_and_of_help_pages_are_found(tool):
    value = {"a": 1, "why": "measured on one real machine", "rows": [{"note": "three words only", "b": None}]}
    assert list(tool._strings(value)) == ["measured on one real machine"]
    texts = list(tool.help_texts())
    assert "Predict the time of a training step of WORKLOAD on N GPUs, and explain it." in " ".join(
        texts[-400:] + texts
    )
    assert len(texts) > 300
