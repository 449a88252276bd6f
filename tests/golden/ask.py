"""Ask the golden questions, and compare the answers with the recorded ones or record them (README.md).

python tests/golden/ask.py --list
python tests/golden/ask.py --only kernel
python tests/golden/ask.py --record --only 'new question'
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import adapter
import answers
import yaml

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for chakra_files

RECORDED = HERE / "questions"
INPUTS = HERE / "inputs"
DATA = HERE.parent / "data"
EXAMPLES = HERE.parents[1] / "examples"
REFUSED = 2
Json = Any


class Question(NamedTuple):
    """Command line, or question of ``adapter.py``, under a name that is never reused."""

    group: str
    name: str
    line: str
    is_quick: bool

    @property
    def id(self) -> str:
        return f"{self.group}: {self.name}"


def questions(only: str = "") -> list[Question]:
    found = []
    for group, lines in yaml.load((HERE / "questions.yaml").read_bytes(), yaml.CSafeLoader).items():
        for name, line in lines.items():
            is_quick = name.startswith("*")
            found.append(Question(group, name.lstrip("* "), line, is_quick))
    names = [each.id for each in found]
    assert len(set(names)) == len(names), f"twice: {sorted({name for name in names if names.count(name) > 1})}"
    return [each for each in found if only in each.id]


def made_before(folder: Path) -> Path:
    """Return the folder of inputs that trine makes, being too large to keep; the first questions check them."""
    made = folder / "made"
    if not made.exists():
        made.mkdir(parents=True)
        for line in yaml.load((HERE / "made.yaml").read_bytes(), yaml.CSafeLoader):
            done = adapter.command(words(line, folder, made))
            assert done.code == 0, f"{line}: {done.stderr}"
        for model in ("cnn", "tf"):
            (made / model).mkdir()
            for half in ("kineto", "et"):
                shutil.copy(DATA / "torch213-cpu" / f"{model}_{half}.json.gz", made / model)
        unnamed = json.loads((made / "vgg13.trine.json").read_text())
        (made / "unnamed.trine.json").write_text(json.dumps(unnamed | {"gpu": None}))
    return made


def words(line: str, out: Path, made: Path) -> list[str]:
    places = {"out": out, "made": made, "inputs": INPUTS, "data": DATA, "examples": EXAMPLES}
    return [re.sub(r"\{(\w+)\}", lambda found: str(places[found[1]]), word) for word in shlex.split(line)]


def answer(question: Question, folder: Path) -> Json:
    """Return trine's answer now; ``folder`` keeps the inputs that trine makes for several questions."""
    made = made_before(folder)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        places = [(str(out), "OUT"), (str(made), "MADE"), (str(HERE.parents[1]), "TRINE")]
        places += [(adapter.version(), "VERSION")]
        is_brief = question.group.startswith("options")
        before = Path.cwd()
        os.chdir(out)
        try:
            steps = [_step(line, words(line, out, made), places, is_brief) for line in question.line.split(" && ")]
        finally:
            os.chdir(before)
        files = {each.name: answers.of_file(each, places) for each in sorted(out.iterdir())}
    found: dict[str, Json] = steps[0] if len(steps) == 1 else {"steps": steps}
    return found | ({"files": files} if files else {})


def _step(line: str, asked: list[str], places: Sequence[tuple[str, str]], is_brief: bool) -> dict[str, Json]:
    """Return the answer of one command line."""
    if asked[0] == "api":
        return {name: answers.of_rows(rows) for name, rows in adapter.asked(asked[1:]).items()}
    done = adapter.command(asked)
    found: dict[str, Json] = {"code": done.code}
    if done.code == REFUSED:
        found |= {"lines": len(done.stderr.strip().splitlines()), "stdout": bool(done.stdout)}
    if done.stdout.startswith(("{", "[")):
        content = answers.cleaned(answers.recorded(json.loads(done.stdout)), places)
        found["json"] = answers.short(content, is_brief=is_brief)
    elif line.startswith("kernel show"):
        found["text"] = answers.of_text(done.stdout)
    return found


def recorded(group: str) -> dict[str, Json]:
    path = RECORDED / f"{group}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def differences(before: Json, now: Json, path: str = "") -> Iterator[str]:
    """Yield each place where two answers differ, with its old and new value."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key, "(none)"), now.get(key, "(none)"), f"{path}.{key}" if path else key)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{path}[{at}]")
    elif before != now or type(before) is not type(now):
        yield f"{path}: {json.dumps(before)[:200]} -> {json.dumps(now)[:200]}"


def changes(question: Question, now: Json) -> list[str]:
    """Return the differences between an answer and the recorded one; empty if they agree bit for bit."""
    kept = recorded(question.group).get(question.name)
    return ["not recorded: ask.py --record"] if kept is None else list(differences(kept, json.loads(json.dumps(now))))


def record(asked: Sequence[Question], found: Sequence[Json], is_forced: bool) -> None:
    """Write the answers; exit if a recorded answer would change, unless forced."""
    for group in dict.fromkeys(question.group for question in asked):
        kept = recorded(group)
        new = {q.name: now for q, now in zip(asked, found, strict=True) if q.group == group}
        changed = [name for name, now in new.items() if name in kept and kept[name] != json.loads(json.dumps(now))]
        if changed and not is_forced:
            sys.exit(f"{group}: recorded already, and different now: {changed}; --force writes them anew")
        known = [question.name for question in questions() if question.group == group]
        rows = {name: (kept | new)[name] for name in known if name in kept | new}
        text = ",\n".join(f" {json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in rows.items())
        (RECORDED / f"{group}.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only questions with this in 'group: name'")
    parser.add_argument("--quick", action="store_true", help="only the tenth that make test asks")
    parser.add_argument("--list", action="store_true", help="print the questions, ask nothing")
    parser.add_argument("--record", action="store_true", help="write answers that are not recorded yet")
    parser.add_argument("--force", action="store_true", help="with --record: also those that changed")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="ask in another order")
    parser.add_argument("--times", action="store_true", help="print what took longest")
    given = parser.parse_args()
    asked = [each for each in questions(given.only) if each.is_quick or not given.quick]
    if given.list:
        print("\n".join(f"{'*' if each.is_quick else ' '} {each.id}\n      trine {each.line}" for each in asked))
        return 0
    if given.shuffle is not None:
        random.Random(given.shuffle).shuffle(asked)
    found, seconds, failed = [], [], 0
    with tempfile.TemporaryDirectory() as name:
        made_before(Path(name))
        for question in asked:
            start = time.process_time()
            found.append(answer(question, Path(name)))
            seconds.append(time.process_time() - start)
            if not given.record and (different := changes(question, found[-1])):
                failed += 1
                print(f"DIFFERENT {question.id}\n  trine {question.line}", *different[:12], sep="\n    ")
    if given.record:
        record(asked, found, given.force)
    if given.times:
        for spent, question in sorted(zip(seconds, asked, strict=True), reverse=True)[:40]:
            print(f"{spent:6.2f} s  {question.id}")
    print(f"{len(asked)} questions, {failed} answers differ, {sum(seconds):.0f} s of CPU time")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
