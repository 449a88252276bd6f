"""Possible problems of a machine or a run, each as a prediction to compare with a measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trine.cluster.cluster import Cluster
from trine.cluster.parts import HOST_LINK, NIC, SCALE_OUT, SCALE_UP, Link
from trine.cluster.presets import link_named
from trine.collectives.nccl import Collectives
from trine.collectives.options import AUTO, LAUNCHES, CollectiveOptions, CollectiveTime
from trine.errors import TrineError

#: Kinds of causes. All kinds have the same prior probability; causes of one kind share it.
NVLS, ALGORITHM, CHANNELS, LAUNCH = "nvls", "algorithm", "channels", "launch"
NICS, NETWORK, TCP, LINKS, PCIE = "nics", "network", "tcp", "links", "pcie"
LATE, SHARE = "late", "share"
#: Kind -> where to look.
_ADVICE = {
    NVLS: "look for NCCL_NVLS_ENABLE=0, a missing fabric manager or IMEX service, or a container without its access",
    ALGORITHM: "look for NCCL_ALGO and NCCL_PROTO, a tuner plug-in, or an older library",
    CHANNELS: "look for NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, or a topology file that hides links",
    LAUNCH: "give --launch if the log does not show how its processes were started",
    NICS: "look at NCCL_IB_HCA, at ibstat on every node, and for a rail that is down",
    NETWORK: "look for NICs that negotiated fewer lanes, PCIe in a slower generation, or GPUDirect RDMA that is off",
    TCP: "look for 'Using network Socket' with NCCL_DEBUG=INFO, and for the RDMA devices in the container",
    LINKS: "look at nvidia-smi nvlink -s (or rocm-smi) for links that are down",
    PCIE: "look at nvidia-smi topo -m, NCCL_P2P_DISABLE, and virtual machines that hide the links",
    LATE: "look for NUMA balancing, power saving, a debug build, virtualisation, or a busy CPU",
    SHARE: "a link at that share of its rate, another job on the network, or a cluster description that is too good",
}
KINDS = tuple(_ADVICE)

#: Fractions of the catalogue's 100 Gb/s Ethernet (8 GB/s) achieved by sockets, depending on the copying CPU cores.
#: Measured on a 100 Gb/s TCP network: 1.1 to 6 GB/s, by number of sockets (github.com/NVIDIA/nccl/issues/450).
TCP_PARTS = (1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """A cause and its predicted times in picoseconds, one for each examined size.

    ``kind``: one of :data:`KINDS`. ``fitted``: one of its parameters comes from the measurement itself.
    """

    kind: str
    name: str
    advice: str
    times_ps: tuple[int, ...]
    fitted: bool = False


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Expected times of a machine for some sizes (bytes, ascending), usually and with each cause.

    ``causes`` of the same name are variants of one cause with an unknown parameter.
    """

    sizes: tuple[int, ...]
    usual: tuple[CollectiveTime, ...]
    causes: tuple[Hypothesis, ...]

    def at(self, places: Sequence[int]) -> Expected:
        """Return the expectation for some of the sizes, by their positions."""
        return Expected(
            sizes=tuple(self.sizes[i] for i in places),
            usual=tuple(self.usual[i] for i in places),
            causes=tuple(replace(each, times_ps=tuple(each.times_ps[i] for i in places)) for each in self.causes),
        )


def expect(op: str, sizes: Sequence[int], cluster: Cluster, options: CollectiveOptions) -> Expected:
    """Predict a collective on a healthy machine, and with every cause possible on this cluster, in a fixed order.

    Raises InputError: as :meth:`trine.collectives.nccl.Collectives.predict`.
    """
    library = Collectives(cluster, None, options)
    usual = tuple(library.predict(op, size) for size in sizes)
    variants = (*_software(op, cluster, options), *_hardware(cluster, options))
    causes = []
    for kind, name, machine, changed_options in variants:
        times = _times(op, sizes, machine, changed_options)
        if times is not None:
            causes.append(Hypothesis(kind=kind, name=name, advice=_ADVICE[kind], times_ps=times))
    return Expected(sizes=tuple(sizes), usual=usual, causes=tuple(causes))


def _times(op: str, sizes: Sequence[int], cluster: Cluster, options: CollectiveOptions) -> tuple[int, ...] | None:
    """Return predicted times, or None if the library lacks the option or the GPUs are disconnected."""
    try:
        library = Collectives(cluster, None, options)
        return tuple(library.predict(op, size).time_ps for size in sizes)
    except TrineError:
        return None


#: kind, name, and the machine and options of the run with the cause.
_Variant = tuple[str, str, Cluster, CollectiveOptions]


def _software(op: str, cluster: Cluster, options: CollectiveOptions) -> Iterator[_Variant]:
    """Yield variants with other library settings on the same machine."""
    if options.nvls is not False:
        yield NVLS, "in-network reduction (NVLS) is not used", cluster, replace(options, nvls=False)
    if options.algorithm == AUTO and options.protocol == AUTO:
        for algorithm, protocol in Collectives(cluster, None, options).candidates(op):
            changed = replace(options, algorithm=algorithm, protocol=protocol)
            yield ALGORITHM, f"the library uses {algorithm} with protocol {protocol}", cluster, changed
    if options.max_channels is None:
        for channels in (1, 2, 4, 8):
            name = f"only {channels} {'channels are' if channels > 1 else 'channel is'} used"
            yield CHANNELS, name, cluster, replace(options, max_channels=channels)
    for launch in LAUNCHES:
        if launch != options.launch:
            yield LAUNCH, f"the run was launched as {launch}", cluster, replace(options, launch=launch)


def _hardware(cluster: Cluster, options: CollectiveOptions) -> Iterator[_Variant]:
    """Yield variants of the same run on a degraded machine."""
    classes = {link.link_class for link in cluster.links}
    if SCALE_OUT in classes:
        per_node = nics_per_node(cluster)
        for missing in sorted({1, per_node // 2} - {0}):
            if missing < per_node:
                name = f"{per_node - missing} of {per_node} NICs of each node carry the traffic"
                yield NICS, name, _scaled(cluster, SCALE_OUT, (per_node - missing) / per_node), options
        yield NETWORK, "the network runs at a quarter of its rate", _scaled(cluster, SCALE_OUT, 0.25), options
        for part in TCP_PARTS:
            if (tcp := _by_tcp(cluster, part)) is not None:
                yield TCP, "nodes talk by TCP instead of RDMA", tcp, options
    if SCALE_UP in classes:
        yield LINKS, "half of the links between GPUs carry the traffic", _scaled(cluster, SCALE_UP, 0.5), options
        if HOST_LINK in classes:
            links = tuple(link for link in cluster.links if link.link_class != SCALE_UP)
            yield PCIE, "GPUs talk over PCIe instead of NVLink or XGMI", replace(cluster, links=links), options


def late(delay_ps: int, usual_ps: Sequence[int]) -> Hypothesis:
    """Return the hypothesis that each call starts ``delay_ps`` late."""
    name, times = f"each call starts {delay_ps / 1e6:.3g} us late", tuple(time + delay_ps for time in usual_ps)
    return Hypothesis(kind=LATE, name=name, advice=_ADVICE[LATE], times_ps=times, fitted=True)


def at_share(share: float, usual_ps: Sequence[int]) -> Hypothesis:
    """Return the hypothesis that every size runs at a share of the predicted speed."""
    name, times = f"everything runs at {share:.0%} of the predicted speed", (round(t / share) for t in usual_ps)
    return Hypothesis(kind=SHARE, name=name, advice=_ADVICE[SHARE], times_ps=tuple(times), fitted=True)


def nics_per_node(cluster: Cluster) -> int:
    """Return the largest number of NICs of any node; 1 if the cluster has no NIC devices."""
    return max(Counter(device.node for device in cluster.devices if device.kind == NIC).values(), default=1)


def _changed(cluster: Cluster, link_class: str, change: Callable[[Link], Link]) -> Cluster:
    links = tuple(change(link) if link.link_class == link_class else link for link in cluster.links)
    return replace(cluster, links=links)


def _scaled(cluster: Cluster, link_class: str, factor: float) -> Cluster:
    def scaled(link: Link) -> Link:
        return replace(link, bytes_per_s=max(1, round(link.bytes_per_s * factor)))

    return _changed(cluster, link_class, scaled)


def _by_tcp(cluster: Cluster, part: float) -> Cluster | None:
    """Return the cluster with scale-out links capped at ``part`` of 100 Gb/s Ethernet; None if they are Ethernet."""
    ethernet = link_named("ethernet-100")
    if all((link.medium or "").startswith("ethernet") for link in cluster.links if link.link_class == SCALE_OUT):
        return None

    def capped(link: Link) -> Link:
        rate, latency = round(part * ethernet.bytes_per_s), max(link.latency_ps, ethernet.latency_ps)
        return replace(link, bytes_per_s=min(link.bytes_per_s, rate), latency_ps=latency, medium="ethernet-100")

    return _changed(cluster, SCALE_OUT, capped)
