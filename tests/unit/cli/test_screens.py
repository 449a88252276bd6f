"""Does every answer fit one screen, with whole warnings, and does ``--details`` repeat the whole screen?"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from chakra_files import DATA
from click.testing import CliRunner
from gpu_results import model, replayed

import trine
from trine.check.compare import check_log
from trine.check.nccl_tests import read_log
from trine.cli.main import app
from trine.formats.chakra import read_chakra, simulate_chakra
from trine.gpu.cases import run_case
from trine.gpu.model import Monitor
from trine.gpu.model.files import load_gpu_model
from trine.gpu.replay.sweep import sweep as run_sweep
from trine.gpu.results.result import GpuResult
from trine.gpu.results.summary import use_vendor_terms
from trine.gpu.run import run_gpus
from trine.gpu.text import parse_program
from trine.results.report import Report
from trine.results.screen import Listing, Screen
from trine.results.text import MAX_LINES, NARROW, WIDE, first_screen, fitted
from validation.collectives import validate_collectives
from validation.measured import load_measurements
from validation.report import summary_text

LOGS = Path(__file__).parents[3] / "examples" / "data"
SIZES = (1 << 10, 1 << 20, 1 << 30)
EXCHANGE = """program exchange
ranks 4
line 128 B
buffer input 4 KiB
buffer output 4 KiB * ranks
semaphores ranks
kernel 'put' ranks all wavefronts 4
  for d in 1..ranks-1
    copy 4 KiB own:input -> rank+d:output + 4 KiB * rank
  end
  waitcnt 0
  barrier
  for d in 1..ranks-1
    release rank+d sem d
  end
  for d in 1..ranks-1
    acquire sem d
  end
"""


def train(workload: str, cluster: str | None = "dgx-h100", **plan: object) -> Report:
    return trine.simulate(workload, trine.Plan(**plan), cluster=cluster, compare=False)  # type: ignore[arg-type]


def chakra_run() -> Report:
    trace = read_chakra(str(DATA / "microbenchmarks" / "all_reduce" / "4npus_1MB" / "all_reduce"))
    return simulate_chakra(trace, trine.build_topology("ring", "50 GB/s", "1 us", 4))


def kernel_run(preset: str, gpu: str, *notes: str) -> GpuResult:
    machine = trine.load_cluster(preset, gpus=4)
    run = run_gpus(parse_program(EXCHANGE), machine, machine.gpus, load_gpu_model(gpu))
    return GpuResult(
        program=run.program, model=run.model, cluster=run.cluster, group=run.group, records=run.gpu, fold=run.fold,
        notes=notes,
    )  # fmt: skip


def eidolon(**options: object) -> trine.EidolonOptions:
    return trine.EidolonOptions(kernel="gemv-allreduce", rows=128, cols=128, **options)  # type: ignore[arg-type]


def check(log: str) -> Report:
    return check_log(read_log(LOGS / log), trine.load_cluster("gh200-node", nodes=2))


#: Answers by command; answers with one line per size are in TABLES.
ANSWERS: dict[str, Callable[[], Report]] = {
    "train, one GPU": lambda: train("vgg13-h100-b128", None),
    "train, 8 GPUs": lambda: train("vgg13-h100-b128", dp=8),
    "train, tp and dp": lambda: train("model:llama-3-8b", tp=2, dp=4, batch=2, micro_batch=1),
    "train, does not fit": lambda: train("model:llama-3-8b,layers=16", dp=8, batch=4),
    "chakra run": chakra_run,
    "collective": lambda: trine.collective("all_reduce", SIZES, trine.load_cluster("dgx-h100", nodes=2)),
    "collective, load-store": lambda: trine.loadstore_collective("all_reduce", [1024], "dgx-h100"),
    "collective, load-store, sizes": lambda: trine.loadstore_collective("all_reduce", SIZES[:2], "dgx-h100"),
    "collective, both levels": lambda: trine.compare_fidelity("all_gather", [1024], "dgx-h100"),
    "check, healthy": lambda: check("gh200-8.log"),
    "check, suspicious": lambda: check("gh200-8-tcp.log"),
    "kernel run": lambda: kernel_run("astra3-generic", "astra3-generic", "--latency was not given: assumed 500 ns"),
    "kernel run, NVIDIA": lambda: kernel_run("dgx-h100", "h100-sxm"),
    "kernel run, replayed": lambda: replayed(model(poll_ps=0, monitor=Monitor(capacity=3, wakeup_ps=0))),
    "eidolon run": lambda: trine.run_eidolon(eidolon()),
    "eidolon run, NVIDIA": lambda: trine.run_eidolon(eidolon(gpu_model="h100-sxm", cluster="dgx-h100", sync="mwait")),
    "eidolon sweep": lambda: run_sweep(eidolon(), {"wakeup": (0, 10**7, 2 * 10**7), "sync": ("spin", "mwait")}),
    "hop": lambda: trine.hop("vgg13-h100-b128", trine.HopProtocol(iterations=4), cluster="dgx-h100"),
    "study": lambda: run_case("clos"),
}
#: Rows of tables beyond the lines that any answer may have.
TABLES = {"collective": 3, "collective, load-store": 1, "collective, load-store, sizes": 2, "check, healthy": 25,
          "check, suspicious": 25}  # fmt: skip
SCREENS = [name for name in ANSWERS if name.startswith(("train", "chakra", "kernel", "eidolon run"))]
#: A row of a table: two or more spaces separate its cells. A label before a sentence does not count.
ROW = re.compile(r"^(?!note |link |next ).*\S {2,}\S|^#")


@cache
def answer(name: str) -> Report:
    return ANSWERS[name]()


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_fits_one_screen(name: str) -> None:
    lines = answer(name).summary().splitlines()
    assert 1 < len(lines) <= MAX_LINES + TABLES.get(name, 0)
    assert max(map(len, lines)) <= WIDE
    assert not any(line.endswith(" ") for line in lines)
    cut = [line for line in lines if "..." in line]
    assert cut in ([], [line for line in lines[-1:] if re.fullmatch(r"\.\.\. \d+ more lines: --details", line)])


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("columns", [NARROW, 80])
def test_the_answer_is_as_wide_as_a_narrow_terminal(name: str, columns: int) -> None:
    """Sentences wrap; rows of tables may be wider."""
    with fitted(columns):
        lines = answer(name).summary().splitlines()
    assert len(lines) <= MAX_LINES + TABLES.get(name, 0)
    wide = [line for line in lines if len(line) > columns and len(line.split()) > 1]
    if name in SCREENS:
        assert not wide
    else:
        assert all(ROW.match(line) for line in wide), wide


@pytest.mark.parametrize("name", ANSWERS)
def test_details_have_every_number_of_the_headline_and_of_the_screen(name: str) -> None:
    summary, details = answer(name).summary(), words(answer(name).details())
    for number in numbers_above(summary):
        assert number in details, number
    if name not in TABLES:  # their headlines have other units than the tables
        for number in re.findall(r"\d[\d,.]*\d", answer(name).headline):
            assert number in details, number
    if name in SCREENS:
        assert len(details) > len(words(summary))


def numbers_above(summary: str) -> list[str]:
    """Return the numbers of the block below the question: values, likely ranges and rates."""
    question, _, rest = summary.partition("\n\n")
    block = rest.partition("\n\n")[0]
    kept = [line for line in block.splitlines() if not ROW.match(line) or line[:1].isalpha()]
    return re.findall(r"\d[\d,.]*\d|\d", "\n".join(kept)) if "  " in block else re.findall(r"\d[\d,.]*\d", question)


@pytest.mark.parametrize("name", [name for name in ANSWERS if not name.startswith("study")])
@pytest.mark.parametrize("columns", [WIDE, NARROW])
def test_warnings_are_whole_or_counted(name: str, columns: int) -> None:
    gpu = getattr(answer(name), "model", model()).name
    warnings = [use_vendor_terms(text, gpu) for text in getattr(answer(name), "warnings", answer(name).notes)]
    with fitted(columns):
        summary, details = plain(answer(name).summary()), plain(answer(name).details())
    assert all(plain(text) in details for text in warnings)
    if name in SCREENS:
        shown = [text for text in warnings if plain(text) in summary]
        left = re.search(r"(\d+) more (?:warning|note)s?: --details", summary)
        assert len(shown) + (int(left[1]) if left else 0) == len(warnings)
        assert shown == warnings[: len(shown)]


def plain(text: str) -> str:
    """Return the words of a text, without the marks at the beginning of lines."""
    return words(re.sub(r"^#", "", text, flags=re.M))


@pytest.mark.parametrize("columns", [NARROW, 80])
@pytest.mark.parametrize("name", ["train, 8 GPUs", "train, tp and dp", "train, does not fit"])
def test_a_narrow_answer_keeps_the_time_by_cause_and_its_basis(name: str, columns: int) -> None:
    with fitted(columns):
        summary = answer(name).summary()
    assert re.search(r"^  compute +[\d.]+ ms|^  compute +[\d.]+ s", summary, re.M)
    assert re.search(r"^  exposed communication ", summary, re.M)
    assert re.search(r"^rests on ", summary, re.M)
    assert re.search(r"^next ", summary, re.M)


def test_a_job_that_does_not_fit_says_so_above_all_others() -> None:
    found = answer("train, does not fit")
    lines = found.summary().splitlines()
    memory = next(index for index, line in enumerate(lines) if line.startswith("memory "))
    assert "DOES NOT FIT: " in lines[memory]
    warnings = [line for line in lines if line.startswith("warning ")]
    assert "out of memory: 8 of 8 ranks do not fit; " in warnings[0]
    assert len(warnings) == 1


@pytest.mark.parametrize("name", ["kernel run, NVIDIA", "eidolon run, NVIDIA", "collective, both levels"])
def test_gpus_of_nvidia_have_its_words(name: str) -> None:
    for text in (answer(name).summary(), answer(name).details()):
        assert not re.search(r"\b(CUs?|wavefronts?|workgroups?)\b", text)
    assert re.search(r"\bwavefronts\b", answer("kernel run").summary())


def test_options_keep_their_names() -> None:
    assert use_vendor_terms("wavefronts 2 and --wavefronts: 8 wavefronts a CU", "h100-sxm") == (
        "wavefronts 2 and --wavefronts: 8 warps an SM"
    )
    assert use_vendor_terms("8 wavefronts", "mi300x") == "8 wavefronts"


def test_columns_of_listings_stand_below_their_titles() -> None:
    lines = answer("kernel run, NVIDIA").summary().splitlines()
    first = next(index for index, line in enumerate(lines) if "busiest resources" in line)
    column = lines[first].index("busiest resources")
    assert "warps" in lines[first]
    assert all(line[column - 1] == " " and line[column] != " " for line in lines[first + 1 : first + 3])


def test_notes_of_a_kernel_are_on_the_screen() -> None:
    assert re.search(r"^note +--latency was not given: assumed 500 ns$", answer("kernel run").summary(), re.M)


def test_causes_that_were_compared_have_the_rest_of_the_probability() -> None:
    text = answer("check, suspicious").summary()
    unknown = re.search(r"^no known cause +(\d+)%$", text, re.M)
    assert unknown is not None
    shares = [int(share) for share in re.findall(r" (\d+)%  +x ", text)]
    assert len(shares) == 5
    assert 97 <= sum(shares) + int(unknown[1]) <= 103
    assert f"no known cause {unknown[1]}%" in words(answer("check, suspicious").details())


@pytest.mark.parametrize("lines", [MAX_LINES, 18])
@pytest.mark.parametrize("length", [40, 90, 160])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_rows_and_then_warnings_give_way(lines: int, length: int, count: int) -> None:
    warnings = [f"warning number {i} " + "word " * (length // 5) + "end" for i in range(count)]
    rows = [(f"operator {i}", f"{i} ms") for i in range(8)]
    screen = Screen(
        question="a job", numbers=[("step", "1 ms", "likely 1 ms to 2 ms"), ("memory", "1 GiB", "FITS")],
        listings=(Listing(title="first", rows=rows), Listing(title="second", rows=rows[:3])), warnings=warnings,
        closing=(("rests on", "measured"), ("next", "--details")),
    )  # fmt: skip
    text = screen.text(lines)
    assert len(text.splitlines()) <= lines
    assert "operator 0" in text
    shown = [warning for warning in warnings if warning in words(text)]
    assert shown == warnings[: len(shown)]
    assert bool(shown) == bool(count)
    left = count - len(shown)
    assert (f"\n{left} more warning{'s' if left > 1 else ''}: --details\n" in text) == (left > 0)


def test_the_first_screen_of_a_long_text_says_how_many_lines_are_left() -> None:
    text = "\n".join(f"line {i}" for i in range(40))
    lines = first_screen(text).splitlines()
    assert len(lines) == MAX_LINES
    assert lines[-1] == f"... {40 - (MAX_LINES - 1)} more lines: --details"
    assert lines[:-1] == text.splitlines()[: MAX_LINES - 1]
    short = "\n".join(f"line {i}" for i in range(MAX_LINES))
    assert first_screen(short) == short
    parts = "\n".join([*(f"line {i}" for i in range(20)), "", *(f"line {i}" for i in range(20))])
    assert first_screen(parts).splitlines()[-2:] == ["line 19", "... 21 more lines: --details"]


@pytest.fixture(scope="module")
def collectives() -> str:
    return summary_text(validate_collectives(load_measurements()[:12]))


def test_a_validation_of_collectives_fits_one_screen(collectives: str) -> None:
    lines = first_screen(collectives).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= WIDE
    assert any(line.startswith("all machines") for line in lines)
    assert not any(line.endswith(" ") for line in lines)


DDP = ["train", "vgg13-h100-b128", "--parallel", "ddp", "--gpus", "8", "--cluster", "dgx-h100"]


def shown(*options: str) -> list[str]:
    done = CliRunner().invoke(app, [*DDP, *options])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "first"), [(("--repeat", "3"), "ensemble "), (("--overlap", "range"), "overlap  step ")]
)
def test_studies_of_a_step_leave_it_the_rest_of_the_screen(options: tuple[str, ...], first: str) -> None:
    lines, everything = shown(*options), shown(*options, "--details")
    assert lines[0].startswith(first)
    assert everything[0] == lines[0]
    assert len(lines) <= MAX_LINES < len(everything)
    assert max(map(len, [*lines, *everything])) <= WIDE
    assert sum(line.startswith(("step ", "memory ", "next ")) for line in lines) == 3


@pytest.mark.parametrize("line", ["train vgg13-h100-b128", "validate scaling", "collective all_reduce --size 1K"])
def test_a_headline_and_everything_contradict_each_other(line: str) -> None:
    done = CliRunner().invoke(app, [*line.split(), "--brief", "--details"])
    assert done.exit_code == 2
    assert not done.stdout
    assert done.stderr.startswith("error: ")
    assert "--brief" in done.stderr
    assert "--details" in done.stderr
