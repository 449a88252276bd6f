"""Print how many rows of published serving runs each rule of validation.serving_exclusions excludes.

The rules read columns of the configuration and measured values, never a prediction.

    python benchmarks/exclude_serving_rows.py [SILICON.csv.gz] [--names]

SILICON  A table with the columns of aiconfigurator's silicon samples, in place of the bundled rows.
--names  Also print the name of each excluded row with its rule.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bundle_serving import ROWS, silicon_rows

from validation.serving_exclusions import SOURCE, excluded_rows, exclusion_counts
from validation.serving_rows import ServingRow, load_rows, read_rows


def main() -> None:
    """Print the number of rows, excluded ones by rule, and the remainder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--names", action="store_true")
    given = parser.parse_args()
    rows = silicon(given.table) if given.table else tuple(row for row in load_rows() if row.source == SOURCE)
    excluded = excluded_rows(rows)
    print(f"{len(rows):5d}  rows")
    for rule, count in exclusion_counts(excluded):
        print(f"{count:5d}  rule {rule.trap}: {rule.reason}")
    print(f"{len(rows) - len(excluded):5d}  rows that remain")
    if given.names:
        for name, rule in excluded.items():
            print(f"{name},{rule.trap}")


def silicon(path: Path) -> tuple[ServingRow, ...]:
    """Return the rows of a table of aiconfigurator."""
    blank = dict.fromkeys(ROWS, "")
    return read_rows(blank | facts for facts in silicon_rows(path))


if __name__ == "__main__":
    main()
