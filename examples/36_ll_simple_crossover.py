"""From which size on does Simple beat LL, by link latency and bandwidth? A figure of ASTRA-sim 3.0.

`trine study ll-simple` does the same. Writes 36_ll_simple_crossover.png.
"""

from pathlib import Path

from trine.validation.cases import run_case


def main() -> None:
    study = run_case("ll-simple")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
