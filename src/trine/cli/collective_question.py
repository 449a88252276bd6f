"""``trine collective`` at the operator level: the question to the library's model or to messages on links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.cli.machine import MachineOptions, group_machine, options_of_links
from trine.cli.parameters import Given
from trine.cli.progress import watched
from trine.collectives.options import CollectiveOptions
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.collectives.result import CollectiveResult
    from trine.collectives.schedules.direct import Matrix


#: Message by message, trine looks for options without effect on groups of up to this number of GPUs.
CHEAP_GPUS = 64


@dataclass(frozen=True, slots=True)
class Question:
    """Question to the operator level."""

    op: str
    sizes: list[int]
    given: Given[CollectiveOptions]
    network: str | None
    matrix: Matrix | None
    explain: bool
    fold: str

    def answer(self, described: MachineOptions) -> tuple[CollectiveResult, list[str]]:
        """Return the answer, and warnings about assumptions on the machine."""
        from trine.collectives.bare import is_bare

        options = self.given.make()
        machine, warnings = group_machine(described)
        if "launch" in self.given and is_bare(options, machine):
            raise InputError("--launch: the bare links know no launches: give --protocol simple, ll or ll128")
        with watched():
            answer = self._predict(machine, options, self.explain)
            idle = self._idle_links(described, len(machine.gpus), options)
        return replace(answer, notes=(*answer.notes, *idle)), warnings

    def _idle_links(self, machine: MachineOptions, num_gpus: int, options: CollectiveOptions) -> Iterator[str]:
        """Return sentences about link options without effect, or about those that were not tried."""
        if self.network is None or num_gpus <= CHEAP_GPUS:
            return idle_links(machine, lambda variant: self._predict(group_machine(variant)[0], options, False))
        beyond = f"message by message, trine tries that on up to {CHEAP_GPUS} GPUs"
        return (f"{option} may change no time: {beyond}" for option, _ in options_of_links(machine))

    def _predict(self, cluster: Cluster, options: CollectiveOptions, explain: bool) -> CollectiveResult:
        from trine.collectives.query import collective as ask

        return ask(
            self.op, self.sizes, cluster, options=options, network=self.network, explain=explain, matrix=self.matrix,
            fold=self.fold,
        )  # fmt: skip


def idle_links(machine: MachineOptions, ask: Callable[[MachineOptions], CollectiveResult]) -> Iterator[str]:
    """Yield a sentence for each link or route option without effect, both beside the others and alone."""
    default = replace(machine, routing=None, slow_link=(), link_down=())

    def is_same(base: MachineOptions, variant: MachineOptions) -> bool:
        first, second = ask(base), ask(variant)
        notes = []
        for answer in (first, second):
            notes.append([row.notes for row in answer.rows])
        return first.load == second.load and first.times_ps == second.times_ps and notes[0] == notes[1]

    for option, without in options_of_links(machine):
        if is_same(machine, without) and is_same(_only_option(machine, without, default), default):
            yield f"{option} changes no time: it is not the group's bottleneck, or carries no traffic"


def _only_option(machine: MachineOptions, without: MachineOptions, default: MachineOptions) -> MachineOptions:
    """Return the machine with only the option that ``without`` lacks."""
    routing = machine.routing if without.routing is None else None
    slow_links = tuple(text for text in machine.slow_link if text not in without.slow_link)
    dead_links = tuple(text for text in machine.link_down if text not in without.link_down)
    return replace(default, routing=routing, slow_link=slow_links, link_down=dead_links)


def alias(op: str) -> str:
    """Return trine's name of a collective for nccl-tests' names: ``alltoall``, ``all_reduce_perf``, ``allreduce``."""
    name = op.lower().replace("-", "_").removesuffix("_perf")
    names = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather", "sendrecv": "send_recv",
             "reducescatter": "reduce_scatter", "alltoallv": "all_to_all_v"}  # fmt: skip
    return names.get(name, name)
