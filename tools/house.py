"""Measure a source tree: sizes, functions, parameters, density, import cycles (hidden ones too), repeated class names.

    python tools/house.py [src] [--cycles] [--names] [--long] [--dense] [--packages] [--check]

All imports count: at the top, inside functions, under TYPE_CHECKING. ``--check`` fails if files are in import cycles or
class names have several meanings (``[tool.house]`` of pyproject.toml has both limits), or if a module defines a name
twice. Lines, files and classes have no limits: limits on them packed the code. ``make check`` runs it.

Lines of logic: statements in functions, without docstrings, comments, blank lines, signatures and imports.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import density
import plain

ROOT = Path(__file__).resolve().parents[1]
#: Functions with more parameters should take a dataclass; files with at most this many lines count as small.
MAX_PARAMETERS = 8
SMALL_FILE = 100
#: Modules with packed statements that --dense names.
MAX_MODULES = 40
#: Figures of a package. hits: of tools/plain.py in docstrings, comments and messages.
FIGURES = ("lines", "logic", "files", "classes", "hits")


@dataclass
class House:
    """Measurements. imports: module -> modules; classes: public name -> modules; functions: (lines, where).

    ideas: module -> lines of the headings of second ideas. packed: module -> lines of packed statements. tuples:
    functions that return tuples of three or more parts (tools/density.py).
    """

    lines: dict[str, int] = field(default_factory=dict)
    imports: dict[str, set[str]] = field(default_factory=dict)
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    functions: list[tuple[int, str]] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)
    packages: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    rebound: list[str] = field(default_factory=list)
    ideas: dict[str, list[int]] = field(default_factory=dict)
    packed: dict[str, list[int]] = field(default_factory=dict)
    tuples: list[str] = field(default_factory=list)

    def shared_names(self) -> dict[str, list[str]]:
        """Return public class names that several classes share; ``_Private`` ones may repeat."""
        return {name: where for name, where in sorted(self.classes.items()) if len(where) > 1}

    def packed_per_1000(self) -> float:
        """Return the number of packed statements per 1,000 lines."""
        return 1000 * sum(map(len, self.packed.values())) / max(1, sum(self.lines.values()))

    def lone_modules(self) -> list[str]:
        """Return modules with a single importer, if it lies in the same folder."""
        importers = defaultdict(set)
        for module, targets in self.imports.items():
            for target in targets:
                importers[target].add(module)
        return [m for m, by in importers.items() if len(by) == 1 and _folder(next(iter(by))) == _folder(m)]


def measure(root: Path) -> House:
    """Read every module below ``root``."""
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(root.rglob("*.py"))
    }
    house = House()
    for module, path in paths.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        statements = list(_statements(tree))
        parts, prose = module.split("."), plain.prose_of_python(text)
        package = parts[1] if len(path.relative_to(root).parts) > 2 else parts[0]
        house.packages[package].update(
            lines=text.count("\n"), logic=logic_lines(statements, text), files=1, hits=plain.hits_of(prose).total(),
            classes=sum(isinstance(node, ast.ClassDef) for node in statements),
        )  # fmt: skip
        house.lines[module] = text.count("\n")
        house.rebound += [f"{module}.{name} is defined twice" for name in _defined_twice(tree)]
        house.ideas[module] = density.second_ideas(text)
        house.packed[module] = density.packed_statements(tree)
        house.tuples += [f"{module}.{name}" for name in density.tuple_functions(tree)]
        house.imports[module] = set(_imports(statements, module, path.name == "__init__.py", paths))
        for node in statements:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                house.classes[node.name].append(module)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                where = f"{module}.{node.name}"
                house.functions.append(((node.end_lineno or node.lineno) - node.lineno + 1, where))
                if len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) > MAX_PARAMETERS:
                    house.wide.append(where)
    return house


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements inside ``node``, without the expressions, which are most of a tree."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for statement in getattr(node, block, ()):
            yield statement
            yield from _statements(statement)


def logic_lines(statements: Iterable[ast.AST], text: str) -> int:
    """Count the lines of statements in functions, without docstrings, comments, blank lines, signatures and imports."""
    found: set[int] = set()
    for function in statements:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in function.body[ast.get_docstring(function, clean=False) is not None :]:
            if not isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
            ):
                found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines()
    return sum(bool(line) and not line.startswith("#") for line in (lines[i - 1].strip() for i in found))


def _defined_twice(tree: ast.Module) -> list[str]:
    """Return names that a module defines twice at its top: functions above the second definition use it, too."""
    found: Counter[str] = Counter()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] += "overload" not in map(ast.unparse, node.decorator_list)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name))
    return [name for name, count in found.items() if count > 1]


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def _imports(statements: Iterable[ast.AST], module: str, is_package: bool, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the tree that ``module`` imports, anywhere in it."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in known and each.name != module)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            for each in node.names:
                target = f"{base}.{each.name}" if f"{base}.{each.name}" in known else base
                if target in known and target != module:
                    yield target


def cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return sets of modules that import each other, directly or indirectly, largest first (Tarjan's algorithm)."""
    sys.setrecursionlimit(20_000)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(imports.get(module, ())):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(imports):
        if module not in index:
            visit(module)
    return sorted(found, key=len, reverse=True)


def report(house: House, found: list[list[str]]) -> str:
    """Return the figures, one kind per line."""
    sizes, lengths = sorted(house.lines.values()), sorted(lines for lines, _ in house.functions)
    small, lone = sum(size <= SMALL_FILE for size in sizes), len(house.lone_modules())
    wide = sum(".cli." not in where for where in house.wide)
    middle, ninth = lengths[len(lengths) // 2], lengths[int(len(lengths) * 0.9)]
    return "\n".join(
        (
            f"files {len(sizes)}, lines {sum(sizes):,}, file p50 {statistics.median(sizes):.0f}",
            *(
                f"{what} {sum(counts[what] for counts in house.packages.values()):,}"
                for what in ("logic", "classes", "hits")
            ),
            f"files of at most {SMALL_FILE} lines {small}, imported by one neighbour alone {lone}",
            f"functions {len(lengths)}, p50 {middle}, p90 {ninth}, longest {lengths[-1]}",
            f"functions of more than {MAX_PARAMETERS} parameters, outside cli {wide}",
            f"files with a second idea below a heading {sum(map(bool, house.ideas.values()))}",
            f"packed statements per 1,000 lines {house.packed_per_1000():.1f}",
            f"functions that return tuples of {density.MIN_PARTS} or more parts {len(house.tuples)}",
            f"import cycles, lazy and type imports included: {len(found)}, files in them {sum(map(len, found))}",
            f"public class names with several meanings: {len(house.shared_names())}",
        )
    )


def limited(house: House, found: list[list[str]]) -> dict[str, int]:
    """Return the figures that have a limit."""
    return {"files_in_cycles": sum(map(len, found)), "shared_class_names": len(house.shared_names())}


def above_limits(figures: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return a message for each figure that exceeds its limit."""
    return [
        f"{name.replace('_', ' ')}: {count:,}, and pyproject.toml allows {allowed[name]:,}"
        for name, count in figures.items()
        if count > allowed[name]
    ]


def package_lines(house: House) -> list[str]:
    """Return the figures of each package, one line each."""
    return [
        f"  {name}: " + ", ".join(f"{figure} {counts[figure]:,}" for figure in FIGURES)
        for name, counts in sorted(house.packages.items())
    ]


def dense_places(house: House) -> list[str]:
    """Return the headings of second ideas, the modules with most packed statements, and functions returning tuples."""
    ideas = [f"  second idea: {module} line {line}" for module, lines in house.ideas.items() for line in lines]
    modules = sorted(house.packed, key=lambda module: (-len(house.packed[module]), module))
    packed = []
    for module in modules[:MAX_MODULES]:
        if house.packed[module]:
            packed.append(f"  packed: {module} lines {', '.join(map(str, house.packed[module]))}")
    return [*ideas, *packed, *(f"  tuple: {where}" for where in house.tuples)]


def main() -> int:
    """Print the figures; return 1 if ``--check`` finds more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT / "src")
    parser.add_argument("--cycles", action="store_true", help="name the modules of each cycle")
    parser.add_argument("--names", action="store_true", help="name the classes that share a name")
    parser.add_argument("--long", action="store_true", help="name the longest functions, and those of many parameters")
    parser.add_argument("--dense", action="store_true", help="name second ideas, packed statements and large tuples")
    parser.add_argument("--check", action="store_true", help="fail where pyproject.toml allows less")
    parser.add_argument("--packages", action="store_true", help="print the figures of each package")
    given = parser.parse_args()
    house = measure(given.root)
    found = cycles(house.imports)
    print(report(house, found))
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["house"]
    wrong = [*above_limits(limited(house, found), allowed), *house.rebound] if given.check else []
    if given.packages:
        print(*package_lines(house), sep="\n")
    if given.cycles or any("cycles" in each for each in wrong):
        print(*(f"  {', '.join(modules)}" for modules in found), sep="\n")
    if given.names or any("names" in each for each in wrong):
        print(*(f"  {name}: {', '.join(where)}" for name, where in house.shared_names().items()), sep="\n")
    if given.long:
        print(*(f"  {lines} {where}" for lines, where in sorted(house.functions, reverse=True)[:40]), sep="\n")
        print(*(f"  many parameters: {where}" for where in house.wide if ".cli." not in where), sep="\n")
    if given.dense:
        print(*dense_places(house), sep="\n")
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
