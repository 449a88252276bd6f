"""Cost of a load-store simulation, 1 to 256 MiB on 2 to 128 GPUs. Case study 5 of ASTRA-sim 3.0.

Same as `trine study cost`. Writes 34_loadstore_cost.png.
"""

from pathlib import Path

from trine.gpu.cases import run_case


def main() -> None:
    study = run_case("cost")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
