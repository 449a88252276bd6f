"""Coverage-guided search for files that break trine (atheris): ``make fuzz SECONDS=3600 [CORPUS=DIR]``.

A case is a sample's command (:mod:`fuzz_samples`) with one of its files replaced. Seeds are the bundled samples and,
with CORPUS=DIR, every file there for each sample of its kind. Mutations come from :mod:`fuzz_mutations`,
which keeps the structure of a format, and from libFuzzer, which keeps the cases that reach new lines of trine.

A fault is what :func:`fuzz_run.fault` finds, or a file that trine writes and does not read again. It is kept in
``fuzz-found/``, each kind once, and the search goes on; ``fuzz_search.py --again FILE`` asks for it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import atheris
import fuzz_worker
from fuzz_mutations import mutated
from fuzz_run import Case, fault, save, signature
from fuzz_samples import Sample, samples
from fuzz_worker import READERS

PACKAGE = Path(__file__).parents[2] / "src" / "trine"
#: A case begins with the number of its sample.
NUMBER_BYTES = 2
MAX_BYTES = 200_000


def instrument() -> None:
    """Import all of trine such that libFuzzer sees which lines run.

    Modules with compiled kernels are left out: numba needs their bytecode unchanged.
    """
    names = {".".join(("trine", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in PACKAGE.rglob("*.py")}
    kernels = sorted(name for name in names if name.rpartition(".")[2].startswith("_"))
    with atheris.instrument_imports(include=["trine"], exclude=kernels):
        for name in sorted(names - set(kernels)):
            importlib.import_module(name)


def readers() -> tuple[Sample, ...]:
    """Samples that end quickly: no eidolon runs and no load-store programs that run."""
    return tuple(each for each in samples() if each.argv[:2] not in (("eidolon", "run"), ("kernel", "run")))


def with_output(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line, with an output file if the command writes one that trine can read."""
    option, _ = READERS.get(argv[:2], ("", ()))
    return (*argv, option, "./back.yaml") if option == "--yaml" else argv


class Cases:
    """Runs cases; ``found``: a fault of each kind."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.samples, self.folder = readers(), folder
        self.found: dict[str, str] = {}
        self.count, self.ends = 0, time.monotonic() + seconds

    def sample(self, data: bytes) -> Sample:
        return self.samples[int.from_bytes(data[:NUMBER_BYTES], "little") % len(self.samples)]

    def run(self, data: bytes) -> None:
        """Run one case of libFuzzer."""
        if time.monotonic() > self.ends:
            print(f"{self.count} cases, {len(self.found)} kinds of fault", flush=True)
            sys.stdout.flush()
            os._exit(bool(self.found))  # libFuzzer takes an exception for a crash
        if len(data) < NUMBER_BYTES:
            return
        self.count += 1
        sample = self.sample(data)
        files = {**sample.files, sample.target: data[NUMBER_BYTES:]}
        case = Case(with_output(sample.argv), files)
        wrong = fault(case, fuzz_worker.ask(case.question()))
        if wrong is not None and signature(wrong) not in self.found:
            path = save(case, wrong, self.folder)
            self.found[signature(wrong)] = wrong
            print(ascii(wrong)[1:-1], f"    {path}", sep="\n", flush=True)

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        """Change the file of a case, three times of four in the structure of its format."""
        draw = random.Random(seed)
        if len(data) < NUMBER_BYTES or draw.random() < 0.25:
            return bytes(atheris.Mutate(data, max_size))
        sample = self.sample(data)
        changes = [tuple(draw.randrange(1 << 32) for _ in range(3)) for _ in range(draw.randint(1, 3))]
        return (data[:NUMBER_BYTES] + mutated(data[NUMBER_BYTES:], sample.kind, changes))[:max_size]  # type: ignore[arg-type]


def seeds(cases: Cases, corpus: Path | None) -> Iterator[bytes]:
    """Yield the files of the samples, then the files of a folder, once for each sample that reads such files."""
    for number, sample in enumerate(cases.samples):
        yield number.to_bytes(NUMBER_BYTES, "little") + (sample.files[sample.target] or b"")
    for path in sorted(corpus.rglob("*")) if corpus is not None else ():
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            for number, sample in enumerate(cases.samples):
                if Path(sample.target).suffix == path.suffix or sample.kind == "words":
                    yield number.to_bytes(NUMBER_BYTES, "little") + path.read_bytes()


def main() -> None:
    """Search for some time."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--corpus", type=Path, help="a folder of real files, as further seeds")
    options.add_argument("--seed", type=int, default=0, help="of libFuzzer's draws; 0: from the clock")
    options.add_argument("--found", type=Path, default=Path("fuzz-found"), help="folder for failing cases")
    given = options.parse_args()
    instrument()
    cases = Cases(given.found, given.seconds)
    folder = given.found / "seeds"  # what libFuzzer adds is the start of the next search
    folder.mkdir(parents=True, exist_ok=True)
    for content in seeds(cases, given.corpus):
        (folder / hashlib.sha256(content).hexdigest()[:24]).write_bytes(content)
    libfuzzer = (
        f"-seed={given.seed}", f"-max_len={MAX_BYTES}", "-timeout=120", "-rss_limit_mb=6000",
        f"-artifact_prefix={given.found}/", str(folder),  # else slow cases land in the working directory
    )  # fmt: skip
    atheris.Setup([sys.argv[0], *libfuzzer], cases.run, custom_mutator=cases.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
