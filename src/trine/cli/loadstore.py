"""``trine collective`` at the load-store level: its options, and what only the other level knows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.output import end, say, show, write_json, writes
from trine.cli.progress import ProgressLine
from trine.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trine.cli.machine import MachineOptions
    from trine.cluster import Cluster
    from trine.collectives.loadstore import FidelityResult, LoadStoreCollectiveResult, LoadStoreOptions
    from trine.collectives.options import CollectiveOptions
    from trine.results.gpu.result import GpuResult

PANEL = "Load by load, store by store (--fidelity loadstore)"
LEVELS = ("operator", "loadstore")
#: Options of the command, as people write them.
_COMPARE = "--compare-fidelity"

FidelityOption = Annotated[
    str | None,
    typer.Option(metavar="operator|loadstore", help="How closely it is looked at [operator].", rich_help_panel=PANEL),
]
CompareOption = Annotated[
    bool, typer.Option(_COMPARE, help="Both levels, and where they differ.", rich_help_panel=PANEL)
]
WorkgroupsOption = Annotated[int | None, typer.Option(help="Of each GPU [32].", rich_help_panel=PANEL)]
WavefrontsOption = Annotated[
    int | None, typer.Option(help="Of a workgroup [8, of a plan as it says].", rich_help_panel=PANEL)
]
UnrollOption = Annotated[
    int | None, typer.Option(help="Requests of a wavefront in flight [the GPU model's].", rich_help_panel=PANEL)
]
OutstandingOption = Annotated[
    int | None, typer.Option(help="Requests of a CU in flight [the GPU model's].", rich_help_panel=PANEL)
]
ArbitrationOption = Annotated[
    str | None,
    typer.Option(metavar="fifo|fair", help="Of control and data at ports [the GPU model's].", rich_help_panel=PANEL),
]
GpuModelOption = Annotated[
    str | None, typer.Option(help="Inside of the GPUs: name or file [the cluster's GPU].", rich_help_panel=PANEL)
]
NoFoldOption = Annotated[bool, typer.Option("--no-fold", help="Simulate every GPU by itself.", rich_help_panel=PANEL)]
VerifyFoldOption = Annotated[
    bool, typer.Option("--verify-fold", help="Run both ways and compare everything.", rich_help_panel=PANEL)
]
PlotNocOption = Annotated[
    str | None, typer.Option(help="Draw how busy the NoC is (PNG, SVG); needs trine[plot].", rich_help_panel=PANEL)
]
PerfettoOption = Annotated[
    str | None, typer.Option(help="Write a timeline for https://ui.perfetto.dev.", rich_help_panel=PANEL)
]


def draw_inside(result: GpuResult, perfetto: str | None, plot_noc: str | None) -> None:
    """Write the timeline of workgroups and the picture of the NoC, where they were asked for."""
    if perfetto is not None:
        with writes():
            for note in result.to_perfetto(perfetto):
                say(f"note: {note}")
            say(f"timeline of workgroups written to {perfetto}: open it at https://ui.perfetto.dev")
    if plot_noc is not None:
        with writes():
            result.plot("noc", path=plot_noc)
            say(f"drawn in {plot_noc}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadStoreGiven:
    """The options as given: None or False where one was not."""

    fidelity: str | None = None
    compare_fidelity: bool = False
    workgroups: int | None = None
    wavefronts: int | None = None
    unroll: int | None = None
    max_outstanding: int | None = None
    arbitration: str | None = None
    gpu_model: str | None = None
    no_fold: bool = False
    verify_fold: bool = False
    plot_noc: str | None = None
    perfetto: str | None = None

    def is_wanted(self) -> bool:
        """Whether the load-store level is asked. Raises InputError for options that contradict each other."""
        from trine.errors import nearest

        if self.fidelity is not None and self.fidelity not in LEVELS:
            raise InputError(f"unknown --fidelity {self.fidelity!r:.80}{nearest(self.fidelity[:80], LEVELS)}")
        if self.compare_fidelity and self.fidelity is not None:
            raise InputError(f"{_COMPARE} asks both levels: leave out --fidelity")
        wanted = self.compare_fidelity or self.fidelity == "loadstore"
        if not wanted:
            for field in fields(self):
                if field.name != "fidelity" and getattr(self, field.name) not in (None, False):
                    raise InputError(f"{_option(field.name)} belongs to --fidelity loadstore")
        if self.no_fold and self.verify_fold:
            raise InputError("--no-fold and --verify-fold contradict each other: the second runs both ways")
        return wanted

    def refuse_files(self, num_sizes: int, plot: str | None) -> None:
        """Raise InputError for pictures and timelines of what is not one run."""
        for name, value in (("--plot-noc", self.plot_noc), ("--perfetto", self.perfetto)):
            if value is not None and (num_sizes > 1 or self.compare_fidelity):
                raise InputError(f"{name} shows one run: give one size, and no {_COMPARE}")
        if plot is not None and self.compare_fidelity:
            raise InputError(f"--plot draws one level: leave out {_COMPARE}")

    def options(self, algorithm: str, protocol: str) -> LoadStoreOptions:
        """As the library takes them."""
        from trine.collectives.loadstore import LoadStoreOptions

        return LoadStoreOptions(
            algorithm=algorithm,
            protocol=protocol,
            workgroups=self.workgroups,
            wavefronts=self.wavefronts,
            unroll=self.unroll,
            max_outstanding=self.max_outstanding,
            arbitration=self.arbitration,
            gpu_model=self.gpu_model,
            fold="off" if self.no_fold else "auto",
            verify=self.verify_fold,
        )


def answer_loadstore(
    op: str,
    sizes: list[int],
    described: MachineOptions,
    asked: CollectiveOptions,
    given: LoadStoreGiven,
    others: Mapping[str, object],
    json: str | None,
    plot: str | None,
) -> None:
    """Run, print and write. others: options of the operator level by name; None, False or auto: not given."""
    if described.circuits.are_given:
        raise InputError("circuits are not known to the load-store level")
    given.refuse_files(len(sizes), plot)
    _refuse_others(others, given.compare_fidelity)
    from trine.cli.machine import group_machine

    machine, warnings = group_machine(described)
    bare = given.compare_fidelity and asked.protocol == "none"
    how = given.options(asked.algorithm, "auto" if bare else asked.protocol)
    _refuse_links_that_do_not_matter(machine, how, described)
    with ProgressLine("requests") as progress:
        answer: LoadStoreCollectiveResult | FidelityResult
        if given.compare_fidelity:
            network = others["network"]
            answer = _compared(op, sizes, machine, asked, how, network if isinstance(network, str) else None, progress)
        else:
            answer = _run(op, sizes, machine, how, progress)
    _report(answer, given, json, plot)
    for warning in warnings:
        say(f"note: {warning}")
    end(answer.finished)


def _run(
    op: str, sizes: list[int], machine: Cluster, how: LoadStoreOptions, progress: ProgressLine
) -> LoadStoreCollectiveResult:
    from trine.collectives.loadstore import loadstore_collective

    return loadstore_collective(
        op, sizes, machine, options=how, progress=progress, on_compile=progress.compiling, on_stage=progress.stage
    )


def _compared(
    op: str, sizes: list[int], machine: Cluster, asked: CollectiveOptions, how: LoadStoreOptions, network: str | None,
    progress: ProgressLine,
) -> FidelityResult:  # fmt: skip
    from dataclasses import replace

    from trine.collectives.loadstore import compare_fidelity
    from trine.collectives.loadstore.compare import shared_algorithm

    known = replace(asked, algorithm=shared_algorithm(op, asked.algorithm))
    return compare_fidelity(
        op, sizes, machine, options=how, operator=known, network=network,
        progress=progress, on_compile=progress.compiling, on_stage=progress.stage,
    )  # fmt: skip


def _report(
    answer: LoadStoreCollectiveResult | FidelityResult, given: LoadStoreGiven, json: str | None, plot: str | None
) -> None:
    from trine.collectives.loadstore import LoadStoreCollectiveResult

    show(answer.summary(), json)
    write_json(answer, json, "collective")
    if not isinstance(answer, LoadStoreCollectiveResult):
        return
    draw_inside(answer.result, given.perfetto, given.plot_noc)
    if plot is not None and answer.finished:
        with writes():
            answer.plot("sizes", path=plot)
            say(f"drawn in {plot}")


def _refuse_others(others: Mapping[str, object], comparing: bool) -> None:
    """Options of the operator level alone; when both are asked, those that its answer cannot show."""
    for name, value in others.items():
        if value in (None, False, "auto"):
            if name == "nvls" and value is False and not comparing:
                raise InputError("--no-nvls is not known to the load-store level, where no switch reduces")
            continue
        if not comparing or name in ("matrix", "explain"):
            raise InputError(f"{_option(name)} is not known to the load-store level")


def _refuse_links_that_do_not_matter(machine: Cluster, how: LoadStoreOptions, described: MachineOptions) -> None:
    """Options about links and routes without which every way between two of the GPUs is the same."""
    from trine.cli.machine import group_machine, options_of_links
    from trine.collectives.loadstore.runs import all_paths

    known = None
    for option, without in options_of_links(described):
        known = all_paths(machine, how) if known is None else known
        if all_paths(group_machine(without)[0], how) == known:
            raise InputError(f"{option} changes nothing: no load or store of this group goes that way")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
