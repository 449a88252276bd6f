"""What could be wrong with a machine or a run, each as a prediction that a measurement can be compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from trine.cluster.cluster import Cluster
from trine.cluster.parts import HOST_LINK, NIC, SCALE_OUT, SCALE_UP, Link
from trine.collectives.library import Collectives
from trine.errors import TrineError
from trine.model.collective import AUTO, LAUNCHES, CollectiveOptions

#: Sizes whose time is launch and latency, not bandwidth.
SMALL_BYTES = 64 << 10
#: A named cause must be so much worse than a fitted one before the fitted one is preferred: it explains more.
FITTED_PENALTY = 1.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """A cause and the times that it would bring, one for each size asked for, in picoseconds.

    ``fitted``: one number of it was taken from the measurement itself, so that it fits anything of its kind.
    """

    name: str
    advice: str
    times_ps: tuple[int, ...]
    fitted: bool = False


def hypotheses(
    op: str, sizes: Sequence[int], measured_ps: Sequence[int], cluster: Cluster, options: CollectiveOptions
) -> list[Hypothesis]:
    """Every cause that this cluster allows, in a fixed order; those that change nothing are left out."""
    usual = _times(op, sizes, cluster, options)
    if usual is None:
        return []
    found = []
    for name, advice, machine, asked in (*_software(op, cluster, options), *_hardware(cluster, options)):
        times = _times(op, sizes, machine, asked)
        if times is not None and times != usual:
            found.append(Hypothesis(name=name, advice=advice, times_ps=times))
    return found + list(_fitted(sizes, measured_ps, usual))


def _times(op: str, sizes: Sequence[int], cluster: Cluster, options: CollectiveOptions) -> tuple[int, ...] | None:
    """Predicted times; None where the library has no such way, or the GPUs are cut off."""
    try:
        asked = Collectives(cluster, None, options)
        return tuple(asked.predict(op, size).time_ps for size in sizes)
    except TrineError:
        return None


_Variant = tuple[str, str, Cluster, CollectiveOptions]


def _software(op: str, cluster: Cluster, options: CollectiveOptions) -> Iterator[_Variant]:
    """The same machine, used otherwise."""
    if options.nvls is not False:
        yield (
            "in-network reduction (NVLS) is not used",
            "look for NCCL_NVLS_ENABLE=0, a missing fabric manager or IMEX service, or a container without its access",
            cluster,
            replace(options, nvls=False),
        )
    if options.algorithm == AUTO and options.protocol == AUTO:
        for algorithm, protocol in Collectives(cluster, None, options).candidates(op):
            yield (
                f"the library uses {algorithm} with protocol {protocol}",
                "look for NCCL_ALGO and NCCL_PROTO, a tuner plug-in, or an older library",
                cluster,
                replace(options, algorithm=algorithm, protocol=protocol),
            )
    if options.max_channels is None:
        for channels in (1, 2, 4, 8):
            yield (
                f"only {channels} {'channels are' if channels > 1 else 'channel is'} used",
                "look for NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, or a topology file that hides links",
                cluster,
                replace(options, max_channels=channels),
            )
    for launch in LAUNCHES:
        if launch != options.launch:
            yield (
                f"the run was launched as {launch}",
                "give --launch, if the log does not say how its processes were started",
                cluster,
                replace(options, launch=launch),
            )


def _hardware(cluster: Cluster, options: CollectiveOptions) -> Iterator[_Variant]:
    """The same run on a machine with something missing."""
    classes = {link.link_class for link in cluster.links}
    if SCALE_OUT in classes:
        per_node = nics_per_node(cluster)
        for missing in sorted({1, per_node // 2} - {0}):
            if missing < per_node:
                yield (
                    f"{per_node - missing} of {per_node} NICs of each node carry the traffic",
                    "look at NCCL_IB_HCA, at ibstat on every node, and for a rail that is down",
                    _scaled(cluster, SCALE_OUT, (per_node - missing) / per_node),
                    options,
                )
        yield (
            "the network runs at a quarter of its rate",
            "look for NICs that negotiated fewer lanes, PCIe in a slower generation, or GPUDirect RDMA that is off",
            _scaled(cluster, SCALE_OUT, 0.25),
            options,
        )
        if (tcp := _by_tcp(cluster)) is not None:
            yield (
                "nodes talk by TCP instead of RDMA",
                "look for 'Using network Socket' with NCCL_DEBUG=INFO, and for the RDMA devices in the container",
                tcp,
                options,
            )
    if SCALE_UP in classes:
        yield (
            "half of the links between GPUs carry the traffic",
            "look at nvidia-smi nvlink -s (or rocm-smi) for links that are down",
            _scaled(cluster, SCALE_UP, 0.5),
            options,
        )
        if HOST_LINK in classes:
            yield (
                "GPUs talk over PCIe instead of their own links",
                "look at nvidia-smi topo -m, NCCL_P2P_DISABLE, and virtual machines that hide the links",
                replace(cluster, links=tuple(link for link in cluster.links if link.link_class != SCALE_UP)),
                options,
            )


def _fitted(sizes: Sequence[int], measured_ps: Sequence[int], usual: Sequence[int]) -> Iterator[Hypothesis]:
    """One unknown, taken from the measurement: a delay of each call, or a share of the bandwidth."""
    small = [m - u for size, m, u in zip(sizes, measured_ps, usual, strict=True) if size <= SMALL_BYTES]
    if small and (delay := round(median(small))) > 0:
        yield Hypothesis(
            name=f"each call starts {delay / 1e6:.3g} us late",
            advice="look for NUMA balancing, power saving, a debug build, virtualisation, or a busy CPU",
            times_ps=tuple(time + delay for time in usual),
            fitted=True,
        )
    large = [m / u for size, m, u in zip(sizes, measured_ps, usual, strict=True) if size >= max(sizes) // 8]
    if max(sizes) > SMALL_BYTES and (factor := median(large)) > 1:
        yield Hypothesis(
            name=f"everything runs at {1 / factor:.0%} of the predicted speed",
            advice="a link at that share of its rate, another job on the network, or a cluster description that is "
            "too good",
            times_ps=tuple(round(time * factor) for time in usual),
            fitted=True,
        )


def nics_per_node(cluster: Cluster) -> int:
    """NICs of the node that has most; links out of a node where the cluster has no NICs as devices."""
    count: dict[str | None, int] = {}
    for device in cluster.devices:
        if device.kind == NIC:
            count[device.node] = count.get(device.node, 0) + 1
    return max(count.values(), default=1)


def _changed(cluster: Cluster, link_class: str, change: Callable[[Link], Link]) -> Cluster:
    links = tuple(change(link) if link.link_class == link_class else link for link in cluster.links)
    return replace(cluster, links=links)


def _scaled(cluster: Cluster, link_class: str, factor: float) -> Cluster:
    return _changed(
        cluster, link_class, lambda link: replace(link, bytes_per_s=max(1, round(link.bytes_per_s * factor)))
    )


def _by_tcp(cluster: Cluster) -> Cluster | None:
    """Every scale-out link as the catalogue's Ethernet of 100 Gb/s, or slower if it was; None without a catalogue."""
    from trine.cluster.links import link_named

    ethernet = link_named("ethernet-100")
    if all((link.medium or "").startswith("ethernet") for link in cluster.links if link.link_class == SCALE_OUT):
        return None
    return _changed(
        cluster,
        SCALE_OUT,
        lambda link: replace(
            link,
            bytes_per_s=min(link.bytes_per_s, ethernet.bytes_per_s),
            latency_ps=max(link.latency_ps, ethernet.latency_ps),
            medium="ethernet-100",
        ),
    )
