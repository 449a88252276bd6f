"""Every command by its words: in which module its function is, and what it answers in one line.

Helps of the groups are printed from this table without importing a command; tests compare it with the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

ABOUT = "How long does a training step, a collective or a kernel take on N GPUs, and why? Simulated, without them."
QUESTIONS, MEASURED, INSIDE, PREPARE = "Ask", "Compare with measurements", "One GPU in detail", "Prepare"


class Command(NamedTuple):
    """words: as typed after ``trine``. target: ``module:function`` below ``trine.cli``. panel: on the help page."""

    words: str
    target: str
    panel: str
    about: str

    def function(self) -> Callable[..., None]:
        """Import the command."""
        module, _, name = self.target.partition(":")
        found: Callable[..., None] = getattr(import_module(f"trine.cli.{module}"), name)
        return found


#: Groups by name: their panel, and what they are about. In the order of use, as the commands.
GROUPS = {
    "cluster": (PREPARE, "Look at clusters: presets and files."),
    "software": (PREPARE, "Look at profiles of training software: what they add to a step, and from where."),
    "trace": (PREPARE, "Look into, convert and capture traces."),
    "gpu": (INSIDE, "Look at the inside of GPUs: models and files."),
    "kernel": (INSIDE, "GPU programs, load by load and store by store: run and print them."),
    "eidolon": (INSIDE, "One GPU in detail, its peers replayed: waiting, flags, mwait."),
    "chakra": (QUESTIONS, "Chakra execution traces: look into and simulate them."),
    "validate": (MEASURED, "How far predictions are from measurements."),
}

COMMANDS = (
    Command("train", "train:train", QUESTIONS, "Say how long a training step of WORKLOAD takes on N GPUs, and why."),
    Command("collective", "collective:collective", QUESTIONS,
            "Say how long the collective OP takes for each size, what the library would choose, and why."),
    Command("hop", "hop:hop", QUESTIONS,
            "Simulate decentralised training of WORKLOAD with Hop: who waits for whom, and what late neighbours cost."),
    Command("chakra run", "chakra:run", QUESTIONS,
            "Simulate the Chakra traces of all ranks on a cluster, rank i on its i-th GPU."),
    Command("chakra inspect", "chakra:inspect", QUESTIONS,
            "Say what is in the Chakra traces, and whether all ranks' traces fit together."),
    Command("run", "graph:run", QUESTIONS,
            "Run the compute, transfer and join tasks of GRAPH and say when each starts and ends."),
    Command("kernel run", "kernel:run", INSIDE,
            "Run the kernels of FILE and say how long they take, what wavefronts wait for, and what is busy."),
    Command("kernel show", "kernel:show_program", INSIDE,
            "Print the program of FILE as text: a plan as the loads, stores and semaphores that it becomes."),
    Command("eidolon run", "eidolon:run", INSIDE,
            "Run the kernel of one GPU; of its peers only what they write to it exists."),
    Command("eidolon sweep", "eidolon:sweep", INSIDE,
            "Run all combinations of the values given: how flag reads grow, and from when mwait pays."),
    Command("eidolon record", "eidolon_writes:record", INSIDE,
            "Simulate all GPUs, and record everything that comes to the I/O ports of one: trine eidolon run "
            "--arrivals."),
    Command("eidolon writes-from", "eidolon_writes:writes_from", INSIDE,
            "Write down what peers send, from a run or a profile, for trine eidolon run --writes."),
    Command("gpu list", "gpu:list_models", INSIDE, "List the GPUs whose inside the load-store level knows."),
    Command("gpu show", "gpu:show_model", INSIDE,
            "Show the inside of a GPU: every number, whether it was measured, and what is left out."),
    Command("check", "check:check", MEASURED,
            "Compare LOG with what the machine should do: measured, predicted with its band, a verdict, a likely "
            "cause."),
    Command("validate collectives", "validate:collectives", MEASURED,
            "Replay the bundled measured collectives: error by machine, collective and size, worst first."),
    Command("validate loadstore", "validate:loadstore", MEASURED,
            "Published times of communication kernels against the load-store level: small all-reduces, puts, gets, "
            "packets."),
    Command("validate training", "validate:training", MEASURED,
            "Replay the bundled published training steps: error by source, GPU, software and scale, worst first."),
    Command("validate layouts", "validate:layouts", MEASURED,
            "Replay the layouts of the Ultra-Scale Playbook: how well trine ranks them, and what its choice costs."),
    Command("validate memory", "validate:memory", MEASURED,
            "Published peak memory against the modelled, worst first, and which layouts fit."),
    Command("validate operators", "validate:operators", MEASURED,
            "Operator times by measured tables: shapes left out, times moved to another GPU, whole GPUs left out."),
    Command("validate scaling", "validate:scaling", MEASURED,
            "Published steps on 1 and 8 GPUs: the efficiency on 8, predicted from the row on one."),
    Command("study", "study:study", MEASURED,
            "Run a case study of ASTRA-sim 3.0 (arXiv 2606.10440) on the load-store level, and compare with the "
            "paper."),
    Command("cluster list", "cluster:list_clusters", PREPARE, "List the cluster presets."),
    Command("cluster show", "cluster:show_cluster", PREPARE,
            "Show what a cluster consists of, what it carries, and where its numbers come from."),
    Command("cluster links", "cluster:list_links", PREPARE,
            "List the link catalogue: what one lane of each kind of link carries in one direction."),
    Command("cluster topologies", "cluster:list_topologies", PREPARE,
            "List what --topology and 'topology: {kind: ...}' take."),
    Command("cluster import", "cluster_files:import_cluster", PREPARE,
            "Read a cluster from another tool's file, say what was taken from where, and write a cluster file."),
    Command("cluster export", "cluster_files:export_cluster", PREPARE,
            "Write a cluster for other tools: InfraGraph (YAML, or JSON for a name in .json), CSV, GraphML."),
    Command("cluster draw", "cluster_files:draw", PREPARE,
            "Draw a cluster: its devices, and its links by class and bandwidth."),
    Command("software list", "software:list_software", PREPARE,
            "List the profiles of training software: what --software takes."),
    Command("software show", "software:show_software", PREPARE,
            "Show a software profile: every number that it sets, and where it comes from."),
    Command("trace inspect", "trace:inspect", PREPARE,
            "Say what is in a trace, what is missing, and what was assumed in its place."),
    Command("trace convert", "trace:convert", PREPARE,
            "Write a trace in trine's own format, which keeps everything (docs/formats/trace.md)."),
    Command("trace models", "trace:models", PREPARE,
            "List the models that trine can write a trace of from their published shapes."),
    Command("trace synthesize", "trace:synthesize", PREPARE,
            "Write a training step of MODEL from its published shapes, with predicted times."),
    Command("trace capture", "trace:capture", PREPARE,
            "Record one training step of your own function with PyTorch's profiler (needs trine[capture])."),
    Command("calibrate", "calibrate:calibrate", PREPARE,
            "Fit operator times on TRACES, or a software profile on measured steps (--step); the error left out."),
    Command("warmup", "warmup:warmup", PREPARE,
            "Compile the kernels into the user's cache, for container images and fresh machines."),
)  # fmt: skip


#: Most options that ``--help`` lists without a choice, and the choice for commands with more.
MOST_LISTED = 20
COMMON = {
    "train":
        "gpus parallel dp tp pp global-batch batch micro-batch sharding recompute software "
        "cluster nodes gpu json",
    "collective":
        "size cluster gpus nodes fabric topology bandwidth latency library algorithm fidelity "
        "explain brief plot json",
    "hop":
        "workers graph iterations batch backup staleness slow cluster nodes bandwidth latency gpu "
        "brief json perfetto",
    "chakra run":
        "cluster nodes fabric topology bandwidth latency comm-groups peak memory algorithm "
        "fidelity brief json perfetto timeline",
    "kernel run":
        "cluster gpus nodes topology bandwidth latency gpu-model size wavefronts unroll "
        "verify-fold brief json perfetto plot-noc",
    "eidolon run":
        "rows cols inner peers algorithm workgroups unfused sync wakeup straggler gpu-model brief "
        "json perfetto plot",
    "eidolon sweep":
        "rows cols inner peers algorithm workgroups unfused sync wakeup gpu-model jobs brief json "
        "csv plot",
    "eidolon record":
        "output rows cols inner peers algorithm workgroups unfused sync target gpu-model cluster",
    "eidolon writes-from":
        "output rows cols inner peers algorithm workgroups gpu-model cluster target kernel "
        "mapping",
}  # fmt: skip


def below(group: str) -> Iterator[tuple[str, str, str]]:
    """Names, panels and one-line helps in a group, ``""`` for trine itself, each group once."""
    seen = set()
    for command in COMMANDS:
        first, _, second = command.words.partition(" ")
        if group:
            if first == group:
                yield second, "Commands", command.about
        elif not second:
            yield first, command.panel, command.about
        elif first not in seen:
            seen.add(first)
            yield first, *GROUPS[first]


def find(words: str) -> Command | None:
    """The command of these words."""
    return next((each for each in COMMANDS if each.words == words), None)
