"""Run GPU programs on a cluster, load by load and store by store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST
from trine.common.collector import without_collector
from trine.common.observer import announce_compiling, current_observer
from trine.engine.run import ENGINES
from trine.engine.validate import validate
from trine.errors import InputError, SimulationError, nearest
from trine.gpu._state import MAX_RANKS, MAX_WAVES
from trine.gpu.model import FAIR, GpuModel
from trine.gpu.model.options import check_numbers
from trine.gpu.path_table import operand_pairs
from trine.gpu.peers import Arrivals
from trine.gpu.program import GpuProgram
from trine.gpu.records import OF_GPU, GpuOutcome, GpuRecords, without_hosts
from trine.gpu.system import GpuSystem, KernelTasks, kernel_tasks, unfolded
from trine.gpu.tables import places_of
from trine.gpu.target_tasks import own_tasks, with_task_ends
from trine.gpu.validate import validate_program
from trine.graph.taskgraph import COMPUTE, Records, TaskGraph

FOLDS = ("auto", "off")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """classes: GPUs simulated; group_size: ranks that each stands for; why_unfolded: None for a folded run."""

    classes: int
    group_size: int
    why_unfolded: str | None
    verified: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuRun:
    """A run of GPU programs and its outcome.

    program: of all ranks. simulated: of the simulated GPUs. group: the device of each rank. records: of the tasks of
    ``graph``; without a task graph, one task per kernel, in the order of the kernels of ``simulated``. finished: False
    if the run was stopped; times of events that did not happen are -1. arrivals: requests to the recorded rank.
    """

    program: GpuProgram
    simulated: GpuProgram
    model: GpuModel
    cluster: Cluster
    group: tuple[int, ...]
    graph: TaskGraph
    records: Records
    gpu: GpuRecords
    fold: Fold
    finished: bool
    arrivals: Arrivals | None = None

    @property
    def end_ps(self) -> int:
        """End of the last task, or the time at which the run was stopped."""
        return int(self.records.end_ps.max(initial=0)) if self.finished else self.gpu.end_ps

    @classmethod
    def of(cls, program: GpuProgram, system: GpuSystem, outcome: GpuOutcome, fold: Fold) -> GpuRun:
        """Build the run of ``program`` from an engine's outcome."""
        return cls(
            program=program, simulated=system.program, model=system.model, cluster=system.fabric.cluster,
            group=system.fabric.group, graph=system.graph, records=outcome.records, gpu=outcome.gpu, fold=fold,
            finished=outcome.finished, arrivals=outcome.arrivals,
        )  # fmt: skip

    def whole(self) -> GpuRun:
        """Return this run if it is complete. Raises KeyboardInterrupt if Ctrl-C stopped it."""
        if not self.finished:
            raise KeyboardInterrupt
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRunControl:
    """Engine and time limit of a run. engine: ``compiled``, or ``reference``, its plain-Python twin. until_ps: time to
    stop at. Observers get (requests issued, requests in all, now in ps), without repeated polls.

    Raises InputError: an unknown engine, a negative time.
    """

    engine: str = "compiled"
    until_ps: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(f"unknown engine {self.engine!r}{nearest(self.engine, ENGINES)}", field="engine")
        if self.until_ps is not None and self.until_ps < 0:
            raise InputError(f"must not be negative, got {self.until_ps}", field="until_ps")


AS_USUAL = GpuRunControl()


@dataclass(frozen=True, kw_only=True)
class GpuRunOptions(GpuRunControl):
    """Controls of a run of all ranks, with folding, verification and recording.

    fold: ``auto`` simulates one GPU for all that provably behave alike; ``off`` simulates all. verify: run both ways
    and compare everything; InputError if they differ or nothing folds. record: a rank whose incoming requests at its
    I/O ports are recorded for replay (``GpuRun.arrivals``). In a folded run, the rank simulated in its place is
    recorded (``arrivals.target``).

    Raises InputError: an unknown engine or fold, a negative time, a run that is stopped and verified.
    """

    fold: str = "auto"
    verify: bool = False
    record: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fold not in FOLDS:
            raise InputError(f"unknown fold {self.fold!r}{nearest(self.fold, FOLDS)}", field="fold")
        if self.until_ps is not None and self.verify:
            raise InputError("a run that is stopped cannot be verified", field="until_ps")


def run_gpus(
    program: GpuProgram,
    cluster: Cluster,
    group: Sequence[int],
    model: GpuModel,
    *,
    tasks: KernelTasks | None = None,
    options: GpuRunOptions = GpuRunOptions(),
) -> GpuRun:
    """Run the kernels of ``program``, one GPU a rank, all of ``model``; semantics: docs/design/gpu-model.md.

    Parameters
    ----------
    group: the device index in ``cluster`` of each rank: GPUs, then hosts, whose memory GPUs load from and store to.
    tasks: tasks of a graph that carry the kernels; by default each kernel is a task, and all start at 0.

    Raises
    ------
    InputError, SpecError: the program is not well formed, or does not fit the GPU or the cluster.
    DeadlockError: wavefronts wait for ever; names them. SimulationError: more than 106 days of simulated time.
    """
    check_arguments(program, cluster, group, model)
    if tasks is not None:
        validate(tasks.graph)
    elif not program.num_kernels:
        raise InputError(f"{program.name!r} has no kernel, and there is no graph of tasks", field="program")
    unfolded_system = unfolded(program, cluster, group, model, tasks or kernel_tasks(program))
    check_tasks(unfolded_system)
    system, why_unfolded = _folded(unfolded_system, options.fold, options.verify)
    if options.record is not None:
        check_recordable(unfolded_system, options.record)
        system = replace(system, record=int(system.gpu_of[options.record]))
    outcome = simulate_system(system, options)
    if outcome.arrivals is not None:
        outcome = outcome._replace(arrivals=with_task_ends(outcome.arrivals, system, outcome.records))
    verified = False
    if options.verify:
        unfolded_outcome = simulate_system(unfolded_system, options)
        verified = outcome.finished and unfolded_outcome.finished  # Ctrl-C: there is nothing to compare
        if verified:
            same_outcome(system, outcome, unfolded_system, unfolded_outcome)
    size = program.num_ranks // system.num_gpus
    fold = Fold(classes=system.num_gpus, group_size=size, why_unfolded=why_unfolded, verified=verified)
    return GpuRun.of(program, system, outcome, fold)


def _folded(unfolded_system: GpuSystem, fold: str, verify: bool) -> tuple[GpuSystem, str | None]:
    """Return the system to simulate, and the reason if it is the unfolded one."""
    from trine.gpu.folding import fold_system

    folded, reason = fold_system(unfolded_system) if fold == "auto" else (None, "folding is off")
    if verify and folded is None:
        raise InputError(f"nothing to verify: {reason}", field="verify")
    return (unfolded_system if folded is None else folded), reason


def simulate_system(system: GpuSystem, control: GpuRunControl, stop_when_stuck: bool = False) -> GpuOutcome:
    """Run a checked system. Raises KeyboardInterrupt if Ctrl-C came before the first event."""
    check_places(system)
    until_ps = control.until_ps
    if control.engine == "reference":
        from trine.gpu.reference import simulate as twin

        outcome = twin(system, until_ps, stop_when_stuck)
    else:
        with without_collector():
            from trine.gpu.compiled import simulate

            outcome = simulate(system, until_ps, stop_when_stuck)
    outcome = outcome._replace(gpu=without_hosts(outcome.gpu, system.program.num_hosts))
    if not outcome.records.num_events and not outcome.finished and until_ps is None and not stop_when_stuck:
        raise KeyboardInterrupt
    return outcome


def announce_loop() -> None:
    """Tell the observer if the next run has to compile the loop first."""
    if current_observer().on_compile is not None:
        with without_collector():
            from trine.gpu._loop import advance

            announce_compiling(advance)


def check_places(system: GpuSystem) -> None:
    places = system.model.num_cus * places_of(system)
    if places > MAX_WAVES:
        raise InputError(f"{system.model.name!r} would run {places} wavefronts at a time, of at most {MAX_WAVES}")


def check_arguments(program: GpuProgram, cluster: Cluster, group: Sequence[int], model: GpuModel) -> None:
    """Raise InputError or SpecError if the arguments do not fit together."""
    if program.num_ranks != len(group):
        raise InputError(f"the program is for {program.num_ranks} ranks, the group has {len(group)}", field="group")
    if not 1 <= len(group) <= MAX_RANKS:
        raise InputError(f"the load-store level takes 1 to {MAX_RANKS} ranks, got {len(group)}", field="group")
    # GPUs first, then hosts, with the program's numbers of each
    for rank, device in enumerate(group):
        kind, word = (GPU, "GPU") if rank < program.num_gpus else (HOST, "host")
        if cluster.devices[device].kind != kind:
            raise InputError(f"device {device} of cluster {cluster.name!r} is no {word}", field="group")
    if len(set(group)) != len(group):
        raise InputError("a device is in the group twice", field="group")
    check_numbers(model)
    validate_program(program, model, len(group))


def check_tasks(system: GpuSystem) -> None:
    """Check that each kernel has exactly one compute task, and that transfers have a latency for each link."""
    carried = system.task_kernel[system.task_kernel >= 0]
    if len(system.task_kernel) != system.graph.num_tasks:
        raise InputError(f"must have {system.graph.num_tasks} entries", field="task_kernel")
    if sorted(carried.tolist()) != list(range(system.program.num_kernels)):
        raise InputError("each kernel must be carried by exactly one task", field="task_kernel")
    if (system.graph.kind[system.task_kernel >= 0] != COMPUTE).any():
        raise InputError("only compute tasks carry kernels", field="task_kernel")
    if len(system.graph.route_ptr) > 1 and system.graph.link_latency_ps is None:
        raise InputError("transfers go link by link: the graph must have the latency of each", field="link_latency_ps")
    ranks = system.graph.rank[system.task_kernel >= 0]
    if (ranks != system.program.kernel_rank[carried]).any():
        raise InputError("a task carries a kernel of another rank", field="task_kernel")
    if system.graph.pressure_ppm is not None and (system.graph.pressure_ppm != 0).any():
        raise InputError("contention is simulated at this level: tasks must not press on streams", field="pressure_ppm")


def check_recordable(system: GpuSystem, target: int) -> None:
    """Raise InputError if arrivals at rank ``target`` of an unfolded system are more than requests to its ports."""
    if system.program.num_hosts:
        raise InputError("arrivals at a GPU that loads from host memory are not recorded", field="record")
    if not 0 <= target < system.num_ranks:
        raise InputError(f"rank {target} is not one of {system.num_ranks}", field="record")
    own_tasks(system.graph, system.fabric, target, "record")
    _check_routes(system, target)
    check_replayable_model(system, "record")


def check_replayable_model(system: GpuSystem, field: str) -> None:
    """Reject fair ports without latency, where the order within an instant depends on more than the record holds."""
    if system.model.ports.arbitration == FAIR and system.model.ports.latency_ps == 0:
        raise InputError("with fair arbitration the ports must have a latency, else a record is not exact", field=field)


def _check_routes(system: GpuSystem, target: int) -> None:
    """Raise InputError if a path between other ranks leads through the target."""
    fabric = system.fabric
    sources, device = fabric.cluster.link_table.source, fabric.group[target]
    for gpu, peer, is_dma in operand_pairs(system)[1]:
        rank = int(system.ranks[gpu])
        for source, sink in ((rank, peer),) if is_dma else ((rank, peer), (peer, rank)):
            for path in fabric.dma_paths(source, sink) if is_dma else fabric.paths(source, sink):
                if any(sources[hop.link] == device for hop in path.hops[1:]):
                    raise InputError(
                        f"the way from rank {source} to rank {sink} leads through rank {target}: that is not recorded",
                        field="record",
                    )


Ints = npt.NDArray[np.int64] | npt.NDArray[np.int32]


def same_outcome(folded: GpuSystem, small: GpuOutcome, unfolded_system: GpuSystem, large: GpuOutcome) -> None:
    """Compare every rank with the GPU simulated for it. Raises SimulationError at the first difference."""
    for column, a, b in (*_by_rank(folded, small, unfolded_system, large), *_by_lane(folded, small, large)):
        if a.shape != b.shape:
            raise SimulationError(f"folded and unfolded differ in {column}: {a.shape} and {b.shape}")
        bad = np.argwhere(a != b)
        if len(bad):
            index = tuple(bad[0].tolist())
            raise SimulationError(
                f"folded and unfolded differ in {column}, first at {index}: {a[index]} and {b[index]} "
                f"({len(bad)} of {a.size} differ); please report this"
            )


def _by_rank(
    folded: GpuSystem, small: GpuOutcome, unfolded_system: GpuSystem, large: GpuOutcome
) -> Iterator[tuple[str, Ints, Ints]]:
    """Return the per-rank columns of both runs, with one row per rank."""
    gpu = folded.gpu_of.astype(np.int64)
    owners, few_owners = _owners(unfolded_system.program), _owners(folded.program)
    columns = (
        ("task", "ready", small.records.ready_ps, large.records.ready_ps),
        ("task", "start", small.records.start_ps, large.records.start_ps),
        ("task", "end", small.records.end_ps, large.records.end_ps),
        ("workgroup", "start", small.gpu.workgroup_start_ps, large.gpu.workgroup_start_ps),
        ("workgroup", "end", small.gpu.workgroup_end_ps, large.gpu.workgroup_end_ps),
        ("workgroup", "CU", small.gpu.workgroup_cu, large.gpu.workgroup_cu),
        ("operation", "start", small.gpu.op_start_ps, large.gpu.op_start_ps),
        ("operation", "end", small.gpu.op_end_ps, large.gpu.op_end_ps),
    )
    for kind, event, a, b in columns:
        rows = b[np.argsort(owners[kind], kind="stable")].reshape(unfolded_system.num_ranks, -1)
        simulated = a[np.argsort(few_owners[kind], kind="stable")].reshape(folded.num_gpus, -1)
        yield f"the {event} of {kind}s (rank, number)", simulated[gpu], rows
    for name in OF_GPU:
        yield name, getattr(small.gpu, name)[gpu], getattr(large.gpu, name)


def _owners(program: GpuProgram) -> dict[str, npt.NDArray[np.int32]]:
    """Return the rank of each task, workgroup and operation."""
    return {
        "task": program.kernel_rank,
        "workgroup": program.kernel_rank[program.workgroup_kernel],
        "operation": program.op_rank,
    }


def _by_lane(folded: GpuSystem, small: GpuOutcome, large: GpuOutcome) -> Iterator[tuple[str, Ints, Ints]]:
    """Return the columns of each lane that carried data in the unfolded run, and of its image in the folded run."""
    number = {
        pair: i for i, pair in enumerate(zip(small.gpu.lane_link.tolist(), small.gpu.lane_number.tolist(), strict=True))
    }
    image = folded.link_image[large.gpu.lane_link].tolist()
    used = np.flatnonzero(large.gpu.lane_data + large.gpu.lane_control)
    lanes = large.gpu.lane_number.tolist()
    missing = [i for i in used.tolist() if (image[i], lanes[i]) not in number]
    if missing:
        raise SimulationError(f"the folded run lacks a lane of link {int(large.gpu.lane_link[missing[0]])}")
    spare = set(np.flatnonzero(small.gpu.lane_data + small.gpu.lane_control).tolist())
    spare -= {number[image[i], lanes[i]] for i in used.tolist()}
    if spare:
        raise SimulationError(f"only the folded run uses a lane of link {int(small.gpu.lane_link[min(spare)])}")
    image_lane = np.array([number[image[i], lanes[i]] for i in used.tolist()], np.int64)
    for name in ("lane_data", "lane_control", "lane_busy_ps"):
        yield name, getattr(small.gpu, name)[image_lane], getattr(large.gpu, name)[used]
