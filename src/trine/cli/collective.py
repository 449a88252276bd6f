"""``trine collective``: predicted time of one collective on a cluster, at the operator or the load-store level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from trine.cli.collective_level import CollectiveLevel
from trine.cli.collective_question import Question, alias
from trine.cli.completions import collectives, networks
from trine.cli.imbalance import imbalance_fields
from trine.cli.machine import MachineOptions, group_machine
from trine.cli.options import HOW, JOB, NETWORK_WORDS, OUTPUT, Brief, Details, Json, Option, argument
from trine.cli.output import drawn, say, show, show_answer, write_json
from trine.cli.parameters import Fields, Given
from trine.collectives.options import CollectiveOptions
from trine.common.plugins import load_target
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.collectives.schedules.direct import Matrix

#: The load-store level.
LEVEL: CollectiveLevel = load_target("trine.gpu.cli.loadstore:LEVEL")

if TYPE_CHECKING:  # the level's options have types that this package does not know
    Choice: TypeAlias = Any
    KernelOptions: TypeAlias = Any
    ExpertOptions: TypeAlias = Any
else:
    Choice, KernelOptions, ExpertOptions = LEVEL.choice, LEVEL.options, LEVEL.experts


def collective(
    op: Annotated[str, argument("all_reduce, all_gather, reduce_scatter, broadcast, ...", "OP", collectives)],
    machine: MachineOptions,
    asked: Given[CollectiveOptions],
    inside: Choice,
    given: Annotated[Given[KernelOptions], Fields(only=LEVEL.names)],
    experts: Given[ExpertOptions],
    size: Annotated[
        str | None, Option("Set the sizes: 64M, or 1K,1M,1G, or 1K:1G (doubling), 1K:1G:x4.", panel=JOB)
    ] = None,
    matrix: Annotated[
        str | None, Option("Read the bytes from rank (row) to rank (all_to_all_v).", "FILE.csv", JOB)
    ] = None,
    network: Annotated[str | None, Option("Simulate every message.", NETWORK_WORDS, HOW, values=networks)] = None,
    explain: Annotated[bool, Option("Explain each microsecond, and the alternatives.", panel=OUTPUT)] = False,
    brief: Brief = False,
    details: Details = False,
    plot: Annotated[str | None, Option("Draw the table (PNG, SVG); needs trine[plot].", "FILE", OUTPUT)] = None,
    json: Json = None,
) -> None:  # fmt: skip
    """Predict the time of a collective for each size, and the algorithm the library picks.

    Example: trine collective all_reduce --size 1K:1G --cluster dgx-h100
    """
    is_loadstore = inside.is_wanted(given, network is not None)
    kind = alias(op)
    sizes, table = _sizes(kind, size, matrix)
    if experts.values:
        table = _uneven(kind, sizes, table, experts, machine)
        if table is None:
            sizes = sizes
        else:
            sizes = [max(sum(row) for row in table)]
    if kind in LEVEL.kinds and (not is_loadstore or inside.compare_fidelity):
        raise InputError(f"{kind} needs the load-store level: add --fidelity loadstore")
    if plot is not None:
        from trine.collectives.picture import check_plot

        check_plot(plot, sizes)
    if is_loadstore:
        passed_on = {
            name: asked[name] for name in ("library", "launch", "nvls", "nvls_chunk", "min_channels", "max_channels")
        }
        moved_bytes = table if inside.compare_fidelity else None
        operator_options = {**passed_on, "network": network, "explain": explain, "matrix": moved_bytes}
        LEVEL.refuse(operator_options, inside.compare_fidelity)
        rows = None if table is None else [*map(tuple, table)]
        tokens = _tokens(experts) if kind in LEVEL.kinds else None
        question: Any = LEVEL.question(
            op=kind, sizes=sizes, machine=machine, operator=asked.make(), kernel_options=given, inside=inside,
            network=network, json=json, plot=plot, brief=brief, details=details,
            matrix=rows, moe=tokens,
        )  # fmt: skip
        question.answer()
        return
    answer, warnings = Question(kind, sizes, asked, network, table, explain, inside.fold).answer(machine)
    show_answer(answer, json, brief, details)
    for warning in () if brief else warnings:
        say(f"note: {warning}")
    if explain:
        show(answer.explain(), json)
    write_json(answer, json, "collective")
    drawn(plot, answer)


def _sizes(op: str, size: str | None, matrix: str | None) -> tuple[list[int], Matrix | None]:
    """Return the sizes, and the byte matrix of an all_to_all_v; its size is the largest total that a rank sends."""
    from trine.collectives.sizes import parse_sizes, read_matrix

    if op in LEVEL.kinds:
        for option, value in (("--size", size), ("--matrix", matrix)):
            if value is not None:
                raise InputError(f"{op} takes --tokens and --experts, not {option}")
        return [], None

    if matrix is not None:
        if size is not None:
            raise InputError("--size and --matrix both set the bytes sent: give one")
        table = read_matrix(matrix)
        return [max(sum(row) for row in table)], table
    if size is None and op != "barrier":
        raise InputError("--size is needed, such as --size 64M or --size 1K:1G")
    return parse_sizes(size or "0"), None


def _tokens(options: Given[ExpertOptions]) -> ExpertOptions:
    """Return the options of a dispatch or combine; the imbalance of experts may be a file."""
    if "expert_imbalance" not in options:
        return options.make()
    return options.make(**imbalance_fields(options["expert_imbalance"]))


def _uneven(
    op: str, sizes: list[int], table: Matrix | None, options: Given[ExpertOptions], machine: MachineOptions
) -> Matrix | None:
    """Return the byte matrix of an all_to_all_v with uneven shares per destination, as experts get tokens."""
    from trine.collectives.sizes import shared_matrix

    if op in LEVEL.kinds:
        return table
    for name in options.values:
        if name != "expert_imbalance" or op != "all_to_all_v":
            accepted_by = " and ".join(LEVEL.kinds) + (", or all_to_all_v" if name == "expert_imbalance" else "")
            raise InputError(f"--{name.replace('_', '-')} is about {accepted_by}, not about {op}")
    if table is not None:
        raise InputError("--matrix and --expert-imbalance both set the bytes of each pair: give one")
    if len(sizes) != 1:
        raise InputError("--expert-imbalance of all_to_all_v needs one size")
    fields, ranks = imbalance_fields(options["expert_imbalance"]), len(group_machine(machine)[0].gpus)
    shares = fields.get("expert_shares") or LEVEL.weights(fields["expert_imbalance"], ranks)
    if len(shares) != ranks:
        raise InputError(f"--expert-imbalance has {len(shares)} shares, and there are {ranks} ranks")
    return shared_matrix(sizes[0], shares)
