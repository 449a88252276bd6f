"""For every option of every command: a case in which it must matter.

A case is ``(option, before, after)``: two command lines that differ by the option, and whose answers must differ in what
is computed (``ANSWERS``: keys of the JSON; what only repeats the question does not count). ``(..., expected)`` says what
else is to be seen:

* ``key:NAME``: that key of the JSON differs (dots go inwards);
* ``file:NAME``: the file is written;
* ``text:WORDS``: the second answer's text has these words and the first one's has not;
* ``same``: what is computed may not differ (how it is computed does: folded, on more cores, by the twin);
* ``exit:N``: the second command ends with this code, the first with 0;
* ``plain``: the text on stdout differs, without ``--json``;
* ``answers``: without the option the command is refused.

``{tmp}`` is the folder of the test's files, ``{data}`` tests/data.
"""

from __future__ import annotations

from typing import NamedTuple

RING = "--topology ring --bandwidth '65 GB/s' --latency '1 us'"
SLOW_RING = "--topology ring --bandwidth '1 GB/s' --latency '1 us'"
VGG = "train vgg13-h100-b128"
RESNET = "train resnet50-h100-b128"
LLAMA = "train {tmp}/llama.trine.json"
MOE = "train {tmp}/moe.trine.json"
DDP = f"{VGG} --gpus 4 --parallel ddp"
PP = f"{VGG} --gpus 4 --parallel pp --micro-batch 32 {RING}"
FSDP = f"{VGG} --dp 4 --sharding fsdp {SLOW_RING}"
CIRCUITS = "--circuit-setup '10 us' --circuit-ports 2 --circuit-bandwidth '50 GB/s'"


class Case(NamedTuple):
    option: str
    before: str
    after: str
    expected: str = "answer"


#: Keys of the JSON that hold what was computed, by command.
ANSWERS = {
    "train": ("step_time_s", "step_ends_s", "compute_s", "exposed_communication_s", "communication_s", "bubble_s",
              "idle_s", "memory_peak_bytes", "collectives", "links", "memory", "energy"),
    "run": ("end_s", "makespan_s", "records", "tasks", "links"),
    "calibrate": ("kinds", "fits", "shapes", "operators", "laws"),
    "collective": ("rows", "links", "num_ranks"),
    "check": ("verdict", "healthy", "rows", "causes", "hypotheses"),
    "hop": ("end_s", "workers", "sent_bytes", "sent_updates", "shares", "staleness"),
    "chakra run": ("step_time_s", "links", "compute_s", "communication_s"),
    "cluster show": ("gpus", "nodes", "num_gpus", "links", "classes", "bisection_bytes_per_s", "devices"),
    "cluster import": ("gpus", "links", "devices", "num_gpus", "notes", "classes"),
    "eidolon run": ("time_s", "flag_reads", "non_flag_reads", "writes_delivered", "wait_s", "wait_total_s", "inside"),
    "eidolon sweep": ("runs", "fits"),
    "kernel run": ("time_s", "run", "ranks", "gpus", "links", "counts", "stalls"),
    "kernel show": ("operations", "workgroups", "wavefronts", "remote_store_bytes", "remote_load_bytes", "lines"),
}  # fmt: skip

TRAIN = [
    Case("--gpus", f"{VGG} --gpus 2 --parallel ddp {RING}", f"{VGG} --gpus 4 --parallel ddp {RING}"),
    Case("--parallel", f"{VGG} --gpus 4 --parallel ddp {RING}", f"{VGG} --gpus 4 --parallel tp {RING}"),
    Case("--dp", f"{VGG} --dp 2 {RING}", f"{VGG} --dp 4 {RING}"),
    Case("--tp", f"{VGG} --tp 2 {RING}", f"{VGG} --tp 4 {RING}"),
    Case("--pp", f"{VGG} --pp 2 {RING}", f"{VGG} --pp 4 {RING}"),
    Case("--cp", f"{LLAMA} --dp 2 {RING}", f"{LLAMA} --dp 2 --cp 2 {RING}"),
    Case("--ep", f"{MOE} --dp 4 {RING}", f"{MOE} --dp 4 --ep 2 {RING}"),
    Case("--order", f"{LLAMA} --dp 2 --tp 2 --cluster {{tmp}}/uneven.yaml",
         f"{LLAMA} --dp 2 --tp 2 --order dp-tp-cp-ep-pp --cluster {{tmp}}/uneven.yaml"),
    Case("--batch", f"{DDP} {RING}", f"{DDP} --batch 64 {RING}"),
    Case("--global-batch", f"{DDP} {RING}", f"{DDP} --global-batch 256 {RING}"),
    Case("--micro-batch", f"{VGG} --pp 4 {RING}", f"{VGG} --pp 4 --micro-batch 32 {RING}"),
    Case("--schedule", PP, f"{PP} --schedule 1f1b"),
    Case("--virtual-stages", f"{PP} --schedule interleaved --virtual-stages 2",
         f"{PP} --schedule interleaved --virtual-stages 4"),
    Case("--balance", f"{LLAMA} --pp 2 --balance time {RING}", f"{LLAMA} --pp 2 --balance layers {RING}"),
    Case("--cuts", f"{VGG} --pp 2 {RING}", f"{VGG} --pp 2 --cuts conv2d.6 {RING}"),
    Case("--recompute", f"{LLAMA} --dp 2 {RING}", f"{LLAMA} --dp 2 --recompute full {RING}"),
    Case("--recompute-layers", f"{LLAMA} --dp 2 --recompute full {RING}",
         f"{LLAMA} --dp 2 --recompute full --recompute-layers 1 {RING}"),
    Case("--sync", f"{VGG} --dp 4 --micro-batch 32 {SLOW_RING}", f"{VGG} --dp 4 --micro-batch 32 --sync each {SLOW_RING}"),
    Case("--bucket", f"{DDP} {RING}", f"{DDP} --bucket 4MiB {RING}"),
    Case("--tp-style", f"{LLAMA} --tp 2 --tp-style column {RING}", f"{LLAMA} --tp 2 --tp-style megatron {RING}"),
    Case("--sharding", f"{VGG} --dp 4 {RING}", f"{VGG} --dp 4 --sharding zero1 {RING}"),
    Case("--shard-ways", FSDP, f"{FSDP} --shard-ways 2"),
    Case("--prefetch", f"{FSDP} --prefetch 0", f"{FSDP} --prefetch 2"),
    Case("--reshard", f"{FSDP} --reshard", f"{FSDP} --no-reshard"),
    Case("--shard-unit", FSDP, f"{FSDP} --shard-unit 10MiB"),
    Case("--dp-overlap", f"{DDP} {SLOW_RING}", f"{DDP} --no-dp-overlap {SLOW_RING}"),
    Case("--buffers", f"{RESNET} --dp 4 --buffers broadcast {SLOW_RING}", f"{RESNET} --dp 4 --buffers none {SLOW_RING}"),
    Case("--sync-every", f"{VGG} --dp 4 --steps 4 {SLOW_RING}", f"{VGG} --dp 4 --steps 4 --sync-every 2 {SLOW_RING}"),
    Case("--sequence-parallel", f"{LLAMA} --tp 2 --tp-style megatron {RING}",
         f"{LLAMA} --tp 2 --tp-style megatron --sequence-parallel {RING}"),
    Case("--tp-overlap", f"{LLAMA} --tp 2 --tp-style megatron --sequence-parallel {RING}",
         f"{LLAMA} --tp 2 --tp-style megatron --sequence-parallel --tp-overlap 4 {RING}"),
    Case("--cp-style", f"{LLAMA} --cp 2 {RING}", f"{LLAMA} --cp 2 --cp-style all-gather {RING}"),
    Case("--expert-imbalance", f"{MOE} --dp 4 --ep 4 {RING}", f"{MOE} --dp 4 --ep 4 --expert-imbalance zipf:1 {RING}"),
    Case("--capacity-factor", f"{MOE} --dp 4 --ep 4 --expert-imbalance zipf:1 {RING}",
         f"{MOE} --dp 4 --ep 4 --expert-imbalance zipf:1 --capacity-factor 1 {RING}"),
    Case("--cluster", f"{VGG} --dp 3 --cluster {{tmp}}/slow.yaml", f"{VGG} --dp 3 --cluster {{tmp}}/fast.yaml"),
    Case("--nodes", f"{VGG} --dp 8 --cluster dgx-h100 --nodes 1", f"{VGG} --dp 8 --cluster dgx-h100 --nodes 2"),
    Case("--fabric", f"{VGG} --dp 32 --cluster dgx-h100 --nodes 4 --fabric rail",
         f"{VGG} --dp 32 --cluster dgx-h100 --nodes 4 --fabric switch@ib-edr"),
    Case("--slow-link", f"{DDP} {SLOW_RING}", f"{DDP} {SLOW_RING} --slow-link 'gpu0->gpu1:0.5'"),
    Case("--link-down", f"{DDP} {SLOW_RING}", f"{DDP} {SLOW_RING} --link-down 'gpu0->gpu1'"),
    Case("--routing", f"{VGG} --dp 8 --cluster {{tmp}}/twin-spines.yaml --routing shortest",
         f"{VGG} --dp 8 --cluster {{tmp}}/twin-spines.yaml --routing d-mod-k"),
    Case("--topology", f"{DDP} {SLOW_RING}", f"{DDP} {SLOW_RING}".replace("ring", "switch")),
    Case("--bandwidth", f"{DDP} {RING}", f"{DDP} {SLOW_RING}"),
    Case("--latency", f"{DDP} {RING}", f"{DDP} {RING}".replace("1 us", "100 us")),
    Case("--circuit-setup", f"{DDP} {CIRCUITS}", f"{DDP} {CIRCUITS}".replace("10 us", "1 ms")),
    Case("--circuit-ports", f"{DDP} {CIRCUITS}", f"{DDP} {CIRCUITS}".replace("ports 2", "ports 1")),
    Case("--circuit-bandwidth", f"{DDP} {CIRCUITS}", f"{DDP} {CIRCUITS}".replace("50 GB", "5 GB")),
    Case("--circuit-latency", f"{DDP} {CIRCUITS}", f"{DDP} {CIRCUITS} --circuit-latency '50 us'"),
    Case("--circuit-buffer", f"{DDP} --algorithm all_reduce=direct {CIRCUITS}",
         f"{DDP} --algorithm all_reduce=direct {CIRCUITS} --circuit-buffer 64KiB"),
    Case("--gpu", f"{VGG} --gpu h100-sxm", f"{VGG} --gpu a100-40gb"),
    Case("--trace-gpu", "train {tmp}/unnamed.trine.json --trace-gpu h100-sxm --gpu a100-40gb",
         "train {tmp}/unnamed.trine.json --trace-gpu v100 --gpu a100-40gb"),
    Case("--compute", f"{VGG} --compute recorded", f"{VGG} --compute roofline"),
    Case("--calibration", f"{VGG} --batch 32", f"{VGG} --batch 32 --calibration {{tmp}}/fits.json"),
    Case("--network", f"{PP}", f"{PP} --network fifo"),
    Case("--collective-costs", f"{DDP} --cluster dgx-h100 --collective-costs links",
         f"{DDP} --cluster dgx-h100 --collective-costs library"),
    Case("--algorithm", f"{DDP} {SLOW_RING}", f"{DDP} {SLOW_RING} --algorithm all_reduce=tree"),
    Case("--cpu", "train {data}/vgg13-raw-b512 --no-cpu", "train {data}/vgg13-raw-b512 --cpu"),
    Case("--launch-cost", "train {data}/vgg13-raw-b512 --cpu", "train {data}/vgg13-raw-b512 --cpu --launch-cost '500 us'"),
    Case("--inputs", f"{DDP} --cluster dgx-h100", f"{DDP} --cluster dgx-h100 --inputs none"),
    Case("--overlap", f"{DDP} {SLOW_RING}", f"{DDP} {SLOW_RING} --overlap modelled"),
    Case("--offload", f"{VGG} --dp 2 --cluster dgx-h100", f"{VGG} --dp 2 --cluster dgx-h100 --offload optimizer"),
    Case("--no-fold", f"{DDP} {RING}", f"{DDP} {RING} --no-fold", "key:simulator.ranks_simulated"),
    Case("--verify-fold", f"{DDP} {RING}", f"{DDP} {RING} --verify-fold", "text:unfolded"),
    Case("--placement", f"{LLAMA} --dp 2 --tp 2 --cluster {{tmp}}/uneven.yaml",
         f"{LLAMA} --dp 2 --tp 2 --cluster {{tmp}}/uneven.yaml --placement {{tmp}}/placement.txt"),
    Case("--show-rank", f"{VGG} --dp 128 {RING}", f"{VGG} --dp 128 {RING} --show-rank 77", "text:rank 77"),
    Case("--slow", f"{DDP} {RING}", f"{DDP} {RING} --slow rank=1:2"),
    Case("--jitter", f"{DDP} {RING}", f"{DDP} {RING} --jitter normal:10%"),
    Case("--jitter-per", f"{DDP} {RING} --jitter normal:10%", f"{DDP} {RING} --jitter normal:10% --jitter-per step"),
    Case("--seed", f"{DDP} {RING} --jitter normal:10%", f"{DDP} {RING} --jitter normal:10% --seed 7"),
    Case("--repeat", f"{DDP} {RING} --jitter normal:10%", f"{DDP} {RING} --jitter normal:10% --repeat 3", "key:ensemble"),
    Case("--steps", f"{DDP} {RING}", f"{DDP} {RING} --steps 3", "key:step_ends_s"),
    Case("--json", VGG, f"{VGG} --json {{tmp}}/out.json", "file:out.json"),
    Case("--perfetto", VGG, f"{VGG} --perfetto {{tmp}}/out.pftrace", "file:out.pftrace"),
    Case("--parquet", VGG, f"{VGG} --parquet {{tmp}}/out-parquet", "file:out-parquet"),
    Case("--timeline", VGG, f"{VGG} --timeline {{tmp}}/out.png", "file:out.png"),
    Case("--chakra", f"{DDP} {RING}", f"{DDP} {RING} --chakra {{tmp}}/job", "file:job.0.et"),
    Case("--chakra-target", f"{DDP} --cluster dgx-h100 --chakra {{tmp}}/one",
         f"{DDP} --cluster dgx-h100 --chakra {{tmp}}/two --chakra-target chakra", "answers"),
]  # fmt: skip

RUN = [
    Case("--cluster", "run {tmp}/graph.json --cluster {tmp}/slow.yaml", "run {tmp}/graph.json --cluster {tmp}/fast.yaml"),
    Case("--network", "run {tmp}/shared.json --cluster {tmp}/slow.yaml --network fair",
         "run {tmp}/shared.json --cluster {tmp}/slow.yaml --network fifo"),
    Case("--engine", "run {tmp}/graph.json --cluster {tmp}/slow.yaml",
         "run {tmp}/graph.json --cluster {tmp}/slow.yaml --engine reference", "same"),
    Case("--json", "run {tmp}/graph.json --cluster {tmp}/slow.yaml",
         "run {tmp}/graph.json --cluster {tmp}/slow.yaml --json {tmp}/run.json", "file:run.json"),
]  # fmt: skip

CALIBRATE = [
    Case("--output", "calibrate vgg13-h100-b128 --output {tmp}/one.json",
         "calibrate vgg13-h100-b128 --output {tmp}/two.json", "file:two.json"),
    Case("--json", "calibrate vgg13-h100-b128 --output {tmp}/one.json",
         "calibrate vgg13-h100-b128 --output {tmp}/one.json --json {tmp}/fit.json", "file:fit.json"),
]  # fmt: skip


def machine(command: str, gpus: int = 4) -> list[Case]:
    """Cases of the options that describe a machine, for ``command`` (which ends where they follow)."""
    given = f"{command} --gpus {gpus}" if gpus else command
    return [
        Case("--cluster", f"{given} --cluster dgx-h100", f"{given} --cluster dgx-a100"),
        *([Case("--gpus", f"{command} --gpus 2 --cluster dgx-h100", f"{command} --gpus 4 --cluster dgx-h100")]
          if gpus == 4 else []),
        Case("--nodes", f"{command} --cluster dgx-h100 --nodes 2", f"{command} --cluster dgx-h100 --nodes 4"),
        Case("--fabric", f"{command} --cluster dgx-h100 --nodes 4 --fabric rail",
             f"{command} --cluster dgx-h100 --nodes 4 --fabric switch@ib-edr"),
        Case("--slow-link", f"{command} --cluster dgx-h100",
             f"{command} --cluster dgx-h100 --slow-link 'gpu0->nvswitch:0.25'"),
        Case("--link-down", f"{given} {SLOW_RING}", f"{given} {SLOW_RING} --link-down 'gpu0->gpu1'"),
        Case("--topology", f"{given} {SLOW_RING}", f"{given} {SLOW_RING}".replace("ring", "switch")),
        Case("--bandwidth", f"{given} {RING}", f"{given} {SLOW_RING}"),
        Case("--latency", f"{given} {RING}", f"{given} {RING}".replace("1 us", "100 us")),
    ]  # fmt: skip


ALL_REDUCE = "collective all_reduce --size 64M"
ON_DGX = f"{ALL_REDUCE} --cluster dgx-h100"
GET = "collective all_gather --algorithm get --size 1M --cluster mi300x-node --fidelity loadstore"
INSIDE = (
    "collective all_reduce --size 64K --cluster dgx-h100 --gpus 4 --fidelity loadstore --workgroups 4 --wavefronts 2"
)

COLLECTIVE = [
    Case("--size", ON_DGX, ON_DGX.replace("64M", "32M")),
    *machine(ALL_REDUCE),
    Case("--routing", "collective all_to_all --size 64M --cluster {tmp}/twin-spines.yaml --network fair",
         "collective all_to_all --size 64M --cluster {tmp}/twin-spines.yaml --network fair --routing d-mod-k"),
    Case("--circuit-setup", f"{ALL_REDUCE} --gpus 4 {CIRCUITS}", f"{ALL_REDUCE} --gpus 4 {CIRCUITS}".replace("10 us", "1 ms")),
    Case("--circuit-ports", f"{ALL_REDUCE} --gpus 4 {CIRCUITS}", f"{ALL_REDUCE} --gpus 4 {CIRCUITS}".replace("ports 2", "ports 1")),
    Case("--circuit-bandwidth", f"{ALL_REDUCE} --gpus 4 {CIRCUITS}", f"{ALL_REDUCE} --gpus 4 {CIRCUITS}".replace("50 GB", "5 GB")),
    Case("--circuit-latency", f"{ALL_REDUCE} --gpus 4 {CIRCUITS}", f"{ALL_REDUCE} --gpus 4 {CIRCUITS} --circuit-latency '9 us'"),
    Case("--circuit-buffer", f"{ALL_REDUCE} --algorithm direct --gpus 4 {CIRCUITS}",
         f"{ALL_REDUCE} --algorithm direct --gpus 4 {CIRCUITS} --circuit-buffer 64KiB"),
    Case("--algorithm", f"{ON_DGX} --algorithm ring", f"{ON_DGX} --algorithm tree"),
    Case("--protocol", f"{ON_DGX} --algorithm ring --protocol simple", f"{ON_DGX} --algorithm ring --protocol ll"),
    Case("--library", "collective all_reduce --size 64K --gpus 4 --topology switch --bandwidth '50 GB/s' --latency '1 us' --protocol simple",
         "collective all_reduce --size 64K --gpus 4 --topology switch --bandwidth '50 GB/s' --latency '1 us' --protocol simple --library rccl"),
    Case("--launch", ON_DGX.replace("64M", "1K"), f"{ON_DGX} --launch graph".replace("64M", "1K")),
    Case("--nvls", ON_DGX.replace("64M", "1G"), f"{ON_DGX} --no-nvls".replace("64M", "1G")),
    Case("--min-channels", f"{ON_DGX} --algorithm ring --protocol ll".replace("64M", "16M"), f"{ON_DGX} --min-channels 32 --algorithm ring --protocol ll".replace("64M", "16M")),
    Case("--max-channels", ON_DGX, f"{ON_DGX} --max-channels 1"),
    Case("--network", ON_DGX, f"{ON_DGX} --network fair"),
    Case("--matrix", "collective all_to_all_v --cluster dgx-h100 --gpus 2 --matrix {tmp}/even.csv",
         "collective all_to_all_v --cluster dgx-h100 --gpus 2 --matrix {tmp}/skewed.csv"),
    Case("--fidelity", f"{ALL_REDUCE} --cluster dgx-h100 --gpus 4".replace("64M", "64K"), INSIDE),
    Case("--compare-fidelity", INSIDE, INSIDE.replace("--fidelity loadstore", "--compare-fidelity"), "text:operator"),
    Case("--workgroups", INSIDE, INSIDE.replace("--workgroups 4", "--workgroups 1")),
    Case("--wavefronts", INSIDE, INSIDE.replace("--wavefronts 2", "--wavefronts 8")),
    Case("--unroll", INSIDE.replace("64K", "1M"), INSIDE.replace("64K", "1M") + " --unroll 1"),
    Case("--max-outstanding", INSIDE.replace("64K", "1M"), INSIDE.replace("64K", "1M") + " --max-outstanding 8"),
    Case("--arbitration", GET, f"{GET} --arbitration fair"),
    Case("--gpu-model", INSIDE, f"{INSIDE} --gpu-model astra3-generic"),
    Case("--no-fold", INSIDE, f"{INSIDE} --no-fold", "key:run.simulator"),
    Case("--verify-fold", INSIDE, f"{INSIDE} --verify-fold", "text:unfolded"),
    Case("--plot-noc", INSIDE, f"{INSIDE} --plot-noc {{tmp}}/noc.png", "file:noc.png"),
    Case("--perfetto", INSIDE, f"{INSIDE} --perfetto {{tmp}}/inside.pftrace", "file:inside.pftrace"),
    Case("--explain", ON_DGX, f"{ON_DGX} --explain", "text:"),
    Case("--plot", f"{ON_DGX}".replace("64M", "1K:1M"), f"{ON_DGX} --plot {{tmp}}/curve.png".replace("64M", "1K:1M"), "file:curve.png"),
    Case("--json", ON_DGX, f"{ON_DGX} --json {{tmp}}/coll.json", "file:coll.json"),
]  # fmt: skip

CHECK_LOG = "check {tmp}/nccl.log"
CHECK = [
    *machine(CHECK_LOG, 8),
    Case("--routing", "check {tmp}/alltoall.log --gpus 8 --cluster {tmp}/twin-spines.yaml --routing shortest",
         "check {tmp}/alltoall.log --gpus 8 --cluster {tmp}/twin-spines.yaml --routing d-mod-k"),
    Case("--op", "check {tmp}/both.log --cluster dgx-h100 --op all_reduce", "check {tmp}/both.log --cluster dgx-h100 --op all_gather"),
    Case("--launch", f"{CHECK_LOG} --cluster dgx-h100 --launch process-per-gpu", f"{CHECK_LOG} --cluster dgx-h100 --launch graph"),
    Case("--nvls", f"{CHECK_LOG} --cluster dgx-h100", f"{CHECK_LOG} --cluster dgx-h100 --no-nvls"),
    Case("--in-place", f"{CHECK_LOG} --cluster dgx-h100", f"{CHECK_LOG} --cluster dgx-h100 --in-place"),
    Case("--fail-if-suspicious", "check {tmp}/slow.log --cluster dgx-h100", "check {tmp}/slow.log --cluster dgx-h100 --fail-if-suspicious", "exit:1"),
    Case("--plot", f"{CHECK_LOG} --cluster dgx-h100", f"{CHECK_LOG} --cluster dgx-h100 --plot {{tmp}}/check.png", "file:check.png"),
    Case("--json", f"{CHECK_LOG} --cluster dgx-h100", f"{CHECK_LOG} --cluster dgx-h100 --json {{tmp}}/check.json", "file:check.json"),
]  # fmt: skip

HOP = "hop vgg13-h100-b128 --iterations 20 --bandwidth '50 GB/s' --latency '2 us'"
HOP_SLOW = f"{HOP} --slow rank=1:3"
HOP_JITTER = f"{HOP} --jitter normal:20%"
HOPS = [
    Case("--workers", HOP, f"{HOP} --workers 6"),
    Case("--graph", HOP, f"{HOP} --graph full"),
    Case("--iterations", HOP, HOP.replace("--iterations 20", "--iterations 7")),
    Case("--backup", HOP_SLOW, f"{HOP_SLOW} --backup 1"),
    Case("--staleness", HOP_SLOW, f"{HOP_SLOW} --staleness 2"),
    Case("--max-gap", f"{HOP_SLOW} --backup 1", f"{HOP_SLOW} --backup 1 --max-gap 1"),
    Case("--max-skip", f"{HOP_SLOW} --backup 1", f"{HOP_SLOW} --backup 1 --max-skip 4"),
    Case("--skip-behind", f"{HOP_SLOW} --backup 1 --max-skip 4", f"{HOP_SLOW} --backup 1 --max-skip 4 --skip-behind 5"),
    Case("--order", HOP, f"{HOP} --order serial"),
    Case("--drop-late", f"{HOP_SLOW} --backup 1", f"{HOP_SLOW} --backup 1 --drop-late"),
    Case("--bandwidth", HOP, HOP.replace("50 GB", "2 GB")),
    Case("--latency", HOP, HOP.replace("2 us", "20 ms")),
    Case("--cluster", "hop vgg13-h100-b128 --iterations 4 --cluster dgx-h100", "hop vgg13-h100-b128 --iterations 4 --cluster {tmp}/eight-slow.yaml"),
    Case("--nodes", "hop vgg13-h100-b128 --iterations 4 --cluster dgx-h100", "hop vgg13-h100-b128 --iterations 4 --cluster dgx-h100 --nodes 2"),
    Case("--slow-link", HOP, f"{HOP} --slow-link 'gpu0->gpu1:0.01'"),
    Case("--link-down", "hop vgg13-h100-b128 --iterations 4 --cluster {tmp}/ring-of-hop.yaml",
         "hop vgg13-h100-b128 --iterations 4 --cluster {tmp}/ring-of-hop.yaml --link-down 'gpu0->gpu1'"),
    Case("--network", "hop vgg13-h100-b128 --iterations 4 --cluster {tmp}/twin-spines.yaml",
         "hop vgg13-h100-b128 --iterations 4 --cluster {tmp}/twin-spines.yaml --network fifo"),
    Case("--slow-by", HOP, f"{HOP} --slow-by 1:10"),
    Case("--slow-per", f"{HOP} --slow-by 1:10", f"{HOP} --slow-by 1:10 --slow-per gpu"),
    Case("--slow", HOP, HOP_SLOW),
    Case("--jitter", HOP, HOP_JITTER),
    Case("--seed", HOP_JITTER, f"{HOP_JITTER} --seed 5"),
    Case("--repeat", HOP_JITTER, f"{HOP_JITTER} --repeat 3", "key:runs"),
    Case("--batch", HOP, f"{HOP} --batch 64"),
    Case("--gpu", HOP, f"{HOP} --gpu a100-40gb"),
    Case("--trace-gpu", HOP.replace("vgg13-h100-b128", "{tmp}/unnamed.trine.json --gpu a100-40gb --trace-gpu h100-sxm"),
         HOP.replace("vgg13-h100-b128", "{tmp}/unnamed.trine.json --gpu a100-40gb --trace-gpu v100")),
    Case("--compare", f"{HOP_SLOW} --backup 1", f"{HOP_SLOW} --backup 1 --compare", "key:speedup"),
    Case("--json", HOP, f"{HOP} --json {{tmp}}/hop.json", "file:hop.json"),
    Case("--perfetto", HOP, f"{HOP} --perfetto {{tmp}}/hop.pftrace", "file:hop.pftrace"),
]  # fmt: skip

STUDY = [
    Case("--plot", "study ll-simple", "study ll-simple --plot {tmp}/study.png", "file:study.png"),
    Case("--json", "study ll-simple", "study ll-simple --json {tmp}/study.json", "file:study.json"),
]  # fmt: skip
VALIDATE_COLLECTIVES = [
    Case("--machine", "validate collectives --machine h100", "validate collectives --machine gh200"),
    Case("--all", "validate collectives", "validate collectives --all", "text:"),
    Case("--report", "validate collectives", "validate collectives --report {tmp}/report", "file:report"),
    Case("--plot", "validate collectives --machine h100", "validate collectives --machine h100 --plot {tmp}/val.png", "file:val.png"),
    Case("--json", "validate collectives --machine h100", "validate collectives --machine h100 --json {tmp}/val.json", "file:val.json"),
]  # fmt: skip
PACKETS = "validate loadstore --series mscclpp-kernel6-h100"
VALIDATE_LOADSTORE = [
    Case("--series", f"{PACKETS} --largest 2K", "validate loadstore --series mscclpp-kernel6-a100 --largest 2K"),
    Case("--largest", f"{PACKETS} --largest 2K", f"{PACKETS} --largest 4K"),
    Case("--json", f"{PACKETS} --largest 2K", f"{PACKETS} --largest 2K --json {{tmp}}/vl.json", "file:vl.json"),
]  # fmt: skip

SYNTH = "trace synthesize resnet50 --output {tmp}/s.trine.json"
LLAMA_SYNTH = "trace synthesize llama-3-8b --layers 1 --output {tmp}/l.trine.json"
TRACE = {
    "trace inspect": [
        Case("--against", "trace inspect vgg13-h100-b128", "trace inspect vgg13-h100-b128 --against resnet50-h100-b128", "key:against"),
        Case("--json", "trace inspect vgg13-h100-b128", "trace inspect vgg13-h100-b128 --json {tmp}/i.json", "file:i.json"),
    ],
    "trace convert": [
        Case("--json", "trace convert vgg13-h100-b128 {tmp}/a.trine.json", "trace convert vgg13-h100-b128 {tmp}/a.trine.json --json {tmp}/c.json", "file:c.json"),
    ],
    "trace capture": [],  # see CAPTURE in the test: needs torch
    "trace models": [Case("--json", "trace models", "trace models --json {tmp}/m.json", "file:m.json")],
    "trace synthesize": [
        Case("--output", SYNTH, SYNTH.replace("s.trine", "t.trine"), "file:t.trine.json"),
        Case("--gpu", SYNTH, f"{SYNTH} --gpu a100-40gb"),
        Case("--sequence", LLAMA_SYNTH, f"{LLAMA_SYNTH} --sequence 1024"),
        Case("--batch", SYNTH, f"{SYNTH} --batch 8"),
        Case("--dtype", LLAMA_SYNTH, f"{LLAMA_SYNTH} --dtype fp32"),
        Case("--layers", LLAMA_SYNTH, LLAMA_SYNTH.replace("--layers 1", "--layers 2")),
        Case("--image", SYNTH, f"{SYNTH} --image 160"),
        Case("--times", f"{SYNTH} --times roofline", f"{SYNTH} --times fitted"),
        Case("--share", f"{SYNTH} --times roofline", f"{SYNTH} --times roofline --share conv=0.1"),
        Case("--calibration", f"{SYNTH} --times fitted", f"{SYNTH} --times fitted --calibration {{tmp}}/fits.json"),
        Case("--json", SYNTH, f"{SYNTH} --json {{tmp}}/sy.json", "file:sy.json"),
    ],
}  # fmt: skip

MICRO = "{data}/chakra/microbenchmarks/all_reduce/4npus_1MB/all_reduce"
CHAKRA = f"chakra run {MICRO}"
JOB = "chakra run {tmp}/mixed"
CHAKRA_INSIDE = f"{CHAKRA} --cluster astra3-generic --fidelity loadstore --workgroups 4 --wavefronts 2"
CHAKRA_PULLS = f"{CHAKRA} --cluster mi300x-node --fidelity loadstore"
JOB_INSIDE = "chakra run {tmp}/mixed --peak '1 TFLOP/s' --memory '1 TB/s' --cluster astra3-generic --fidelity loadstore --workgroups 4 --wavefronts 2"
CHAKRAS = {
    "chakra run": [
        Case("--comm-groups", "chakra run {tmp}/grouped --comm-groups {tmp}/pairs.json " + RING,
             "chakra run {tmp}/grouped --comm-groups {tmp}/halves.json " + RING),
        *machine(CHAKRA, 0),
        Case("--routing", "chakra run {tmp}/eight --cluster {tmp}/twin-spines.yaml --routing shortest",
             "chakra run {tmp}/eight --cluster {tmp}/twin-spines.yaml --routing d-mod-k"),
        Case("--peak", f"{JOB} {RING} --peak '1 TFLOP/s' --memory '1 TB/s'", f"{JOB} {RING} --peak '2 TFLOP/s' --memory '1 TB/s'"),
        Case("--memory", f"{JOB} {RING} --peak '900 TFLOP/s' --memory '1 GB/s'", f"{JOB} {RING} --peak '900 TFLOP/s' --memory '2 GB/s'"),
        Case("--network", f"chakra run {{tmp}}/crossing {RING} --network fair", f"chakra run {{tmp}}/crossing {RING} --network fifo"),
        Case("--collective-costs", f"{CHAKRA} --cluster dgx-h100 --collective-costs links", f"{CHAKRA} --cluster dgx-h100 --collective-costs library"),
        Case("--algorithm", f"{CHAKRA} {RING}", f"{CHAKRA} {RING} --algorithm all_reduce=tree"),
        Case("--fidelity", f"{CHAKRA} --cluster astra3-generic", f"{CHAKRA} --cluster astra3-generic --fidelity loadstore"),
        Case("--gpu-model", f"{CHAKRA} --cluster dgx-h100 --fidelity loadstore", f"{CHAKRA} --cluster dgx-h100 --fidelity loadstore --gpu-model astra3-generic"),
        Case("--workgroups", CHAKRA_INSIDE, CHAKRA_INSIDE.replace("--workgroups 4", "--workgroups 8")),
        Case("--wavefronts", CHAKRA_INSIDE, CHAKRA_INSIDE.replace("--wavefronts 2", "--wavefronts 1")),
        Case("--protocol", CHAKRA_INSIDE, f"{CHAKRA_INSIDE} --protocol ll"),
        Case("--unroll", CHAKRA_INSIDE, f"{CHAKRA_INSIDE} --unroll 1"),
        Case("--max-outstanding", CHAKRA_INSIDE, f"{CHAKRA_INSIDE} --max-outstanding 2"),
        Case("--arbitration", CHAKRA_PULLS, f"{CHAKRA_PULLS} --arbitration fair"),
        Case("--compute-workgroups", f"{JOB_INSIDE} --compute-workgroups 1", f"{JOB_INSIDE} --compute-workgroups 8"),
        Case("--compute-wavefronts", f"{JOB_INSIDE} --compute-workgroups 1 --compute-wavefronts 1", f"{JOB_INSIDE} --compute-workgroups 1 --compute-wavefronts 8"),
        Case("--no-compute-traffic", f"{JOB_INSIDE} --compute-workgroups 1", f"{JOB_INSIDE} --compute-workgroups 1 --no-compute-traffic"),
        Case("--engine", CHAKRA_INSIDE, f"{CHAKRA_INSIDE} --engine reference", "same"),
        Case("--json", f"{CHAKRA} {RING}", f"{CHAKRA} {RING} --json {{tmp}}/ch.json", "file:ch.json"),
        Case("--perfetto", f"{CHAKRA} {RING}", f"{CHAKRA} {RING} --perfetto {{tmp}}/ch.pftrace", "file:ch.pftrace"),
        Case("--inside-perfetto", CHAKRA_INSIDE, f"{CHAKRA_INSIDE} --inside-perfetto {{tmp}}/chi.pftrace", "file:chi.pftrace"),
        Case("--plot-noc", CHAKRA_INSIDE, f"{CHAKRA_INSIDE} --plot-noc {{tmp}}/chn.png", "file:chn.png"),
        Case("--parquet", f"{CHAKRA} {RING}", f"{CHAKRA} {RING} --parquet {{tmp}}/ch-parquet", "file:ch-parquet"),
        Case("--timeline", f"{CHAKRA} {RING}", f"{CHAKRA} {RING} --timeline {{tmp}}/ch.png", "file:ch.png"),
    ],
    "chakra inspect": [
        Case("--comm-groups", "chakra inspect {tmp}/grouped --comm-groups {tmp}/pairs.json", "chakra inspect {tmp}/grouped --comm-groups {tmp}/halves.json", "text:"),
        Case("--json", f"chakra inspect {MICRO}", f"chakra inspect {MICRO} --json {{tmp}}/ci.json", "file:ci.json"),
    ],
}  # fmt: skip

SHOW = "cluster show"
INFRA = "{data}/infragraph/device_dgx_h100.yaml --links-from catalogue"
BY_HAND = "{data}/infragraph/handwritten_2node_rail_bw_latency.yaml --link 'ic=1 TB/s, 300 ns'"
CLUSTER = {
    "cluster list": [Case("--json", "cluster list", "cluster list --json {tmp}/cl.json", "file:cl.json")],
    "cluster links": [Case("--json", "cluster links", "cluster links --json {tmp}/ck.json", "file:ck.json")],
    "cluster topologies": [Case("--json", "cluster topologies", "cluster topologies --json {tmp}/ct.json", "file:ct.json")],
    "cluster show": [
        Case("--gpus", f"{SHOW} dgx-h100 --gpus 2", f"{SHOW} dgx-h100 --gpus 4"),
        Case("--nodes", f"{SHOW} dgx-h100 --nodes 2", f"{SHOW} dgx-h100 --nodes 4"),
        Case("--fabric", f"{SHOW} dgx-h100 --nodes 4 --fabric clos:1", f"{SHOW} dgx-h100 --nodes 4 --fabric clos:4"),
        Case("--slow-link", f"{SHOW} dgx-h100", f"{SHOW} dgx-h100 --slow-link 'gpu0->nvswitch:0.5'"),
        Case("--link-down", f"{SHOW} --topology full --gpus 4 --bandwidth '1 GB/s' --latency '1 us'",
             f"{SHOW} --topology full --gpus 4 --bandwidth '1 GB/s' --latency '1 us' --link-down 'gpu0->gpu1'"),
        Case("--routing", f"{SHOW} {{tmp}}/twin-spines.yaml --routing shortest", f"{SHOW} {{tmp}}/twin-spines.yaml --routing d-mod-k", "key:routing"),
        Case("--topology", f"{SHOW} --gpus 4 {SLOW_RING}", f"{SHOW} --gpus 4 {SLOW_RING}".replace("ring", "switch")),
        Case("--bandwidth", f"{SHOW} --gpus 4 {RING}", f"{SHOW} --gpus 4 {SLOW_RING}"),
        Case("--latency", f"{SHOW} --gpus 4 {RING}", f"{SHOW} --gpus 4 {RING}".replace("1 us", "2 us")),
        Case("--gpu", f"{SHOW} --gpus 4 {RING}", f"{SHOW} --gpus 4 {RING} --gpu h100-sxm"),
        Case("--links", f"{SHOW} dgx-h100", f"{SHOW} dgx-h100 --links", "text:gpu7->nvswitch"),
        Case("--yaml", f"{SHOW} dgx-h100", f"{SHOW} dgx-h100 --yaml {{tmp}}/shown.yaml", "file:shown.yaml"),
        Case("--json", f"{SHOW} dgx-h100", f"{SHOW} dgx-h100 --json {{tmp}}/cs.json", "file:cs.json"),
    ],
    "cluster import": [
        Case("--format", "cluster import {tmp}/links.csv", "cluster import {tmp}/links.csv --format lstopo", "exit:2"),
        Case("--link", "cluster import {tmp}/bare.csv --link 'wire=50 GB/s, 1 us'", "cluster import {tmp}/bare.csv --link 'wire=25 GB/s, 1 us'"),
        Case("--links-from", "cluster import {data}/infragraph/device_dgx_h100.yaml", f"cluster import {INFRA}", "answers"),
        Case("--gpu", "cluster import {tmp}/links.csv --yaml {tmp}/g1.yaml", "cluster import {tmp}/links.csv --gpu h100-sxm --yaml {tmp}/g2.yaml", "differ:g1.yaml g2.yaml"),
        Case("--annotations", f"cluster import {BY_HAND} --yaml {{tmp}}/a1.yaml",
             f"cluster import {BY_HAND} --annotations {{tmp}}/ranks.json --yaml {{tmp}}/a2.yaml", "differ:a1.yaml a2.yaml"),
        Case("--merge-switches", f"cluster import {INFRA}", f"cluster import {INFRA} --merge-switches"),
        Case("--yaml", "cluster import {tmp}/links.csv", "cluster import {tmp}/links.csv --yaml {tmp}/im.yaml", "file:im.yaml"),
        Case("--json", "cluster import {tmp}/links.csv", "cluster import {tmp}/links.csv --json {tmp}/im.json", "file:im.json"),
    ],
    "cluster export": [
        Case("--output", "cluster export dgx-h100 --output {tmp}/x1.csv", "cluster export dgx-h100 --output {tmp}/x2.csv", "file:x2.csv"),
        Case("--format", "cluster export dgx-h100 --output {tmp}/x3.out --format csv", "cluster export dgx-h100 --output {tmp}/x4.out --format graphml", "differ:x3.out x4.out"),
        Case("--nodes", "cluster export dgx-h100 --output {tmp}/x5.csv", "cluster export dgx-h100 --nodes 2 --output {tmp}/x6.csv", "differ:x5.csv x6.csv"),
        Case("--fabric", "cluster export dgx-h100 --nodes 2 --output {tmp}/x7.csv", "cluster export dgx-h100 --nodes 2 --fabric switch --output {tmp}/x8.csv", "differ:x7.csv x8.csv"),
        Case("--lossy", "cluster export {tmp}/one-way.yaml --output {tmp}/x9.csv", "cluster export {tmp}/one-way.yaml --lossy --output {tmp}/x9.json", "file:x9.json"),
    ],
    "cluster draw": [
        Case("--output", "cluster draw dgx-h100 --output {tmp}/d1.svg", "cluster draw dgx-h100 --output {tmp}/d2.svg", "file:d2.svg"),
        Case("--nodes", "cluster draw dgx-h100 --output {tmp}/d3.svg", "cluster draw dgx-h100 --nodes 2 --output {tmp}/d4.svg", "differ:d3.svg d4.svg"),
        Case("--fabric", "cluster draw dgx-h100 --nodes 2 --output {tmp}/d5.svg", "cluster draw dgx-h100 --nodes 2 --fabric switch --output {tmp}/d6.svg", "differ:d5.svg d6.svg"),
        Case("--title", "cluster draw dgx-h100 --output {tmp}/d7.svg", "cluster draw dgx-h100 --title Ours --output {tmp}/d8.svg", "differ:d7.svg d8.svg"),
    ],
    "gpu list": [Case("--json", "gpu list", "gpu list --json {tmp}/gl.json", "file:gl.json")],
    "gpu show": [
        Case("--sources", "gpu show h200", "gpu show h200 --sources", "text:"),
        Case("--yaml", "gpu show h200", "gpu show h200 --yaml {tmp}/h200.yaml", "file:h200.yaml"),
        Case("--json", "gpu show h200", "gpu show h200 --json {tmp}/gs.json", "file:gs.json"),
    ],
}  # fmt: skip

GEMV = "eidolon run gemv-allreduce --rows 128 --cols 128"
GEMM = "eidolon run gemm-allreduce --rows 128 --cols 128 --inner 64"
FIXED = f"{GEMV} --wakeup '20 us'"


def of_kernel(command: str, gemm: str, spacing: str = "answer", polled: str = "") -> list[Case]:
    """Options of fused kernels, for a command on the matrix-vector and one on the matrix-matrix product."""
    return [
        Case("--rows", command, command.replace("--rows 128", "--rows 256")),
        Case("--cols", command, command.replace("--cols 128", "--cols 256")),
        Case("--inner", gemm, gemm.replace("--inner 64", "--inner 128")),
        Case("--dtype-bytes", command, f"{command} --dtype-bytes 2"),
        Case("--tile", command, f"{command} --tile 16x128"),
        Case("--workgroups", command, f"{command} --workgroups 1"),
        Case("--algorithm", command, f"{command} --algorithm twoshot"),
        Case("--flags", command, f"{command} --flags single"),
        Case("--flag-spacing", f"{command} --flags single", f"{command} --flags single --flag-spacing 4096", spacing),
        Case("--unfused", command, f"{command} --unfused"),
        Case("--gpu-model", f"{command} {polled}", f"{command} {polled} --gpu-model astra3-generic"),
        Case("--cluster", f"{command} {polled}", f"{command} {polled} --cluster dgx-h100"),
    ]  # fmt: skip


def waiting(command: str) -> list[Case]:
    return [
        Case("--sync", command, f"{command} --sync mwait"),
        Case("--poll", command, f"{command} --poll '1 us'"),
        Case("--sleep", f"{command} --sync sleep --sleep '1 us'", f"{command} --sync sleep --sleep '7 us'"),
        Case("--monitor-capacity", f"{command} --sync mwait", f"{command} --sync mwait --monitor-capacity 1"),
        Case("--monitor-wakeup", f"{command} --sync mwait", f"{command} --sync mwait --monitor-wakeup '3 us'"),
    ]  # fmt: skip


SWEEP = "eidolon sweep gemv-allreduce --rows 64,128 --cols 128 --wakeup '10 us,20 us' --sync spin"
SWEEP_GEMM = "eidolon sweep gemm-allreduce --rows 128 --cols 128 --inner 64 --wakeup '10 us,20 us' --sync spin"
RECORD = "eidolon record gemv-allreduce --rows 128 --cols 128 --output {tmp}/r.npz"
RECORD_GEMM = "eidolon record gemm-allreduce --rows 128 --cols 128 --inner 64 --output {tmp}/r.npz"
FROM = "eidolon writes-from {tmp}/records.csv --kernel gemv-allreduce --rows 128 --cols 128 --output {tmp}/w.csv"
FROM_GEMM = "eidolon writes-from {tmp}/records.csv --kernel gemm-allreduce --rows 128 --cols 128 --inner 64 --output {tmp}/w.csv"
LISTED = "eidolon writes-from {tmp}/records.csv --buffer inbox --output {tmp}/w.csv"
EIDOLON = {
    "eidolon run": [
        *of_kernel(GEMV, GEMM, "text:flag_spacing 4096: the time is"),
        *waiting(FIXED),
        Case("--peers", GEMV, f"{GEMV} --peers 7"),
        Case("--target", "eidolon run {tmp}/lopsided.gpu --cluster astra3-generic --peers 3",
             "eidolon run {tmp}/lopsided.gpu --target 1 --cluster astra3-generic --peers 3"),
        Case("--wakeup", FIXED, FIXED.replace("20 us", "30 us")),
        Case("--wakeup-from", FIXED, f"{FIXED} --wakeup-from start"),
        Case("--distribution", GEMV, f"{GEMV} --distribution 'uniform(5 us, 50 us)'"),
        Case("--seed", f"{GEMV} --distribution 'uniform(5 us, 50 us)'", f"{GEMV} --distribution 'uniform(5 us, 50 us)' --seed 5"),
        Case("--together", f"{GEMV} --rows 256 --distribution 'uniform(5 us, 50 us)'",
             f"{GEMV} --rows 256 --distribution 'uniform(5 us, 50 us)' --together"),
        Case("--straggler", GEMV, f"{GEMV} --straggler '2:50 us'"),
        Case("--writes", GEMV, f"{GEMV} --writes {{tmp}}/writes.csv"),
        Case("--arrivals", GEMV, f"{GEMV} --arrivals {{tmp}}/recorded.npz"),
        Case("--symmetric", GEMV, f"{GEMV} --symmetric"),
        Case("--fabric", GEMV, f"{GEMV} --fabric modelled"),
        Case("--engine", GEMV, f"{GEMV} --engine reference", "same"),
        Case("--json", GEMV, f"{GEMV} --json {{tmp}}/e.json", "file:e.json"),
        Case("--perfetto", GEMV, f"{GEMV} --perfetto {{tmp}}/e.pftrace", "file:e.pftrace"),
        Case("--plot", GEMV, f"{GEMV} --plot {{tmp}}/e.png", "file:e.png"),
    ],
    "eidolon sweep": [
        *of_kernel(SWEEP.replace("64,128", "128"), SWEEP_GEMM, "text:only decides which memory channels", "--poll '1 us'"),
        *(case for case in waiting(SWEEP.removesuffix(" --sync spin")) if case.option != "--sync"),
        Case("--sync", SWEEP, SWEEP.replace("--sync spin", "--sync spin,mwait")),
        Case("--peers", SWEEP, f"{SWEEP} --peers 7"),
        Case("--wakeup", SWEEP, SWEEP.replace("20 us", "30 us")),
        Case("--wakeup-from", SWEEP, f"{SWEEP} --wakeup-from start"),
        Case("--straggler", SWEEP, f"{SWEEP} --straggler '2:50 us'"),
        Case("--fabric", SWEEP, f"{SWEEP} --fabric modelled"),
        Case("--jobs", f"{SWEEP} --jobs 1", f"{SWEEP} --jobs 2", "same"),
        Case("--json", SWEEP, f"{SWEEP} --json {{tmp}}/sw.json", "file:sw.json"),
        Case("--csv", SWEEP, f"{SWEEP} --csv {{tmp}}/sw.csv", "file:sw.csv"),
        Case("--plot", SWEEP, f"{SWEEP} --plot {{tmp}}/sw.png", "file:sw.png"),
    ],
    "eidolon record": [
        Case("--output", RECORD, RECORD.replace("r.npz", "r2.npz"), "file:r2.npz"),
        *of_kernel(RECORD, RECORD_GEMM),
        *waiting(RECORD),
        Case("--peers", RECORD, f"{RECORD} --peers 2"),
        Case("--target", RECORD.replace("gemv-allreduce --rows 128 --cols 128", "{tmp}/lopsided.gpu --cluster astra3-generic"),
             RECORD.replace("gemv-allreduce --rows 128 --cols 128", "{tmp}/lopsided.gpu --cluster astra3-generic --target 1")),
        Case("--no-fold", RECORD, f"{RECORD} --no-fold", "same"),
    ],
    "eidolon writes-from": [
        Case("--output", FROM, FROM.replace("w.csv", "w2.csv"), "file:w2.csv"),
        *(case for case in of_kernel(FROM, FROM_GEMM) if case.option not in ("--cols", "--inner", "--gpu-model", "--cluster")),
        Case("--cols", FROM_GEMM, FROM_GEMM.replace("--cols 128", "--cols 256")),
        Case("--inner", FROM_GEMM.replace(" --inner 64", ""), FROM_GEMM, "text:--inner 64 changes none of the writes"),
        Case("--gpu-model", FROM, f"{FROM} --gpu-model astra3-generic", "text:--gpu-model astra3-generic changes none"),
        Case("--cluster", FROM, f"{FROM} --cluster dgx-h100", "text:--cluster dgx-h100 changes none of the writes"),
        Case("--kernel", FROM, FROM_GEMM),
        Case("--target", LISTED, f"{LISTED} --target 1"),
        Case("--peers", FROM.replace("records.csv", "five.csv"), FROM.replace("records.csv", "five.csv") + " --peers 4", "answers"),
        Case("--buffer", LISTED, LISTED.replace("inbox", "outbox")),
        Case("--first-flag", LISTED, f"{LISTED} --first-flag 5"),
        Case("--at", LISTED, f"{LISTED} --at start"),
        Case("--from", LISTED, f"{LISTED} --from first"),
        Case("--mapping", "eidolon writes-from {data}/profiles/rocprof_results.csv --mapping {tmp}/rocm-1.yaml --output {tmp}/w.csv",
             "eidolon writes-from {data}/profiles/rocprof_results.csv --mapping {tmp}/rocm-2.yaml --output {tmp}/w.csv"),
    ],
}  # fmt: skip

KERNEL = "kernel run {tmp}/exchange.gpu"
ON_GENERIC = f"{KERNEL} --cluster astra3-generic"
TWO_NODES = "kernel run {data}/mscclpp/v2_HEAD_allgather_2node_8gpu.json --size 64K --cluster dgx-h100 --gpus 8"
PLAN = "kernel run {data}/mscclpp/v2_HEAD_allreduce_allpairs_4gpu.json --cluster astra3-generic --gpus 4"
KERNELS = {
    "kernel run": [
        Case("--size", f"{PLAN} --size 64K", f"{PLAN} --size 128K"),
        Case("--wavefronts", f"{PLAN} --size 64K", f"{PLAN} --size 64K --wavefronts 2"),
        Case("--cluster", ON_GENERIC, f"{KERNEL} --cluster dgx-h100 --gpus 4"),
        Case("--gpus", "kernel run {tmp}/any.gpu --cluster dgx-h100 --gpus 2", "kernel run {tmp}/any.gpu --cluster dgx-h100 --gpus 4"),
        Case("--nodes", f"{TWO_NODES} --nodes 2", f"{TWO_NODES} --nodes 1"),
        Case("--fabric", f"{TWO_NODES} --nodes 2", f"{TWO_NODES} --nodes 2 --fabric switch@ib-edr"),
        Case("--slow-link", f"{KERNEL} --cluster dgx-h100 --gpus 4", f"{KERNEL} --cluster dgx-h100 --gpus 4 --slow-link 'gpu0->nvswitch:0.1'"),
        Case("--link-down", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {RING}", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {RING} --link-down 'gpu0->gpu1'"),
        Case("--routing", "kernel run {tmp}/eight.gpu --gpu-model astra3-generic --cluster {tmp}/twin-spines.yaml --routing shortest",
             "kernel run {tmp}/eight.gpu --gpu-model astra3-generic --cluster {tmp}/twin-spines.yaml --routing d-mod-k"),
        Case("--topology", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {RING}", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {RING}".replace("ring", "switch")),
        Case("--bandwidth", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {RING}", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {SLOW_RING}"),
        Case("--latency", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {RING}", f"{KERNEL} --gpus 4 --gpu-model astra3-generic {RING}".replace("1 us", "9 us")),
        Case("--gpu-model", f"{KERNEL} --cluster dgx-h100 --gpus 4", f"{KERNEL} --cluster dgx-h100 --gpus 4 --gpu-model astra3-generic"),
        Case("--unroll", ON_GENERIC, f"{ON_GENERIC} --unroll 1"),
        Case("--max-outstanding", ON_GENERIC, f"{ON_GENERIC} --max-outstanding 2"),
        Case("--arbitration", f"{KERNEL} --cluster dgx-h100", f"{KERNEL} --cluster dgx-h100 --arbitration fair"),
        Case("--no-fold", ON_GENERIC, f"{ON_GENERIC} --no-fold", "key:simulator.gpus_simulated"),
        Case("--verify-fold", ON_GENERIC, f"{ON_GENERIC} --verify-fold", "text:unfolded"),
        Case("--engine", ON_GENERIC, f"{ON_GENERIC} --engine reference", "same"),
        Case("--json", ON_GENERIC, f"{ON_GENERIC} --json {{tmp}}/k.json", "file:k.json"),
        Case("--perfetto", ON_GENERIC, f"{ON_GENERIC} --perfetto {{tmp}}/k.pftrace", "file:k.pftrace"),
        Case("--plot-noc", ON_GENERIC, f"{ON_GENERIC} --plot-noc {{tmp}}/k.png", "file:k.png"),
    ],
    "kernel show": [
        Case("--size", PLAN.replace("run", "show").split(" --cluster")[0] + " --size 64K", PLAN.replace("run", "show").split(" --cluster")[0] + " --size 128K"),
        Case("--wavefronts", PLAN.replace("run", "show").split(" --cluster")[0] + " --size 64K", PLAN.replace("run", "show").split(" --cluster")[0] + " --size 64K --wavefronts 2", "text:"),
        Case("--gpus", "kernel show {tmp}/any.gpu --gpus 2", "kernel show {tmp}/any.gpu --gpus 4"),
        Case("--line", PLAN.replace("run", "show").split(" --cluster")[0] + " --size 64K", PLAN.replace("run", "show").split(" --cluster")[0] + " --size 64K --line '256 B'", "text:"),
        Case("--summary", "kernel show {tmp}/exchange.gpu", "kernel show {tmp}/exchange.gpu --summary", "plain:"),
        Case("--json", "kernel show {tmp}/exchange.gpu", "kernel show {tmp}/exchange.gpu --json {tmp}/ks.json", "file:ks.json"),
    ],
}  # fmt: skip

#: Files instead of JSON: what the command computes is what it writes.
WRITES = {"eidolon record": "{tmp}/r.npz", "eidolon writes-from": "{tmp}/w.csv"}

CASES: dict[str, list[Case]] = {
    "train": TRAIN, "run": RUN, "calibrate": CALIBRATE, "warmup": [], "collective": COLLECTIVE, "check": CHECK,
    "hop": HOPS, "study": STUDY, "validate collectives": VALIDATE_COLLECTIVES,
    "validate loadstore": VALIDATE_LOADSTORE, **TRACE, **CHAKRAS, **CLUSTER, **EIDOLON, **KERNELS,
}  # fmt: skip
