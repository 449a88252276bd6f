"""``trine train``: one training step (or several) of a traced job on N GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from trine.cli.completions import workloads
from trine.cli.emit import EmitAnswer
from trine.cli.layout import LayoutOptions, plan_from, refuse_without_machine
from trine.cli.machine import MachineOptions, group_machine, job_machine
from trine.cli.options import CHANCE, OUTPUT, RANKS, Brief, Details, Json, Option, Parquet, Perfetto, Timeline, argument
from trine.cli.output import Section, end, is_recording, show, to_terminal, write_files, write_json, written
from trine.cli.parameters import Fields, Given
from trine.cli.progress import watched
from trine.cli.report_target import report_target
from trine.cli.studies import PRICE, SENSITIVITY, TOKENS, CostAnswer, SensitivityAnswer
from trine.common.arguments import option
from trine.common.observer import observing
from trine.common.plugins import load_target
from trine.decide.failures import Failures
from trine.errors import InputError
from trine.parallel.plan import Plan
from trine.results.text import MAX_LINES
from trine.training.options import SimulateOptions

if TYPE_CHECKING:
    from trine.cli.output import StepRequest
    from trine.cluster import Cluster
    from trine.parallel.stragglers import Stragglers
    from trine.results import Result
    from trine.search.other_profiles import ProfileDifference
    from trine.training.ensemble import StepEnsemble
    from trine.training.explained import MemoryExplained
    from trine.training.neighbour import SharedRun
    from trine.training.overlap import OverlapRange

# Rank options of ``trine train``, and its answer, including studies of several runs (seeds, overlap).

RANGE = "range"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOptions:
    """The rank options as given; None, False or () if not given."""

    no_fold: bool = option(False, "Simulate every rank and micro-batch, also identical ones.")
    verify_fold: bool = option(False, "Simulate folded and unfolded; compare every task.")
    every_micro_batch: bool = option(False, "Simulate every micro-batch and step, also for a complete timeline.")
    exact: bool = option(False, "Refuse estimates and bounds.")
    show_rank: tuple[int, ...] = option((), "Report these ranks.")
    slow: tuple[str, ...] = option((), "Slow ranks down.")
    jitter: str | None = option(None, "Randomise the durations of operators.")
    jitter_per: str | None = option(None, "Use one random factor per operator or per step [operator].")
    seed: int | None = option(None, "Set the random seed [0].")
    repeat: int | None = option(None, "Run N seeds; report the spread of times.")

    def checked(self, plan: Plan) -> str:
        """Check the options and return the folding mode: ``on``, ``exact``, ``off`` or ``verify``.

        Raises InputError for options that contradict each other, name unknown ranks, or have no effect.
        """
        self.stragglers()
        self._check_repeat(plan.num_ranks)
        self._check_shown(plan.num_ranks)
        return self._fold(plan)

    def _fold(self, plan: Plan) -> str:
        modes = {"--no-fold": "off", "--verify-fold": "verify", "--every-micro-batch": "ranks", "--exact": "exact"}
        given = (self.no_fold, self.verify_fold, self.every_micro_batch, self.exact)
        flags = [flag for flag, is_given in zip(modes, given, strict=True) if is_given]
        if len(flags) > 1:
            raise InputError(f"{' and '.join(flags)} contradict each other: give one of them")
        if flags and plan.num_ranks == plan.steps == 1 and plan.micro_batch is None:
            raise InputError(f"{flags[0]} is about several ranks, micro-batches or steps, and there is one")
        if self.verify_fold and self.repeat is not None:
            raise InputError("--verify-fold checks one run: it does not go with --repeat")
        return modes[flags[0]] if flags else "on"

    def stragglers(self) -> Stragglers | None:
        """Return slow ranks and jitter, or None without either. Raise InputError for options without effect."""
        if self.jitter is None and self.jitter_per is not None:
            raise InputError("--jitter-per needs --jitter")
        if self.jitter is None and self.seed is not None and self.repeat is None:
            raise InputError("--seed matters to --jitter and --repeat only")
        if not self.slow and self.jitter is None:
            return None
        from trine.parallel.stragglers import PER, Stragglers, parse_jitter, parse_slow

        slow = parse_slow(self.slow)
        jitter = None if self.jitter is None else parse_jitter(self.jitter)
        per = PER[0] if self.jitter_per is None else self.jitter_per
        return Stragglers(slow=slow, jitter=jitter, per=per, seed=self.seed or 0)

    def _check_repeat(self, num_ranks: int) -> None:
        if self.repeat is None:
            return
        if self.repeat < 2:
            raise InputError(f"--repeat compares runs, at least 2; got {self.repeat}")
        if self.jitter is None and num_ranks == 1:
            raise InputError("--repeat needs --jitter here: without it one GPU does the same each time")

    def _check_shown(self, num_ranks: int) -> None:
        for number, rank in enumerate(self.show_rank):
            if not 0 <= rank < num_ranks:
                raise InputError(f"--show-rank {rank}: ranks are 0 to {num_ranks - 1}")
            if rank in self.show_rank[:number]:
                raise InputError(f"--show-rank {rank} is given twice")


class TrainAnswer:
    """The answer of ``trine train``: one run, ``--overlap range`` (which shows the modelled run), or an ensemble.

    whole: the result with all its ranks.
    """

    whole: Result

    def __init__(self, overlap: str | None, options: RankOptions) -> None:
        self._is_range, self._options = overlap == RANGE, options
        if self._is_range and options.repeat is not None:
            raise InputError("--repeat and --overlap range are two studies: ask for one at a time")
        self._range: OverlapRange | None = None
        self._ensemble: StepEnsemble | None = None

    def simulate(self, workload: str, plan: Plan, options: SimulateOptions) -> Result:
        """Return the result of :func:`trine.simulate`; with ``--repeat``, the first run's."""
        repeat, ranks = self._options.repeat, self._options.show_rank
        if repeat is not None:
            from trine.training.ensemble import step_ensemble

            self._ensemble = step_ensemble(
                workload, plan, repeats=repeat, first_seed=self._options.seed or 0, options=options
            )
            result = self._ensemble.result
        elif self._is_range:
            from trine.training.overlap import overlap_range

            self._range = overlap_range(workload, plan, options=options)
            result = self._range.modelled
        else:
            from trine.training import simulate

            result = simulate(workload, plan, options=options)
        self.whole = result
        return result.of_ranks(ranks) if ranks else result

    @property
    def is_study(self) -> bool:
        """Whether the answer is about several runs."""
        return self._ensemble is not None or self._range is not None

    @property
    def finished(self) -> bool:
        """False if Ctrl-C stopped the repeated runs early."""
        return self._ensemble is None or self._ensemble.runs.finished

    def text(self, result: Result, details: bool, reserved: int = 0) -> str:
        """Return the result as text, below the range or the ensemble. reserved: lines that follow on the screen."""
        from trine.results.summary import screen

        studies = [study for study in (self._ensemble, self._range) if study is not None]
        if details:
            return "\n".join([*(study.details() for study in studies), result.details()])
        header = [line for study in studies for line in study.summary().splitlines()]
        return "\n".join([*header, screen(result).text(MAX_LINES - len(header) - reserved)])

    def headline(self, result: Result) -> str:
        """Return the headline of the ensemble or the range, or else of the result."""
        study = self._ensemble or self._range
        return result.headline if study is None else study.headline

    def document(self, result: Result) -> dict[str, object]:
        """Return the result's JSON document, with the range or the ensemble."""
        content = result.document()
        if self._range is not None:
            content["overlap"] = self._range.document()
        return content if self._ensemble is None else {**content, "ensemble": self._ensemble.document()}


#: Parts of the answer that other packages give: the class of ``--detail``, of ``--chakra``, and of ``--zoom``.
_DETAIL, _CHAKRA = "trine.gpu.cli.detail:DetailAnswer", "trine.formats.chakra.export:ChakraExport"
_ZOOM = "trine.gpu.cli.zoom:ZoomAnswer"


def train(
    workload: Annotated[
        str, argument("Trace, bundled trace such as vgg13-h100-b128, or a model such as model:llama-3-8b.",
                      values=workloads)
    ],
    layout: LayoutOptions,
    plan: Given[Plan],
    choices: Given[SimulateOptions],
    machine: Annotated[MachineOptions, Fields(without=("gpus",))],
    ranks: RankOptions,
    failures: Given[Failures],
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
    perfetto: Perfetto = None,
    parquet: Parquet = None,
    timeline: Timeline = None,
    explain_memory: Annotated[
        bool, Option("Explain the memory's peak, and the effect of other options.", panel=OUTPUT)
    ] = False,
    memory_snapshot: Annotated[
        str | None, Option("Write a rank's allocations for PyTorch's memory_viz.", "FILE", OUTPUT)
    ] = None,
    kineto: Annotated[
        str | None, Option("Write a trace of each rank like the PyTorch profiler's.", "DIR", OUTPUT)
    ] = None,
    detail: Annotated[
        str | None, Option("Simulate one kernel of one rank load by load.", "rank=R,layer=L,...", RANKS)
    ] = None,
    detail_perfetto: Annotated[
        str | None, Option("Write the timeline of that kernel.", "FILE", OUTPUT)
    ] = None,
    zoom: Annotated[
        str | None,
        Option("Simulate a collective (largest, kind, axis, layer) or operator (gemm, norm) load by load too.", "NAME",
               RANKS),
    ] = None,
    neighbour: Annotated[
        str | None, Option("Run the second job or background traffic of FILE on the same links.", "FILE", CHANCE)
    ] = None,
    chakra: Annotated[
        str | None, Option("Write the job as Chakra traces PREFIX.<rank>.et.", "PREFIX", OUTPUT)
    ] = None,
    chakra_target: Annotated[
        str | None, Option("Choose the reader of --chakra's traces [astra-sim].", "astra-sim|chakra", OUTPUT)
    ] = None,
    emit: Annotated[
        str | None, Option("Print the layout as launch flags.", "megatron|torchtitan|deepspeed|nanotron", OUTPUT)
    ] = None,
    tokens: TOKENS = None,
    price: PRICE = None,
    sensitivity: SENSITIVITY = False,
) -> None:  # fmt: skip
    """Predict the time of a training step of WORKLOAD on N GPUs, and explain it.

    Example: trine train vgg13-h100-b128 --gpus 8 --parallel ddp --cluster dgx-h100
    """
    from trine.folding.run import showing_few

    cost, varied = CostAnswer(tokens, price, failures), SensitivityAnswer(sensitivity, ranks.repeat, plan["overlap"])
    answer = TrainAnswer(plan["overlap"], ranks)
    if plan["overlap"] == RANGE:
        plan.values["overlap"] = "modelled"
    kernel = _hooked(_DETAIL, detail, detail_perfetto)
    _refuse_repeat("--detail", detail, ranks)
    zoomed = _hooked(_ZOOM, zoom)
    _refuse_repeat("--zoom", zoom, ranks)
    job = plan_from(layout, plan)
    place = _machine_of(job, plan, choices, machine, has_neighbour=neighbour is not None)
    fold = ranks.checked(job)
    flags = EmitAnswer(emit)
    exported = _hooked(_CHAKRA, chakra, chakra_target)
    warnings = list(place.warnings)
    if chakra is not None:
        warnings += _leave_out_launches(exported, choices)
    is_record = is_recording() and not (answer.is_study or explain_memory or detail or zoom or tokens or sensitivity)
    with watched(), observing(on_job=None if chakra is None else exported.export), showing_few(is_record):
        step_options = _step_options(choices, place.cluster, fold, ranks, warnings)
        result = answer.simulate(workload, job, step_options)
    if is_record:
        write_json(result.record(), None, "train", result.SCHEMA)
        return
    others = ProfilesAnswer(is_asked=not (brief or answer.is_study))
    sections: tuple[Section, ...] = (
        others,
        MemoryAnswer(explain_memory, memory_snapshot),
        kernel,
        zoomed,
        exported,
        NeighbourAnswer(neighbour),
        flags,
        cost,
        varied,
    )
    step = (workload, job, step_options)
    for section in sections:
        section.prepare(step, answer.whole)
    with to_terminal(json):
        is_short = brief or (sensitivity and not details)  # the ranking takes the rest of the screen
        reserved = cost.num_lines + others.num_lines
        show(answer.headline(result) if is_short else answer.text(result, details, reserved), json)
    for section in sections:
        section.answer(step, answer.whole, json, brief)
    if json is not None or report_target() is not None or is_recording():
        content = answer.document(result)
        for section in sections:
            content |= section.document()
        write_json(content, json, "train", result.SCHEMA, run=result)
    write_files(result, perfetto, parquet, timeline)
    written(kineto, answer.whole.to_kineto, "traces of all ranks written to {}")
    for section in sections:
        section.write()
    end(answer.finished and all(section.finished for section in sections))


def _hooked(target: str, *values: str | None) -> Any:
    """Return the part of the answer that a hook adds for these options; an empty part if none is given."""
    is_given = any(value is not None for value in values)
    return load_target(target)(*values) if is_given else Section()


def _refuse_repeat(option: str, value: str | None, ranks: RankOptions) -> None:
    """Raise InputError for ``--repeat`` beside an option about one run."""
    if value is not None and ranks.repeat is not None:
        raise InputError(f"{option} is about one run: it does not go with --repeat")


class _JobMachine(NamedTuple):
    """The cluster of a job, None without one, and warnings about it."""

    cluster: Cluster | None
    warnings: list[str]


def _machine_of(
    job: Plan, plan: Given[Plan], choices: Given[SimulateOptions], machine: MachineOptions, *, has_neighbour: bool
) -> _JobMachine:
    """Return the job's machine. Raises InputError for options that need a machine, in a job without one."""
    described = replace(machine, gpu=choices["gpu"])
    is_whole = has_neighbour and machine.cluster is not None  # the neighbour takes GPUs that the job leaves
    cluster, warnings = group_machine(described) if is_whole else job_machine(job.num_ranks, described)
    options = {"inputs": plan["inputs"], "algorithm": plan["algorithm"]}
    for name in ("network", "collective_costs", "placement"):
        options[name] = choices[name]
    refuse_without_machine(cluster, **options)
    return _JobMachine(cluster, list(warnings))


def _leave_out_launches(exported: Any, choices: Given[SimulateOptions]) -> list[str]:
    """Turn CPU launches off if the exported traces have no place for them, and return a note about it."""
    if not exported.leaves_launches_out or choices["cpu"] is not None or choices["launch_cost_ps"] is not None:
        return []
    choices.values["cpu"] = False
    return ["leaves out CPU launches, which ASTRA-sim cannot read (--chakra-target chakra keeps them)"]


def _step_options(
    choices: Given[SimulateOptions], cluster: Cluster | None, fold: str, ranks: RankOptions, warnings: list[str]
) -> SimulateOptions:
    """Return the options of the simulation; network models without a compiled form run on the reference engine."""
    from trine.engine.models import is_compiled

    is_fast = choices["network"] is None or is_compiled(choices["network"])
    return choices.make(
        cluster=cluster,
        engine="compiled" if is_fast else "reference",
        fold=fold,
        stragglers=ranks.stragglers(),
        warnings=tuple(warnings),
    )


class ProfilesAnswer(Section):
    """Estimated steps under other common software profiles, one line each, if they differ by more than 5 %."""

    def __init__(self, is_asked: bool) -> None:
        self._is_asked = is_asked
        self._found: tuple[ProfileDifference, ...] = ()

    @property
    def num_lines(self) -> int:
        return len(self._found)

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Estimate the steps, if the run was long enough."""
        if self._is_asked:
            from trine.search.other_profiles import differences

            workload, plan, options = step
            self._found = differences(workload, plan, options, result)

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Print a line for each profile."""
        for each in self._found:
            show(each.words, json)

    def document(self) -> dict[str, object]:
        """Return ``other_profiles``, if any."""
        if not self._found:
            return {}
        from trine.search.other_profiles import PROFILE

        return {"other_profiles": PROFILE.rows(self._found)}


class NeighbourAnswer(Section):
    """Output of ``--neighbour``: the slowdown of the job and of its neighbour."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._shared: SharedRun | None = None

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Simulate both jobs together, if requested."""
        if self._path is None:
            return
        from trine.training.neighbour import simulate_shared

        workload, plan, options = step
        with watched():
            self._shared = simulate_shared(workload, plan, self._path, options=options)

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Print the slowdowns, if requested."""
        if self._shared is not None:
            show(self._shared.headline if brief else f"\n{self._shared.details()}", json)

    def document(self) -> dict[str, object]:
        """Return ``neighbour``, if requested."""
        return {} if self._shared is None else {"neighbour": self._shared.document()}


class MemoryAnswer(Section):
    """Output of ``--explain-memory`` and ``--memory-snapshot``."""

    def __init__(self, explains: bool, path: str | None) -> None:
        self._explains, self._path = explains, path
        self._explained: MemoryExplained | None = None

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Explain the memory's peak, if requested."""
        self._step = step
        if self._explains:
            from trine.training.explained import explain_memory

            self._explained = explain_memory(*step)

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Print the explanation, if requested."""
        if self._explained is not None:
            show("\n".join(["", *self._explained.text()]), json)

    def document(self) -> dict[str, object]:
        """Return ``memory_explained``, if requested."""
        return {} if self._explained is None else {"memory_explained": self._explained.document()}

    def write(self) -> None:
        """Write the snapshot, if requested."""
        if self._path is None:
            return
        from trine.results.snapshot import write_snapshot
        from trine.training.explained import memory_snapshot

        snapshot = memory_snapshot(*self._step)
        message = "snapshot written to {}: open it at https://pytorch.org/memory_viz"
        written(self._path, partial(write_snapshot, snapshot), message)
