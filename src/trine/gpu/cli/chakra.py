"""``trine chakra``: Chakra execution traces in ASTRA-sim's format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import algorithm_pairs, networks
from trine.cli.conversions import pairs
from trine.cli.machine import CIRCUITS, MachineOptions, job_machine
from trine.cli.options import (
    COMPUTE,
    INSIDE,
    NETWORK,
    NETWORK_WORDS,
    Brief,
    Details,
    Json,
    Option,
    Parquet,
    Perfetto,
    Timeline,
    argument,
)
from trine.cli.output import end, show, show_answer, write_files, write_json
from trine.cli.parameters import Fields, Given
from trine.cli.progress import watched
from trine.errors import InputError
from trine.gpu.chakra.kernels import KernelChoices
from trine.gpu.cli.loadstore import check_level, draw_inside
from trine.gpu.collective.options import LoadStoreOptions, model_for

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.formats.chakra import ChakraTrace, NodeRoofline
    from trine.gpu.chakra.run import LoadStoreResult
    from trine.gpu.model import GpuModel
    from trine.results import Result

#: Options that override the GPU model's request limits.
REQUESTS = ("gpu_model", "unroll", "max_outstanding", "arbitration")
Prefix = Annotated[str, argument("Path of the traces up to .<rank>.et.")]
Groups = Annotated[
    str | None, Option('Read process groups from JSON {"1": [0, 1]} [PREFIX.groups.json if present].', "FILE")
]


def run(
    prefix: Prefix,
    machine: Annotated[MachineOptions, Fields(without=("gpus", "segment", *CIRCUITS))],
    given: Given[KernelChoices],
    requests: Annotated[Given[LoadStoreOptions], Fields(only=REQUESTS)],
    comm_groups: Groups = None,
    peak: Annotated[
        str | None, Option('Time compute nodes by a roofline of this peak: "900 TFLOP/s".', panel=COMPUTE)
    ] = None,
    memory: Annotated[str | None, Option('Set the roofline\'s memory bandwidth: "3350 GB/s".', panel=COMPUTE)] = None,
    network: Annotated[
        str | None, Option("Choose how flows share links.", NETWORK_WORDS, NETWORK, values=networks)
    ] = None,
    collective_costs: Annotated[
        str | None, Option("Choose the cost model of collectives: library or links.", "auto|links|library", NETWORK)
    ] = None,
    algorithm: Annotated[
        str | None, Option("Choose algorithms of collectives, e.g. all_reduce=ring.", "KIND=NAME,...", NETWORK,
                           values=algorithm_pairs)
    ] = None,
    fidelity: Annotated[
        str | None, Option("Choose the level of detail [operator].", "operator|loadstore", INSIDE)
    ] = None,
    engine: Annotated[str | None, Option("Choose the engine or its twin.", "compiled|reference", INSIDE)] = None,
    inside_perfetto: Annotated[
        str | None, Option("Write a timeline of all workgroups (Perfetto).", "FILE", INSIDE)
    ] = None,
    plot_noc: Annotated[
        str | None, Option("Draw the NoC's utilisation (PNG, SVG); needs trine[plot].", "FILE", INSIDE)
    ] = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
    perfetto: Perfetto = None,
    parquet: Parquet = None,
    timeline: Timeline = None,
) -> None:  # fmt: skip
    """Simulate the Chakra traces of all ranks on a cluster, rank i on GPU i.

    Example: trine chakra run traces/job --cluster dgx-h100
    """
    from trine.formats.chakra import read_chakra

    inside = {"engine": engine, "inside_perfetto": inside_perfetto, "plot_noc": plot_noc}
    operator = {"network": network, "collective_costs": collective_costs}
    loadstore = _is_loadstore(fidelity, [*_given(given), *_given(requests), *_options(inside)], _options(operator))
    algorithms = dict(pairs(algorithm)) if algorithm is not None else {}
    trace = read_chakra(
        prefix, comm_groups=comm_groups, roofline=_roofline(peak, memory), algorithms=None if loadstore else algorithms
    )
    cluster, warnings = job_machine(trace.num_ranks, machine)
    if cluster is None:
        raise InputError("add a machine: --cluster NAME or FILE, or --topology with --bandwidth")
    if loadstore:
        _refuse_what_cannot_matter(trace, given)
        kernels, model = given.make(algorithms=algorithms), _model(cluster, trace, requests)
        answer = _run_loadstore(trace, cluster, kernels, model, engine or "compiled", warnings)
        show_answer(answer, json, brief, details)
        write_json(answer, json, "chakra run")
        draw_inside(answer.gpu, inside_perfetto, plot_noc)
        write_files(answer, perfetto, parquet, timeline)
        end(answer.gpu.finished)
        return
    result = _run_operator(trace, cluster, network, collective_costs, warnings)
    show_answer(result, json, brief, details)
    write_json(result, json, "chakra run")
    write_files(result, perfetto, parquet, timeline)


def _is_loadstore(fidelity: str | None, inside_options: list[str], operator_options: list[str]) -> bool:
    """Return whether to run at load-store level. inside_options, operator_options: the given options of one level only.

    Raises
    ------
    InputError: an unknown level, or options of the other level.
    """
    check_level(fidelity)
    if fidelity == "loadstore":
        for name in operator_options:
            raise InputError(f"{name} is about the operator level: leave it out, or leave out --fidelity loadstore")
        return True
    for name in inside_options:
        raise InputError(f"{name} is about the inside of GPUs: --fidelity loadstore")
    return False


def _given(options: Given[Any]) -> list[str]:
    """Return the given options as spelled on the command line."""
    words = {"compute_traffic": "no_compute_traffic"}
    return [f"--{words.get(name, name).replace('_', '-')}" for name in options.values]


def _options(values: Mapping[str, object]) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]


def _model(cluster: Cluster, trace: ChakraTrace, requests: Given[LoadStoreOptions]) -> GpuModel:
    """Return the GPU model with the changes of the options."""
    return model_for(requests.make(), cluster, cluster.gpus[: trace.num_ranks])


def _run_loadstore(
    trace: ChakraTrace, cluster: Cluster, kernels: KernelChoices, model: GpuModel, engine: str, warnings: list[str]
) -> LoadStoreResult:
    from trine.gpu.chakra.run import simulate_chakra_loadstore

    with watched("requests"):
        return simulate_chakra_loadstore(
            trace, cluster, model=model, kernels=kernels, engine=engine, warnings=tuple(warnings)
        )


def _refuse_what_cannot_matter(trace: ChakraTrace, choices: Given[KernelChoices]) -> None:
    from trine.gpu.chakra.graph import is_kernel
    from trine.graph.program import Collective, Compute, Send

    steps = [step for program in trace.programs for step in program.steps]
    has_kernels = any(isinstance(step, Compute) and is_kernel(step) for step in steps)
    has_collectives = any(isinstance(step, Collective) for step in steps)
    has_messages = has_collectives or any(isinstance(step, Send) for step in steps)
    has_tensors = any(any(program.tensor_bytes) for program in trace.programs)
    no_kernels = "the traces have no compute nodes of GPUs that take time"
    for name, has, reason in (
        ("compute_workgroups", has_kernels, no_kernels),
        ("compute_wavefronts", has_kernels, no_kernels),
        ("compute_traffic", has_tensors, "no compute node has a tensor_size"),
        ("protocol", has_collectives, "the traces have no collectives"),
        ("workgroups", has_messages, "the traces have no communication"),
        ("wavefronts", has_messages, "the traces have no communication"),
    ):
        if name in choices and not has:
            option = "no-compute-traffic" if name == "compute_traffic" else name.replace("_", "-")
            raise InputError(f"--{option} cannot matter: {reason}")


def _run_operator(
    trace: ChakraTrace, cluster: Cluster, network: str | None, collective_costs: str | None, warnings: list[str]
) -> Result:
    from trine.engine.models import is_compiled
    from trine.formats.chakra import simulate_chakra

    with watched():
        return simulate_chakra(
            trace, cluster, network=network, collective_costs=collective_costs or "auto",
            engine="compiled" if network is None or is_compiled(network) else "reference", warnings=tuple(warnings),
        )  # fmt: skip


def inspect(prefix: Prefix, comm_groups: Groups = None, json: Json = None) -> None:
    """Summarise Chakra traces, and check that all ranks' traces fit together.

    Example: trine chakra inspect traces/job
    """
    from trine.formats.chakra import read_chakra
    from trine.formats.chakra.description import description, description_text

    answer = description(read_chakra(prefix, comm_groups=comm_groups))
    show(description_text(answer), json)
    write_json(answer, json, "chakra inspect")


def _roofline(peak: str | None, memory: str | None) -> NodeRoofline | None:
    from trine.common.units import parse_bandwidth, parse_rate
    from trine.formats.chakra import NodeRoofline

    if peak is None and memory is None:
        return None
    if peak is None or memory is None:
        raise InputError("a roofline needs both --peak and --memory")
    return NodeRoofline(flop_per_s=parse_rate(peak, "--peak"), memory_bytes_per_s=parse_bandwidth(memory, "--memory"))
