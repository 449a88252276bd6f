"""Try trine on a folder of real files, and print a table of files read, refused and failed.

    make corpus CORPUS=DIR        (python tools/corpus.py DIR [--json FILE])

The content of a file shows its kind (a trace, a log of nccl-tests, a topology dump, a cluster file or a plan), and the
kind decides the command. ``DIR/expected.yaml`` may hold the expected answers, by file name::

    topo.txt: {command: cluster import {file} --gpu h100-sxm, code: 0, says: 8 gpu}

``command``, ``code`` and ``says`` (a part of the output) are optional. A file is

==========  ========================================================================================
right       as expected.yaml says
read        exit code 0, without an expected answer
refused     exit code 2 with one line that begins with ``error:``
failed      a traceback, another exit code, several lines of error, a time-out, or not as expected
==========  ========================================================================================

The exit code is 1 if a file fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

EXPECTED = "expected.yaml"
#: Bytes of a file that decide its kind.
HEAD_BYTES = 200_000
TIMEOUT_S = 300
#: Kind, a pattern of its content (the first match counts), and the commands that read it, the usual one first.
#: ``{folder}``: the folder of the file; ``{prefix}``: its path without ``.RANK.et``.
KINDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("MSCCL plan", r"<algo\b", ("kernel show {file} --size 64K --summary",)),
    ("topology XML", r"<(system|topology)\b", ("cluster import {file}", "cluster import {file} --gpu h100-sxm")),
    ("PyTorch trace", r'"traceEvents"|"schema"\s*:\s*"\d+\.\d+[^"]*chakra|"nodes"\s*:.{0,400}"(ctrl_deps|rf_id)"',
     ("trace inspect {file}", "trace inspect {folder}")),
    ("trine workload", r'"format"\s*:\s*"trine', ("trace inspect {file}",)),
    ("MSCCL++ plan", r'"gpus"\s*:.*("threadblocks"|"channels")',
     ("kernel show {file} --size 64K --summary",)),
    ("log of nccl-tests", r"(?m)^.*\b\d+\s+\d+\s+(u?int\w*|half|float\w*|double|b?float16|fp8\w*)\s.*\d\.\d",
     ("check {file} --cluster dgx-h100",)),
    ("topology matrix", r"(?m)^.*\bGPU0\b.*\bX\b", ("cluster import {file} --gpu h100-sxm",)),
    ("TrioSim trace", r"(?i)^\W*(id|name|index)\b.*,.*(duration|time|runtime)", ("trace inspect {folder}",)),
    ("edge list", r"(?i)^(#.*\n)*[^\n]*\bsource\b[^\n]*\btarget\b",
     ("cluster import {file}", "cluster import {file} --gpu h100-sxm --links-from catalogue")),
    ("model file", r"(?m)^(family|architecture)\s*:", ("train model:{file} --gpus 8 --dp 8 --cluster dgx-h100",)),
    ("cluster file", r"(?m)^(devices|nodes|node|base|topology|infrastructure|instances|components)\s*:",
     ("cluster import {file}", "cluster show {file}", "cluster import {file} --gpu h100-sxm --links-from catalogue")),
)  # fmt: skip
UNKNOWN = ("unknown", "", ("cluster import {file}",))


@dataclass(frozen=True)
class Outcome:
    """The outcome of one file. result: right, read, refused or failed; line: the line that shows why."""

    file: str
    kind: str
    result: str
    command: str
    line: str


def head_of(path: Path) -> str:
    """Return the beginning of a file as text, decompressed."""
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES)
    if start[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path) as file:
                start = file.read(HEAD_BYTES)
        except (OSError, EOFError):
            return ""
    return start.decode("utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")


def kind_of(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a file and the commands that may read it."""
    if re.search(r"\.\d+\.et(\.gz)?$", path.name):
        return "Chakra trace", ("chakra inspect {prefix}",)
    if path.suffix == ".gpu":
        return "GPU program", ("kernel show {file}",)
    head = head_of(path)
    return next(((kind, commands) for kind, pattern, commands in KINDS if re.search(pattern, head, re.S)), UNKNOWN[::2])


def outcome_of(path: Path, name: str, expected: dict[str, Any]) -> Outcome:
    """Run the commands that may read a file until one succeeds; if all refuse it, the first answer counts."""
    kind, commands = kind_of(path)
    places = {
        "file": str(path), "folder": str(path.parent), "prefix": re.sub(r"\.\d+\.et(\.gz)?$", "", str(path)),
    }  # fmt: skip
    outcomes: list[Outcome] = []
    for template in (expected["command"],) if "command" in expected else commands:
        words = [word.format(**places) for word in shlex.split(template)]  # after the split: names may hold spaces
        result, line = run(words, expected)
        outcomes.append(Outcome(name, kind, result, shlex.join(["trine", *words]), line))
        if result != "refused":
            break
    last = outcomes[-1]
    return last if last.result != "refused" else outcomes[0]


def run(words: list[str], expected: dict[str, Any]) -> tuple[str, str]:
    """Return the result of one command and the line that shows why."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trine", *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "failed", f"no answer within {TIMEOUT_S} s"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    first = next(iter(errors or done.stdout.splitlines() or done.stderr.splitlines()), "")
    if "Traceback (most recent call last)" in done.stderr:
        return "failed", done.stderr.strip().splitlines()[-1]
    if done.returncode not in (0, 2) or (done.returncode == 2 and len(errors) != 1):
        return "failed", f"exit code {done.returncode}: {first}"
    if expected.keys() & {"code", "says"}:
        if done.returncode != expected.get("code", 0):
            return "failed", f"exit code {done.returncode}, expected {expected.get('code', 0)}: {first}"
        if str(expected.get("says", "")) not in done.stdout + done.stderr:
            return "failed", f"does not print {expected['says']!r}: {first}"
        return "right", first
    return ("refused" if done.returncode else "read"), first


def files_of(folder: Path) -> list[Path]:
    """Return the files to try: all, but only rank 0 of Chakra traces."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    later_rank = re.compile(r"\.[1-9]\d*\.et(\.gz)?$")
    return [path for path in paths if path.name != EXPECTED and not later_rank.search(path.name)]


def load_expected(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the expected answers of ``expected.yaml`` by file, or an empty mapping without that file."""
    path = folder / EXPECTED
    if not path.exists():
        return {}
    found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for name, each in found.items():
        unknown = set(each) - {"command", "code", "says"}
        if unknown or not (folder / name).is_file():
            sys.exit(
                f"error: {path}: {name}: {f'unknown key {min(unknown)!r}' if unknown else 'there is no such file'}"
            )
    return dict(found)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--json", type=Path, help="write the table as JSON")
    options.add_argument("--jobs", type=int, default=2, help="commands at a time [2]")
    given = options.parse_args()
    paths, expected = files_of(given.folder), load_expected(given.folder)
    if not paths:
        sys.exit(f"error: {given.folder}: holds no files")
    names = [path.relative_to(given.folder).as_posix() for path in paths]
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(
            pool.map(lambda pair: outcome_of(*pair, expected.get(pair[1], {})), zip(paths, names, strict=True))
        )
    width, kinds = max(map(len, names)), max(len(each.kind) for each in outcomes)
    for each in outcomes:
        print(f"{each.file:{width}}  {each.kind:{kinds}}  {each.result:8}  {each.line[:200]}")
    counts = Counter(each.result for each in outcomes)
    print(
        f"{len(outcomes)} files: "
        + ", ".join(f"{counts[name]} {name}" for name in ("right", "read", "refused", "failed"))
    )
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(counts["failed"]))


if __name__ == "__main__":
    main()
