"""Columns of the tables of a training step: collectives, links, memory and energy, with units and meanings."""

from __future__ import annotations

from trine.results.columns import Column, Columns

FOLD_STAGE = Columns(
    Column(key="begins_s", unit="s", meaning="Start."),
    Column(key="ranks", unit="integer", meaning="Ranks with work left."),
    Column(key="classes", unit="integer", meaning="Classes of ranks."),
    Column(key="link_classes", unit="integer", meaning="Classes of links."),
    Column(key="tasks", unit="integer", meaning="Simulated tasks."),
    Column(key="events", unit="integer", meaning="Simulated events."),
)  # fmt: skip

COLLECTIVE = Columns(
    Column(
        key="kind", unit="text",
        meaning="Such as `all_reduce`. `send_recv`: messages between pipeline stages, and DataParallel's outputs and "
                "their gradients.",
    ),
    Column(key="bytes", unit="bytes", meaning="Payload of one collective on one rank."),
    Column(key="count", unit="integer", meaning="Collectives per rank and step."),
    Column(key="group_size", unit="integer", meaning="Ranks of the group."),
    Column(key="total_count", unit="integer", meaning="Collectives of all groups."),
    Column(key="time_s", unit="s", meaning="From the first start to the last end: `waiting_s` + `transfer_s`."),
    Column(key="transfer_s", unit="s", meaning="Part after the last rank has entered."),
    Column(key="waiting_s", unit="s", meaning="Part before the last rank enters."),
    Column(key="axes", unit="list of text", meaning="Axes of the layout."),
    Column(key="algorithms", unit="list of text", meaning="Algorithms, such as `ring/simple`."),
)  # fmt: skip
LINK = Columns(
    Column(key="link", unit="text", meaning="Name."),
    Column(key="bytes", unit="bytes", meaning="Traffic."),
    Column(key="bytes_per_s", unit="bytes/s", meaning="Bandwidth."),
    Column(key="utilisation", unit="fraction", meaning="Busy share of the step."),
    Column(key="links_alike", unit="integer", meaning="Links that the row stands for."),
    Column(key="tier", unit="text", meaning="Tier, such as `leaf-spine`.", null_if="no tier"),
)
_NEEDED_RANGE = "The needed bytes with the model's error."
MEMORY = Columns(
    Column(
        key="verdict", unit="text",
        meaning="`fits`; `tight` (capacity between `needed_bytes` and `needed_high_bytes`); `does not fit`; `capacity "
                "unknown`.",
    ),
    Column(
        key="allocated_bytes", unit="bytes",
        meaning="Tensors and workspaces in program order, as `torch.cuda.max_memory_allocated` counts.",
    ),
    Column(key="reserved_bytes", unit="bytes", meaning="Segments of PyTorch's caching allocator."),
    Column(key="outside_bytes", unit="bytes", meaning="CUDA context and communicators."),
    Column(key="available_bytes", unit="bytes", meaning="Capacity - outside.", null_if="capacity unknown"),
    Column(key="needed_bytes", unit="bytes", meaning="Reserved + outside."),
    Column(key="needed_low_bytes", unit="bytes", meaning=_NEEDED_RANGE),
    Column(key="needed_high_bytes", unit="bytes", meaning=_NEEDED_RANGE),
    Column(key="margin_bytes", unit="bytes", meaning="Capacity - needed.", null_if="capacity unknown"),
)  # fmt: skip
_HOST_SIZES = "States, gradients and activations of the host's ranks at their peak; memory of the host; the difference."
_HOST_RANKS = "Ranks on that host; hosts with ranks."
HOST = Columns(
    Column(
        key="verdict", unit="text", meaning="`fits`; `tight`: fits only without 10 % for other uses; `does not fit`."
    ),
    Column(key="host", unit="text", meaning="Name of the node or of its memory."),
    Column(key="bytes_per_host", unit="bytes", meaning=_HOST_SIZES),
    Column(key="capacity_bytes", unit="bytes", meaning=_HOST_SIZES),
    Column(key="margin_bytes", unit="bytes", meaning=_HOST_SIZES),
    Column(key="ranks", unit="integer", meaning=_HOST_RANKS),
    Column(key="hosts", unit="integer", meaning=_HOST_RANKS),
)
_POWER = "Mean power of the job, and of the rank with the most."
_STATES = "Energy and power when `computing`, `communicating` and `idle`; `states_w` is empty with several GPU models."
_COUNTED = "Ranks of the job; ranks with a known GPU."
ENERGY = Columns(
    Column(key="step_j", unit="J", meaning="Energy of a step."),
    Column(key="mean_w", unit="W", meaning=_POWER),
    Column(key="peak_rank_w", unit="W", meaning=_POWER),
    Column(key="by_state_j", unit="object of numbers", meaning=_STATES),
    Column(key="states_w", unit="object of numbers", meaning=_STATES),
    Column(key="ranks", unit="integer", meaning=_COUNTED),
    Column(key="ranks_counted", unit="integer", meaning=_COUNTED),
    Column(key="evidence", unit="text", meaning="Evidence, and its source."),
    Column(key="detail", unit="text", meaning="Evidence, and its source."),
)
