"""Ask about one collective: a table of sizes, as :func:`collective` answers and ``trine collective`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trine.cluster.cluster import Cluster
from trine.collectives.library import Collectives
from trine.collectives.library.costs import COSTS
from trine.collectives.library.load import link_load
from trine.collectives.stepwise import Stepwise
from trine.errors import InputError
from trine.model.collective import AUTO, CollectiveOptions, CollectiveTime

#: At most this many links are listed in an answer's JSON, the busiest first; ``links_left_out`` counts the others.
MAX_LINKS = 64


@dataclass(frozen=True, kw_only=True)
class CollectiveAnswer:
    """Times of one collective on one group, one row a size.

    ``network``: None for the library model, else how links were shared step by step. ``alternatives``: per row, what
    else the library has, the fastest first. ``crossovers``: (from this many bytes on, algorithm, protocol).
    ``load``: bytes over each link at the last size, the busiest first. ``notes``: what was assumed or not modelled.
    """

    op: str
    cluster: Cluster
    group: tuple[int, ...]
    library: str
    version: str
    launch: str
    network: str | None
    rows: tuple[CollectiveTime, ...]
    alternatives: tuple[tuple[CollectiveTime, ...], ...] = ()
    crossovers: tuple[tuple[int, str, str], ...] = ()
    load: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    num_domains: int = 1
    num_nodes: int = 1

    def to_json(self) -> dict[str, Any]:
        """The answer as documented in docs/reference/collective-json.md."""
        from trine.collectives.table import answer_json

        return answer_json(self)

    def table(self) -> str:
        """The table that nccl-tests prints, with the choice, the band and the evidence."""
        from trine.collectives.table import answer_table

        return answer_table(self)

    def explain(self) -> str:
        """Where each microsecond goes, what else there was, and where the choice changes."""
        from trine.collectives.table import answer_explained

        return answer_explained(self)

    def plot(self, path: str) -> None:
        """Draw time and bus bandwidth over the size, with the band. Needs the extra ``plot``."""
        from trine.collectives.plot import plot_collective

        plot_collective(self, path)


def collective(
    op: str,
    sizes: Sequence[int],
    cluster: Cluster,
    group: Sequence[int] | None = None,
    *,
    options: CollectiveOptions | None = None,
    network: str | None = None,
    explain: bool = False,
    progress: Callable[[int, int, int], None] | None = None,
    on_compile: Callable[[], None] | None = None,
) -> CollectiveAnswer:
    """Predict a collective for several sizes.

    Parameters
    ----------
    op, sizes: as nccl-tests counts bytes. cluster, group: ranks are positions in ``cluster.gpus``; None: all.
    options: how it is run. An algorithm that the library has not (``halving-doubling``, a plan file, ...) and the
        protocol ``none`` are simulated step by step.
    network: ``fair``, ``equal`` or ``fifo`` simulates every message on the links, whatever the algorithm.
    explain: also work out the alternatives.

    Raises
    ------
    InputError: what does not exist, does not fit or cannot matter.
    """
    options = options or CollectiveOptions()
    ranks = tuple(range(len(cluster.gpus)) if group is None else group)
    if not sizes:
        raise InputError("no sizes were given", field="size")
    if network is not None or needs_steps(options, cluster):
        return _stepwise(op, sizes, cluster, ranks, options, network, explain, progress, on_compile)
    asked = Collectives(cluster, ranks, options)
    rows = tuple(asked.predict(op, size) for size in sizes)
    return CollectiveAnswer(
        op=op,
        cluster=cluster,
        group=ranks,
        library=asked.library.name,
        version=asked.library.version,
        launch=options.launch,
        network=None,
        rows=rows,
        alternatives=tuple(tuple(asked.alternatives(op, size)) for size in sizes) if explain else (),
        crossovers=tuple(asked.crossovers(op)) if explain else (),
        load=link_load(cluster, ranks, rows[-1]),
        notes=asked.notes(op),
        num_domains=asked.view.num_domains,
        num_nodes=asked.view.num_nodes,
    )


def needs_steps(options: CollectiveOptions, cluster: Cluster) -> bool:
    """Whether there is no library model of this: another algorithm, bare links, or links that say not what they are."""
    if options.algorithm not in (AUTO, *COSTS) or options.protocol == "none":
        return True
    return options.protocol == AUTO and not any(link.medium for link in cluster.links)


def _stepwise(
    op: str,
    sizes: Sequence[int],
    cluster: Cluster,
    ranks: tuple[int, ...],
    options: CollectiveOptions,
    network: str | None,
    explain: bool,
    progress: Callable[[int, int, int], None] | None,
    on_compile: Callable[[], None] | None,
) -> CollectiveAnswer:
    asked = Stepwise(cluster, ranks, options, network or "fair", progress, on_compile)
    rows = tuple(asked.run(op, size) for size in sizes)
    return CollectiveAnswer(
        op=op,
        cluster=cluster,
        group=ranks,
        library=asked.library_name,
        version=asked.library_version,
        launch=options.launch if asked.library_name != "none" else "none",
        network=network or "fair",
        rows=rows,
        alternatives=tuple(tuple(asked.alternatives(op, size)) for size in sizes) if explain else (),
        load=asked.load,
        notes=asked.notes,
        num_nodes=len({cluster.devices[cluster.gpus[rank]].node for rank in ranks}),
    )
