"""Simulation of one collective message by message on a cluster's links, with or without a library's costs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

import numpy as np

from trine.cluster.cluster import Cluster
from trine.collectives.bare import is_bare
from trine.collectives.bus_bandwidth import bus_factor, sent_bytes
from trine.collectives.expand import expand
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.costs import CostContext, ll128_allowed
from trine.collectives.nccl.parameters import LL, LL128, SIMPLE
from trine.collectives.nccl.predict import OPS
from trine.collectives.options import AUTO, PROTOCOLS, CollectiveOptions, CollectiveTime, TimePart, is_plan
from trine.collectives.registry import known_algorithms, known_kinds, make_schedule
from trine.collectives.run import DomainSteps, MessageOptions, MessageTotals, run_schedule
from trine.collectives.schedule import ROOTED, ExpandedSchedule, Schedule
from trine.collectives.schedules.direct import to_the_next
from trine.common.plugins import load_target
from trine.errors import InputError, SpecError, TrineError, nearest

if TYPE_CHECKING:
    from trine.collectives.schedules.direct import Matrix

#: Bytes on the wire for each byte of payload: LL sends a 4-byte flag with 4 bytes, LL128 8 bytes of flag with 120.
WIRE = {"ll": Fraction(2), "ll128": Fraction(128, 120), "simple": Fraction(1), "none": Fraction(1)}
#: Schedules whose names differ from the library's algorithms.
SCHEDULE_OF = {"collnet": "sharp"}
#: ``--explain`` skips alternatives with more messages than this.
MAX_MESSAGES = 3_000_000


#: Reader of plan files, which also proves a plan correct, and its transfers for a size.
_LOAD_PLAN, _PLAN_SCHEDULE = "trine.gpu.plans:load_checked", "trine.gpu.plans:plan_schedule"


class PlanFile(Protocol):
    """Properties of an MSCCL++ or MSCCL plan that decide its use."""

    @property
    def collective(self) -> str: ...
    @property
    def num_ranks(self) -> int: ...
    @property
    def protocol(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class ScheduleRunner(Protocol):
    """Function that simulates a schedule: :func:`trine.collectives.run.run_schedule`, or a faster equivalent."""

    def __call__(
        self,
        schedule: Schedule | ExpandedSchedule,
        cluster: Cluster,
        group: Sequence[int],
        **options: Unpack[MessageOptions],
    ) -> MessageTotals: ...


class MessageLevelRuns:
    """Simulator of one group's collectives. ``load``: bytes over each link in the last run, int64[links]."""

    def __init__(
        self, cluster: Cluster, ranks: Sequence[int], options: CollectiveOptions, network: str,
        matrix: Matrix | None = None, runner: ScheduleRunner = run_schedule,
    ) -> None:  # fmt: skip
        if len(ranks) < 2:
            raise InputError(f"a collective needs at least 2 ranks, got {len(ranks)}: take more GPUs, or nodes")
        if options.protocol not in (AUTO, *PROTOCOLS):
            raise InputError(
                f"unknown protocol {options.protocol!r}{nearest(options.protocol, PROTOCOLS)}", field="protocol"
            )
        self.cluster, self.ranks, self.options, self.network = cluster, ranks, options, network
        self.matrix, self.runner = matrix, runner
        self.group = [cluster.gpus[rank] for rank in ranks]
        self.load = np.zeros(len(cluster.links), np.int64)
        self.notes: tuple[str, ...] = ()
        self.is_bare = is_bare(options, cluster)
        self.library: Collectives | None = None
        self._refuse_unused()
        if not self.is_bare:
            library_options = CollectiveOptions(library=options.library, launch=options.launch)
            self.library = Collectives(cluster, ranks, library_options)
            self._check_links(options.protocol)
            if options.algorithm in ("nvls", "sharp") and options.protocol in (LL, LL128):
                raise InputError("switches that reduce take the protocol simple only", field="protocol")
            self.notes = self.library.cost_notes()
        else:
            self.notes = (
                "circuits: times include circuit set-up, but no launch, protocol or synchronisation of a library"
                if cluster.circuits is not None
                else "bare links: times exclude a library's launch, protocol and synchronisation; links of a "
                "known kind ('link: nvlink4' in the cluster file) or --protocol simple add them",
            )
        if options.algorithm == AUTO:
            self.notes += (
                "one schedule in the order of the ranks is simulated; a library may run several rings at once",
            )
        self._plan: PlanFile | None = None

    @property
    def library_name(self) -> str:
        """Name of the library whose costs are added; ``none`` for bare links."""
        return "none" if self.library is None else self.library.library.name

    @property
    def library_version(self) -> str:
        """Library versions that the costs apply to."""
        return "" if self.library is None else self.library.library.version

    def run(self, op: str, size: int) -> CollectiveTime:
        """Simulate one size. Raises InputError for a collective or algorithm that is unknown or does not fit."""
        algorithm, protocol = self._choice(op, size)
        totals, answer = self._simulate(op, size, algorithm, protocol)
        self.load = totals.link_bytes
        return answer

    def alternatives(self, op: str, size: int) -> list[CollectiveTime]:
        """Return the times of all schedules for ``op`` on this group, fastest first.

        Skips schedules that do not fit the group and schedules with more than MAX_MESSAGES messages.
        """
        rows = []
        protocol = self._choice(op, size)[1]
        for algorithm in known_algorithms(op):
            try:
                rows.append(self._simulate(op, size, algorithm, protocol, MAX_MESSAGES)[1])
            except TrineError:
                continue
        return sorted(rows, key=lambda row: row.time_ps)

    # -- the schedule --------------------------------------------------------------------------------------------

    def _refuse_unused(self) -> None:
        """Raise InputError for options that do not affect simulated messages."""
        options = self.options
        if options.min_channels is not None or options.max_channels is not None:
            raise InputError("limits on channels belong to the library model: leave out --network", field="channels")
        if options.nvls_chunk is not None:
            raise InputError("NVLS belongs to the library model: leave out --network", field="nvls_chunk")
        if self.is_bare and options.library != AUTO:
            raise InputError("the bare links know no library: give --protocol simple, ll or ll128", field="library")
        if self.is_bare and options.launch != CollectiveOptions().launch:
            raise InputError("the bare links know no launches: give --protocol simple, ll or ll128", field="launch")
        if options.nvls is not None:
            raise InputError("is the library's choice; give --algorithm nvls or another one", field="nvls")

    def _choice(self, op: str, size: int) -> tuple[str, str]:
        """Return the algorithm and protocol; by default the library's choice, or the first schedule on bare links."""
        schedules = known_algorithms(op)
        if not schedules:
            raise InputError(f"unknown collective {op!r}{nearest(op, known_kinds())}", field="op")
        algorithm, protocol = self.options.algorithm, self.options.protocol
        if self.library is None:
            return (schedules[0] if algorithm == AUTO else algorithm), "none"
        if is_plan(algorithm):
            return algorithm, self._protocol_of(self._load(algorithm), algorithm)
        if algorithm != AUTO:
            return self._schedule_for(algorithm), "simple" if protocol == AUTO else protocol
        if op not in OPS:
            return schedules[0], "simple" if protocol == AUTO else protocol
        prediction = self.library.predict(op, size)
        name = self._schedule_for(prediction.algorithm)
        name = name if name.partition(":")[0] in schedules else schedules[0]
        return name, prediction.protocol if protocol == AUTO else protocol

    def _schedule_for(self, algorithm: str) -> str:
        """Return trine's schedule for a library's algorithm; tree and nvlstree on several domains are hierarchical."""
        topology = self._context.topology
        is_even = topology.min_per_domain == topology.max_per_domain
        if self.options.algorithm == AUTO and algorithm == "tree":
            if topology.num_domains > 1 and topology.max_per_domain > 1 and is_even:
                return f"hierarchical:{topology.num_domains}x{topology.max_per_domain}:outer=double-binary-tree"
            return "double-binary-tree"
        if algorithm == "nvlstree":
            return f"hierarchical:{topology.num_domains}x{topology.max_per_domain}" if is_even else "hierarchical"
        if algorithm == "nvls" and topology.sharp:
            raise InputError(
                "NVLS with SHARP between nodes is not modelled message by message; without --network it is",
                field="network",
            )  # fmt: skip
        return SCHEDULE_OF.get(algorithm, algorithm)

    def _simulate(
        self, op: str, size: int, algorithm: str, protocol: str, max_messages: int | None = None
    ) -> tuple[MessageTotals, CollectiveTime]:
        """Simulate one size; raise InputError before the simulation if it needs more than ``max_messages``."""
        n = len(self.ranks)
        sent = size if self.matrix is not None else sent_bytes(op, size, n)
        schedule, name = self._schedule(op, sent, algorithm)
        if max_messages is not None and isinstance(schedule, Schedule) and _num_messages(schedule) > max_messages:
            raise InputError(f"more than {max_messages} messages")
        totals = self.runner(
            schedule, self.cluster, self.group, network=self.network,
            step_ps=0 if self.library is None else self._steps(protocol),
            byte_factor=self._byte_factor(algorithm, protocol), reducing_switches=self._reducing_switches(schedule),
        )  # fmt: skip
        return totals, self._answer(op, size, sent, (name, protocol), totals)

    def _schedule(self, op: str, sent: int, algorithm: str) -> tuple[Schedule | ExpandedSchedule, str]:
        if is_plan(algorithm):
            return self._plan_transfers(op, sent, algorithm), Path(algorithm).name
        n = len(self.ranks)
        if op == "send_recv" and algorithm in known_algorithms(op):
            return to_the_next(n, sent), algorithm
        if self.matrix is not None:
            return make_schedule(op, n, sent, algorithm, matrix=self.matrix), algorithm
        return make_schedule(op, n, sent, algorithm, 0 if op in ROOTED else -1), algorithm

    def _load(self, path: str) -> PlanFile:
        """Load the plan and prove it correct before its first use."""
        if self._plan is None:
            self._plan = load_target(_LOAD_PLAN)(path, self.options.no_proof)
            self.notes = (*self.notes, *self._plan.notes) if self.options.no_proof else self.notes
        return self._plan

    def _protocol_of(self, plan: PlanFile, path: str) -> str:
        """Return the protocol for the costs of a plan's steps: the file's, or the user's choice for a Simple plan."""
        protocol, user_protocol = plan.protocol.lower(), self.options.protocol
        if user_protocol in (AUTO, protocol):
            self._check_links(protocol)
            return protocol
        if protocol != SIMPLE:
            raise InputError(
                f"is {user_protocol!r}, but the plan {path} is written for {protocol}: leave --protocol out, or give "
                f"{protocol} or none",
                field="protocol",
            )
        return user_protocol

    def _byte_factor(self, algorithm: str, protocol: str) -> Fraction:
        """Return the bytes on the wire per byte of message; a plan's messages already include its protocol's flags."""
        has_flags = self._plan is not None and is_plan(algorithm) and self._plan.protocol.lower() == protocol
        return Fraction(1) if has_flags else WIRE[protocol]

    def _check_links(self, protocol: str) -> None:
        if protocol == LL128 and self.library is not None and not ll128_allowed(self.library.topology):
            raise InputError("LL128 needs links that write 128 bytes at once, such as NVLink", field="protocol")

    def _plan_transfers(self, op: str, sent: int, path: str) -> ExpandedSchedule:
        """Return the transfers of the plan."""
        plan = self._load(path)
        if plan.collective != op:
            raise InputError(f"is a plan for {plan.collective}, not for {op}", file=path)
        if plan.num_ranks != len(self.ranks):
            raise InputError(f"is a plan for {plan.num_ranks} ranks, the group has {len(self.ranks)}", file=path)
        schedule: ExpandedSchedule = load_target(_PLAN_SCHEDULE)(plan, sent)
        return schedule

    def _reducing_switches(self, schedule: Schedule | ExpandedSchedule) -> list[int]:
        """Return the reducing switches to use; empty if the schedule needs none."""
        count = schedule.num_switches
        if not count:
            return []
        neighbours = {link.target for gpu in self.group for link in self.cluster.links_from(gpu)}
        switches = [i for i, device in enumerate(self.cluster.devices) if device.reduces]
        switches.sort(key=lambda i: (i not in neighbours, i))
        name = "the plan" if is_plan(self.options.algorithm) else self.options.algorithm
        if len(switches) < count:
            needs = f"{count} switches that reduce" if count > 1 else "a switch that reduces"
            raise InputError(
                f"{name} needs {needs} (NVSwitches from Hopper on, fabrics with SHARP: 'reduces: true'), and "
                f"{self.cluster.name!r} has {len(switches) or 'none'}",
                field="algorithm",
            )
        if count == 1:
            return [self._common_switch(switches, name)]
        return switches[:count]

    def _common_switch(self, switches: Sequence[int], name: str) -> int:
        """Return the first switch that all ranks have a route to."""
        for switch in switches:
            try:
                for gpu in self.group:
                    self.cluster.paths(gpu, switch)
            except SpecError:
                continue
            return switch
        nodes = len({self.cluster.devices[gpu].node for gpu in self.group})
        raise InputError(
            f"{name} needs a switch that reduces and that all {len(self.group)} ranks reach; {self.cluster.name!r} has "
            f"{len(switches)}, each for the GPUs of one node or rack, and the ranks are on {nodes} nodes: nvlstree "
            "(all_reduce) and hierarchical work across them",
            field="algorithm",
        )

    # -- costs ---------------------------------------------------------------------------------------------------

    @property
    def _context(self) -> CostContext:
        assert self.library is not None
        return self.library.context

    def _steps(self, protocol: str) -> DomainSteps:
        """Return the software's time per message, inside a domain and between domains."""
        inner, outer = (round(medium.step_us[protocol] * 1e6) for medium in (self._context.inner, self._context.outer))
        return DomainSteps(self.cluster, inner, outer)

    def _answer(self, op: str, size: int, sent: int, pair: tuple[str, str], run: MessageTotals) -> CollectiveTime:
        parts = []
        if self.library is not None:
            context = self._context
            parts.append(TimePart(name="launch", time_ps=round(context.launch_us * 1e6), why="starting the kernels"))
        parts.append(TimePart(name="messages", time_ps=run.end_ps, why=f"{run.num_messages} messages on the links"))
        time_ps = sum(part.time_ps for part in parts)
        low = high = 1.0
        if self.library is not None:
            _, low, high = self.library.library.bands["assumed"][0 if sent < 1 << 20 else -1]
        busy_ps = run.link_busy_ps
        busiest = busy_ps.argmax() if busy_ps.any() else None
        evidence = "modelled" if self.library is None else "assumed"
        limit = self.cluster.links[int(busiest)].name if busiest is not None else ""
        return CollectiveTime(
            op=op, size_bytes=size, sent_bytes=sent, num_ranks=len(self.ranks), time_ps=time_ps,
            low_ps=round(time_ps * low), high_ps=round(time_ps * high), algorithm=pair[0], protocol=pair[1],
            channels=0, bus_factor=self._bus_factor(op, sent), evidence=evidence, limit=limit, parts=tuple(parts),
        )  # fmt: skip

    def _bus_factor(self, op: str, sent: int) -> float:
        """Return busbw / algbw; with a matrix, the largest row's share that leaves its rank, (n - 1) / n if uniform."""
        if self.matrix is None or not sent:
            return bus_factor(op, len(self.ranks))
        outgoing = (sum(row) - row[rank] for rank, row in enumerate(self.matrix))
        return int(max(outgoing)) / sent


def _num_messages(schedule: Schedule) -> int:
    """Return the number of messages."""
    if schedule.shift_symmetric:
        sends = schedule.sends_of(0, schedule.num_ranks, schedule.num_chunks, schedule.root)
        return len(sends.step) * schedule.num_ranks
    return expand(schedule).num_transfers
