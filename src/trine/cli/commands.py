"""Table of all commands: words, module and function, and a one-line help text.

Group help pages are printed from this table without importing a command; tests compare it with the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

ABOUT = "Predict the time of a training step, a collective or a kernel on N GPUs, and explain it."
QUESTIONS, MEASURED, INSIDE, PREPARE = "Ask", "Compare with measurements", "One GPU in detail", "Prepare"


class Command(NamedTuple):
    """words: as typed after ``trine``. target: ``module:function`` below ``trine``. panel: on the help page."""

    words: str
    target: str
    panel: str
    about: str

    def function(self) -> Callable[..., None]:
        """Import the command's module and return its function."""
        module, _, name = self.target.partition(":")
        function: Callable[..., None] = getattr(import_module(f"trine.{module}"), name)
        return function


#: Groups by name: panel and help text, in order of use, like the commands.
GROUPS = {
    "cluster": (PREPARE, "Show, convert and draw clusters."),
    "software": (PREPARE, "Show profiles of training software."),
    "trace": (PREPARE, "Inspect, convert and capture traces."),
    "gpu": (INSIDE, "Show the GPU models of the load-store level."),
    "kernel": (INSIDE, "Simulate and print GPU programs, load by load and store by store."),
    "eidolon": (INSIDE, "Simulate one GPU in detail with its peers replayed: waiting, flags, mwait."),
    "chakra": (QUESTIONS, "Inspect and simulate Chakra execution traces."),
    "validate": (MEASURED, "Compare predictions with measurements."),
}

COMMANDS = (
    Command("train", "cli.train:train", QUESTIONS,
            "Predict the time of a training step of WORKLOAD on N GPUs, and explain it."),
    Command("plan", "cli.plan:plan", QUESTIONS,
            "Find the fastest parallel layouts of MODEL that fit in memory, and explain the difference of the best."),
    Command("collective", "gpu.cli.collective:collective", QUESTIONS,
            "Predict the time of a collective for each size, and the algorithm the library picks."),
    Command("compare", "cli.decide:compare", QUESTIONS,
            "Explain the difference of two answers: terms of the time, and the inputs that differ."),
    Command("size", "cli.decide:size", QUESTIONS,
            "Find the smallest number of GPUs per machine type that trains MODEL in time: days, dollars, energy."),
    Command("support", "cli.decide:support", PREPARE,
            "List known models, GPUs, clusters, software profiles and precisions, with their evidence; or show NAME."),
    Command("hop", "decentralised.cli:hop", QUESTIONS,
            "Simulate decentralised training of WORKLOAD with Hop: waiting, and the cost of late neighbours."),
    Command("chakra run", "gpu.cli.chakra:run", QUESTIONS,
            "Simulate the Chakra traces of all ranks on a cluster, rank i on GPU i."),
    Command("chakra inspect", "gpu.cli.chakra:inspect", QUESTIONS,
            "Summarise Chakra traces, and check that all ranks' traces fit together."),
    Command("run", "cli.graph:run", QUESTIONS,
            "Simulate the compute, transfer and join tasks of GRAPH: start and end of each."),
    Command("sweep", "cli.sweep:sweep", QUESTIONS,
            "Answer a question at every point of EXPERIMENT, in parallel; start it again to go on after a kill."),
    Command("plot", "cli.sweep:plot", QUESTIONS, "Draw one result of EXPERIMENT against a field."),
    Command("help", "cli.pages:help_page", QUESTIONS, "Print a page of the documentation."),
    Command("kernel run", "gpu.cli.kernel:run", INSIDE,
            "Simulate the kernels of FILE: their time, what wavefronts wait for, and utilisation."),
    Command("kernel show", "gpu.cli.kernel:show_program", INSIDE,
            "Print the program of FILE as text; a plan as its loads, stores and semaphores."),
    Command("eidolon run", "gpu.cli.eidolon:run", INSIDE,
            "Simulate the kernel of one GPU in detail, with the writes of its peers replayed."),
    Command("eidolon sweep", "gpu.cli.eidolon:sweep", INSIDE,
            "Simulate all combinations of values: growth of flag reads, and the point from which mwait pays."),
    Command("eidolon record", "gpu.cli.eidolon:record", INSIDE,
            "Simulate all GPUs, and record all arrivals at the I/O ports of one (for eidolon run --arrivals)."),
    Command("eidolon writes-from", "gpu.cli.eidolon:writes_from", INSIDE,
            "Write the peers' writes of a run or a profile, for eidolon run --writes."),
    Command("gpu list", "gpu.cli.models:list_models", INSIDE, "List the GPU models of the load-store level."),
    Command("gpu show", "gpu.cli.models:show_model", INSIDE,
            "Show a GPU model: every number, its evidence, and the effects left out."),
    Command("check", "cli.check:check", MEASURED,
            "Compare LOG with the machine's prediction: measured, predicted with its range, a verdict, a likely "
            "cause."),
    Command("validate collectives", "validation.cli:collectives", MEASURED,
            "Replay the bundled measured collectives: error by machine, collective and size, worst first."),
    Command("validate loadstore", "validation.cli:loadstore", MEASURED,
            "Replay published times of communication kernels on the load-store level."),
    Command("validate training", "validation.cli:training", MEASURED,
            "Compare published training steps with predictions: error by source, GPU, software and scale."),
    Command("validate layouts", "validation.cli:layouts", MEASURED,
            "Compare layouts of the Ultra-Scale Playbook with predictions: rank correlation, and the regret of trine's "
            "choice."),
    Command("validate memory", "validation.cli:memory", MEASURED,
            "Compare published peak memory with the model, worst first, and check which layouts fit."),
    Command("validate operators", "validation.cli:operators", MEASURED,
            "Predict measured operator times with shapes or whole GPUs left out, and on another GPU."),
    Command("validate scaling", "validation.cli:scaling", MEASURED,
            "Predict published scaling efficiency on 8 GPUs from the row on one."),
    Command("study", "validation.cases.cli:study", MEASURED,
            "Run a case study of ASTRA-sim 3.0 (arXiv 2606.10440) on the load-store level, and compare with the "
            "paper."),
    Command("cluster list", "cli.cluster:list_clusters", PREPARE, "List the cluster presets."),
    Command("cluster show", "cli.cluster:show_cluster", PREPARE,
            "Show a cluster: its devices, bandwidths, and the source of each number."),
    Command("cluster links", "cli.cluster:list_links", PREPARE,
            "List the link catalogue: bandwidth of a lane in one direction, by kind of link."),
    Command("cluster topologies", "cli.cluster:list_topologies", PREPARE,
            "List the kinds of --topology and of 'topology: {kind: ...}'."),
    Command("cluster import", "cli.cluster_files:import_cluster", PREPARE,
            "Convert another tool's topology file to a cluster file, and list what was assumed."),
    Command("cluster export", "cli.cluster_files:export_cluster", PREPARE,
            "Write a cluster for other tools: InfraGraph (YAML, or JSON for a name in .json), CSV, GraphML."),
    Command("cluster draw", "cli.cluster_files:draw", PREPARE,
            "Draw a cluster: its devices, and its links by class and bandwidth."),
    Command("software list", "cli.software:list_software", PREPARE,
            "List the profiles of training software (for --software)."),
    Command("software show", "cli.software:show_software", PREPARE,
            "Show a software profile: every number and its source."),
    Command("trace inspect", "cli.trace:inspect", PREPARE,
            "Summarise a trace: its content, missing parts and assumptions."),
    Command("trace convert", "cli.trace:convert", PREPARE,
            "Convert a trace to trine's own format, which keeps everything (trine help trace)."),
    Command("trace models", "cli.trace:models", PREPARE, "List the models for trace synthesize and model:NAME."),
    Command("trace synthesize", "cli.trace:synthesize", PREPARE,
            "Write a training step of MODEL from its published shapes, with predicted times."),
    Command("trace capture", "cli.trace:capture", PREPARE,
            "Record one training step of your function with PyTorch's profiler (needs trine[capture])."),
    Command("calibrate", "cli.calibrate:calibrate", PREPARE,
            "Fit operator times on TRACES, or a software profile on measured steps (--step), with the left-out "
            "error."),
    Command("warmup", "gpu.cli.warmup:warmup", PREPARE,
            "Compile the kernels into the user's cache, for container images and fresh machines."),
)  # fmt: skip


#: Maximum number of options that ``--help`` lists in full, and the selection for commands with more.
MOST_LISTED = 20
COMMON = {
    "train":
        "gpus parallel dp tp pp global-batch batch micro-batch sharding recompute software cluster "
        "nodes details json",
    "collective":
        "size cluster gpus nodes fabric topology bandwidth latency library algorithm fidelity explain "
        "brief details plot json",
    "hop":
        "workers graph iterations batch backup staleness slow cluster nodes bandwidth latency gpu "
        "brief details json perfetto",
    "chakra run":
        "cluster nodes fabric topology bandwidth latency comm-groups peak memory algorithm fidelity "
        "brief details json perfetto timeline",
    "kernel run":
        "cluster gpus nodes topology bandwidth latency gpu-model size wavefronts unroll verify-fold "
        "brief details json perfetto plot-noc",
    "eidolon run":
        "rows cols inner peers algorithm workgroups unfused sync wakeup straggler gpu-model brief "
        "details json perfetto plot",
    "eidolon sweep":
        "rows cols inner peers algorithm workgroups unfused sync wakeup gpu-model jobs brief details "
        "json csv plot",
    "eidolon record":
        "output rows cols inner peers algorithm workgroups unfused sync target gpu-model cluster",
    "eidolon writes-from":
        "output rows cols inner peers algorithm workgroups gpu-model cluster target kernel mapping",
    "check":
        "cluster gpus nodes fabric topology bandwidth latency launch op run in-place "
        "fail-if-suspicious brief details plot json",
}  # fmt: skip


def below(group: str) -> Iterator[tuple[str, str, str]]:
    """Yield names, panels and one-line help texts in a group (``""``: trine itself), each subgroup once."""
    groups = set()
    for command in COMMANDS:
        first, _, second = command.words.partition(" ")
        if group:
            if first == group:
                yield second, "Commands", command.about
        elif not second:
            yield first, command.panel, command.about
        elif first not in groups:
            groups.add(first)
            yield first, *GROUPS[first]


def find(words: str) -> Command | None:
    """Return the command of these words, or None."""
    return next((each for each in COMMANDS if each.words == words), None)
