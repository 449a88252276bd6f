"""Is a file of another program recognised before it is parsed, with its name and what to give instead?

We wrote the samples; they have the form of the programs' outputs.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from cpu_time import computes_for_less_than

from trine.check.nccl_tests import read_runs
from trine.cli.main import app
from trine.cluster import load_cluster
from trine.collectives.query import collective
from trine.common.recognise import CHAKRA, CLUSTER, LOG, TRACE, foreign_file
from trine.errors import InputError, SpecError, TraceError
from trine.formats.clusters import read_any
from trine.formats.gpu_names import gpu_of_text, named_gpus
from trine.workload.load import load

P2P = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA A40, pciBusID: 4, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA A40, pciBusID: 5, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1

P2P Connectivity Matrix
     D\\D     0     1
     0	     1     1
     1	     1     1
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 639.61  52.75
     1  52.75 639.52
"""
CONFIG = json.dumps({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024})
FOREIGN = {
    "p2p": (P2P, "p2pBandwidthLatencyTest"),
    "quoted p2p": ("```\n" + P2P[P2P.index("P2P Conn") :] + "```\n", "p2pBandwidthLatencyTest"),
    "nvbandwidth": ("nvbandwidth Version: v0.8\nRunning host_to_device_memcpy_ce.\n", "nvbandwidth"),
    "transferbench": ("TransferBench v1.50.00\n===\n[Common]\n", "AMD's bandwidth test"),
    "perftest": ("  RDMA_Write BW Test\n Dual-port : OFF\n", "perftest"),
    "smi": ("+---+\n| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15 |\n", "nvidia-smi without its matrix"),
    "nvlink": ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n", "nvidia-smi nvlink"),
    "nccl log": ("n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n", "debug log of NCCL"),
    "nccl-tests": ("# nThread 1 nGpus 8 minBytes 8\n#   out-of-place\n", "a log of nccl-tests"),
    "bare rows": ("  1048576  262144  float  sum  -1  60.1  17.4  30.5  0\n", "a log of nccl-tests"),
    "coloured log": ("\x1b[32m# nThread 1 nGpus 8 minBytes 8\x1b[0m\n", "a log of nccl-tests"),
    "log of a pod": ("[pod/x-1/main]   1048576  262144  float  sum  -1  60.1  17.4  30.5  0\n", "a log of nccl-tests"),
    "log with a rank": ("[1,0]<stdout>:  1048576  262144  half  none  -1  60.1  17.4\n", "a log of nccl-tests"),
    "csv of a log": ("size,count,type,redop,root,time,algbw,busbw\n", "a log of nccl-tests"),
    "nccl-tests in json": ('{"results": [{"out_of_place": {"time": 1}}]}', "a log of nccl-tests"),
    "osu": (
        "# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n4  20.1\n",
        "the OSU micro-benchmarks",
    ),
    "osu's table": ("# Size       Avg Latency(us)\n4      20.1\n", "the OSU micro-benchmarks"),
    "imb": (" #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n", "the Intel MPI Benchmarks"),
    "oneccl": ("#bytes  #elem_count  #repetitions t_min[usec] t_max[usec] t_avg[usec] stddev[%]\n", "oneCCL's"),
    "nvshmem": ("size(B)  count  type  scope  latency(us)  min_lat(us)\n32 8 32-bit thread 8.1 8.0\n", "NVSHMEM's"),
    "perftest's table": (" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n", "perftest"),
    "mscclpp test": ("# MSCCL++ allreduce_test\n 1048576 262144 20.1 52.1 91.2 0\n", "MSCCL++'s own tests"),
    "deepspeed": ("---- Performance of all_reduce on 8 devices ---\n", "DeepSpeed's communication benchmark"),
    "deepspeed's logger": ("Comm. Op    Message Size    Count   Avg Latency(ms)\nbroadcast\n", "communication logger"),
    "nvbandwidth's json": ('{"nvbandwidth": {"testcases": []}}', "nvbandwidth"),
    "mscclpp": ("# Initializing MSCCL++\n# Setting up the connection in MSCCL++\n", "MSCCL++'s own tests"),
    "mscclpp's rows": ('{"name":"allreduce", "ranksPerNode":8, "algBw":139.4}\n', "MSCCL++'s own tests"),
    "nccom": ("  size(B)  count(elems)   type  time(us)\n 33554432  33554432  uint8  768\n", "nccom-test (AWS Neuron)"),
    "trt-llm": ("====\n  TRT-LLM AllReduce Benchmark\n  world_size=8\n", "TensorRT-LLM's"),
    "amd-smi": ('[{"gpu": 0, "links": [{"gpu": 1, "link_type": "XGMI"}]}]', "a topology of rocm-smi or amd-smi"),
    "ibdiagnet": ('Running version: "IBDIAGNET 2.8.0"\n-I- Discovering ... 5 nodes\n', "a report of ibdiagnet"),
    "ibnetdiscover": ('vendid=0x2c9\nswitchguid=0xb8(b8)\nSwitch\t41 "S-b8"\n[1]\t"H-0c"[1]\n', "ibnetdiscover"),
    "slurm": ("SwitchName=leaf1 Nodes=node[001-004]\nSwitchName=spine Switches=leaf[1-2]\n", "Slurm's topology.conf"),
    "ns-3": ("12 4 4 16 0.0\n8 9 10 11\n0 8 400Gbps 0.0005ms 0\n", "a topology file of ns-3"),
    "rocm-smi": ("==== ROCm System Management Interface ====\n", "a topology of rocm-smi or amd-smi"),
    "mscclpp plan": ('{"name": "a", "collective": "allreduce", "gpus": [{"input_chunks": 1}]}', "a plan of MSCCL++: "),
    "msccl plan": ('<algo name="a" nchannels="1"></algo>', "<algo>"),
    "sqlite": ("SQLite format 3\0\1\2", "a SQLite database"),
    "weights": ('{"metadata": {}, "weight_map": {"a": "model-1.safetensors"}}', "a model's weights"),
    "astra system": ('{"scheduling-policy": "LIFO", "preferred-dataset-splits": 4}', "ASTRA-sim's system file"),
    "astra logical": ('{\n "logical-dims": ["8","2"]\n}', "logical topology for ns-3"),
    "astra memory": ('{"memory-type": "NO_MEMORY_EXPANSION"}', "ASTRA-sim's memory file"),
    "astra 1": ('{"topology-name": "Hierarchical", "topologies-per-dim": ["Ring"]}', "of ASTRA-sim 1"),
    "htsim": ("Nodes 8\nTiers 3\nPodsize 4\n", "htsim"),
    "chakra": ('{"workload_graph": []}', "a Chakra trace in JSON: trine chakra inspect"),
    "kineto": ('{"schemaVersion": 1, "traceEvents": []}', "a profiler trace of PyTorch: trine trace inspect"),
    "execution": ('{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "an execution trace of PyTorch"),
    "config": (CONFIG, "a Hugging Face config.json: trine train FILE"),
}


def refusal(text: str, name: str, folder: Path) -> str:
    (folder / name).write_text(text)
    with pytest.raises(SpecError) as found:
        read_any(folder / name)
    message = str(found.value)
    assert "\n" not in message
    assert len(message) <= 400
    return message


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("ending", [".txt", ".yaml", ".json"])
def test_files_of_other_programs_are_named(name: str, ending: str, tmp_path: Path) -> None:
    text, words = FOREIGN[name]
    message = refusal(text, f"file{ending}", tmp_path)
    assert words in message
    with pytest.raises(SpecError, match=re.escape(words.partition(":")[0])):
        load_cluster(str(tmp_path / f"file{ending}"))


def test_a_bandwidth_test_names_its_gpu(tmp_path: Path) -> None:
    message = refusal(P2P, "p2p.txt", tmp_path)
    assert "give `nvidia-smi topo -m` (its 2 x NVIDIA A40: --gpu a40)" in message


@pytest.mark.parametrize(
    "text",
    [
        "Device: 0, fine\n\tindented by a tab\nlinks of the machine\nand {more\n",
        "name of the machine\nlinks: all of them\nnotes follow here\n} and so on\n",
        "devices are listed below\n%YAML oddities\n* and stars\n",
    ],
)
def test_no_parser_of_yaml_complains_about_other_text(text: str, tmp_path: Path) -> None:
    assert "is in no format that trine recognises" in refusal(text, "notes.txt", tmp_path)


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_file_is_said_to_be_empty(text: str, tmp_path: Path) -> None:
    assert refusal(text, "none.txt", tmp_path).endswith("none.txt: is empty")
    with pytest.raises(TraceError, match="is empty"):
        load(str(tmp_path / "none.txt"))


def test_a_faulty_yaml_file_still_names_the_line(tmp_path: Path) -> None:
    text = "name: mine\ndevices:\n- {name: gpu, count: 8\nlinks: []\n"
    for name in ("mine.yaml", "mine.txt"):
        assert f"{name}:4: " in refusal(text, name, tmp_path)


MATRIX_OF_TWO = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
LOG_ROWS = "# nThread 1 nGpus 8 minBytes 8\n  1048576  262144  float  sum  -1  60.1  17.4  30.5  0\n"
OF_TRINE = {
    "cluster file": (
        "name: mine\ndevices:\n- {name: gpu}\nlinks: []\n",
        "a cluster file of trine: give it as --cluster",
    ),
    "base": ("base: dgx-h100\nname: mine\n", "a cluster file of trine: give it as --cluster FILE"),
    "infragraph": ("name: x\ninstances:\n- name: a\nedges:\n- ep1: {}\n", "an InfraGraph: trine cluster import FILE"),
    "astra": ("topology:\n- Ring\nnpus_count:\n- 4\n", "ASTRA-sim's network file: trine cluster import FILE"),
    "matrix": ("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n", "topo -m`: trine cluster import FILE"),
    "peers": (" \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n", "topo -p2p`, which shows no links"),
    "nccl topology": ('<system version="1"><cpu/></system>', "a topology of NCCL or lstopo: trine cluster import"),
    "dump": ("Collecting environment information...\nPyTorch version: 2.4.0\n", "an environment dump of PyTorch"),
    "msccl plan": ('<algo name="a" nchannels="1"></algo>', "a plan of MSCCL: trine collective OPERATION --algorithm"),
}


@pytest.mark.parametrize("name", [*FOREIGN, *OF_TRINE])
def test_check_names_what_it_cannot_read(name: str, tmp_path: Path) -> None:
    text, words = (OF_TRINE if name in OF_TRINE else FOREIGN)[name]
    (tmp_path / "file.log").write_text(text)
    if "a log of nccl-tests" in words:
        assert foreign_file(text, LOG) is None
        return
    if name == "msccl plan":
        words = OF_TRINE[name][1]
    answer = CliRunner().invoke(app, ["check", str(tmp_path / "file.log"), "--cluster", "dgx-a100"])
    assert answer.exit_code == 2
    assert words in answer.output
    assert "\n" not in answer.output.strip()
    assert len(answer.output) <= 400


@pytest.mark.parametrize("text", [MATRIX_OF_TWO + LOG_ROWS, LOG_ROWS, "h:1:1 [0] NCCL INFO x\n" + LOG_ROWS])
def test_check_reads_a_log_between_other_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text)
    assert [row.size_bytes for row in read_runs(tmp_path / "a.log")[0].rows] == [1 << 20]


def test_packed_files_are_recognised_by_their_content(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(LOG_ROWS.encode()))
    assert [row.size_bytes for row in read_runs(packed)[0].rows] == [1 << 20]
    with pytest.raises(SpecError, match="is a log of nccl-tests or rccl-tests: trine check FILE"):
        read_any(packed)
    packed.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    with pytest.raises(SpecError, match="is a profiler trace of PyTorch: trine trace inspect FILE"):
        read_any(packed)
    with pytest.raises(InputError, match="is a profiler trace of PyTorch: trine trace inspect FILE"):
        read_runs(packed)


def test_a_table_of_another_program_without_a_header_is_named(tmp_path: Path) -> None:
    row = "  1048576  262144  float  sum  -1  60.1  17.4  30.5  0\n"
    (tmp_path / "a.log").write_text("# OSU MPI-CUDA Allreduce Latency Test v7.4\n" + row)
    with pytest.raises(InputError, match="is a table of the OSU micro-benchmarks: trine check reads nccl-tests"):
        read_runs(tmp_path / "a.log")
    (tmp_path / "a.log").write_text("chunk_bytes,seconds,alg_bw,bus_bw\n1048576,60.1,17.4,30.5\n")
    with pytest.raises(InputError, match="has the columns 'chunk_bytes,seconds,alg_bw,bus_bw', which are not those"):
        read_runs(tmp_path / "a.log")


@pytest.mark.parametrize("kind", [CLUSTER, TRACE, CHAKRA])
def test_a_reader_never_turns_away_its_own_files(kind: str) -> None:
    own = {
        CLUSTER: "topology: [ Ring ]\nnpus_count: [ 4 ]\n",
        TRACE: '{"traceEvents": []}',
        CHAKRA: '{"workload_graph": []}',
    }
    assert foreign_file(own[kind], kind) is None
    assert all(foreign_file(text, kind) for other, text in own.items() if other != kind)
    assert foreign_file("", kind) is foreign_file("name: x\n", kind) is None


def test_traces_and_models_name_foreign_files_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    for command in (
        ["trace", "inspect", str(tmp_path / "config.json")],
        ["trace", "inspect", str(tmp_path)],
        ["trace", "inspect", f"model:{tmp_path / 'config.json'}"],
    ):
        answer = CliRunner().invoke(app, command)
        assert answer.exit_code == 2
        assert "config.json: num_attention_heads: is missing\n" in answer.output
    answer = CliRunner().invoke(app, ["chakra", "inspect", str(tmp_path / "config.json")])
    assert answer.exit_code == 2
    assert "a Hugging Face config.json: trine train FILE" in answer.output
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n")
    answer = CliRunner().invoke(app, ["trace", "inspect", str(tmp_path / "topo.txt")])
    assert "the matrix of `nvidia-smi topo -m`: trine cluster import FILE" in answer.output


# -- environment dumps -------------------------------------------------------------------------------------------------

TORCH = """Collecting environment information...
PyTorch version: 2.5.1+cu124
Is debug build: False

OS: Ubuntu 22.04.3 LTS (x86_64)
Is CUDA available: True
GPU models and configuration: {gpus}
Nvidia driver version: 535.104.05

Versions of relevant libraries:
[pip3] numpy==1.26.4
"""
TWO = "\nGPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3\n"
MATRIX = """GPU Topology:
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\t0-31\t0
GPU1\tNV18\t X \tNODE\t0-31\t0
NIC0\tPIX\tNODE\t X \t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
VLLM = TORCH.format(gpus=TWO) + "vLLM Version: 0.9.2\nvLLM Build Flags:\nCUDA Archs: Not Set; ROCm: Disabled\n"


def test_a_dump_without_links_names_its_gpus_and_presets(tmp_path: Path) -> None:
    message = refusal(TORCH.format(gpus=TWO), "env.txt", tmp_path)
    assert "PyTorch's environment dump (2 x NVIDIA H100 80GB HBM3), without links" in message
    assert "--gpu h100-sxm, or take the preset dgx-h100" in message
    one = TORCH.format(gpus="GPU 0: Some GPU 9000\n").replace("\n", "\n> ")
    assert "(1 x Some GPU 9000), without links: give `nvidia-smi topo -m` with --gpu MODEL" in refusal(
        one, "one.txt", tmp_path
    )
    assert "vLLM's environment dump" in refusal(VLLM, "vllm.txt", tmp_path)


def test_a_dump_of_rocm_names_its_model_without_a_number(tmp_path: Path) -> None:
    line = "GPU models and configuration: AMD Instinct MI300X (gfx942:sramecc+:xnack-)\n"
    message = refusal("PyTorch version: 2.5.1+rocm6.2\n" + line, "env.txt", tmp_path)
    assert "dump (AMD Instinct MI300X), without links: give RCCL's topology" in message
    assert "--gpu mi300x, or take the preset mi300x-node" in message
    none = "PyTorch version: 2.5.1\nGPU models and configuration: Could not collect\n"
    assert "environment dump, without links" in refusal(none, "none.txt", tmp_path)


def test_the_matrix_in_a_dump_is_read_with_its_gpu(tmp_path: Path) -> None:
    (tmp_path / "env.txt").write_text(VLLM + MATRIX + "CUDA_VISIBLE_DEVICES=0,1\n")
    cluster = read_any(tmp_path / "env.txt")
    assert [device.gpu for device in cluster.devices if device.kind == "gpu"] == ["h100-sxm"] * 2
    assert {link.medium for link in cluster.links} == {"nvlink4", "pcie5"}
    assert "2 x NVIDIA H100 80GB HBM3" in cluster.sources["GPU model"]
    other = read_any(tmp_path / "env.txt", gpu="h200")
    assert "GPU model" not in other.sources
    assert {device.gpu for device in other.devices if device.kind == "gpu"} == {"h200"}


def test_names_of_gpus_in_text() -> None:
    table = "|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:07:00.0 Off |\n"
    listed = "GPU 0: Tesla T4 (UUID: GPU-1)\nGPU 1: NVIDIA A40 (UUID: GPU-2)\n"
    assert named_gpus(table) == {0: "NVIDIA A100-SXM4-40GB"}
    assert gpu_of_text(table) == "a100-40gb"
    assert named_gpus(listed) == {0: "Tesla T4", 1: "NVIDIA A40"}
    assert gpu_of_text(listed) is gpu_of_text("GPU 0: no such model\n") is gpu_of_text("") is None


# -- topo -m with topo -p2p --------------------------------------------------------------------------------------------

TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-31\nGPU1\tPHB\t X \t0-31\n"
ACCESS = " \tGPU0\tGPU1\t\n GPU0\tX\t{a}\t\n GPU1\t{a}\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
LEGEND = "\nLegend:\n\n  X    = Self\n  PHB  = a bridge\n  NV#  = NVLinks\n"


@pytest.mark.parametrize(
    ("code", "access", "words"),
    [
        ("GNS", False, "2 x GNS (GPU not supported): no peer access"),
        ("CNS", False, "2 x CNS (chipset not supported): no peer access"),
        ("OK", True, "2 x OK (peer access): GPUs have peer access"),
    ],
)
@pytest.mark.parametrize("order", [0, 1])
def test_peer_access_comes_from_the_second_matrix(
    code: str, access: bool, words: str, order: int, tmp_path: Path
) -> None:
    parts = [TOPO + LEGEND, ACCESS.format(a=code)]
    (tmp_path / "both.txt").write_text("".join(parts[::-1] if order else parts))
    cluster = read_any(tmp_path / "both.txt", gpu="rtx4090")
    (tmp_path / "topo.txt").write_text(parts[0])
    alone = read_any(tmp_path / "topo.txt", gpu="rtx4090")
    assert cluster.peer_access is access
    assert words in cluster.notes
    assert (alone.peer_access, alone.links == cluster.links) == (None, True)


def test_only_some_pairs_or_another_query_leave_peer_access_open(tmp_path: Path) -> None:
    header = " \tGPU0\tGPU1\tGPU2\n"
    some = header + " GPU0\tX\tOK\tTNS\n GPU1\tOK\tX\tTNS\n GPU2\tTNS\tTNS\tX\n"
    topo = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tSYS\nGPU1\tPIX\tX\tSYS\nGPU2\tSYS\tSYS\tX\n"
    (tmp_path / "some.txt").write_text(topo + some)
    cluster = read_any(tmp_path / "some.txt", gpu="a40")
    assert cluster.peer_access is None
    assert "4 x TNS (topology not supported), 2 x OK" in cluster.notes
    nvlink = "$ nvidia-smi topo -p2p n\n" + ACCESS.format(a="NS")
    (tmp_path / "n.txt").write_text(TOPO + nvlink)
    assert read_any(tmp_path / "n.txt", gpu="a40").peer_access is None
    (tmp_path / "nr.txt").write_text(TOPO + nvlink + "$ nvidia-smi topo -p2p r\n" + ACCESS.format(a="OK"))
    assert read_any(tmp_path / "nr.txt", gpu="a40").peer_access is True


def test_other_repeated_matrices_are_still_refused(tmp_path: Path) -> None:
    assert "has two rows" in refusal(TOPO + TOPO, "two.txt", tmp_path)
    assert "shows no links: give `topo -m`" in refusal(ACCESS.format(a="OK"), "p2p.txt", tmp_path)


def test_a_matrix_without_peer_access_halves_what_reaches_the_other_gpu(tmp_path: Path) -> None:
    times = []
    for code in ("OK", "GNS"):
        (tmp_path / "m.txt").write_text(TOPO + LEGEND + ACCESS.format(a=code))
        cluster = read_any(tmp_path / "m.txt", gpu="a40")
        times.append(collective("all_reduce", [1 << 30], cluster).rows[0].time_ps)
    assert 1.9 < times[1] / times[0] < 2.1


@pytest.mark.parametrize("part", ["[", "a", "1", " ", "\n", "#", "1 ", "x: ", "1:", '"', "{\n", "# \n"])
def test_time_is_linear_in_the_size_of_a_file_of_one_repeated_part(part: str) -> None:
    with computes_for_less_than(0.2):
        assert foreign_file(part * (200_000 // len(part)), CLUSTER) is None


def test_errors_of_every_reader_stay_one_line(tmp_path: Path) -> None:
    for number, text in enumerate(("\x00" * 50, "GPU 0: " * 5000, "Device: 0, " * 5000, "{" * 50_000, "- " * 50_000)):
        path = tmp_path / f"odd{number}.txt"
        path.write_text(text)
        with pytest.raises(InputError) as found:
            read_any(path)
        assert len(str(found.value)) <= 400
