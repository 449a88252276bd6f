"""Possible problems of a machine or a run, each as a prediction to compare with a measurement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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
    SHARE: "look for another job on the machine, a throttled clock, and a cluster description that is too good",
}
KINDS = tuple(_ADVICE)
#: Kinds that change bandwidth alone: they cannot explain slow calls of a few bytes.
BANDWIDTH_KINDS = (NICS, NETWORK, LINKS, CHANNELS)

#: Fractions of the catalogue's 100 Gb/s Ethernet (8 GB/s) achieved by sockets, depending on the copying CPU cores.
#: Measured on a 100 Gb/s TCP network: 1.1 to 6 GB/s, by number of sockets (github.com/NVIDIA/nccl/issues/450).
TCP_PARTS = (1.0, 0.5, 0.25, 0.125)


#: Rates of a slow NIC or link: fewer lanes, an older generation, or many errors.
SLOW_PARTS = (0.5, 0.25, 0.125)
_PART_NAMES = {0.5: "half", 0.25: "a quarter", 0.125: "an eighth"}
_HALF_PCIE = "PCIe between GPUs runs at half of its rate"
#: An algorithm is a separate variant of a fault if it changes the time of a size by more than this.
_DIFFERS = math.log(1.03)
#: Prior weight of all other algorithms together, relative to the predicted one.
_PAIRED = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """A cause and its predicted times in picoseconds, one for each examined size.

    ``kind``: one of :data:`KINDS`. ``name``: the cause, with the algorithm if the library chose another than trine
    predicts. ``group``: the cause alone; hypotheses of one group are variants of it, and ``weight`` is their relative
    prior probability. ``fitted``: one of its parameters comes from the measurement itself.
    """

    kind: str
    name: str
    advice: str
    times_ps: tuple[int, ...]
    group: str
    weight: float = 1.0
    fitted: bool = False


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Expected times of a machine for some sizes (bytes, ascending), usually and with each cause.

    ``causes`` of the same group are variants of one cause with an unknown parameter or algorithm.
    """

    sizes: tuple[int, ...]
    usual: tuple[CollectiveTime, ...]
    causes: tuple[Hypothesis, ...]

    def at(self, places: Sequence[int]) -> Expected:
        """Return the expectation for some of the sizes, by their positions."""
        sizes = tuple(self.sizes[i] for i in places)
        usual = tuple(self.usual[i] for i in places)
        causes = []
        for each in self.causes:
            causes.append(replace(each, times_ps=tuple(each.times_ps[i] for i in places)))
        return Expected(sizes=sizes, usual=usual, causes=tuple(causes))


def expect(op: str, sizes: Sequence[int], cluster: Cluster, options: CollectiveOptions) -> Expected:
    """Predict a collective on a healthy machine, and with every cause possible on this cluster, in a fixed order.

    Raises InputError: as :meth:`trine.collectives.nccl.Collectives.predict`.
    """
    library = Collectives(cluster, None, options)
    usual = tuple(library.predict(op, size) for size in sizes)
    causes = []
    for kind, name, machine, changed, _ in _software(op, cluster, options):
        times = _times(op, sizes, machine, changed)
        if times is not None:
            causes.append(Hypothesis(kind=kind, name=name, advice=_ADVICE[kind], times_ps=times, group=name))
    for variant in _hardware(cluster, options):
        causes += _with_each_algorithm(op, sizes, variant, usual)
    return Expected(sizes=tuple(sizes), usual=usual, causes=tuple(causes))


def _with_each_algorithm(
    op: str, sizes: Sequence[int], fault: _Variant, usual: Sequence[CollectiveTime]
) -> Iterator[Hypothesis]:
    """Yield a fault of the machine with the algorithm that trine predicts there, and paired with each other one.

    A library that does not see the fault keeps its algorithm, and one that sees it may choose another than trine does.
    No fault makes a size faster than on the sound machine.
    """
    kind, name, machine, options, group = fault
    predicted = _times(op, sizes, machine, options)
    if predicted is None:
        return
    curves = {name: predicted}
    if options.algorithm == AUTO:
        for algorithm in dict.fromkeys(each for each, _ in Collectives(machine, None, options).candidates(op)):
            times = _times(op, sizes, machine, replace(options, algorithm=algorithm))
            if times is not None and any(
                abs(math.log(a / b)) > _DIFFERS for a, b in zip(times, predicted, strict=True)
            ):
                curves[f"{name}, with {algorithm}"] = times
    for label, times in curves.items():
        slowed = tuple(max(time, sound.time_ps) for time, sound in zip(times, usual, strict=True))
        weight = 1.0 if label == name else _PAIRED / (len(curves) - 1)
        yield Hypothesis(
            kind=kind, name=label, advice=_ADVICE[kind], times_ps=slowed, group=group or name, weight=weight
        )


def _times(op: str, sizes: Sequence[int], cluster: Cluster, options: CollectiveOptions) -> tuple[int, ...] | None:
    """Return predicted times, or None if the library lacks the option or the GPUs are disconnected."""
    try:
        library = Collectives(cluster, None, options)
        return tuple(library.predict(op, size).time_ps for size in sizes)
    except TrineError:
        return None


class _Variant(NamedTuple):
    """The machine and options of a run with a cause. ``group``: see :class:`Hypothesis`; empty: the name."""

    kind: str
    name: str
    cluster: Cluster
    options: CollectiveOptions
    group: str = ""


def _software(op: str, cluster: Cluster, options: CollectiveOptions) -> Iterator[_Variant]:
    """Yield variants with other library settings on the same machine."""
    if options.nvls is not False:
        yield _Variant(NVLS, "in-network reduction (NVLS) is not used", cluster, replace(options, nvls=False))
    if options.algorithm == AUTO and options.protocol == AUTO:
        for algorithm, protocol in Collectives(cluster, None, options).candidates(op):
            changed = replace(options, algorithm=algorithm, protocol=protocol)
            yield _Variant(ALGORITHM, f"the library uses {algorithm} with protocol {protocol}", cluster, changed)
    if options.max_channels is None:
        for channels in (1, 2, 4, 8):
            name = f"only {channels} {'channels are' if channels > 1 else 'channel is'} used"
            yield _Variant(CHANNELS, name, cluster, replace(options, max_channels=channels))
    for launch in LAUNCHES:
        if launch != options.launch:
            yield _Variant(LAUNCH, f"the run was launched as {launch}", cluster, replace(options, launch=launch))


def _hardware(cluster: Cluster, options: CollectiveOptions) -> Iterator[_Variant]:
    """Yield variants of the same run on a degraded machine."""
    classes = {link.link_class for link in cluster.links}
    if SCALE_OUT in classes:
        per_node = nics_per_node(cluster)
        for missing in sorted({1, per_node // 2} - {0}):
            if missing < per_node:
                name = f"{per_node - missing} of {per_node} NICs of each node carry the traffic"
                fewer = _scaled(cluster, SCALE_OUT, (per_node - missing) / per_node)
                yield _Variant(NICS, name, fewer, options, "some NICs are idle")
        for part in SLOW_PARTS:
            if (slow := _one_slow(cluster, SCALE_OUT, part)) is not None:
                name = f"one NIC runs at {_PART_NAMES[part]} of its rate"
                yield _Variant(NICS, name, slow, options, "one NIC is slow")
        yield _Variant(NETWORK, "the network runs at a quarter of its rate", _scaled(cluster, SCALE_OUT, 0.25), options)
        for part in TCP_PARTS:
            if (tcp := _by_tcp(cluster, part)) is not None:
                yield _Variant(TCP, "nodes talk by TCP instead of RDMA", tcp, options)
    inside = SCALE_UP if SCALE_UP in classes else HOST_LINK
    if inside in classes:
        name = "half of the links between GPUs carry the traffic" if inside == SCALE_UP else _HALF_PCIE
        yield _Variant(LINKS, name, _scaled(cluster, inside, 0.5), options)
        for part in SLOW_PARTS:
            name = f"one link between GPUs runs at {_PART_NAMES[part]} of its rate"
            if (slow := _one_slow(cluster, inside, part)) is not None:
                yield _Variant(LINKS, name, slow, options, "one link between GPUs is slow")
    if SCALE_UP in classes and HOST_LINK in classes:
        links = tuple(link for link in cluster.links if link.link_class != SCALE_UP)
        slower = replace(cluster, links=links)
        yield _Variant(PCIE, "GPUs talk over PCIe instead of NVLink or XGMI", slower, options)


def late(delay_ps: int, usual_ps: Sequence[int]) -> Hypothesis:
    """Return the hypothesis that each call starts ``delay_ps`` late."""
    delay = f"{delay_ps / 1e6:.3g} us" if delay_ps < 1e9 else f"{delay_ps / 1e9:.3g} ms"
    name, times = f"each call starts {delay} late", tuple(time + delay_ps for time in usual_ps)
    return Hypothesis(kind=LATE, name=name, advice=_ADVICE[LATE], times_ps=times, group="late", fitted=True)


def at_share(share: float, usual_ps: Sequence[int]) -> Hypothesis:
    """Return the hypothesis that every size runs at a share of the predicted speed."""
    name, times = f"everything runs at {share:.0%} of the predicted speed", (round(t / share) for t in usual_ps)
    return Hypothesis(kind=SHARE, name=name, advice=_ADVICE[SHARE], times_ps=tuple(times), group="share", fitted=True)


def nics_per_node(cluster: Cluster) -> int:
    """Return the largest number of NICs of any node; 1 if the cluster has no NIC devices."""
    return max(Counter(device.node for device in cluster.devices if device.kind == NIC).values(), default=1)


def _changed(cluster: Cluster, link_class: str, change: Callable[[Link], Link]) -> Cluster:
    links_now = []
    for link in cluster.links:
        links_now.append(change(link) if link.link_class == link_class else link)
    links = tuple(links_now)
    return replace(cluster, links=links)


def _scaled(cluster: Cluster, link_class: str, factor: float) -> Cluster:
    def scaled(link: Link) -> Link:
        return replace(link, bytes_per_s=max(1, round(link.bytes_per_s * factor)))

    return _changed(cluster, link_class, scaled)


def _one_slow(cluster: Cluster, link_class: str, factor: float) -> Cluster | None:
    """Return the cluster with one slow connection of a class, both ways; None without such links."""
    first = next((link for link in cluster.links if link.link_class == link_class), None)
    if first is None:
        return None
    ends = {first.source, first.target}

    def slowed(link: Link) -> Link:
        is_same = link.link_class == link_class and {link.source, link.target} == ends
        return replace(link, bytes_per_s=max(1, round(link.bytes_per_s * factor))) if is_same else link

    return replace(cluster, links=tuple(map(slowed, cluster.links)), cut_from=None, degraded_from=())


def _by_tcp(cluster: Cluster, part: float) -> Cluster | None:
    """Return the cluster with scale-out links capped at ``part`` of 100 Gb/s Ethernet; None if they are Ethernet."""
    ethernet = link_named("ethernet-100")
    if all((link.medium or "").startswith("ethernet") for link in cluster.links if link.link_class == SCALE_OUT):
        return None

    def capped(link: Link) -> Link:
        rate, latency = round(part * ethernet.bytes_per_s), max(link.latency_ps, ethernet.latency_ps)
        return replace(link, bytes_per_s=min(link.bytes_per_s, rate), latency_ps=latency, medium="ethernet-100")

    return _changed(cluster, SCALE_OUT, capped)
