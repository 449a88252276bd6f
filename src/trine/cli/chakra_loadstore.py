"""The options of ``trine chakra run --fidelity loadstore``, and what it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.loadstore import LEVELS, PANEL, draw_inside
from trine.cli.output import show, write_json
from trine.cli.progress import ProgressLine
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.formats.chakra.loadstore.kernels import KernelChoices
    from trine.formats.chakra.loadstore.run import LoadStoreResult
    from trine.formats.chakra.trace import ChakraTrace

WorkgroupsOption = Annotated[
    int | None, typer.Option(help="Of kernels of collectives and messages [32].", rich_help_panel=PANEL)
]
WavefrontsOption = Annotated[int | None, typer.Option(help="Of one of these workgroups [8].", rich_help_panel=PANEL)]
ProtocolOption = Annotated[
    str | None, typer.Option(metavar="simple|ll|ll128", help="Of collectives [simple].", rich_help_panel=PANEL)
]
ComputeWorkgroupsOption = Annotated[
    int | None, typer.Option(help="Of kernels of compute nodes [one a CU].", rich_help_panel=PANEL)
]
ComputeWavefrontsOption = Annotated[
    int | None, typer.Option(help="Of one of these workgroups [8].", rich_help_panel=PANEL)
]
NoTrafficOption = Annotated[
    bool,
    typer.Option("--no-compute-traffic", help="Compute nodes do not move their tensors.", rich_help_panel=PANEL),
]
EngineOption = Annotated[
    str | None,
    typer.Option(metavar="compiled|reference", help="The engine, or its Python twin.", rich_help_panel=PANEL),
]
InsideOption = Annotated[
    str | None, typer.Option(help="Write a timeline of all workgroups (Perfetto).", rich_help_panel=PANEL)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChakraInside:
    """The options as given: None (or False) where one was not."""

    gpu_model: str | None = None
    workgroups: int | None = None
    wavefronts: int | None = None
    protocol: str | None = None
    unroll: int | None = None
    max_outstanding: int | None = None
    arbitration: str | None = None
    compute_workgroups: int | None = None
    compute_wavefronts: int | None = None
    no_compute_traffic: bool = False
    engine: str | None = None
    inside_perfetto: str | None = None
    plot_noc: str | None = None

    def given(self) -> Iterator[str]:
        """The options that were, as people write them."""
        for field in fields(self):
            if getattr(self, field.name) not in (None, False):
                yield f"--{field.name.replace('_', '-')}"

    def choices(self, algorithms: Mapping[str, str]) -> KernelChoices:
        """What kernels look like."""
        from trine.formats.chakra.loadstore.kernels import KernelChoices

        names = ("workgroups", "wavefronts", "protocol", "compute_workgroups", "compute_wavefronts")
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return KernelChoices(algorithms=algorithms, compute_traffic=not self.no_compute_traffic, **said)


def is_loadstore(fidelity: str | None, options: ChakraInside, others: Mapping[str, object]) -> bool:
    """Whether the load-store level was asked for; ``others``: options of the operator level alone, None: not given.

    Raises
    ------
    InputError: an unknown level, or options of the other one.
    """
    if fidelity is not None and fidelity not in LEVELS:
        raise InputError(f"unknown --fidelity {fidelity!r:.80}{nearest(fidelity[:80], LEVELS)}")
    if fidelity != "loadstore":
        for name in options.given():
            raise InputError(f"{name} is about the inside of GPUs: --fidelity loadstore")
        return False
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{name} is about the operator level: leave it out, or leave out --fidelity loadstore")
    return True


def run_loadstore(
    trace: ChakraTrace, machine: Cluster, options: ChakraInside, algorithms: Mapping[str, str], warnings: list[str]
) -> LoadStoreResult:
    """Simulate, with progress. Raises InputError for options that cannot matter."""
    from trine.formats.chakra.loadstore.run import simulate_chakra_loadstore
    from trine.gpu.model.files import gpu_model_of, load_gpu_model
    from trine.gpu.model.options import ModelOptions

    _refuse_what_cannot_matter(trace, options)
    group = machine.gpus[: trace.num_ranks]
    model = gpu_model_of(machine, group) if options.gpu_model is None else load_gpu_model(options.gpu_model)
    model = ModelOptions(
        unroll=options.unroll, max_outstanding=options.max_outstanding, arbitration=options.arbitration
    ).of(model)
    with ProgressLine("requests") as progress:
        return simulate_chakra_loadstore(
            trace, machine, model=model, kernels=options.choices(algorithms), engine=options.engine or "compiled",
            progress=progress, on_compile=progress.compiling, warnings=tuple(warnings),
        )  # fmt: skip


def _refuse_what_cannot_matter(trace: ChakraTrace, options: ChakraInside) -> None:
    from trine.formats.chakra.loadstore.graph import is_kernel
    from trine.graph.program import Collective, Compute, Send

    steps = [step for program in trace.programs for step in program.steps]
    if not any(isinstance(step, Compute) and is_kernel(step) for step in steps):
        for name, value in (
            ("--compute-workgroups", options.compute_workgroups),
            ("--compute-wavefronts", options.compute_wavefronts),
        ):
            if value is not None:
                raise InputError(f"{name} cannot matter: the traces have no compute nodes of GPUs that take time")
    if options.no_compute_traffic and not any(any(program.tensor_bytes) for program in trace.programs):
        raise InputError("--no-compute-traffic cannot matter: no compute node has a tensor_size")
    if options.protocol is not None and not any(isinstance(step, Collective) for step in steps):
        raise InputError("--protocol cannot matter: the traces have no collectives")
    for name, value in (("--workgroups", options.workgroups), ("--wavefronts", options.wavefronts)):
        if value is not None and not any(isinstance(step, Collective | Send) for step in steps):
            raise InputError(f"{name} cannot matter: the traces have no communication")


def report_loadstore(result: LoadStoreResult, options: ChakraInside, json: str | None) -> None:
    """Print the answer, and write what is about the inside of GPUs."""
    show(result.summary(), json)
    write_json(result, json, "chakra run")
    draw_inside(result.gpu, options.inside_perfetto, options.plot_noc)
