"""A ring all-reduce between eight nodes on a two-tier Clos, packet by packet. Case study 6 of ASTRA-sim 3.0.

`trine study clos` does the same. Writes 35_clos_packets.png.
"""

from pathlib import Path

from trine.gpu.cases import run_case


def main() -> None:
    study = run_case("clos")
    print(study.text(volatile=False))
    study.plot(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
