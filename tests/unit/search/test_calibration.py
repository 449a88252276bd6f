"""Sizes of the small jobs that calibrate a form of layouts."""

from test_report import LAYOUT

from trine.search.bounds import by_stage
from trine.search.calibration import sample_of

DEEP = LAYOUT._replace(pp=8, virtual_stages=1, schedule="1f1b")
INTERLEAVED = LAYOUT._replace(pp=4, virtual_stages=4, schedule="interleaved")


def test_the_ends_of_a_small_job_differ_as_in_the_layout():
    sample = sample_of(DEEP, 32, by_stage((9, 10, 10, 10, 10, 10, 11, 8), 8, 1))
    assert sample.pp == 4
    assert sample.chunks == ((1, 2, 3, 0), (2, 3, 4, 1))
    assert sample.micro_batches == (8, 9)


def test_no_small_job_has_more_layers_than_the_model():
    for layers in (16, 32, 64):
        sample = sample_of(INTERLEAVED, 32, by_stage((layers // 16,) * 16, 4, 4))
        assert sum(sample.chunks[1]) <= layers
        assert sample.virtual_stages == min(4, layers // 8)
        assert sample.micro_batches == (8, 12)
