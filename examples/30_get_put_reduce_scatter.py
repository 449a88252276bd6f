"""Reduce-scatter on 32 GPUs: read the parts of others, or have them written? Case study 1 of ASTRA-sim 3.0.

`trine study reduce-scatter` does the same. Writes 30_get_put_reduce_scatter.png.
"""

from pathlib import Path

from trine.gpu.cases import run_case


def main() -> None:
    study = run_case("reduce-scatter")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
