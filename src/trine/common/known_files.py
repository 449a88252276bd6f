"""Files of other programs: the marks by which each is known, and what to give or run instead.

The marks are words of the programs' own outputs. NVSHMEM's are in github.com/NVIDIA/nvshmem/issues/39; those of the
MPI benchmarks in the OSU and Intel manuals; those of perftest in github.com/linux-rdma/perftest.
"""

from __future__ import annotations

from typing import NamedTuple

#: Kinds of input. A reader skips the rows of its own kind. TABLE: tables of measured messages or copies, whose lines
#: may look like those of nccl-tests.
CLUSTER, TRACE, CHAKRA, MODEL, LOG, TABLE, OTHER = "cluster", "trace", "chakra", "model", "log", "table", "other"


class KnownFile(NamedTuple):
    """A program's files: ``patterns`` must all be found. ``remedy``: what to give or run instead; empty: see NEEDS."""

    kind: str
    patterns: tuple[str, ...]
    program: str
    remedy: str = ""


#: What a reader of each kind takes instead of a file that no command of trine reads.
NEEDS = {
    CLUSTER: "give `nvidia-smi topo -m`",
    LOG: "trine check reads nccl-tests and rccl-tests",
    TRACE: "give a trace of PyTorch's profiler (trine help capture)",
    CHAKRA: "give Chakra traces (trine help chakra)",
}
#: Start of a line before its first word. Patterns take time linear in the file: a start at which a repeated part may
#: begin at each character, or cross lines, took 13 s for 100 kB of brackets.
_START = r"^[^\w\n]{0,60}"
#: Size, count, type and operation of a row of nccl-tests, behind the label of any launcher.
_NCCL_ROW = (
    r"(?<![\w.+-])\d{1,20}[ \t|,]{1,40}\d{1,20}[ \t|,]{1,40}(?:float|half|bfloat16|"
    r"u?int8|u?int32|u?int64|double|f8e\dm\d)[ \t|,]{1,40}(?:none|sum|prod|min|max|avg|\d{1,9}\.\d{1,9}|-1)[ \t|,]"
)
_TABLES = (
    (r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|^P2P Connectivity Matrix|P2P=\w+ \w*\s*Bandwidth",
     "output of CUDA's p2pBandwidthLatencyTest, which measures pairs of GPUs and shows no links"),
    (r"^nvbandwidth Version|^Running (?:host|device)_\w+_memcpy_|^[ \t{]*\"nvbandwidth\"\s*:",
     "output of nvbandwidth, which measures copies and shows no links"),
    (_START + r"(?:RDMA_Write|RDMA_Read|Send|RDMA_Atomic) (?:BW|Latency|Bidirectional BW) Test|"
     r"#bytes[ \t]{1,40}#iterations[ \t]{1,40}(?:BW peak|t_min|t_avg)",
     "output of perftest (ib_write_bw and others), which measures one connection"),
    (_START + r"size ?\(B(?:ytes)?\)[^\n,;|]{0,200}\b(?:latency|min_lat|BW GB)|\bNVSHMEM v?\d|"
     + _START + r"(?:\w{1,40}_on_stream|n?v?shmem_\w{1,40})\s{0,9}$",
     "a table of NVSHMEM's perftest"),
    (r"\bOSU (?:MPI|NCCL|xCCL|RCCL|OpenSHMEM)|"
     r"^# Size[ \t]{1,40}(?:Avg |Min |Max )?(?:Latency|Bandwidth) ?\((?:us|MB/s)\)",
     "a table of the OSU micro-benchmarks"),
    (r"#(?:elem_count|bytes)\s[^\n]{0,200}t_avg\[usec\][^\n]{0,200}(?:stddev|bw)|\boneCCL\b[^\n]{0,80}benchmark|"
     + _START + r"collectives:\s[^\n]{0,80}\n[^\n]{0,80}\bbackend\b",
     "a table of oneCCL's benchmark"),
    (r"#bytes[ \t]{1,40}#repetitions[ \t]{1,40}t(?:_min)?\[usec\]|Intel\(R\) MPI Benchmarks",
     "a table of the Intel MPI Benchmarks"),
    (r"data_size\(Bytes\)[^\n]{0,200}alg_bandwidth", "a table of HCCL's test (Ascend)"),
    (r"\bnccom-test\b|\btime:avg\(us\)|\bcount\(elems\)", "a table of nccom-test (AWS Neuron)"),
    (r"\bMSCCL\+\+[^\n]{0,80}(?i:test|perf|bench)|\bMscclpp[^\n]{0,40}(?i:perf|bench)|"
     r"^#? ?(?:Initializing|Setting up the connection in) MSCCL\+\+|\"ranksPerNode\"[^\n]{0,80}\"algBw\"",
     "a table of MSCCL++'s own tests"),
    (_START + r"Collective:\s|\bucc_perftest\b", "a table of ucc_perftest"),
    (r"\bCOMMS-RES", "a table of PARAM's communication benchmark"),
    (r"---- Performance of [^\n]{0,80} on \d{1,9} devices", "a table of DeepSpeed's communication benchmark"),
    (r"\bComm\. Op[ \t]{1,40}Message Size|\bcomm op: [^\n]{0,80}\| time \(ms\)",
     "a log of DeepSpeed's communication logger, which times the collectives of a job"),
    (r"\bTRT-LLM AllReduce Benchmark", "a table of TensorRT-LLM's all-reduce benchmark"),
)  # fmt: skip
_TOPOLOGY_OF_AMD = "give RCCL's topology (NCCL_TOPO_DUMP_FILE=topo.xml)"
KNOWN_FILES = (
    *(KnownFile(TABLE, (pattern,), program) for pattern, program in _TABLES),
    KnownFile(TABLE, (r"^TransferBench v|^RocmBandwidthTest Version|\[TransferBench",),
              "output of AMD's bandwidth test, which shows no links", _TOPOLOGY_OF_AMD),
    KnownFile(OTHER, (r"^\| NVIDIA-SMI \d|^=+NVSMI LOG=+|^<nvidia_smi_log>",),
              "output of nvidia-smi without its matrix"),
    KnownFile(OTHER, (r"^GPU \d+: [^\n]*\(UUID: ", r"^[ \t]+Link \d+: "),
              "output of `nvidia-smi nvlink`, without the far ends"),
    KnownFile(OTHER, (r"(?i:ROCm System Management|between two GPUs|\(Topology\) Numa|LINK TYPE TABLE|ACCESS TABLE:)|"
                      r'"link_type"\s*:\s*"(?:XGMI|PCIE|SELF)"',),
              "a topology of rocm-smi or amd-smi, which trine does not read", _TOPOLOGY_OF_AMD),
    KnownFile(LOG, (r"\bnThread \d{1,9} nGpus \d|\bout-of-place[ \t]{1,80}in-place\b|\brccl-tests: Version|" + _NCCL_ROW
                    + r'|\bsize\W{1,40}count\W{1,40}type\W{1,40}(?:redop|root|time)\b|"out_of_place"[ \t]*:|'
                    + _START + r"#\s{1,40}out-of-place\b",),
              "a log of nccl-tests or rccl-tests", "trine check FILE --cluster NAME"),
    KnownFile(OTHER, (r"\b\w+:\d+:\d+ \[\d+\] NCCL (?:INFO|WARN)",), "a debug log of NCCL",
              "give its topology (NCCL_TOPO_DUMP_FILE=topo.xml); 'trine check FILE' reads logs of nccl-tests"),
    KnownFile(OTHER, (r'"(?:all-reduce|all-gather|reduce-scatter)-implementation(?:-custom)?"|'
                      r'"preferred-dataset-splits"',),
              "ASTRA-sim's system file, which describes no network", "give its network file (topology, npus_count)"),
    KnownFile(OTHER, (r'"topologies-per-dim"\s*:',), "a network file of ASTRA-sim 1, which trine does not read",
              "write topology, npus_count, bandwidth and latency, as ASTRA-sim 2 takes them"),
    KnownFile(OTHER, (r'^[ \t]*\{\s*"logical-dims"',), "ASTRA-sim's logical topology for ns-3, without bandwidths",
              "give its physical topology file, or --topology torus:AxB --bandwidth B --latency L"),
    KnownFile(OTHER, (r"^Nodes \d+\s*\nTiers \d+",), "a topology file of htsim, which trine does not read",
              "write a cluster file (trine help your-cluster)"),
    KnownFile(OTHER, (r'"memory-type"\s*:\s*"\w*MEMORY',), "ASTRA-sim's memory file, which describes no network",
              "give its network file (topology, npus_count)"),
    KnownFile(OTHER, (r'\A\s*\{', r'"collective"\s*:', r'"gpus"\s*:', r'"(?:threadblocks|input_?[cC]hunks)"\s*:'),
              "a plan of MSCCL++", "trine collective OPERATION --algorithm FILE --cluster NAME"),
    KnownFile(OTHER, (r"\A\s*(?:<\?xml[^>]*>\s*)?<algo[ >]",),
              "a plan of MSCCL", "trine collective OPERATION --algorithm FILE --cluster NAME"),
    KnownFile(OTHER, (r"\A\s*(?:<\?xml[^>]*>\s*)?<graphs[ >]",), "a dump of NCCL's channels, without links",
              "give its topology (NCCL_TOPO_DUMP_FILE=topo.xml)"),
    KnownFile(OTHER, (r"^Running version:[^\n]{0,40}IBDIAGNET|^-I- (?:Discovering|Fabric Discover)",),
              "a report of ibdiagnet, which trine does not read", "write a cluster file (trine help your-cluster)"),
    KnownFile(OTHER, (r"^(?:switchguid|caguid)=0x", r"^(?:Switch|Ca)[ \t]+\d"),
              "a fabric listed by ibnetdiscover, which trine does not read",
              "write a cluster file (trine help your-cluster), or --fabric clos with its oversubscription"),
    KnownFile(OTHER, (r"^SwitchName=\S+[ \t][^\n]*(?:Nodes|Switches)=",),
              "Slurm's topology.conf, which names no link speeds",
              "write a cluster file (trine help your-cluster), or --fabric clos with its oversubscription"),
    KnownFile(OTHER, (r"\A\d{1,9} \d{1,9} \d{1,9} ", r"^\d{1,9} \d{1,9} \d{1,9}(?:\.\d{1,9})?[GM]bps "),
              "a topology file of ns-3 (ASTRA-sim, SimAI), which trine does not read",
              "write a cluster file (trine help your-cluster)"),
    KnownFile(OTHER, (r"\ASQLite format 3\x00",),
              "a SQLite database, as Nsight Systems and rocprofv3 write", NEEDS[TRACE]),
    KnownFile(OTHER, (r"\APK\x03\x04",), "a ZIP archive", "unpack it, and give the file inside"),
    KnownFile(OTHER, (r'"data_offsets"\s*:\s*\[|"weight_map"\s*:',), "a model's weights (safetensors)",
              "give the config.json beside them"),
    KnownFile(CLUSTER, (r"^[ \t>]*(?:Collecting environment information|PyTorch version *:|"
                        r"GPU models and configuration)",),
              "an environment dump of PyTorch", "'trine cluster import FILE' names its GPUs and reads vLLM's topology"),
    KnownFile(CLUSTER, (r'^[ \t{]*"?topology"?[ \t]*:(?:[ \t]*\[|[ \t]*$)', r'^[ \t]*"?npus_count"?[ \t]*:'),
              "ASTRA-sim's network file", "trine cluster import FILE, or --cluster FILE"),
    KnownFile(OTHER, (_START + r"GPU0[ \t]+X[ \t]+(?:OK|CNS|GNS|TNS|NS|DR|U)\s",),
              "the matrix of `nvidia-smi topo -p2p`, which shows no links"),
    KnownFile(CLUSTER, (_START + r"GPU0[ \t]+X\s",), "the matrix of `nvidia-smi topo -m`",
              "trine cluster import FILE --gpu MODEL"),
    KnownFile(CLUSTER, (r"\A\s*(?:<\?xml[^>]*>\s*)?(?:<!DOCTYPE topology[^>]*>\s*)?<(?:system|topology)[ >]",),
              "a topology of NCCL or lstopo", "trine cluster import FILE"),
    KnownFile(CLUSTER, (r"\A\s*(?:<\?xml[^>]*>\s*)?<graphml[ >]",), "a graph in GraphML", "trine cluster import FILE"),
    KnownFile(CLUSTER, (r'^[ \t{]*"?(?:infrastructure|instances|components|inventory)"?[ \t]*:',
                        r'"?(?:infrastructure|device_edges|edges|ep1)"?[ \t]*:'),
              "an InfraGraph", "trine cluster import FILE, or --cluster FILE"),
    KnownFile(CLUSTER, (r"^(?:devices|base)[ \t]*:", r"^(?:base|links|name|notes|library|topology|fabric)[ \t]*:"),
              "a cluster file of trine", "give it as --cluster FILE"),
    KnownFile(CHAKRA, (r'"workload_graph"\s*:',), "a Chakra trace in JSON", "trine chakra inspect FILE"),
    KnownFile(CHAKRA, (r"\A.{1,3}\n\x05\d\.\d\.\d",), "a Chakra trace", "trine chakra inspect FILE"),
    KnownFile(TRACE, (r'"traceEvents"\s*:',), "a profiler trace of PyTorch", "trine trace inspect FILE"),
    KnownFile(TRACE, (r'"schema"\s*:\s*"[\d.]+-chakra', r'"nodes"\s*:'), "an execution trace of PyTorch",
              "trine trace inspect FILE, with the profiler trace beside it"),
    KnownFile(MODEL, (r'"(?:model_type|architectures)"\s*:', r'"(?:hidden_size|num_hidden_layers|n_layer|n_embd|'
                      r'd_model|num_layers|text_config|num_attention_heads|hidden_sizes|depths)"\s*:'),
              "a Hugging Face config.json", "trine train FILE, or model:FILE for options such as model:FILE,layers=4"),
)  # fmt: skip
