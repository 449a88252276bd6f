"""``trine kernel``: GPU programs load by load and store by store, from a text, an MSCCL++ plan or MSCCL XML."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.machine import LinkedMachine, MachineOptions, group_machine
from trine.cli.options import OUTPUT, RANKS, Brief, Details, Engine, Json, Option, Perfetto, argument
from trine.cli.output import end, show, show_answer, write_json
from trine.cli.parameters import Fields, Given
from trine.cli.progress import watched
from trine.errors import InputError
from trine.gpu.cli.loadstore import draw_inside
from trine.gpu.collective.options import LoadStoreOptions, plain_model, refuse_wide

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.gpu.model import GpuModel
    from trine.gpu.plans.plan import KernelPlan
    from trine.gpu.program import GpuProgram
    from trine.gpu.results.result import GpuResult
    from trine.gpu.run import GpuRun

#: Options that change the GPU model.
CHANGES = ("unroll", "max_outstanding", "arbitration", "initiator")
#: Runs up to this many events (about 0.1 s) are repeated to find options without effect.
CHEAP_EVENTS = 200_000

File = Annotated[str, argument("Text program, MSCCL++ plan (JSON) or MSCCL XML.", "FILE")]
Size = Annotated[str | None, Option("Set a plan's message size as nccl-tests counts it: 64K, 1M.")]
Wavefronts = Annotated[int | None, Option("Set the wavefronts of a plan's workgroup [its threads / 32, or 8].")]


def run(
    file: File,
    machine: LinkedMachine,
    kernel: Annotated[
        Given[LoadStoreOptions],
        Fields(
            only=("gpu_model", *CHANGES),
            helps={
                "unroll": "Limit the requests of a wavefront in flight [FILE's].",
                "max_outstanding": "Limit the requests of a CU in flight.",
                "arbitration": "Choose the arbitration of control and data at ports.",
                "initiator": "Choose who posts DMAs to NICs [plans: proxy].",
            },
            panel="GPU",
        ),
    ],
    size: Size = None,
    wavefronts: Wavefronts = None,
    no_fold: Annotated[bool, Option("Simulate every GPU, also identical ones.", panel=RANKS)] = False,
    verify_fold: Annotated[bool, Option("Run folded and unfolded; compare everything.", panel=RANKS)] = False,
    engine: Engine = "compiled",
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
    perfetto: Perfetto = None,
    plot_noc: Annotated[
        str | None, Option("Draw the NoC's utilisation (PNG, SVG); needs trine[plot].", "FILE", OUTPUT)
    ] = None,
) -> None:
    """Simulate the kernels of FILE: their time, what wavefronts wait for, and utilisation.

    Example: trine kernel run program.txt --cluster dgx-h100
    """
    from trine.gpu.model.options import ModelOptions
    from trine.gpu.system import host_group
    from trine.results.text import unused_options

    if no_fold and verify_fold:
        raise InputError("--no-fold and --verify-fold contradict each other: the second runs both ways")
    source = _Source.read(file, size, wavefronts)
    cluster, warnings = _machine(source, machine)
    group = cluster.gpus[: source.num_ranks]
    plain = plain_model(kernel["gpu_model"], cluster, group, is_plan=source.plan is not None)
    changes = {name: kernel[name] for name in CHANGES if name in kernel}
    model = ModelOptions(**changes).of(plain)
    refuse_wide(source.wavefronts, model)
    program = source.program(len(group), model.line_bytes)
    group = host_group(cluster, program)
    _refuse_what_cannot_matter(program, kernel["unroll"], no_fold or verify_fold)
    runs = _Runs(source, program, cluster, group, engine)
    if "initiator" in changes and not runs.has_puts(model):
        raise InputError("--initiator has no effect: the program sends nothing over NICs")
    result = runs.result(model, warnings, fold="off" if no_fold else "auto", verify=verify_fold)
    if result.finished and result.records.num_events <= CHEAP_EVENTS:

        def same_without(name: str) -> bool:
            changed_model = ModelOptions(**{key: kept for key, kept in changes.items() if key != name}).of(plain)
            return runs.result(changed_model, []).time_s == result.time_s

        idle = tuple(unused_options(changes, same_without, "of this program"))
        result = replace(result, notes=(*result.notes, *idle))
    show_answer(result, json, brief, details)
    write_json(result, json, "kernel run")
    draw_inside(result, perfetto, plot_noc)
    end(result.finished)


def show_program(
    file: File,
    size: Size = None,
    wavefronts: Wavefronts = None,
    gpus: Annotated[int | None, Option("Set the number of ranks [FILE's].")] = None,
    line_bytes: Annotated[str | None, Option("Set the cache line of a plan's GPUs [128 B].", names=("--line",))] = None,
    summary: Annotated[bool, Option("Print counts instead of the program.", panel=OUTPUT)] = False,
    json: Annotated[str | None, Option("Write the counts as JSON; - for stdout.", "FILE", OUTPUT)] = None,
) -> None:
    """Print the program of FILE as text; a plan as its loads, stores and semaphores.

    Example: trine kernel show plan.json --size 1M --summary
    """
    from trine.common.units import parse_bytes
    from trine.gpu.text import format_program
    from trine.gpu.text.summary import count_program, summary_text

    source = _Source.read(file, size, wavefronts)
    if source.num_ranks is not None and gpus is not None:
        raise InputError(f"--gpus: {file} says itself that it is for {source.num_ranks} ranks")
    if source.plan is None and line_bytes is not None:
        raise InputError("--line is about plans: a text program says the size of its lines")
    program = source.program(gpus, 128 if line_bytes is None else parse_bytes(line_bytes, "--line"))
    counts = count_program(program)
    show(summary_text(counts) if summary or json is not None else format_program(program).rstrip("\n"), json)
    write_json(counts, json, "kernel show")


@dataclass(frozen=True, slots=True)
class _Source:
    """Contents of FILE: a plan with its message size, or a text program. num_ranks: GPUs, None if unspecified."""

    file: str
    num_ranks: int | None
    plan: KernelPlan | None = None
    size_bytes: int = 0
    wavefronts: int | None = None
    text: str = ""

    @staticmethod
    def read(file: str, size: str | None, wavefronts: int | None) -> _Source:
        from trine.collectives.sizes import parse_size
        from trine.common.inputs import read_text
        from trine.gpu.plans import load_plan
        from trine.gpu.text import is_text_program, parse_program, says_ranks

        text = read_text(file)
        if is_text_program(text):
            for option, value in (("--size", size), ("--wavefronts", wavefronts)):
                if value is not None:
                    raise InputError(f"{option} is about plans: {file} is a text program, which says it itself")
            ranks = parse_program(text, file).num_gpus if says_ranks(text) else None
            return _Source(file, ranks, text=text)
        if text.lstrip()[:1] not in ("{", "<"):
            raise InputError("is neither a text program (its first word is 'program'), nor a plan", file=file)
        plan = load_plan(file)
        if size is None:
            raise InputError(f"--size is needed: {file} is a plan, such as --size 1M")
        size_bytes = parse_size(size)
        if size_bytes < 1:
            raise InputError(f"--size: a message has at least 1 byte, got {size}")
        return _Source(file, plan.num_ranks, plan, size_bytes, wavefronts)

    def program(self, num_ranks: int | None, line_bytes: int) -> GpuProgram:
        """Return the program: a text for ``num_ranks`` ranks, or a plan for cache lines of ``line_bytes``."""
        from trine.gpu.text import parse_program
        from trine.gpu.validate import validate_program

        if self.plan is None:
            if num_ranks is None and self.num_ranks is None:
                raise InputError("says not how many ranks it is for: --gpus N, or a line 'ranks N'", file=self.file)
            return parse_program(self.text, self.file, num_ranks=num_ranks)
        from trine.gpu.kernels.lower.plan import lower_plan

        program = lower_plan(self.plan, self.size_bytes, line_bytes=line_bytes, wavefronts=self.wavefronts)
        validate_program(program)
        return program

    @property
    def bus_factor(self) -> float | None:
        """busbw / algbw of a plan's collective; None for a text program."""
        from trine.collectives.bus_bandwidth import bus_factor

        return None if self.plan is None else bus_factor(self.plan.collective, self.plan.num_ranks)


def _machine(source: _Source, options: MachineOptions) -> tuple[Cluster, list[str]]:
    """Return the machine that the options describe; by default with one GPU per rank of the program."""
    from trine.cluster.topologies import implied_gpus

    ranks = source.num_ranks
    if options.gpus is None and (options.topology is None or implied_gpus(options.topology) is None):
        options = replace(options, gpus=ranks)
    machine, warnings = group_machine(options)
    if ranks is not None and len(machine.gpus) != ranks:
        raise InputError(f"is for {ranks} ranks, and the machine has {len(machine.gpus)} GPUs", file=source.file)
    return machine, warnings


def _refuse_what_cannot_matter(program: GpuProgram, unroll: int | None, folding: bool) -> None:
    import numpy as np

    from trine.gpu.program import DATA_OPS

    if unroll is not None and program.op_unroll[np.isin(program.op_kind, DATA_OPS)].all():
        raise InputError("--unroll has no effect: each operation of the program sets its own, or none has lines")
    if folding and program.num_ranks == 1:
        raise InputError("--no-fold and --verify-fold are about several ranks, and there is one")


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runner of one program on one machine with different GPU models."""

    source: _Source
    program: GpuProgram
    machine: Cluster
    group: tuple[int, ...]
    engine: str

    def has_puts(self, model: GpuModel) -> bool:
        """Return whether the program sends data over NICs."""
        import numpy as np

        from trine.gpu.fabric import GpuFabric

        domains = np.array(GpuFabric(self.machine, self.group, model).domains)
        issuer = self.program.op_rank[self.program.operand_op]
        return bool((domains[issuer] != domains[self.program.operand_rank]).any())

    def result(self, model: GpuModel, warnings: list[str], **how: Any) -> GpuResult:
        """Simulate the program with a progress line. how: the options ``fold`` and ``verify`` of GpuRunOptions."""
        from trine.gpu.results.result import GpuResult
        from trine.gpu.run import GpuRunOptions, run_gpus

        began = time.perf_counter()
        with watched("requests"):
            options = GpuRunOptions(engine=self.engine, **how)
            outcome: GpuRun = run_gpus(self.program, self.machine, self.group, model, options=options)
        if outcome.fold.verified:
            warnings = [*warnings, "folded and unfolded runs gave the same times, waits and counts"]
        return GpuResult(
            program=self.program, model=model, cluster=self.machine, group=self.group, records=outcome.gpu,
            bus_factor=self.source.bus_factor, fold=outcome.fold, finished=outcome.finished,
            wall_s=time.perf_counter() - began, notes=tuple(warnings),
        )  # fmt: skip
