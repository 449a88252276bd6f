"""Small valid files of every format that trine reads, and the quickest command that reads each."""

from __future__ import annotations

import functools
import gzip
import io
import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from chakra_files import ALL_REDUCE, COMP, collective, encoded, node, receive, send
from eidolon_cases import TURN
from nccl_logs import log
from run_traces import dump, entry, two_ranks
from synthetic import MS, Chain

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data"
PRESETS = TESTS.parent / "src" / "trine" / "presets"


@dataclass(frozen=True)
class Sample:
    """Command that reads a file. kind: how to mutate ``files[target]``. argv: the command; other files stay whole.

    reads_alone: the command only reads the file; so all errors are in the file, and must name it.
    """

    name: str
    kind: str
    target: str
    files: Mapping[str, bytes]
    argv: tuple[str, ...]
    reads_alone: bool = True


CLUSTER = """name: two
fabric: {kind: switch, link: ib-ndr}
devices:
- {name: gpu, count: 2, gpu: h100-sxm, node: node0}
- {name: nvswitch, kind: switch, node: node0, reduces: true}
- {name: nic0, kind: nic, node: node0, rail: 0}
links:
- {from: gpu0..1, to: nvswitch, link: nvlink4, lanes: 18, duplex: true}
- {from: gpu0..1, to: nic0, bandwidth: 50 GB/s, latency: 1 us, duplex: true, class: host}
"""
MODELS = ("gpt-2", "mixtral-8x7b", "resnet18", "densenet121", "vgg13")
READING = (("cluster", "import"), ("trace", "inspect"), ("trace", "synthesize"), ("chakra", "inspect"),
           ("gpu", "show"), ("kernel", "show"), ("eidolon", "writes-from"), ("calibrate", "--serving"))  # fmt: skip
GRAPH = {
    "tasks": [
        {"id": "a", "kind": "compute", "rank": "gpu0", "stream": "main", "duration": "5 us"},
        {"id": "t", "kind": "transfer", "src": "gpu0", "dst": "gpu1", "bytes": "1 MiB", "after": ["a"]},
        {"id": "b", "kind": "compute", "rank": 1, "duration": 2e-6, "after": ["t"]},
        {"id": "end", "kind": "join", "need": 1, "after": ["b", "t"]},
    ]
}
CSV_CLUSTER = """source,target,bandwidth,latency,class,medium,duplex
gpu0,sw0,50 GB/s,1 us,scale-up,,true
gpu1,sw0,1 GB/s,1 ns,,,no
"""
WRITES = "peer,address,bytes,value,time_us\n1,data+0x40,8,0,5\n2,sem 1,8,1,7\n1,sem 2,8,1,9\n"
RECORDS = {
    "kind": ["compute", "transfer", "transfer"], "rank": [0, 1, 2], "peer": [-1, 0, 0], "start_ps": [0, 5, 9],
    "end_ps": [5, 9, 12], "size_bytes": [0, 64, 128],
}  # fmt: skip
PROGRAM = TURN + "  compute 40 cycles label 'a'\n  waitcnt 0\n  copy 1 KiB own:data -> rank+1:data + 0x40 unroll 2\n"
CALIBRATION = {
    "format": "trine-calibration", "version": 1, "gpu": None, "resolution_ps": 1000, "sources": ["a"],
    "points": [
        {"operator": "aten::mm", "kind": "linear", "batch": 8, "flops": 1000, "bytes": 10, "time_ps": 5000},
        {"operator": "aten::relu", "kind": "elementwise", "batch": 8, "flops": 0, "bytes": 10, "time_ps": 500},
    ],
}  # fmt: skip
MAPPING = """target: Agent 2
peers: {1: 0, 3: 2, 4: 3}
start_ns: 0
writes:
- {rows: copy, peer: 3, ignore: true}
- {rows: copy, name: "*", address: input, step: 8 KiB, bytes: 8 KiB}
- {rows: kernel, peer: 0, name: "n*", address: flags, bytes: 8 B, value: 1, at: start}
"""
GROUPS = {"1": [0, 1], "7": [0, 1]}
JOB = ("--gpus", "2", "--parallel", "ddp", "--topology", "ring", "--bandwidth", "65 GB/s", "--latency", "1 us")


@functools.cache
def samples() -> tuple[Sample, ...]:
    """Return all samples, made once."""
    found = (*_clusters(), *_traces(), *_chakra(), *_plans(), *_gpus(), *_eidolon(), *_lists(), *_runs(), *_served())
    found = (*found, *_recognised(), *_newer())
    return tuple(
        replace(each, reads_alone=each.argv[:2] in READING or each.argv[0] in ("run", "report")) for each in found
    )


def _clusters() -> list[Sample]:
    found = [
        _one("cluster", "yaml", "c.yaml", CLUSTER, "cluster", "import", "c.yaml"),
        _one("cluster shown", "yaml", "c.yaml", CLUSTER, "cluster", "show", "c.yaml", "--gpus", "4"),
        _one("edges", "csv", "c.csv", CSV_CLUSTER, "cluster", "import", "c.csv", "--links-from", "catalogue"),
    ]
    imports = {
        "infragraph/device_dgx1.yaml": "yaml", "infragraph/composed_dgx_a100_cx5_qsfp.json": "json",
        "infragraph/handwritten_2node_rail_bw_latency.yaml": "yaml", "topologies/h100-8.smi.txt": "words",
        "topologies/h100-2.nccl.xml": "xml", "topologies/v100-3.nccl.xml": "xml", "topologies/a100-2.lstopo.xml": "xml",
        "infragraph/expanded_single_tier_2x_dgx_h100.networkx.yaml": "yaml",
    }  # fmt: skip
    for path, kind in imports.items():
        name = Path(path).name
        options: tuple[str, ...] = ("--gpu", "h100-sxm", "--links-from", "catalogue")
        if "networkx" in name:
            bare = ("cpu_fabric", "pcie", "xpu_fabric", "switch-link", "ic")
            options = sum((("--link", f"{each}=50 GB/s, 1 us") for each in bare), ("--gpu", "h100-sxm"))
        found.append(_one(name, kind, name, (DATA / path).read_bytes(), "cluster", "import", name, *options))
    infragraph = (DATA / "infragraph/handwritten_2node_rail_bw_latency.yaml").read_bytes()
    notes = (DATA / "infragraph/annotation_ranks.yaml").read_bytes()
    argv = ("cluster", "import", "i.yaml", "--annotations", "a.yaml", "--links-from", "catalogue", "--gpu", "h100-sxm")
    found.append(Sample("annotations", "yaml", "a.yaml", {"i.yaml": infragraph, "a.yaml": notes}, argv))
    files = {"c.yaml": CLUSTER.encode(), "g.json": json.dumps(GRAPH).encode()}
    found.append(Sample("graph", "json", "g.json", files, ("run", "g.json", "--cluster", "c.yaml")))
    return found


def _traces() -> list[Sample]:
    from trine.workload.native import save

    with tempfile.TemporaryDirectory() as folder:
        save(Chain([5 * MS, 7 * MS], [9 * MS, 9 * MS], optimizer_ps=MS).workload(), Path(folder) / "n.trine.json")
        native = (Path(folder) / "n.trine.json").read_bytes()
    vgg = PRESETS / "traces" / "vgg13-h100-b128"
    triosim = {f"t/{name}": (vgg / name).read_bytes() for name in ("trace.csv", "tensor.csv")}
    pair = {f"p/cnn_{half}.json": gzip.decompress((DATA / f"torch213-cpu/cnn_{half}.json.gz").read_bytes())
            for half in ("et", "kineto")}  # fmt: skip
    return [
        _one("native", "json", "n.trine.json", native, "trace", "inspect", "n.trine.json"),
        _one("native.gz", "gzip", "n.trine.json.gz", gzip.compress(native), "trace", "inspect", "n.trine.json.gz"),
        _one("trained", "json", "n.trine.json", native, "train", "n.trine.json", *JOB),
        Sample("against", "json", "m.trine.json", {"n.trine.json": native, "m.trine.json": native},
               ("trace", "inspect", "n.trine.json", "--against", "m.trine.json")),
        Sample("triosim trace", "csv", "t/trace.csv", triosim, ("trace", "inspect", "t")),
        Sample("triosim tensors", "csv", "t/tensor.csv", triosim, ("trace", "inspect", "t")),
        Sample("kineto", "json", "p/cnn_kineto.json", pair, ("trace", "inspect", "p")),
        Sample("execution trace", "json", "p/cnn_et.json", pair, ("trace", "inspect", "p")),
        Sample("calibration", "json", "cal.json",
               {"cal.json": json.dumps(CALIBRATION).encode(), "n.trine.json": native},
               ("train", "n.trine.json", "--compute", "linear", "--batch", "4", "--calibration", "cal.json", *JOB)),
        Sample("placement", "words", "places", {"places": b"1 # one\n0\n", "n.trine.json": native},
               ("train", "n.trine.json", "--placement", "places", *JOB)),
        *(_one(name, "yaml", "m.yaml", (PRESETS / "models" / f"{name}.yaml").read_bytes(),
               "trace", "synthesize", "./m.yaml", "-o", "out.trine.json", "--batch", "1") for name in MODELS),
        _one("shares", "words", "shares", "0.25\n" * 4 + "0.125\n" * 4, "train", "model:mixtral-8x7b,layers=1",
             "--expert-imbalance", "shares", "--dp", "2", "--ep", "2", "--cluster", "dgx-h100"),
    ]  # fmt: skip


def _chakra() -> list[Sample]:
    ranks = [
        encoded([node(1, COMP, micros=300), collective(2, ALL_REDUCE, 2**20, [1], pg_name="7"), send(3, 1, 99, [2])]),
        encoded([node(1, COMP, micros=300), collective(2, ALL_REDUCE, 2**20, [1], pg_name="7"),
                 receive(3, 0, 99), node(4, COMP, [3], micros=5)]),
    ]  # fmt: skip
    files = {f"x.{rank}.et": data for rank, data in enumerate(ranks)} | {"groups.json": json.dumps(GROUPS).encode()}
    words = ("x", "--comm-groups", "groups.json")
    links = ("--topology", "ring", "--bandwidth", "65 GB/s", "--latency", "1 us")
    return [
        Sample("chakra", "chakra", "x.1.et", files, ("chakra", "inspect", *words)),
        Sample("chakra run", "chakra", "x.0.et", files, ("chakra", "run", *words, *links)),
        Sample("chakra groups", "json", "groups.json", files, ("chakra", "run", *words, *links)),
    ]


def _plans() -> list[Sample]:
    found = []
    for name, kind in {
        "v2_HEAD_allgather_2gpu.json": "json", "v2_HEAD_allreduce_packet_repo_testfile.json": "json",
        "v1_v0.6.0_allreduce_packet_2gpu_LL.json": "json", "v1_v0.6.0_sendrecv_proxy_2gpu.json": "json",
        "v1_v0.7.0_allreduce_ring_4gpu.json": "json", "allgather_ring_4_1_1.xml": "xml",
        "allreduce_a100_ring_4_1_1.xml": "xml",
    }.items():  # fmt: skip
        op = "all_gather" if "allgather" in name else "send_recv" if "sendrecv" in name else "all_reduce"
        gpus = "2" if "2gpu" in name or "repo" in name else "4"
        machine = ("--topology", "switch", "--bandwidth", "65 GB/s", "--latency", "1 us", "--gpus", gpus)
        data = (DATA / "mscclpp" / name).read_bytes()
        argv = ("collective", op, "--size", "64K", "--algorithm", f"./{name}", *machine)
        found.append(_one(name, kind, name, data, *argv))
    return found


def _gpus() -> list[Sample]:
    model = (PRESETS / "gpu_models" / "eidola.yaml").read_bytes()
    machine = ("--cluster", "eidola", "--gpus", "3")
    return [
        _one("gpu model", "yaml", "m.yaml", model, "gpu", "show", "./m.yaml"),
        _one("program", "words", "k.gpu", PROGRAM, "kernel", "show", "k.gpu"),
        _one("program run", "words", "k.gpu", PROGRAM, "kernel", "run", "k.gpu", *machine),
    ]


def _eidolon() -> list[Sample]:
    run = {"k.gpu": TURN.encode(), "w.csv": WRITES.encode()}
    argv = ("eidolon", "run", "k.gpu", "--peers", "2", "--writes")
    writes = {"writes": [{"peer": 1, "address": "sem 2", "bytes": 8, "value": 1, "time_ps": 5},
                         {"peer": 2, "address": "sem 1", "bytes": 8, "value": 1, "time_ps": 7}]}  # fmt: skip
    columns = {key: [write[key] for write in writes["writes"]] for key in writes["writes"][0]}
    columns["address"] = [str(each) for each in columns["address"]]
    made = ("-o", "out.csv")
    listed = (*made, "--buffer", "data")
    found = [
        Sample("writes csv", "csv", "w.csv", run, (*argv, "w.csv")),
        Sample("writes json", "json", "w.json", run | {"w.json": json.dumps(writes).encode()}, (*argv, "w.json")),
        Sample("writes columns", "json", "w.json", run | {"w.json": json.dumps({"writes": columns}).encode()},
               (*argv, "w.json")),
        Sample("writes parquet", "parquet", "w.parquet", run | {"w.parquet": parquet(columns)}, (*argv, "w.parquet")),
        _one("arrivals as writes", "npz", "a.npz", _arrivals(), "eidolon", "writes-from", "a.npz", *made),
        _one("records csv", "csv", "r.csv", _csv(RECORDS), "eidolon", "writes-from", "r.csv", *listed),
        _one("records parquet", "parquet", "r.parquet", parquet(RECORDS),
             "eidolon", "writes-from", "r.parquet", *listed),
        _one("records npz", "npz", "r.npz", npz(_record_arrays()), "eidolon", "writes-from", "r.npz", *listed),
    ]  # fmt: skip
    for name in ("rocprofv3_memory_copy_trace", "nsys_cuda_gpu_trace", "cupti_memcpy", "rocprofv3_kernel_trace"):
        data = (DATA / "profiles" / f"{name}.csv").read_bytes()
        files = {"p.csv": data, "m.yaml": MAPPING.encode()}
        words = ("eidolon", "writes-from", "p.csv", "--mapping", "m.yaml", *made)
        found.append(Sample(name, "csv", "p.csv", files, words))
        found.append(Sample(f"{name} mapping", "yaml", "m.yaml", files, words))
    return found


SHORT_LOG = "size,time_us,busbw\n1M,26.6,68.9\n64M,301.5,389.5\n1G,4190,448.4\n"


def _lists() -> list[Sample]:
    rows = [(2**power, 10 + 2**power / 4e4, 11 + 2**power / 4e4) for power in range(3, 28, 3)]
    matrix = "0,1K,2048,64\n1,0,8,8\n4K,4,0,1M\n1,2,3,0\n"
    machine = ("--topology", "switch", "--bandwidth", "65 GB/s", "--latency", "1 us", "--gpus", "4")
    return [
        _one("log", "words", "t.log", log(rows), "check", "t.log", "--cluster", "dgx-h100"),
        _one("old log", "words", "t.log", log(rows, "broadcast", old=True, named=False), "check", "t.log",
             "--op", "broadcast", "--cluster", "dgx-h100"),
        _one("short log", "csv", "s.csv", SHORT_LOG, "check", "s.csv", "--op", "all_reduce", "--cluster", "dgx-h100"),
        _one("matrix", "csv", "m.csv", matrix, "collective", "all_to_all_v", "--matrix", "m.csv", *machine),
    ]  # fmt: skip


def _runs() -> list[Sample]:
    """Folders of traces and dumps, one file per rank, and stored answers."""
    dumps = [dump([entry(1), entry(2, "completed" if rank == 2 else "scheduled")]) for rank in range(3)]
    found = []
    for name, contents in (("kineto folder", two_ranks()), ("flight recorder", dumps)):
        files = {f"f/rank{rank}.json": json.dumps(content).encode() for rank, content in enumerate(contents)}
        found.append(Sample(name, "json", "f/rank1.json", files, ("check", "f")))
    for path in sorted((DATA / "answers").glob("*.json")):
        argv = ("report", "a.json", "-o", "out.html")
        found.append(_one(f"answer {path.stem}", "json", "a.json", path.read_bytes(), *argv))
    return found


SERVED = """model,cluster,engine,tp,isl,osl,concurrency,tpot_ms,ttft_ms
llama-3-8b,dgx-h100,vllm,1,512,128,8,7.5,30
llama-3-8b,dgx-h100,vllm,1,512,128,1,6.9,11.5
"""
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512,
    "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 1024, "hidden_act": "silu",
    "tie_word_embeddings": False, "decoder_sparse_step": 1, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
QUANTIZATION = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head"]},
    "compressed": {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                   "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float",
                                                                                    "strategy": "channel"}}}},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
}  # fmt: skip


def _served() -> list[Sample]:
    """Measured points of a stack, and configurations with a quantization."""
    found = [
        _one("served rows", "csv", "served.csv", SERVED, "calibrate", "--serving", "served.csv", "-o", "stack.yaml")
    ]
    for name, quantization in QUANTIZATION.items():
        config = json.dumps(CONFIG | {"quantization_config": quantization})
        argv = ("infer", "./c.json", "--cluster", "dgx-h100", "--isl", "64", "--osl", "8", "--batch", "2")
        found.append(_one(f"config {name}", "json", "c.json", config, *argv))
    return found


ENVIRONMENT = """Collecting environment information...
PyTorch version: 2.7.0+cu126
GPU models and configuration:
GPU 0: NVIDIA H200
GPU 1: NVIDIA H200

GPU Topology:
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-47\t0
GPU1\tNV18\t X \tNODE\t0-47\t0
NIC0\tPIX\tNODE\t X \t\t
"""


def _recognised() -> list[Sample]:
    """Texts with marks of other programs, which a damaged file may lose or gain."""
    result = {"time": 30.0, "alg_bw": 34.95, "bus_bw": 61.17, "nwrong": 0}
    rows = []
    for power in range(20, 24):
        row = {"size": 1 << power, "count": 1 << (power - 2), "type": "float", "redop": "sum", "root": -1}
        rows.append(row | {"out_of_place": result | {"time": 30.0 * 2 ** (power - 20)}})
    run = json.dumps({"args": ["all_reduce_perf"], "config": {"nthreads": 1, "ngpus": 8}, "results": rows})
    return [
        _one("environment dump", "words", "env.txt", ENVIRONMENT, "cluster", "import", "env.txt"),
        _one("json log", "json", "t.json", run, "check", "t.json", "--cluster", "dgx-h100"),
    ]


TOPOLOGY_AND_PEERS = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-31\t0\tN/A
GPU1\tPHB\t X \t0-31\t0\tN/A

 \tGPU0\tGPU1
 GPU0\tX\tGNS
 GPU1\tGNS\tX

Legend:

  X    = Self
  GNS  = GPU not supported
"""
ASTRA_NETWORK = "topology: [ Ring, Switch ]\nnpus_count: [ 2, 2 ]\nbandwidth: [ 50.0, 25.0 ]\nlatency: [ 500.0, 900 ]\n"
CHAKRA_ROWS = [
    {"Id": 1, "Name": "a", "NodeType": 4, "ctrlDeps": [], "data_deps": [], "runtime": 10, "is_cpu_op": False},
    {"Id": 2, "Name": "b", "NodeType": 4, "ctrlDeps": [1], "data_deps": [1], "runtime": 10, "is_cpu_op": False},
]
OLDER_INFRAGRAPH = {
    "inventory": {
        "devices": {
            "HOST": {
                "name": "HOST",
                "components": {
                    "npu": {"name": "npu", "count": 2, "npu": {"memory": "MEM_HBM"}},
                    "sw": {"name": "sw", "count": 1, "switch": {"custom": {}}},
                },
                "connections": ["npu.0.up.sw.0", "npu.1.up.sw.0"],
                "links": {"up": {"name": "up", "type": "LINK_PCIE"}},
            }
        },
        "links": {},
    },
    "device_instances": {"host": {"count": 1, "device": "HOST"}},
    "connections": [],
}
SOFTWARE = """name: ours
description: our fork
base: megatron-core
operators: {attention: flash, kernels: {norm: [1, 2]}, passes: {gated: [1.67, 2.6]}}
launch: {cpu_us_per_kernel: 30, synchronises: step}
step:
- {name: gradient norm, gradient_passes: 1, all_reduces: 1}
plan: {schedule: 1f1b, dp_overlap: true}
sources: {launch.cpu_us_per_kernel: "our profile of 3 May"}
"""
EXPERIMENT = {
    "command": "collective", "settings": {"op": "all_reduce", "cluster": "dgx-h100", "gpus": 2},
    "vary": {"size": [1024, 2048]}, "samples": None, "seed": 0, "search": None,
    "question": "trine.cli.record:answer_point", "inputs": {},
}  # fmt: skip


def _journal() -> bytes:
    """Return the journal of :data:`EXPERIMENT` with one of its two points, and its checksums."""
    from trine.experiments.journal import with_checksum
    from trine.experiments.spec import RESULT_VERSION, ExperimentSpec

    spec = ExperimentSpec(**EXPERIMENT)
    header = {"experiment": spec.id, "result_version": RESULT_VERSION, "host": "h"}
    point = {"point": 0, "key": "0", "status": "failed", "fields": {"size": 1024}, "seconds": 0.5, "reason": "no"}
    lines = []
    for content in (header, point):
        lines.append(with_checksum(json.dumps(content, separators=(",", ":"))))
    return b"".join(lines)


def _newer() -> list[Sample]:
    """Files that trine has read since 0.15: other tools' forms, profiles of software, and received experiments."""
    chakra = json.dumps({"workload_graph": CHAKRA_ROWS, "workload_name": "w"})
    older = json.dumps(OLDER_INFRAGRAPH)
    measured = {name: (DATA / "measured_gpus" / name).read_bytes() for name in ("a6000.yaml", "a6000.csv")}
    ring = ("--gpus", "2", "--topology", "ring", "--bandwidth", "65 GB/s", "--latency", "1 us")
    on_measured = ("train", "model:gpt-2,layers=1,batch=1", "--dp", "2", "--gpu", "./a6000.yaml", *ring)
    experiment = {"d/experiment.json": json.dumps(EXPERIMENT).encode(), "d/journal/0-of-1/w.jsonl": _journal()}
    rtx = ("--gpu", "rtx4090")
    return [
        _one("topology and peers", "words", "p.txt", TOPOLOGY_AND_PEERS, "cluster", "import", "p.txt", *rtx),
        _one("astra network", "yaml", "net.yml", ASTRA_NETWORK, "cluster", "import", "net.yml"),
        _one("chakra json", "json", "job.0.json", chakra, "chakra", "inspect", "job.0.json"),
        _one("older infragraph", "json", "i.json", older, "cluster", "import", "i.json", "--gpu", "h100-sxm",
             "--link", "HOST.up=200 GB/s, 1 us"),
        _one("software", "yaml", "s.yaml", SOFTWARE, "software", "show", "./s.yaml"),
        Sample("experiment", "json", "d/experiment.json", experiment, ("sweep", "d", "--status")),
        Sample("journal", "words", "d/journal/0-of-1/w.jsonl", experiment, ("sweep", "d", "--status")),
        Sample("compacted journal", "words", "d/journal/0-of-1/w.jsonl", experiment, ("sweep", "d", "--compact")),
        Sample("measured gpu", "yaml", "a6000.yaml", measured, on_measured),
        Sample("measured rows", "csv", "a6000.csv", measured, on_measured),
    ]  # fmt: skip


def _one(name: str, kind: str, file: str, data: str | bytes, *argv: str) -> Sample:
    return Sample(name, kind, file, {file: data.encode() if isinstance(data, str) else data}, argv)


def _csv(columns: Mapping[str, list[object]]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows), ""]).encode()


def parquet(columns: Mapping[str, object]) -> bytes:
    """Return a table as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), made)
    return made.getvalue()


def npz(arrays: Mapping[str, object]) -> bytes:
    """Return arrays in numpy's file format."""
    made = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.savez(made, **arrays)
    return made.getvalue()


def _record_arrays() -> dict[str, object]:
    arrays: dict[str, object] = {name: np.array(RECORDS[name]) for name in RECORDS if name != "kind"}
    return arrays | {"kind": np.array([0, 1, 1], np.int8), "kind_names": np.array(["compute", "transfer", "join"])}


def _arrivals() -> bytes:
    from trine.gpu.peers import RELEASE, STORE, Arrivals
    from trine.gpu.replay.arrivals import save_arrivals

    record = Arrivals(
        target=0, num_ranks=3, time_ps=np.array([5, 5, 9], np.int64), rank=np.array([1, 2, 1], np.int32),
        place=np.array([0, 4, 0], np.int32), number=np.array([0, 0, 1], np.int32),
        kind=np.array([STORE, STORE, RELEASE], np.int8), address=np.array([2**20 + 64, 2**20 + 128, 0], np.int64),
        semaphore=np.array([-1, -1, 2], np.int32), amount=np.array([0, 0, 1], np.int64),
        answer_place=np.array([1], np.int32), answer_number=np.array([0], np.int32),
        answer_ps=np.array([70], np.int64), answer_refused=np.array([0], np.int8),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        save_arrivals(Path(folder) / "a.npz", record)
        return (Path(folder) / "a.npz").read_bytes()
