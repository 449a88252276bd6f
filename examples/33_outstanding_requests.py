"""All-gather on 32 GPUs: how many requests should a CU have in flight? Case study 4 of ASTRA-sim 3.0.

`trine study outstanding` does the same. Writes 33_outstanding_requests.png.
"""

from pathlib import Path

from trine.gpu.cases import run_case


def main() -> None:
    study = run_case("outstanding")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
