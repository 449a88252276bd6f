#!/usr/bin/env python3
"""Count sentences that read like a translation, per 1,000 words, in docs, docstrings, comments and messages.

    python tools/plain.py PATH...            # totals and the worst files
    python tools/plain.py PATH... --show 40  # the sentences themselves, worst first
    python tools/plain.py PATH... --max 3    # exit 1 above 3 hits per 1,000 words

The patterns are turns of phrase that hardly occur in the documentation of well-written Python projects (1.1 to 2.8 per
1,000 words in eight of them). A hit is a sentence to read again: rewrite it as you would say it to a colleague.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

PATTERNS = {
    # a clause as a subject or an object instead of a noun: "what a collective takes", "what was asked for"
    "what-clause": r"\bwhat\s+(?:a|an|the|this|that|it|each|one|every|no|its|their|such|others?|trine|ranks?|gpus?|is"
    r"|was|are|were|has|have|had|they|can|could|only|makes|made|follows|comes|came|goes|there|nobody|nothing|takes|took"
    r"|happens|holds|waits|costs|remains|stands)\b",
    "so many": r"\b(?:so|as) (?:many|much|few|far|long)\b(?! as\b)",
    "of which": r"\b(?:of|for|in|to|from|by|with|on) which\b",
    "that of": r"\b(?:that|those) (?:of|in|with|at|on|from|which)\b",
    "one's": r"\bone's\b|\bof one'?s? own\b|\bof its own\b|\bof their own\b|\bof your own\b|\bof his own\b",
    "said": r"\b(?:is|are|was|were|be|been) (?:said|told|taken|asked|meant|given up|made of|gone|left out|let|held)\b",
    "says so": r"\bsays? (?:so|which|what|who|when|that|how)\b|\bsaid (?:so|of|with|by|apart)\b",
    "nothing else": r"\b(?:nothing|nobody|no one|none|anything|whatever|whichever|whoever|wherever)"
    r" (?:else|of|that|there|it|is|are|has|says|knows)\b",
    "where none": r"\bwhere (?:it|that|this|they|there|none|nobody|nothing|one|a|an|the|no|each|all)\b",
    "as it is": r"\bas (?:it|they) (?:is|are|was|were|does|do|comes?|stands?)\b|\bas such\b|\bthe like\b"
    r"|\band so (?:is|are|does|do)\b",
    "by how much": r"\b(?:by|of|from|to|in|on|for|at) (?:how (?:much|many|far)|what)\b",
    "there is none": r"\b(?:if|where|that) there (?:is|are|was|were) (?:one|none|any|some|no)\b"
    r"|\bthere (?:is|are) none\b",
    "is none": r"\b(?:is|are|was|were|has|have) none\b|\bis no (?:such|other)\b",
    "not un": r"\bnot (?:un|in)[a-z]{4,}\b",
    "inversion": r"\bso (?:is|are|does|do|has|have|was|were) (?:a|an|the|its|each|every|what|all)\b",
    "ones that": r"\b(?:the|its) (?:ones?|others?) (?:that|which|who|of)\b",
}
COMPILED = {name: re.compile(text, re.IGNORECASE) for name, text in PATTERNS.items()}
ANY = re.compile("|".join(PATTERNS.values()), re.IGNORECASE)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
#: A comment, a docstring or another string of Python. Faster than ``ast``, which takes seconds for this project.
TOKEN = re.compile(
    r'''\#[^\n]*|^[ \t]*r?"""[\s\S]*?"""'''
    r'''|(?P<prefix>\b[rbfRBF]{1,2}|)(?P<string>"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')''',
    re.MULTILINE,
)


def words_of(text: str) -> int:
    """Return the number of words."""
    return len(WORD.findall(text))


def sentences(text: str) -> list[str]:
    """Split a text after full stops, colons and semicolons, and at empty lines."""
    return [" ".join(part.split()) for part in re.split(r"(?<=[.;:!?])\s+|\n\s*\n", text) if part.strip()]


def hits_of(sentence: str) -> Counter[str]:
    """Return the number of hits of each pattern."""
    if not ANY.search(sentence):
        return Counter()
    return Counter({name: len(rule.findall(sentence)) for name, rule in COMPILED.items()})


def strings_of_python(text: str) -> tuple[list[str], list[str]]:
    """Return the messages of a module (strings of four words or more, with ``{}`` for values) and its other prose."""
    messages, others, end = [""], [], -1
    for token in TOKEN.finditer(text):
        quoted = token["string"]
        if quoted is None:
            others.append(token[0].strip('#:"r \n'))
            continue
        quoted = quoted.strip(quoted[0])
        if "f" in token["prefix"].lower():
            quoted = re.sub(r"\{[^{}]*\}", "{}", quoted)
        if end >= 0 and not text[end : token.start()].strip():
            messages[-1] += quoted  # literals side by side are one string
        else:
            messages.append(quoted)
        end = token.end()
    return [message.replace("\\n", "\n") for message in messages if words_of(message) >= 4], others


def prose_of_python(text: str) -> str:
    """Return the messages, docstrings and comments of a module."""
    messages, others = strings_of_python(text)
    return "\n\n".join(messages + [each for each in others if words_of(each) >= 3])


def prose_of_markdown(text: str) -> str:
    """Return the text without code blocks."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def main() -> int:
    """Print the counts of the paths on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--max", type=float)
    options = parser.parse_args()
    found = [each for path in options.paths for each in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    files = [each for each in found if each.suffix in (".py", ".md", ".rst", ".txt")]
    kinds: Counter[str] = Counter()
    shown, rows, words = [], [], 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        prose = prose_of_python(text) if file.suffix == ".py" else prose_of_markdown(text)
        counted = [(sentence, hits_of(sentence)) for sentence in sentences(prose)]
        shown += [(count.total(), file, sentence) for sentence, count in counted if count.total()]
        rows.append((sum(count.total() for _, count in counted), words_of(prose), file))
        words += rows[-1][1]
        kinds.update(sum((count for _, count in counted), Counter()))
    rate = 1000 * kinds.total() / max(1, words)
    print(f"{words:,} words in {len(files)} files, {kinds.total():,} hits, {rate:.1f} per 1,000 words")
    print("  " + ", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    for hits, size, file in sorted(rows, key=lambda row: -row[0] / max(row[1], 200))[:12]:
        print(f"  {1000 * hits / max(size, 1):6.1f} per 1,000  {hits:5} hits  {size:6} words  {file}")
    for count, file, sentence in sorted(shown, key=lambda row: -row[0])[: options.show]:
        print(f"  {count} {file}: {sentence[:300]}")
    return int(options.max is not None and rate > options.max)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(0)
