"""Small all-reduces on eight H100s, load by load, against what MSCCL++ measured. Writes 23_h100_small_allreduce.png.

The measured plan meets, lets the switch add up (NVLS), and meets again. Here the same, and two others that MSCCL++ has:
one and two steps with packets, up to the sizes at which these still pay. `trine validate loadstore` compares all
published times.
"""

from pathlib import Path

from trine.collectives.sizes import format_size
from validation.gpu.measured import chosen, compare, median_error

SIZES = tuple(1 << power for power in range(10, 21, 2))
CURVES = {
    "as measured, NVLS": (("NVLS between meetings",), 1 << 20),
    "two steps, packets": (("two-shot packets, 28 blocks", "two-shot packets, 56 blocks"), 256 << 10),
    "one step, packets": (("one-shot packets",), 64 << 10),
}


def main() -> None:
    points = [point for point in chosen(["mscclpp-dsl-h100"]) if point.size_bytes in SIZES]
    measured = [(point.size_bytes, point.time_ps / 1e6) for point in points]
    curves = {}
    print("all-reduce, us    " + "".join(f"{format_size(size):>8}" for size, _ in measured))
    print("measured          " + "".join(f"{time_us:8.2f}" for _, time_us in measured))
    for name, (programs, largest) in CURVES.items():
        compared = compare([point for point in points if point.size_bytes <= largest], programs)
        curves[name] = [(each.point.size_bytes, each.time_ps / 1e6) for each in compared]
        print(f"{name}\n{'':18}" + "".join(f"{time_us:8.2f}" for _, time_us in curves[name]))
        print(
            f"{'':18}" + "".join(f"{each.error:+8.0%}" for each in compared) + f"  median {median_error(compared):.0%}"
        )
    draw(measured, curves)


def draw(measured: list[tuple[int, float]], curves: dict[str, list[tuple[int, float]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    axes.plot(*zip(*measured, strict=True), "k-o", label="MSCCL++, measured (NVLS)")
    for (name, curve), style in zip(curves.items(), ("-s", "--^", "--v"), strict=True):
        axes.plot(*zip(*curve, strict=True), style, label=f"simulated: {name}")
    axes.set(xscale="log", xlabel="bytes", ylabel="time (us)", ylim=(0, 14))
    axes.set_xticks(SIZES, [format_size(size) for size in SIZES])
    axes.minorticks_off()
    axes.set_title("all-reduce, 8 x H100, nothing fitted", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
