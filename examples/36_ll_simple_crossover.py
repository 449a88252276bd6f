"""At what size does Simple overtake LL, by link latency and bandwidth? Reproduces a figure of ASTRA-sim 3.0.

Same as `trine study ll-simple`. Writes 36_ll_simple_crossover.png.
"""

from pathlib import Path

from trine.gpu.cases import run_case


def main() -> None:
    study = run_case("ll-simple")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
