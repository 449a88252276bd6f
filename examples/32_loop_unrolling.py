"""All-to-all on 16 GPUs: how many requests should a wavefront have in flight? Case study 3 of ASTRA-sim 3.0.

`trine study unrolling` does the same. Writes 32_loop_unrolling.png.
"""

from pathlib import Path

from trine.gpu.cases import run_case


def main() -> None:
    study = run_case("unrolling")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
