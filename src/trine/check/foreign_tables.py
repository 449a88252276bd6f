"""Recognition of other programs whose tables resemble those of nccl-tests.

The marks are words of the tables' headers, as in published outputs (NVSHMEM's in github.com/NVIDIA/nvshmem/issues/39).
"""

from __future__ import annotations

import re

#: Pattern of a line that only one program prints, and the program's name. The first match decides.
_PROGRAMS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), name)
    for pattern, name in (
        (r"^\W*size ?\(B(?:ytes)?\).*\b(?:latency|min_lat)|^\W*(?:\w+_on_stream|n?v?shmem_\w+)\s*$|\bNVSHMEM v?\d",
         "NVSHMEM's perftest"),
        (r"\bOSU (?:MPI|NCCL|xCCL|RCCL|OpenSHMEM)", "the OSU micro-benchmarks"),
        (r"#bytes\s+#iterations\s+(?:BW peak|t_min|t_avg)|\b(?:RDMA_(?:Write|Read)|Send) .*(?:BW|Latency) Test",
         "perftest (ib_write_bw and others)"),
        (r"#(?:elem_count|bytes)\s.*t_avg\[usec\].*(?:stddev|bw)|\boneCCL\b.*benchmark|^\W*collectives:\s.*\n.*\bbackend\b",
         "oneCCL's benchmark"),
        (r"#bytes\s+#repetitions\s+t(?:_min)?\[usec\]|Intel\(R\) MPI Benchmarks", "the Intel MPI Benchmarks"),
        (r"data_size\(Bytes\).*alg_bandwidth", "HCCL's test (Ascend)"),
        (r"\bnccom-test\b", "nccom-test (AWS Neuron)"),
        (r"\bMSCCL\+\+", "MSCCL++'s own tests"),
        (r"^\W*Collective:\s|\bucc_perftest\b", "ucc_perftest"),
        (r"\bnvbandwidth Version", "nvbandwidth"),
        (r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test", "p2pBandwidthLatencyTest (CUDA samples)"),
        (r"\bTransferBench v", "TransferBench (AMD)"),
        (r"\bCOMMS-RES", "PARAM's communication benchmark"),
        (r"---- Performance of .* on \d+ devices", "DeepSpeed's communication benchmark"),
    )
)  # fmt: skip
#: Words of a table's header; a line with all of a group names columns of sizes and rates.
_HEADER_WORDS = re.compile(r"\b(?:algbw|busbw|alg_bw|bus_bw)\b", re.IGNORECASE)
_SIZE_WORDS = re.compile(r"\b(?:size|bytes)\b", re.IGNORECASE)


def program_named(text: str) -> str | None:
    """Return the program that wrote a text; None if none of the known ones left its mark."""
    return next((name for pattern, name in _PROGRAMS if pattern.search(text)), None)


def unknown_header(line: str) -> str | None:
    """Return the columns of a header of sizes and bandwidths; None if a line is no such header."""
    if not (_SIZE_WORDS.search(line) and _HEADER_WORDS.search(line)) or "{" in line or len(line.split()) < 4:
        return None
    return " ".join(line.strip("#|> \t").split())
