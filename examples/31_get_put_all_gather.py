"""All-gather on 16 GPUs: write to others or read from them, and fair arbitration? Case study 2 of ASTRA-sim 3.0.

`trine study all-gather` does the same. Writes 31_get_put_all_gather.png.
"""

from pathlib import Path

from trine.gpu.cases import run_case


def main() -> None:
    study = run_case("all-gather")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
