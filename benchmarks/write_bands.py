"""Write src/trine/presets/measured/training/bands.yaml from replays of the published steps (25 CPU minutes).

    python benchmarks/write_bands.py [--rows N | --stored] [--check]

--rows    At most N rows per source, chosen by the hash of their names. Answers are cached, so a second run reuses them.
--stored  Take the stored report of ``trine validate training`` instead of a replay.
--check   Print the coverage of the bands, and write nothing.

Layouts on several nodes come from the stored report of ``trine validate layouts``.
"""

from __future__ import annotations

import argparse

import yaml

from trine.results.headline import BANDS
from validation.bands import band_document, coverage, share_inside, share_left_out
from validation.cnn_rows import predict_cnns
from validation.layouts import load_stored_layouts
from validation.replay_rows import user_answers
from validation.training import load_stored_training, validate_training

HEAD = """\
# Bands of step times, written by benchmarks/write_bands.py: do not edit.
#   levels         blind predictions; low, high: quantiles LOW and HIGH of measured / predicted among `rows` rows
#                  (validation.bands), widened to hold the prediction itself; votes: groups of rows, by scale too;
#                  shared_scales: votes on fabrics that carry other jobs too
#   fitted_levels  predictions with factors fitted on other models or numbers of GPUs of the same source
#   scales         factors of both ends if a level of one node stands in for a scale, from layouts on several nodes
#   cnn            convolutional networks (NVIDIA/DeepLearningExamples, one GPU), which borrow no band of transformers
"""


def main() -> None:
    """Replay the steps, compute the bands and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.stored:
        found = load_stored_training()
    else:
        found = validate_training(answers=user_answers(), most_rows=given.rows, jobs=given.jobs, progress=print)
    layouts = load_stored_layouts().on_several_nodes()
    document = band_document(found, layouts, predict_cnns())
    if not given.check:
        BANDS.write_text(HEAD + yaml.safe_dump(document, sort_keys=False, width=118))
    print(found.summary())
    for name, rows, groups, share in coverage((*found.counted, *layouts), document):
        target = "75 to 88 %" if name == "all" else "60 to 97 %" if groups >= 15 else "none, below 15 groups"
        print(f"{name}: {share:.0%} of {groups} groups ({rows} rows) in their band (target: {target})")
    for name, is_fitted in (("blind", False), ("fitted", True)):
        inside, width = share_inside(found, document, is_fitted)
        left_out, wide = share_left_out(found, is_fitted, layouts)
        print(f"{name}: {inside:.0%} of rows in their band, median high / low {width:.2f}")
        print(f"{name}, model left out: {left_out:.0%} (target 75 to 88 %), median high / low {wide:.2f}")


if __name__ == "__main__":
    main()
