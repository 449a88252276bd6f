"""Write src/trine/presets/measured/{series,points}.csv from the collected tables in ../shared/data/measured.

How the tables are thinned, without further smoothing:

- nccl-tests and rccl-tests logs (``collectives.csv``): every row. Repeated sizes of one machine, version and setting
  are merged into one series with the median.
- aiconfigurator (``collectives_profiled.csv.gz``): every size; the median over repeats and over its two data types
  (half, int8), which differ by 1 %. On machines with reducing switches, an int8 all_reduce is a separate series
  without NVLS: NCCL has no in-network sum of int8, and the times show it (8 H100, 512 MiB: 2.11 and 2.68 ms).
- vTrain (1 MiB steps) and vidur (993 or more sizes): two sizes per octave, each the median of all rows within 6 %, at
  the median of their sizes.

``spread`` is the largest / smallest time among the rows merged into a point, 1 for a single row.

    python benchmarks/bundle_measurements.py [../shared/data/measured [FOLDER TO WRITE TO]]
"""

from __future__ import annotations

import csv
import gzip
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import yaml

TARGET = Path(__file__).parent.parent / "src" / "trine" / "presets" / "measured"
#: Profiled machines with reducing switches.
NVLS_MACHINES = ("aic-h100", "aic-b200", "aic-gb200", "aic-gb300")
OPS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
WINDOW = 1.06
SERIES_COLUMNS = [
    "series",
    "machine",
    "op",
    "gpus",
    "nodes",
    "version",
    "algorithm",
    "protocol",
    "nvls",
    "observed",
    "derived",
    "source",
]


def main(folder: Path, target: Path) -> None:
    """Read, group and thin the tables, and write the results."""
    machines = yaml.safe_load((TARGET / "machines.yaml").read_text())
    groups: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    for row in _rows(folder):
        groups[_series_key(row, machines)].append((int(float(row["size_bytes"])), float(row["time_us"])))
    series, points = [], []
    for number, key in enumerate(sorted(groups, key=_order)):
        series.append([number, *key])
        thin = key[0].startswith(("vidur", "vtrain"))
        points += [(number, *point) for point in (_thinned if thin else _medians)(groups[key])]
    _write(target / "series.csv", SERIES_COLUMNS, series)
    _write(target / "points.csv", ["series", "size_bytes", "time_us", "spread"], points)
    print(f"{len(series)} series, {len(points)} points from {sum(map(len, groups.values()))} rows")


def _rows(folder: Path):
    with (folder / "collectives.csv").open() as file:
        yield from csv.DictReader(file)
    with gzip.open(folder / "collectives_profiled.csv.gz", "rt") as file:
        yield from csv.DictReader(file)


def _series_key(row: dict[str, str], machines: dict) -> tuple[str, ...]:
    machine = _machine(row, machines)
    demanded = machines[machine].get("forced") or {}
    algo, nvls, observed = row["algo"], "", ""
    if "NCCL_NVLS_ENABLE=0" in algo:
        nvls, observed = "0", "ring"
    elif algo and not demanded:
        observed = algo.lower()
    elif "dtype=int8" in row["note"] and row["collective"] == "all_reduce" and machine in NVLS_MACHINES:
        nvls = "0"
    if row["proto"]:
        observed += f"/{row['proto'].lower()}"
    return (
        machine,
        OPS.get(row["collective"], row["collective"]),
        row["gpus"],
        row["nodes"],
        row["nccl_version"].split(" (dir")[0] if "dir" in row["nccl_version"] else row["nccl_version"],
        demanded.get("algorithm", ""),
        demanded.get("protocol", ""),
        nvls,
        observed,
        "1" if "derived from" in row["note"] else "",
        row["source"],
    )


def _machine(row: dict[str, str], machines: dict) -> str:
    for name, entry in machines.items():
        raw = entry["raw"] if isinstance(entry["raw"], list) else [entry["raw"]]
        only_nodes = str(entry.get("only_nodes", row["nodes"]))
        if row["machine"] in raw and entry.get("source", "") in row["source"] and row["nodes"] == only_nodes:
            return name
    raise SystemExit(f"machines.yaml does not know {row['machine']!r} of {row['source']!r}")


def _order(key: tuple[str, ...]) -> tuple:
    return (key[0], key[1], int(key[2]), int(key[3]), *key[4:])


def _medians(rows: list[tuple[int, float]]) -> list[tuple[int, str, str]]:
    times: dict[int, list[float]] = defaultdict(list)
    for size, time_us in rows:
        times[size].append(time_us)
    return [_point(size, times[size]) for size in sorted(times)]


def _thinned(rows: list[tuple[int, float]]) -> list[tuple[int, str, str]]:
    """Return two sizes per octave; windows do not overlap, so each row enters one point at most."""
    first, last = (math.log2(f(size for size, _ in rows)) for f in (min, max))
    points = []
    for half_octave in range(round(2 * first), round(2 * last) + 1):
        centre = 2 ** (half_octave / 2)
        near = [(size, time_us) for size, time_us in rows if centre / WINDOW <= size <= centre * WINDOW]
        if near:
            size = statistics.median_low(size for size, _ in near)
            points.append(_point(size, [time_us for _, time_us in near]))
    return points


def _point(size: int, times: list[float]) -> tuple[int, str, str]:
    return size, f"{statistics.median(times):.6g}", f"{max(times) / min(times):.3g}"


def _write(path: Path, header: list[str], rows: list) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:3]]
    main(*given, *(Path("../shared/data/measured"), TARGET)[len(given) :])
