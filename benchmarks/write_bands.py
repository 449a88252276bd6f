"""Write src/trine/presets/measured/training/bands.yaml from replays of the published steps (25 CPU minutes).

    python benchmarks/write_bands.py [--rows N]

--rows: at most N rows per source, chosen by the hash of their names. Answers are cached, so a second run reuses them.
"""

from __future__ import annotations

import argparse

import yaml

from trine.results.headline import BANDS
from trine.validation.replay_rows import user_answers
from trine.validation.training import validate_training
from trine.validation.training_page import band_document, share_inside, share_left_out

HEAD = """\
# Bands of step times and the best published MFU, written by benchmarks/write_bands.py: do not edit.
#   levels         blind predictions; low, high: quantiles LOW and HIGH of measured / predicted among `rows` rows
#                  (trine.validation.training_page), widened to hold the prediction itself
#   fitted_levels  predictions with factors fitted on other models or numbers of GPUs of the same source
"""


def main() -> None:
    """Replay the steps, compute the bands and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=None)
    given = parser.parse_args()
    found = validate_training(answers=user_answers(), most_rows=given.rows, jobs=given.jobs, progress=print)
    document = band_document(found)
    BANDS.write_text(HEAD + yaml.safe_dump(document, sort_keys=False, width=118))
    print(found.summary())
    for name, is_fitted in (("blind", False), ("fitted", True)):
        inside, width = share_inside(found, document, is_fitted)
        left_out, wide = share_left_out(found, is_fitted)
        print(f"{name}: {inside:.0%} of rows in their band, median high / low {width:.2f}")
        print(f"{name}, model left out: {left_out:.0%} (target 75 to 88 %), median high / low {wide:.2f}")


if __name__ == "__main__":
    main()
