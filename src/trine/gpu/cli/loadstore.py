"""``trine collective`` at the load-store level: its options, and checks for options of the operator level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from trine.cli.collective_level import CollectiveLevel
from trine.cli.machine import MachineOptions, group_machine, options_of_links
from trine.cli.output import TIMELINE, drawn, end, say, show_answer, write_json, written
from trine.cli.parameters import Given
from trine.cli.progress import watched
from trine.common.arguments import option
from trine.errors import InputError, nearest
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.kernels.moe.options import MOE, MoeOptions, imbalance_weights

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.collectives.options import CollectiveOptions
    from trine.gpu.collective import FidelityResult, LoadStoreCollectiveResult
    from trine.gpu.results.result import GpuResult

LEVELS = ("operator", "loadstore")
#: Options of the kernels at this level.
KERNEL = (
    "workgroups", "wavefronts", "unroll", "max_outstanding", "arbitration", "bookkeeping", "initiator", "gpu_model",
)  # fmt: skip
#: The option's name in error messages.
_COMPARE = "--compare-fidelity"


def draw_inside(result: GpuResult, perfetto: str | None, plot_noc: str | None) -> None:
    """Write the timeline of workgroups and the picture of the NoC, if requested."""
    written(perfetto, result.to_perfetto, TIMELINE.replace("timeline", "timeline of workgroups"))
    drawn(plot_noc, result, "noc")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """Options that select and configure the load-store level; all default to None or False."""

    fidelity: str | None = option(None, "Choose the level of detail [operator].")
    compare_fidelity: bool = option(False, "Compare both levels and explain the difference.")
    no_fold: bool = option(False, "Simulate every GPU, also identical ones; with --network every message.")
    verify_fold: bool = option(False, "Run folded and unfolded; compare everything.")
    plot_noc: str | None = option(None, "Draw the NoC's utilisation (PNG, SVG); needs trine[plot].")
    perfetto: str | None = option(None, "Write a timeline for https://ui.perfetto.dev.")

    @property
    def fold(self) -> str:
        """The folding mode for messages at the operator level."""
        if self.no_fold:
            return "off"
        if self.verify_fold:
            return "verify"
        return "on"

    def is_wanted(self, options: Given[LoadStoreOptions], simulates_messages: bool) -> bool:
        """Return whether to run the load-store level. Raises InputError for contradictory options.

        simulates_messages: the operator level simulates messages on links, so the folding options apply to it too.
        """
        check_level(self.fidelity)
        if self.compare_fidelity and self.fidelity is not None:
            raise InputError(f"{_COMPARE} asks both levels: leave out --fidelity")
        is_loadstore = self.compare_fidelity or self.fidelity == "loadstore"
        fields_in_use = [field.name for field in fields(self) if getattr(self, field.name) not in (None, False)]
        if simulates_messages:
            fields_in_use = [name for name in fields_in_use if name not in ("no_fold", "verify_fold")]
        for name in () if is_loadstore else (*options.values, *fields_in_use):
            if name != "fidelity":
                raise InputError(f"{_option(name)} belongs to --fidelity loadstore")
        if self.no_fold and self.verify_fold:
            raise InputError("--no-fold and --verify-fold contradict each other: the second runs both ways")
        return is_loadstore

    def refuse_files(self, num_sizes: int, plot: str | None) -> None:
        """Raise InputError for pictures and timelines of more than one run."""
        for name, value in (("--plot-noc", self.plot_noc), ("--perfetto", self.perfetto)):
            if value is not None and (num_sizes > 1 or self.compare_fidelity):
                raise InputError(f"{name} shows one run: give one size, and no {_COMPARE}")
        if plot is not None and self.compare_fidelity:
            raise InputError(f"--plot draws one level: leave out {_COMPARE}")


def check_level(fidelity: str | None) -> None:
    """Raise InputError for an unknown level."""
    if fidelity is not None and fidelity not in LEVELS:
        raise InputError(f"unknown --fidelity {fidelity!r:.80}{nearest(fidelity[:80], LEVELS)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadStoreQuestion:
    """A request of ``trine collective`` to the load-store level, or to both levels."""

    op: str
    sizes: list[int]
    machine: MachineOptions
    operator: CollectiveOptions
    kernel_options: Given[LoadStoreOptions]
    inside: Inside
    network: str | None
    json: str | None
    plot: str | None
    brief: bool
    details: bool
    matrix: Sequence[Sequence[int]] | None = None
    moe: MoeOptions | None = None

    def answer(self) -> None:
        """Run, print and write."""
        if self.machine.has_circuits:
            raise InputError("circuits are not known to the load-store level")
        self.inside.refuse_files(len(self.sizes), self.plot)
        cluster, warnings = group_machine(self.machine)
        options = self._loadstore_options()
        _refuse_links_that_do_not_matter(cluster, options, self.machine)
        with watched("requests"):
            answer = self._compared(cluster, options) if self.inside.compare_fidelity else self._run(cluster, options)
        show_answer(answer, self.json, self.brief, self.details)
        _report(answer, self.inside, self.json, self.plot)
        for warning in () if self.brief else warnings:
            say(f"note: {warning}")
        end(answer.finished)

    def _loadstore_options(self) -> LoadStoreOptions:
        without_protocol = self.inside.compare_fidelity and self.operator.protocol == "none"
        protocol = "auto" if without_protocol else self.operator.protocol
        fold = "off" if self.inside.no_fold else "auto"
        return self.kernel_options.make(
            algorithm=self.operator.algorithm, protocol=protocol, fold=fold, verify=self.inside.verify_fold,
            matrix=self.matrix, moe=self.moe, no_proof=self.operator.no_proof,
        )  # fmt: skip

    def _run(self, cluster: Cluster, options: LoadStoreOptions) -> LoadStoreCollectiveResult:
        from trine.gpu.collective import loadstore_collective

        return loadstore_collective(self.op, self.sizes or None, cluster, options=options)

    def _compared(self, cluster: Cluster, options: LoadStoreOptions) -> FidelityResult:
        from trine.gpu.collective import compare_fidelity
        from trine.gpu.collective.two_levels import shared_algorithm

        operator = replace(self.operator, algorithm=shared_algorithm(self.op, self.operator.algorithm))
        return compare_fidelity(self.op, self.sizes, cluster, options=options, operator=operator, network=self.network)


def _report(
    answer: LoadStoreCollectiveResult | FidelityResult, inside: Inside, json: str | None, plot: str | None
) -> None:
    from trine.gpu.collective import LoadStoreCollectiveResult

    write_json(answer, json, "collective")
    if not isinstance(answer, LoadStoreCollectiveResult):
        return
    draw_inside(answer.result, inside.perfetto, inside.plot_noc)
    if answer.finished:
        drawn(plot, answer, "sizes")


def refuse_others(options: Mapping[str, object], comparing: bool) -> None:
    """Raise InputError for options of the operator level; in a comparison, only for those its result cannot show."""
    for name, value in options.items():
        if value in (None, False, "auto"):
            if name == "nvls" and value is False and not comparing:
                raise InputError(
                    "--no-nvls is not known to the load-store level: there only --algorithm nvls and plans use switches"
                )
            continue
        if not comparing or name == "explain" or (name == "matrix" and comparing):
            raise InputError(f"{_option(name)} is not known to the load-store level")


def _refuse_links_that_do_not_matter(machine: Cluster, options: LoadStoreOptions, described: MachineOptions) -> None:
    """Raise InputError for options about links and routes that change no path between GPUs of the group."""
    from trine.gpu.collective.runs import all_paths

    paths = None
    for option_text, without in options_of_links(described):
        paths = all_paths(machine, options) if paths is None else paths
        if all_paths(group_machine(without)[0], options) == paths:
            raise InputError(f"{option_text} changes nothing: no load or store of this group goes that way")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


#: What ``trine collective`` asks.
LEVEL = CollectiveLevel(
    choice=Inside, options=LoadStoreOptions, names=KERNEL, experts=MoeOptions, kinds=MOE, weights=imbalance_weights,
    question=LoadStoreQuestion, refuse=refuse_others,
)  # fmt: skip
