"""Evidence in a log's own text: causes that it states or rules out, and machines that it cannot be from."""

from __future__ import annotations

import re

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_UP
from trine.cluster.presets import known_gpus
from trine.studies.hypotheses import LAUNCH, NETWORK, NICS, PCIE, TCP
from trine.studies.nccl_tests import NcclLog

#: GPU models in the names that drivers print, such as "NVIDIA H100 80GB HBM3".
_GPU_NAMES = re.compile(
    r"\b(?:GB200|GB300|GH200|GB10|[VAHBTPLK]\d{1,3}[SG]?|(?:RTX|GTX) ?(?:PRO )?A?\d{4}D?(?: Ti| SUPER)?"
    r"|MI\d{2,3}[XA]?)\b",
    re.IGNORECASE,
)
#: Models that exist as SXM module and as PCIe card.
_TWO_FORMS = ("P100", "V100", "A100", "A800", "H100", "H800", "H200")
_PCIE_CARD = re.compile(r"PCI-?E\b|\bNVL\b", re.IGNORECASE)


def stated_causes(log: NcclLog) -> dict[str, str]:
    """Return kinds of causes that the log states, with its words."""
    stated = {}
    if log.network is not None and log.network.lower() == "socket":
        stated[TCP] = "the log says 'Using network Socket'"
    elif log.network is None and _is_on(log, "IB_DISABLE"):
        stated[TCP] = "the log sets NCCL_IB_DISABLE=1"
    if _is_on(log, "P2P_DISABLE"):
        stated[PCIE] = "the log sets NCCL_P2P_DISABLE=1"
    return stated


def excluded_causes(log: NcclLog) -> frozenset[str]:
    """Return kinds of causes that the log rules out."""
    excluded = set()
    if log.launch is not None:
        excluded.add(LAUNCH)
    if log.num_hosts == 1:
        excluded |= {NICS, NETWORK, TCP}
    if log.network is not None and log.network.lower() != "socket":
        excluded.add(TCP)
    return frozenset(excluded)


def hints_of(log: NcclLog, cluster: Cluster) -> tuple[str, ...]:
    """Return settings of the log that slow a run down and that no cause covers."""
    hints = []
    if _is_on(log, "SHM_DISABLE"):
        hints.append("the log sets NCCL_SHM_DISABLE=1: GPUs of a host without P2P then talk over the network")
    if _is_on(log, "P2P_DISABLE") and all(link.link_class != SCALE_UP for link in cluster.links):
        hints.append("the log sets NCCL_P2P_DISABLE=1: GPUs then talk through the host's memory")
    return tuple(hints)


def mismatches(log: NcclLog, cluster: Cluster) -> tuple[str, ...]:
    """Return known differences between the log's machine and the cluster: GPU model, library, number of hosts."""
    known = [name for name in _strange_gpus(log, cluster) if any(_is(name, gpu) for gpu in known_gpus())]
    found = [_other_gpus(known, cluster)] if known else []
    if log.library is not None and cluster.library in ("nccl", "rccl") and log.library != cluster.library:
        found.append(f"the log is of {log.library.upper()}, the cluster's GPUs use {cluster.library.upper()}")
    nodes = {cluster.devices[i].node for i in cluster.gpus}
    if log.num_hosts is not None and None not in nodes and log.num_hosts != len(nodes):
        hosts = "1 host" if log.num_hosts == 1 else f"{log.num_hosts} hosts"
        have = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        found.append(f"the log is of {hosts} with {log.num_ranks} ranks, the cluster has {have}")
    return tuple(found)


def doubts(log: NcclLog, cluster: Cluster) -> tuple[str, ...]:
    """Return what may make the cluster another machine than the log's: hosts it does not list, unknown GPU models."""
    found = []
    nodes = {cluster.devices[i].node for i in cluster.gpus}
    if log.num_hosts is None and None not in nodes:
        place = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        found.append(f"the log does not list all hosts: {len(cluster.gpus)} ranks on {place} taken (--nodes)")
    strange = [name for name in _strange_gpus(log, cluster) if not any(_is(name, gpu) for gpu in known_gpus())]
    return (*found, *([_other_gpus(strange, cluster)] if strange else []))


def _strange_gpus(log: NcclLog, cluster: Cluster) -> list[str]:
    """Return the GPU names of a log that are none of the cluster's models."""
    models = _models_of(cluster)
    return [
        name for name in log.gpu_names if models and _GPU_NAMES.search(name) and not any(_is(name, m) for m in models)
    ]


def _models_of(cluster: Cluster) -> set[str]:
    return {gpu for i in cluster.gpus if (gpu := cluster.devices[i].gpu)}


def _other_gpus(names: list[str], cluster: Cluster) -> str:
    return f"the log names {', '.join(names)}, the cluster has {', '.join(sorted(_models_of(cluster)))}"


def _is_on(log: NcclLog, name: str) -> bool:
    return log.environment.get(name, "0") not in ("0", "")


def _is(name: str, gpu: str) -> bool:
    """Whether a driver's name can be a GPU model of trine's."""
    parts, match = gpu.upper().split("-"), _GPU_NAMES.search(name)
    model = re.sub(r"[ -]", "", match[0].upper()) if match else ""
    if not any("".join(parts[:end]) in (model, f"{model}X") for end in range(1, len(parts) + 1)):
        return False
    if "PCIE" in parts:
        return "SXM" not in name.upper()
    return not (model in _TWO_FORMS and _PCIE_CARD.search(name))
