"""Would the tests notice? Change an operator or a comparison of the source, and see whether the tests of its area fail.

By hand, not in ``make test``: 50 mutants of an area take 3 to 15 minutes of one core::

    make mutate AREA=engine            # or, with all choices:
    PYTHONPATH=src python tests/mutation/mutate.py --area engine --count 50 --seed 12 --out out/mutants

A *mutant* is one changed operator (``+`` to ``-``, ``<`` to ``<=``, ``and`` to ``or``, ``min`` to ``max`` ...) in one
module. The source files do not change. The tests of an area are collected once, and run once without a change to record
their times and the functions that they call; tests slower than ``--slowest`` are skipped. Each mutant is then a forked
process that replaces the function's code and runs the tests that call it, the quickest first, for ``--seconds``. Code
that runs at import gets a fresh process, with an import hook. Areas of kernels run uncompiled
(``NUMBA_DISABLE_JIT=1``).

``OUT/<area>.jsonl`` has one line per mutant: place, change, ``killed`` (with the test) or ``survived``. ``--again``
runs the current tests on the survivors of such a file. Permanent survivors: survivors.md.
"""

from __future__ import annotations

import argparse
import ast
import copy
import cProfile
import functools
import gc
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from areas import AREAS, ROOT, SOURCE, Area

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
    """Change number ``index`` of ``path`` (below src/trine), in the order of :func:`changes`."""

    path: str
    index: int
    line: int
    function: str
    before: str
    after: str


def changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, Any, str]]:
    """Yield all possible changes of ``tree``: node, field, new value, and the enclosing function.

    Annotations, texts, ``raise`` and code for type checkers are excluded, since they decide no answer.
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
    """Return the syntax tree with change number ``index``, the node before and after it, and its function."""
    tree = ast.parse(source)
    node, field, value, function = list(changes(tree))[index]
    before = copy.deepcopy(node)
    setattr(node, field, value)
    return ast.fix_missing_locations(tree), before, node, function


def sample(area: Area, count: int, seed: int, only: str = "") -> list[Mutant]:
    """Return ``count`` mutants of an area, drawn evenly from all its changes (of files with ``only`` in the path)."""
    paths = [path for path in area.source_files() if only in str(path)]
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


def module_of(path: Path) -> str:
    """Return the name of the module in a file of trine, or of the folder validation."""
    base = SOURCE.parent if path.is_relative_to(SOURCE) else ROOT
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


class Hook(importlib.abc.MetaPathFinder):
    """Import hook that compiles one module from its changed syntax tree."""

    def __init__(self, mutant: Mutant) -> None:
        self.path = (SOURCE / mutant.path).resolve()
        self.name = module_of(self.path)
        self.tree = mutated(self.path.read_text(), mutant.index)[0]

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        spec = importlib.util.spec_from_file_location(name, self.path)
        code = compile(self.tree, str(self.path), "exec")
        spec.loader.get_code = lambda _name: code  # type: ignore[union-attr, method-assign]
        return spec


Place = tuple[str, int, str]  # file, first line and qualified name of a function


def place_of(code: CodeType) -> Place:
    return os.path.realpath(code.co_filename), code.co_firstlineno, code.co_qualname


def outermost(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module that are not nested in another function."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & 1:  # CO_OPTIMIZED: a function, not the body of a class
                yield inner
            else:
                yield from outermost(inner)


def changed_function(mutant: Mutant) -> CodeType | None:
    """Return the changed outermost function of ``mutant``, or None for code that runs at import."""
    path = SOURCE / mutant.path
    text = path.read_text()
    tree = mutated(text, mutant.index)[0]
    olds, news = (list(outermost(compile(source, str(path), "exec"))) for source in (ast.parse(text), tree))
    found = [new for old, new in zip(olds, news, strict=True) if old != new]
    return found[0] if len(found) == 1 else None


class Session:
    """Pytest plug-in that keeps the collected tests, runs all of them once, and hands over to ``work``."""

    def __init__(self, slowest_s: float, work: Any) -> None:
        self.slowest_s, self.work, self.armed_s = slowest_s, work, 0.0
        self.failed: list[str] = []
        self.seconds: dict[str, float] = {}
        self.called: dict[str, set[Place]] = {}
        self.items: dict[str, Any] = {}

    def pytest_sessionstart(self) -> None:
        import hypothesis

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_call(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_PROF, self.armed_s)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        start = time.monotonic()
        signal.signal(signal.SIGPROF, too_slow)
        for item, following in zip(session.items, [*session.items[1:], None], strict=True):
            self.note(item, following)
        for test in self.failed:
            self.seconds.pop(test, None)
        clear_caches()
        self.work(self, time.monotonic() - start)
        return True

    def note(self, item: Any, following: Any) -> None:
        profile, start = cProfile.Profile(subcalls=False, builtins=False), time.process_time()
        self.armed_s = self.slowest_s
        profile.enable()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        profile.disable()
        self.armed_s = 0.0
        self.seconds[item.nodeid] = time.process_time() - start
        folders = str(SOURCE), str(ROOT / "validation")
        codes = (entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType))
        self.called[item.nodeid] = {place_of(c) for c in codes if c.co_filename.startswith(folders)}

    def first_failure(self, tests: Sequence[str]) -> str:
        """Run ``tests`` in this process and return the first that fails; empty if all pass."""
        self.failed.clear()
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            item = self.items[test]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following and self.items[following])
            if self.failed:
                return self.failed[0]
        return ""


def too_slow(_signal: int, _frame: Any) -> None:
    raise TimeoutError("slower than --slowest")


def clear_caches() -> None:
    """Clear the caches of functions of the source and the tests, which were filled without a change."""
    gc.unfreeze()
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper:
            code = getattr(found.__wrapped__, "__code__", None)
            if code is not None and code.co_filename.startswith(str(ROOT)):
                found.cache_clear()


def functions_of(code: CodeType) -> list[FunctionType]:
    """Return the functions of a code's place. Raises LookupError if there are none: a change would stay unseen."""
    gc.unfreeze()  # tests/conftest.py hides all objects from the collector, and so from this search
    found = [f for f in gc.get_objects() if type(f) is FunctionType and place_of(f.__code__) == place_of(code)]
    if not found:
        raise LookupError(f"no function is at {place_of(code)}")
    return found


def in_child(budget_s: float, target: Any, *arguments: Any) -> Any:
    """Return ``target(*arguments)`` of a forked process; None if it died or took far more than its budget."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    most_s = int(2 * budget_s + 8)

    def work() -> None:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
        theirs.send(target(*arguments))
        os._exit(0)

    process = context.Process(target=work)
    process.start()
    theirs.close()
    answer = None
    try:
        if mine.poll(10 * most_s):
            answer = mine.recv()
    except EOFError:
        pass
    if answer is None and process.is_alive():
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            process.kill()
    process.join()
    return answer


def show(session: Session, code: CodeType, tests: Sequence[str]) -> str:
    for function in functions_of(code):
        function.__code__ = code
    return session.first_failure(tests)


def show_at_import(mutant: Mutant, tests: Sequence[str], most_s: float) -> str | None:
    """Do the same as :func:`show` in a fresh process whose imports see the change."""
    command = [sys.executable, __file__, "--fresh", json.dumps([asdict(mutant), list(tests)])]
    limit_s = int(2 * most_s + 60)
    ended = subprocess.run(
        command, capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    )
    if ended.returncode < 0:
        return None
    return "" if ended.returncode == 0 else "at import, or a test that calls it"


def fresh(text: str) -> int:
    """Return pytest's exit code on the tests of a mutant from :func:`show_at_import`."""
    import pytest

    row, tests = json.loads(text)
    sys.meta_path.insert(0, Hook(Mutant(**row)))
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", *tests]))


def judge(mutant: Mutant, session: Session, most_s: float, only_some: bool) -> dict[str, Any]:
    """Show ``mutant`` the tests that call its function; if no test is known to, the quickest of the area.

    ``only_some``: some tests of the area are missing.
    """
    code = changed_function(mutant)
    by_time = sorted(session.seconds, key=lambda test: session.seconds[test])
    near = [test for test in by_time if code is not None and place_of(code) in session.called[test]]
    chosen, budget = [], 0.0
    for test in near or by_time:
        budget += session.seconds[test]
        if budget > most_s and chosen:
            break
        chosen.append(test)
    if near:
        functions_of(code)  # raises here, since an error in the child would count as a kill
        failed = in_child(min(budget, most_s), show, session, code, chosen)
    elif code is not None and only_some:
        failed = ""  # another test may call it
    else:
        failed = show_at_import(mutant, chosen, most_s)
    row = asdict(mutant) | {"result": "survived" if failed == "" else "killed"}
    if failed is None:
        return row | {"by": "took too long, or died"}
    return row | ({"by": failed} if failed else {"tests": len(chosen), "calling": len(near)})


def run_area(name: str, options: argparse.Namespace, say: Any) -> None:
    import pytest

    area = AREAS[name]
    options.out.mkdir(parents=True, exist_ok=True)
    files = [str(path.relative_to(ROOT)) for path in area.test_files()]
    files = [f for f in files if f.endswith(".py") and any(part in f for part in options.tests.split(","))]

    def work(session: Session, seconds: float) -> None:
        say(f"{name}: {len(session.seconds)} tests in {seconds:.0f} s; {len(session.failed)} fail or are too slow")
        target = options.out / f"{name}.jsonl"
        if options.again:
            rows = [json.loads(line) for line in target.read_text().splitlines()]
        else:
            rows = [asdict(m) for m in sample(area, options.count, options.seed, options.only)]
        fields = Mutant.__dataclass_fields__
        with open(options.out / f"{name}.new", "w") as file:
            for i, row in enumerate(rows):
                if row.get("result") != "killed":
                    mutant = Mutant(**{key: row[key] for key in fields})
                    rows[i] = row = judge(mutant, session, options.seconds, bool(options.tests))
                    say(f"{row['result']:9} {row['path']}:{row['line']}  {row['before']}  ->  {row['after']}")
                print(json.dumps(row), file=file, flush=True)
        os.replace(options.out / f"{name}.new", target)
        killed = sum(row["result"] == "killed" for row in rows)
        say(f"{name}: {killed} of {len(rows)} killed ({100 * killed / max(1, len(rows)):.0f} %)")

    pytest.hookimpl(hookwrapper=True)(Session.pytest_runtest_call)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", *files]
    pytest.main(arguments, plugins=[Session(options.slowest, work)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--area", choices=list(AREAS), default="engine")
    parser.add_argument("--count", type=int, default=50, help="mutants of the area")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants")
    parser.add_argument("--seconds", type=float, default=15.0, help="most time of unchanged tests shown to a mutant")
    parser.add_argument("--slowest", type=float, default=4.0, help="tests that take longer (profiled) are left out")
    parser.add_argument("--only", default="", help="only files of the source whose path holds this")
    parser.add_argument("--tests", default="", help="only files of tests whose path holds one of these, by commas")
    parser.add_argument("--again", action="store_true", help="only the survivors of the last run in --out")
    parser.add_argument("--loud", action="store_true", help="show what pytest says")
    parser.add_argument("--fresh", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["TRINE_TESTS"] = "full"
    options.out = options.out.absolute()
    if options.fresh:
        return fresh(options.fresh)
    if not AREAS[options.area].compiled:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    real = os.fdopen(os.dup(1), "w", buffering=1)
    if not options.loud:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    run_area(options.area, options, lambda text: print(text, file=real, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
