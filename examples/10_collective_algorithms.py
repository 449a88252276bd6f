"""Which all-reduce suits which network? Five algorithms and a custom plan, message by message on bare links.

The plan is recursive doubling (each rank exchanges the whole buffer with a partner, log2 N times), written here as an
MSCCL XML file; MSCCL++ plans (JSON) load the same way. Eight GPUs, every link 50 GB/s and 1 us, no library costs.
Writes 10_collective_algorithms.png.
"""

import tempfile
from pathlib import Path

import matplotlib

import trine
from trine.collectives.options import CollectiveOptions
from trine.collectives.query import collective
from trine.gpu.plans import check_plan, load_plan

GPUS = 8
SIZES = {"64 KiB": 64 << 10, "256 MiB": 256 << 20}
TOPOLOGIES = ("ring", "torus:2x4", "hypercube", "full", "switch", "fat-tree:4:2")
ALGORITHMS = ("ring", "ring:2", "double-binary-tree", "halving-doubling", "direct")
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7")


def recursive_doubling(num_ranks: int) -> str:
    """Return the plan as XML. One thread block per partner: send the buffer, add the partner's, release the next."""
    rounds = num_ranks.bit_length() - 1
    head = 'proto="Simple" nchannels="1" nchunksperloop="1" coll="allreduce" inplace="1"'
    where = 'srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"'
    lines = [f'<algo name="recursive_doubling" ngpus="{num_ranks}" {head}>']
    for rank in range(num_ranks):
        lines.append(f'<gpu id="{rank}" i_chunks="1" o_chunks="1" s_chunks="0">')
        for k in range(rounds):
            partner, before = rank ^ (1 << k), f'depid="{k - 1}" deps="{1 if k else -1}"'
            lines.append(f'<tb id="{k}" send="{partner}" recv="{partner}" chan="0">')
            lines.append(f'<step s="0" type="s" {where} {before} hasdep="0"/>')
            lines.append(f'<step s="1" type="rrc" {where} depid="-1" deps="-1" hasdep="{int(k < rounds - 1)}"/></tb>')
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "recursive_doubling.xml"
        plan.write_text(recursive_doubling(GPUS))
        proof = check_plan(load_plan(plan))
        print(f"plan {proof.plan}: every rank ends with the right sum, in {proof.num_runs} orders of its thread blocks")
        times = {}
        for label, size in SIZES.items():
            for topology in TOPOLOGIES:
                cluster = trine.build_topology(topology, "50 GB/s", "1 us", GPUS)
                for algorithm in (*ALGORITHMS, str(plan)):
                    options = CollectiveOptions(algorithm=algorithm, protocol="none")
                    row = collective("all_reduce", [size], cluster, options=options).rows[0]
                    times[label, topology, Path(algorithm).stem] = row.time_ps / 1e6
    for label in SIZES:
        print(f"\n{label}, us: {'':4}" + "".join(f"{name:>20}" for name in (*ALGORITHMS, "recursive_doubling")))
        for topology in TOPOLOGIES:
            row = [times[label, topology, name] for name in (*ALGORITHMS, "recursive_doubling")]
            marks = [f"{time:.1f}{'*' if time == min(row) else ' '}" for time in row]
            print((f"{topology:16}" + "".join(f"{mark:>20}" for mark in marks)).rstrip())
    draw(times)


def draw(times: dict[tuple[str, str, str], float]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), constrained_layout=True, sharey=True)
    names = (*ALGORITHMS, "recursive_doubling")
    scales = (2, 5, 10, 20, 50), (1000, 2000, 5000, 10000, 20000, 50000)
    for axis, label, ticks in zip(axes, SIZES, scales, strict=True):
        for number, (name, colour) in enumerate(zip(names, COLOURS, strict=True)):
            row = [times[label, topology, name] for topology in TOPOLOGIES]
            where = [place + (number - 2.5) * 0.11 for place in range(len(TOPOLOGIES))]
            axis.scatter(row, where, s=34, color=colour, label=name)
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel(f"time of an all-reduce of {label} (µs)")
        axis.set_yticks(range(len(TOPOLOGIES)), TOPOLOGIES)
        axis.set_yticks([place + 0.5 for place in range(len(TOPOLOGIES) - 1)], minor=True)
        axis.tick_params(axis="y", which="both", length=0)
        axis.grid(alpha=0.3, axis="x")
        axis.grid(alpha=0.6, axis="y", which="minor")
    axes[0].invert_yaxis()
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle("Eight GPUs, every link 50 GB/s and 1 µs, no library costs", fontsize=11)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
