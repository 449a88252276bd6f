"""Columns of the tables of a load-store run: GPUs, resources, links and operations, with units and meanings."""

from __future__ import annotations

from trine.results.columns import Column, Columns

_BY_PART = "Messages; of `l2` and `memory`: lines, and semaphore operations."
_DMA = "Traffic. With `dma` operations, bytes follow from the busy time."
_FROM_FIRST_TO_LAST = "From the first wavefront's start to the last one's end: sum, mean, longest."
KIND = Columns(
    Column(
        key="kind",
        unit="text",
        meaning="`cu`: links between CUs and NoC; `noc`: links of the NoC; `lane`: lanes of fabric links; `l2`; "
        "`memory`.",
    ),
    Column(key="count", unit="integer", meaning="All of the kind, and used ones."),
    Column(key="used", unit="integer", meaning="All of the kind, and used ones."),
    Column(key="mean_utilisation", unit="fraction", meaning="Over all of the kind."),
    Column(key="max_utilisation", unit="fraction", meaning="Over all of the kind."),
    Column(key="busiest", unit="text", meaning="Busiest one."),
    Column(key="busiest_rank", unit="integer", meaning="Rank of the busiest one.", null_if="a lane"),
    Column(key="data_messages", unit="integer", meaning=_BY_PART),
    Column(key="control_messages", unit="integer", meaning=_BY_PART),
)
LINK = Columns(
    Column(key="link", unit="text", meaning="Name."),
    Column(key="bytes_per_s", unit="bytes/s", meaning="Bandwidth."),
    Column(key="lanes", unit="integer", meaning="Lanes, and used ones."),
    Column(key="lanes_used", unit="integer", meaning="Lanes, and used ones."),
    Column(key="utilisation", unit="fraction", meaning="Mean of all lanes."),
    Column(key="max_lane_utilisation", unit="fraction", meaning="Of the busiest lane."),
    Column(key="data_messages", unit="integer", meaning="Messages."),
    Column(key="control_messages", unit="integer", meaning="Messages."),
    Column(key="data_bytes", unit="bytes", meaning=_DMA),
    Column(key="control_bytes", unit="bytes", meaning=_DMA),
)
OPERATION = Columns(
    Column(key="kind", unit="text", meaning="Kind."),
    Column(key="label", unit="text", meaning="Label.", null_if="no label"),
    Column(key="count", unit="integer", meaning="Operations."),
    Column(key="amount", unit="integer", meaning="Lines; bytes of `dma`, cycles of `compute`, counts of semaphores."),
    Column(key="time_s", unit="s", meaning=_FROM_FIRST_TO_LAST),
    Column(key="mean_s", unit="s", meaning=_FROM_FIRST_TO_LAST),
    Column(key="longest_s", unit="s", meaning=_FROM_FIRST_TO_LAST),
)
USE = Columns(
    Column(key="rank", unit="integer", meaning="Simulated rank."),
    Column(key="ranks_alike", unit="integer", meaning="Ranks that it stands for."),
    Column(key="start_s", unit="s", meaning="Start and end of its kernels.", null_if="no kernel ran"),
    Column(key="end_s", unit="s", meaning="Start and end of its kernels.", null_if="no kernel ran"),
    Column(key="workgroups", unit="integer", meaning="Workgroups."),
    Column(key="cus_used", unit="integer", meaning="Used CUs."),
)
REQUEST = Columns(
    Column(key="loads", unit="integer", meaning="Requests."),
    Column(key="stores", unit="integer", meaning="Requests."),
    Column(key="acquires", unit="integer", meaning="Requests."),
    Column(key="releases", unit="integer", meaning="Requests."),
    Column(key="polls", unit="integer", meaning="Repeated requests among them."),
    Column(
        key="flag_reads", unit="integer", meaning="Acquires and loads of lines with a flag, each repetition counted."
    ),
    Column(key="non_flag_reads", unit="integer", meaning="All other loads."),
    Column(key="wakeups", unit="integer", meaning="Wake-ups by a monitor."),
    Column(key="spurious_wakeups", unit="integer", meaning="Wake-ups that found too little."),
    Column(key="monitor_full", unit="integer", meaning="Acquires that polled because the monitor's table was full."),
    Column(key="packets", unit="integer", meaning="Packets of copy engines and NICs."),
    Column(key="mean_load_latency_s", unit="s", meaning="From issue to answer.", null_if="no loads"),
    Column(key="mean_loads_under_way", unit="number", meaning="Load rate x latency while its kernels run."),
    Column(key="l2_hits", unit="integer", meaning="L2 cache.", null_if="no L2"),
    Column(key="l2_misses", unit="integer", meaning="L2 cache.", null_if="no L2"),
    Column(key="l2_hit_rate", unit="fraction", meaning="L2 cache.", null_if="no L2"),
)
