"""Would the tests notice? Change an operator or a comparison of the source, and see whether the tests of its area fail.

By hand, not in ``make test``: 50 mutants of an area take 5 to 40 minutes of one core::

    python tests/mutation/mutate.py --area engine --count 50 --seed 12 --out out/mutants

A *mutant* is one changed operator (``+`` to ``-``, ``<`` to ``<=``, ``and`` to ``or``, ``min`` to ``max`` ...) in one
module. Nothing is written to the source: each mutant is a forked process in which an import hook compiles the module
from its changed syntax tree. Areas of kernels run uncompiled (``NUMBA_DISABLE_JIT=1``). A first run without a change
notes how long each test takes and which functions it calls; a mutant is then shown the tests that call its function,
the quickest first, and what survives these is shown all tests of the area.

``OUT/<area>.jsonl`` has one line a mutant: place, change, ``killed`` (and by which test) or ``survived``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "trine"


@dataclass(frozen=True)
class Area:
    """``source`` and ``tests`` are patterns below src/trine and tests; ``compiled``: whether Numba compiles kernels."""

    source: tuple[str, ...]
    tests: tuple[str, ...]
    compiled: bool = True


AREAS = {
    "engine": Area(
        ("engine/*.py",),
        (
            "closed_form/test_engine*", "closed_form/test_pressure*", "closed_form/test_circuit*",
            "closed_form/test_fifo*", "closed_form/test_k_of_n*", "unit/test_engine*", "unit/test_circuit*",
            "unit/test_fifo*", "unit/test_network*", "oracle/test_engine*", "oracle/test_circuit*", "oracle/test_fifo*",
            "property/test_engine*", "property/test_circuit*", "property/test_fifo*", "unit/test_partition.py",
        ),
        compiled=False,
    ),
    "network": Area(
        ("network/*.py",),
        (
            "closed_form/test_engine*", "closed_form/test_pressure*", "closed_form/test_circuit*",
            "closed_form/test_fifo*", "unit/test_engine*", "unit/test_circuit*", "unit/test_fifo*",
            "unit/test_network*", "oracle/test_engine*", "oracle/test_circuit*", "oracle/test_fifo*",
            "property/test_engine*", "property/test_circuit*", "property/test_fifo*",
        ),
        compiled=False,
    ),
    "folding": Area(
        ("folding/*.py",),
        (
            "closed_form/test_folding*", "oracle/test_folding*", "property/test_folding*", "unit/test_folding*",
            "property/test_contention_folded.py", "unit/test_partition.py", "unit/test_cli_folding.py",
        ),
    ),
    "collectives": Area(
        ("collectives/*.py", "collectives/library/*.py", "collectives/plans/*.py"),
        (
            "closed_form/test_collectives*", "closed_form/test_cost*", "closed_form/test_library*",
            "closed_form/test_run_schedule.py", "closed_form/test_packet*", "closed_form/test_loadstore_costs.py",
            "crosscheck/test_collectives_measured.py", "crosscheck/test_plans*", "property/test_collect*",
            "property/test_group*", "property/test_library*", "property/test_local*", "property/test_plans*",
            "unit/test_collective*", "unit/test_library*", "unit/test_plans*", "unit/test_cli_collective.py",
        ),
    ),
    "parallel": Area(
        ("parallel/*.py", "parallel/schedules/*.py"),
        (
            "closed_form/test_contention*", "closed_form/test_experts*", "closed_form/test_hop*",
            "closed_form/test_local_sgd.py", "closed_form/test_offload*", "closed_form/test_pipeline*",
            "closed_form/test_recomputation.py", "closed_form/test_sequence*", "closed_form/test_sharding*",
            "closed_form/test_train*", "golden/*", "oracle/test_hop*", "property/test_forms*", "property/test_hop*",
            "property/test_overlap*", "property/test_pipeline*", "property/test_train*", "unit/test_parallel*",
            "unit/test_pipeline*", "unit/test_forms*", "unit/test_stragglers.py", "unit/test_cli_pipeline.py",
            "unit/test_cli_hop.py", "unit/test_cli_overlap.py", "unit/test_metrics_memory.py",
        ),
    ),
    "compute": Area(
        ("compute/*.py",),
        ("closed_form/test_compute*", "crosscheck/test_compute*", "crosscheck/test_cost*", "property/test_compute*",
         "unit/test_compute*", "crosscheck/test_trace_batches.py", "crosscheck/test_synthesized*",
         "closed_form/test_synth*", "closed_form/test_train*"),
    ),
    "memory": Area(
        ("parallel/liveness.py", "results/memory.py", "folding/hungry.py", "parallel/ownership.py"),
        ("unit/test_metrics_memory.py", "crosscheck/test_memory*", "closed_form/test_recomputation.py",
         "closed_form/test_sharding*", "closed_form/test_offload*", "closed_form/test_pipeline*",
         "closed_form/test_train*", "property/test_forms*", "property/test_train*", "unit/test_forms*",
         "unit/test_parallel*"),
    ),
    "metrics": Area(
        ("results/metrics.py", "results/waits.py", "results/activity.py", "results/intervals.py", "results/traffic.py",
         "results/energy.py", "results/scope.py", "results/restrict.py", "results/gpu_metrics.py",
         "results/gpu_bottleneck.py", "results/gpu_resources.py"),
        ("closed_form/test_metrics*", "property/test_metrics*", "unit/test_metrics*", "unit/test_results*",
         "unit/test_energy.py", "unit/test_gpu_metrics.py", "unit/test_gpu_bottleneck.py",
         "unit/test_gpu_resources.py", "closed_form/test_gpu_views*", "closed_form/test_pipeline*"),
    ),
    "eidolon": Area(
        ("eidolon/*.py",),
        ("closed_form/test_eidolon*", "closed_form/test_flag*", "closed_form/test_replay*", "property/test_eidolon*",
         "property/test_replay*", "unit/test_eidolon*", "unit/test_fused*", "oracle/test_replay*"),
    ),
}  # fmt: skip

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """The change number ``index`` of ``path`` (below src/trine), in the order of :func:`changes`."""

    path: str
    index: int
    line: int
    function: str
    before: str
    after: str


def changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, Any, str]]:
    """All places of ``tree`` that can be changed: node, field, new value, and the function it stands in.

    Annotations, texts, ``raise`` and what is run for type checkers only decide no answer.
    """

    def visit(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str, Any, str]]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.AnnAssign):
            if not isinstance(node, ast.AnnAssign):
                return
            if node.value is not None:
                yield from visit(node.value, function)
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            yield node, "ops", [COMPARISONS[type(node.ops[0])]()], function
        if isinstance(node, ast.BoolOp):
            yield node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And(), function
        texts = isinstance(node, ast.BinOp) and any(
            isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in (node.left, node.right)
        )
        if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS and not texts:
            yield node, "op", OPERATORS[type(node.op)](), function
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "op", ast.UAdd(), function
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in SWAPPED_CALLS:
                yield called, "id", SWAPPED_CALLS[called.id], function
            if isinstance(called, ast.Attribute) and called.attr in SWAPPED_CALLS:
                yield called, "attr", SWAPPED_CALLS[called.attr], function
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                yield from visit(statement, node.name)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(tree, "")


def mutated(source: str, index: int) -> tuple[ast.Module, ast.AST, ast.AST, str]:
    """The syntax tree with its change number ``index``, the node before and after it, and its function."""
    tree = ast.parse(source)
    node, field, value, function = list(changes(tree))[index]
    before = copy.deepcopy(node)
    setattr(node, field, value)
    return ast.fix_missing_locations(tree), before, node, function


def sample(area: Area, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants of an area, drawn evenly from all of its changes."""
    paths = sorted({path for pattern in area.source for path in SOURCE.glob(pattern)})
    places = [(path, i) for path in paths for i, _ in enumerate(changes(ast.parse(path.read_text())))]
    drawn = sorted(random.Random(seed).sample(places, min(count, len(places))))
    found = []
    for path, index in drawn:
        _, before, after, function = mutated(path.read_text(), index)
        found.append(
            Mutant(
                str(path.relative_to(SOURCE)), index, before.lineno, function, ast.unparse(before), ast.unparse(after)
            )
        )
    return found


class Hook(importlib.abc.MetaPathFinder):
    """Compiles one module from its changed syntax tree."""

    def __init__(self, mutant: Mutant) -> None:
        self.path = SOURCE / mutant.path
        self.name = "trine." + mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.tree = mutated(self.path.read_text(), mutant.index)[0]

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        spec = importlib.util.spec_from_file_location(name, self.path)
        code = compile(self.tree, str(self.path), "exec")
        spec.loader.get_code = lambda _name: code  # type: ignore[union-attr, method-assign]
        return spec


class Watch:
    """A pytest plug-in: how long each test takes, which functions of the source it calls, and which test fails."""

    def __init__(self, chosen: list[str] | None = None, profile: bool = False) -> None:
        self.order = None if chosen is None else {test: i for i, test in enumerate(chosen)}
        self.profile = profile
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, list[str]] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.order is not None:
            items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid or "collection")

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        seen: dict[int, Any] = {}

        def note(frame: Any, event: str, _argument: Any) -> None:
            if event == "call":
                seen[id(frame.f_code)] = frame.f_code

        start = time.perf_counter()
        if self.profile:
            threading.setprofile(note)
            sys.setprofile(note)
        yield
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        self.seconds[item.nodeid] = time.perf_counter() - start
        source = str(SOURCE)
        self.calls[item.nodeid] = sorted(
            {f"{c.co_filename[len(source) + 1 :]}:{c.co_name}" for c in seen.values() if c.co_filename.startswith(source)}
        )


def run_tests(watch: Watch, files: list[str], stop: bool) -> None:
    """Pytest on ``files`` in this process, silent."""
    import pytest

    pytest.hookimpl(hookwrapper=True)(Watch.pytest_runtest_protocol)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-W", "ignore", *files]
    pytest.main([*arguments, *(["-x"] if stop else [])], plugins=[watch])


def in_child(timeout_s: float, target: Any, *arguments: Any) -> Any:
    """What ``target(*arguments)`` returns in a forked process; None where it took longer or died."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)

    def work() -> None:
        os.setpgid(0, 0)
        theirs.send(target(*arguments))

    process = context.Process(target=work)
    process.start()
    theirs.close()
    answer = None
    try:
        if mine.poll(timeout_s):
            answer = mine.recv()
    except EOFError:
        pass
    if process.is_alive() and answer is None:
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            process.kill()
    process.join()
    return answer


def baseline(files: list[str]) -> tuple[dict[str, float], dict[str, list[str]], list[str]]:
    watch = Watch(profile=True)
    run_tests(watch, files, stop=False)
    return watch.seconds, watch.calls, watch.failed


def try_mutant(mutant: Mutant, files: list[str], tests: list[str]) -> list[str]:
    """The first tests that fail."""
    sys.meta_path.insert(0, Hook(mutant))
    watch = Watch(tests)
    run_tests(watch, files, stop=True)
    return watch.failed


def judge(mutant: Mutant, seconds: dict[str, float], calls: dict[str, list[str]], most_s: float) -> dict[str, Any]:
    """Show ``mutant`` the tests that call its function, then the others of its area."""
    key = f"{mutant.path}:{mutant.function}"
    by_time = sorted(seconds, key=lambda test: seconds[test])
    near = [test for test in by_time if key in calls[test]] if mutant.function else by_time
    rounds = [near, [test for test in by_time if test not in set(near)]]
    for tests in rounds:
        budget, chosen = 0.0, []
        for test in tests:
            budget += seconds[test]
            if budget > most_s:
                break
            chosen.append(test)
        if not chosen:
            continue
        files = sorted({test.split("::")[0] for test in chosen})
        failed = in_child(4 * min(budget, most_s) + 60, try_mutant, mutant, files, chosen)
        if failed is None:
            return asdict(mutant) | {"result": "killed", "by": "took too long, or died"}
        if failed:
            return asdict(mutant) | {"result": "killed", "by": failed[0]}
    return asdict(mutant) | {"result": "survived", "tests": sum(len(tests) for tests in rounds)}


def run_area(name: str, count: int, seed: int, out: Path, most_s: float) -> None:
    area = AREAS[name]
    out.mkdir(parents=True, exist_ok=True)
    files = sorted({str(p.relative_to(ROOT)) for pattern in area.tests for p in (ROOT / "tests").glob(pattern)})
    if not area.compiled:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    import hypothesis  # noqa: F401
    import numba  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import typer  # noqa: F401

    start = time.monotonic()
    seconds, calls, failed = in_child(7200, baseline, files)
    for test in failed:
        seconds.pop(test, None)
    print(f"{name}: {len(seconds)} tests in {time.monotonic() - start:.0f} s, {len(failed)} fail unchanged", flush=True)
    rows = []
    with open(out / f"{name}.jsonl", "w") as file:
        for mutant in sample(area, count, seed):
            rows.append(judge(mutant, seconds, calls, most_s))
            print(json.dumps(rows[-1]), file=file, flush=True)
            row = rows[-1]
            print(f"{row['result']:9} {row['path']}:{row['line']}  {row['before']}  ->  {row['after']}", flush=True)
    killed = sum(row["result"] == "killed" for row in rows)
    print(f"{name}: {killed} of {len(rows)} killed ({100 * killed / max(1, len(rows)):.0f} %)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--area", choices=[*AREAS, "all"], default="all")
    parser.add_argument("--count", type=int, default=50, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants")
    parser.add_argument("--seconds", type=float, default=90.0, help="most time of unchanged tests shown to a mutant")
    options = parser.parse_args()
    os.chdir(ROOT)
    for name in AREAS if options.area == "all" else [options.area]:
        run_area(name, options.count, options.seed, options.out, options.seconds)


if __name__ == "__main__":
    main()
