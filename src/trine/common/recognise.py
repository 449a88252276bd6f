"""Recognise files of other programs from their content, so that errors name the writer and the right command.

A reader calls :func:`foreign_file` before it parses: a parser's complaint about the first odd character helps nobody
who gave the wrong file.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Kinds of input. A reader skips the rows of its own kind.
CLUSTER, TRACE, CHAKRA, MODEL, OTHER = "cluster", "trace", "chakra", "model", "other"
#: Characters of a file that are searched.
_MAX_CHARS = 1 << 18


class _Row(NamedTuple):
    """A program's files: ``patterns`` must all be found. ``remedy`` says what to give or run instead."""

    kind: str
    patterns: tuple[str, ...]
    program: str
    remedy: str


#: Start of a line before its first word. Patterns take time linear in the file: a start at which a repeated part may
#: begin at each character, or cross lines, took 13 s for 100 kB of brackets.
_START = r"^[^\w\n]{0,60}"
_TOPO = "give `nvidia-smi topo -m`"
_ROWS = (
    _Row(OTHER, (r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|^P2P Connectivity Matrix|P2P=\w+ \w*\s*Bandwidth",),
         "output of CUDA's p2pBandwidthLatencyTest, which measures pairs of GPUs and shows no links", _TOPO),
    _Row(OTHER, (r"^nvbandwidth Version|^Running (?:host|device)_\w+_memcpy_",),
         "output of nvbandwidth, which measures copies and shows no links", _TOPO),
    _Row(OTHER, (r"^TransferBench v|^RocmBandwidthTest Version|\[TransferBench",),
         "output of AMD's bandwidth test, which shows no links", "give RCCL's topology (NCCL_TOPO_DUMP_FILE=topo.xml)"),
    _Row(OTHER, (_START + r"(?:RDMA_Write|RDMA_Read|Send) (?:BW|Latency|Bidirectional BW) Test",),
         "output of perftest (ib_write_bw and others), which measures one connection", _TOPO),
    _Row(OTHER, (r"^\| NVIDIA-SMI \d|^=+NVSMI LOG=+",), "output of nvidia-smi without its matrix", _TOPO),
    _Row(OTHER, (r"^GPU \d+: [^\n]*\(UUID: ", r"^[ \t]+Link \d+: "),
         "output of `nvidia-smi nvlink`, without the far ends", _TOPO),
    _Row(OTHER, (r"\b\w+:\d+:\d+ \[\d+\] NCCL (?:INFO|WARN)",), "a debug log of NCCL",
         "give its topology (NCCL_TOPO_DUMP_FILE=topo.xml); 'trine check FILE' reads logs of nccl-tests"),
    _Row(OTHER, (_START + r"#\s+(?:nThread \d+|out-of-place\b)|rccl-tests: Version|"
                 + _START + r"(?:\S{1,200}: )?\d{1,20}\s+\d+\s+(?:float|half|bfloat16|u?int8|double)"
                 r"\s+(?:none|sum|\d+\.\d+|-1)\s",),
         "a log of nccl-tests or rccl-tests", "trine check FILE --cluster NAME"),
    _Row(OTHER, (r'"(?:all-reduce|all-gather|reduce-scatter)-implementation(?:-custom)?"|"preferred-dataset-splits"',),
         "ASTRA-sim's system file, which describes no network", "give its network file (topology, npus_count)"),
    _Row(OTHER, (r'"topologies-per-dim"\s*:',), "a network file of ASTRA-sim 1, which trine does not read",
         "write topology, npus_count, bandwidth and latency, as ASTRA-sim 2 takes them"),
    _Row(OTHER, (r'^[ \t]*\{\s*"logical-dims"',), "ASTRA-sim's logical topology for ns-3, without bandwidths",
         "give its physical topology file, or --topology torus:AxB --bandwidth B --latency L"),
    _Row(OTHER, (r"^Nodes \d+\s*\nTiers \d+",), "a topology file of htsim, which trine does not read",
         "write a cluster file (trine help your-cluster)"),
    _Row(OTHER, (r'"memory-type"\s*:\s*"\w*MEMORY',), "ASTRA-sim's memory file, which describes no network",
         "give its network file (topology, npus_count)"),
    _Row(CLUSTER, (r"^[ \t>]*(?:Collecting environment information|PyTorch version *:|GPU models and configuration)",),
         "an environment dump of PyTorch", "'trine cluster import FILE' names its GPUs and reads vLLM's topology"),
    _Row(CLUSTER, (r"^[ \t]*topology\s*:\s*\[", r"^[ \t]*npus_count\s*:"), "ASTRA-sim's network file",
         "trine cluster import FILE, or --cluster FILE"),
    _Row(CLUSTER, (_START + r"GPU0\s+X\s",), "the matrix of `nvidia-smi topo -m`",
         "trine cluster import FILE --gpu MODEL"),
    _Row(CLUSTER, (r"\A\s*(?:<\?xml[^>]*>\s*)?(?:<!DOCTYPE topology[^>]*>\s*)?<(?:system|topology)[ >]",),
         "a topology of NCCL or lstopo", "trine cluster import FILE"),
    _Row(CHAKRA, (r'"workload_graph"\s*:',), "a Chakra trace in JSON", "trine chakra inspect FILE"),
    _Row(TRACE, (r'"traceEvents"\s*:',), "a profiler trace of PyTorch", "trine trace inspect FILE"),
    _Row(TRACE, (r'"schema"\s*:\s*"[\d.]+-chakra', r'"nodes"\s*:'), "an execution trace of PyTorch",
         "trine trace inspect FILE, with the profiler trace beside it"),
    _Row(MODEL, (r'"(?:model_type|architectures)"\s*:', r'"(?:hidden_size|num_hidden_layers|n_layer|n_embd|d_model|'
                 r'num_layers|text_config|num_attention_heads|hidden_sizes|depths)"\s*:'),
         "a Hugging Face config.json", "trine train FILE, or model:FILE for options such as model:FILE,layers=4"),
)  # fmt: skip
_COMPILED = [(row, [re.compile(pattern, re.MULTILINE) for pattern in row.patterns]) for row in _ROWS]


def foreign_file(text: str, kind: str) -> str | None:
    """Return what a text is and what to do with it, or None if no row fits or the row is of the reader's own kind.

    Example: ``is a profiler trace of PyTorch: trine trace inspect FILE``.
    """
    start = text[:_MAX_CHARS]
    for row, patterns in _COMPILED:
        if row.kind != kind and all(pattern.search(start) for pattern in patterns):
            return f"is {row.program}: {row.remedy}"
    return None
