"""One collective simulated message by message on a cluster's links, with or without what a library costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from trine.cluster.cluster import SCALE_OUT, Cluster
from trine.collectives.library import Collectives
from trine.collectives.library.costs import Setting, step_us
from trine.collectives.library.predict import bus_factor, sent_bytes
from trine.collectives.registry import known_algorithms, known_kinds, make_schedule
from trine.collectives.run import ScheduleRun, run_schedule
from trine.errors import InputError, TrineError, nearest
from trine.model.collective import AUTO, PROTOCOLS, CollectiveOptions, CollectiveTime, Part
from trine.model.schedule import ExpandedSchedule, Schedule

#: Bytes on the wire for each byte of payload: LL sends a 4-byte flag with 4 bytes, LL128 8 bytes of flag with 120.
WIRE = {"ll": Fraction(2), "ll128": Fraction(128, 120), "simple": Fraction(1), "none": Fraction(1)}
#: The schedule that stands for an algorithm of the library.
SCHEDULE_OF = {"tree": "double-binary-tree", "nvlstree": "hierarchical", "collnet": "sharp"}
#: Alternatives with more messages than this are not simulated for ``--explain``.
MAX_MESSAGES = 3_000_000

Progress = Callable[[int, int, int], None]


class Stepwise:
    """Simulates the collectives of one group. ``load``: bytes over each link in the last run, the busiest first."""

    def __init__(
        self,
        cluster: Cluster,
        ranks: Sequence[int],
        options: CollectiveOptions,
        network: str,
        progress: Progress | None = None,
        on_compile: Callable[[], None] | None = None,
    ) -> None:
        if options.protocol not in (AUTO, *PROTOCOLS):
            raise InputError(f"unknown protocol {options.protocol!r}{nearest(options.protocol, PROTOCOLS)}", field="protocol")
        self.cluster, self.ranks, self.options, self.network = cluster, ranks, options, network
        self.progress, self.on_compile = progress, on_compile
        self.group = [cluster.gpus[rank] for rank in ranks]
        self.load: Mapping[str, int] = {}
        self.notes: tuple[str, ...] = ()
        known = any(link.medium for link in cluster.links)
        self.protocol = options.protocol if options.protocol != AUTO else "simple" if known else "none"
        self.library: Collectives | None = None
        self._refuse_unused()
        if self.protocol != "none":
            asked = CollectiveOptions(library=options.library, launch=options.launch)
            self.library = Collectives(cluster, ranks, asked)
        self._plan: tuple[str, object] | None = None

    @property
    def library_name(self) -> str:
        """The library whose costs are added, ``none`` for the bare links."""
        return "none" if self.library is None else self.library.library.name

    @property
    def library_version(self) -> str:
        """The versions that these costs are of."""
        return "" if self.library is None else self.library.library.version

    def run(self, op: str, size: int) -> CollectiveTime:
        """Simulate one size. Raises InputError for a collective or algorithm that does not exist or does not fit."""
        algorithm = self._algorithm(op, size)
        done, answer = self._simulate(op, size, algorithm)
        links = self.cluster.links
        carried = done.link_bytes.tolist()
        order = sorted(
            (i for i, count in enumerate(carried) if count), key=lambda i: (-carried[i] / links[i].bytes_per_s, i)
        )
        self.load = {links[i].name: carried[i] for i in order}
        return answer

    def alternatives(self, op: str, size: int) -> list[CollectiveTime]:
        """Every schedule that trine has for ``op`` on this group, the fastest first; those that do not fit are left out."""
        rows = []
        for algorithm in known_algorithms(op):
            try:
                rows.append(self._simulate(op, size, algorithm)[1])
            except TrineError:
                continue
        return sorted(rows, key=lambda row: row.time_ps)

    # -- the schedule --------------------------------------------------------------------------------------------

    def _refuse_unused(self) -> None:
        """Options that cannot matter to simulated messages."""
        options = self.options
        if options.min_channels is not None or options.max_channels is not None:
            raise InputError("limits on channels belong to the library model: leave out --network", field="channels")
        if self.protocol == "none" and options.library != AUTO:
            raise InputError("the bare links know no library: give --protocol simple, ll or ll128", field="library")
        if options.nvls is not None:
            raise InputError("is the library's choice; give --algorithm nvls or another one", field="nvls")

    def _algorithm(self, op: str, size: int) -> str:
        options = self.options
        if op not in known_kinds():
            raise InputError(f"unknown collective {op!r}{nearest(op, known_kinds())}", field="op")
        if options.algorithm != AUTO:
            return options.algorithm
        if self.library is not None:
            chosen = self.library.predict(op, size).algorithm
            chosen = SCHEDULE_OF.get(chosen, chosen)
            if chosen in known_algorithms(op):
                return chosen
        return known_algorithms(op)[0]

    def _simulate(self, op: str, size: int, algorithm: str) -> tuple[ScheduleRun, CollectiveTime]:
        n = len(self.ranks)
        sent = sent_bytes(op, size, n)
        schedule, name = self._schedule(op, sent, algorithm)
        done = run_schedule(
            schedule,
            self.cluster,
            self.group,
            network=self.network,
            step_ps=self._step_ps if self.library is not None else 0,
            byte_factor=WIRE[self.protocol],
            agents=self._agents(schedule),
            progress=self.progress,
            on_compile=self.on_compile,
        )
        return done, self._answer(op, size, sent, name, done)

    def _schedule(self, op: str, sent: int, algorithm: str) -> tuple[Schedule | ExpandedSchedule, str]:
        if algorithm.endswith((".json", ".xml")) or os.sep in algorithm:
            return self._from_plan(op, sent, algorithm), Path(algorithm).name
        return make_schedule(op, len(self.ranks), sent, algorithm), algorithm

    def _from_plan(self, op: str, sent: int, path: str) -> ExpandedSchedule:
        """The plan's transfers; proven to do what it says before the first use."""
        from trine.collectives.plans import check_plan, load_plan, plan_schedule

        if self._plan is None:
            plan = load_plan(path)
            check_plan(plan)
            self._plan = path, plan
        plan = self._plan[1]
        if plan.collective != op:
            raise InputError(f"is a plan for {plan.collective}, not for {op}", file=path)
        if plan.num_ranks != len(self.ranks):
            raise InputError(f"is a plan for {plan.num_ranks} ranks, the group has {len(self.ranks)}", file=path)
        return plan_schedule(plan, sent)

    def _agents(self, schedule: Schedule | ExpandedSchedule) -> list[int]:
        """Switches that reduce, for schedules that need them."""
        count = schedule.num_agents
        if not count:
            return []
        near = {link.target for gpu in self.group for link in self.cluster.links_from(gpu)}
        found = [i for i, device in enumerate(self.cluster.devices) if device.reduces]
        found.sort(key=lambda i: (i not in near, i))
        if len(found) < count:
            raise InputError(
                f"the algorithm needs {count} switch{'es' if count > 1 else ''} that reduce, "
                f"{self.cluster.name!r} has {len(found)}",
                field="algorithm",
            )
        return found[:count]

    # -- costs ---------------------------------------------------------------------------------------------------

    @property
    def _setting(self) -> Setting:
        assert self.library is not None
        return self.library.setting

    def _step_ps(self, source: int, target: int) -> int:
        """The software's part of a message: by whether it leaves the domain."""
        setting = self._setting
        route, _ = self.cluster.paths(source, target)[0]
        out = any(self.cluster.links[link].link_class == SCALE_OUT for link in route)
        tier, medium = (setting.view.between, setting.outer) if out else (setting.view.inside, setting.inner)
        hardware_us = tier.latency_ps / 1e6 if tier else 0.0
        return round(max(0.0, step_us(tier, medium, self.protocol) - hardware_us) * 1e6)

    def _answer(self, op: str, size: int, sent: int, name: str, done: ScheduleRun) -> CollectiveTime:
        parts = []
        if self.library is not None:
            setting = self._setting
            parts.append(Part(name="launch", time_ps=round(setting.launch_us * 1e6), why="starting the kernels"))
        parts.append(Part(name="messages", time_ps=done.end_ps, why=f"{done.graph.num_tasks} messages on the links"))
        time_ps = sum(part.time_ps for part in parts)
        low = high = 1.0
        if self.library is not None:
            bands = self.library.library.bands["assumed"]
            low, high = next((row[1], row[2]) for row in bands if sent <= row[0])
        busiest = done.link_busy_ps.argmax() if done.link_busy_ps.any() else None
        return CollectiveTime(
            op=op,
            size_bytes=size,
            sent_bytes=sent,
            num_ranks=len(self.ranks),
            time_ps=time_ps,
            low_ps=round(time_ps * low),
            high_ps=round(time_ps * high),
            algorithm=name,
            protocol=self.protocol,
            channels=0,
            bus_factor=bus_factor(op, len(self.ranks)),
            evidence="modelled" if self.library is None else "assumed",
            limit=self.cluster.links[int(busiest)].name if busiest is not None else "",
            parts=tuple(parts),
        )
