"""Pictures and timelines of trine.infer: the parts of a step, throughput over loads, and single steps in a report."""

import pytest

import trine
from trine.inference.answer_picture import loads_of
from trine.inference.answer_steps import simulated_steps, step_rows
from trine.report.answers import page_of_answer
from trine.report.blocks import TimelineBlock
from trine.report.serving_timeline import StepRow, steps_timeline


def ask(**changes):
    usual = {"input_tokens": 512, "output_tokens": 64}
    if "batch" not in changes:
        usual["concurrency"] = 8
    return trine.infer("llama-3-8b", "dgx-h100", **{**usual, **changes})


def curve_of(answer):
    return [answer.at_load(requests) for requests in loads_of(answer)]


def test_the_curve_has_the_answers_of_other_loads_up_to_the_most_that_fit():
    answer = ask(max_sequences=12)
    curve = curve_of(answer)
    assert [each.requests for each in curve] == [1, 2, 4, 8, 12]
    assert curve[3].tpot_s == answer.tpot_s
    assert not any(each.queues for each in curve)
    assert all(each.job.batch for each in curve_of(ask(batch=4, max_sequences=4)))


def test_lanes_get_at_least_one_request_each():
    answer = trine.infer("qwen3-30b-a3b", "dgx-h100", input_tokens=512, output_tokens=64, concurrency=8, attention_dp=4)
    assert curve_of(answer)[0].requests == 4


def test_the_picture_shows_the_step_and_the_asked_load(tmp_path):
    answer = ask(tp=2)
    path = tmp_path / "answer.svg"
    figure = answer.plot(path=path)
    parts, loads = figure.axes
    assert path.stat().st_size > 1000
    widths = sorted(patch.get_width() for patch in parts.patches)
    assert widths == pytest.approx(sorted(part.seconds * 1e3 for part in answer.decode_parts if part.seconds > 0))
    asked = loads.lines[-1].get_xydata().tolist()
    assert asked == [[answer.tokens_per_s_per_user.value, answer.tokens_per_s_per_gpu.value]]
    assert loads.get_xlabel() == "tokens per second of one user"


def test_a_prefill_worker_has_prompts_over_latency():
    answer = ask(phase="prefill")
    _, loads = answer.plot().axes
    assert loads.lines[-1].get_xydata().tolist() == [
        [answer.end_to_end_s.value * 1e3, answer.input_tokens_per_s_per_gpu.value]
    ]
    assert loads.get_ylabel() == "prompt tokens per second of each GPU"


@pytest.mark.parametrize("changes", [{"phase": "prefill", "batch": 4}, {}])
def test_labels_have_room_above_and_beside_all_points(changes):
    _, loads = ask(**changes).plot().axes
    for line in loads.lines:
        for x, y in line.get_xydata():
            assert x <= 0.95 * loads.get_xlim()[1]
            assert y <= 0.95 * loads.get_ylim()[1]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["decode step", "prefill step", "mixed step"]),
        ({"engine": "sglang"}, ["decode step", "prefill step"]),
        ({"phase": "decode"}, ["decode step"]),
        ({"phase": "prefill"}, ["prefill step"]),
    ],
)
def test_the_report_has_the_steps_of_the_task_graph(changes, kinds):
    answer = ask(tp=2, **changes)
    block = answer.run_blocks().timeline
    assert isinstance(block, TimelineBlock)
    assert [group.name for group in block.groups] == kinds
    simulated = simulated_steps(answer.job, answer.running)
    row_of, end_ps = simulated.graph.rank, simulated.records.end_ps
    ends_ps = [int(end_ps[row_of == row].max()) for row in range(len(kinds))]
    rows = step_rows(answer.job, answer.running)
    assert [sum(span.duration_ps for span in row.spans) for row in rows] == ends_ps
    assert block.length == -(-max(ends_ps) // 1000)


def test_tracks_have_all_spans_once_and_causes_are_the_spans_before():
    block = ask(tp=2).run_blocks().timeline
    tracks = [track for group in block.groups for track in group.tracks]
    assert [track.first for track in tracks] == [sum(each.count for each in tracks[:n]) for n in range(len(tracks))]
    assert sum(track.count for track in tracks) == len(block.start)
    assert sum(cause < 0 for cause in block.cause.tolist()) == len(block.groups)
    for span, cause in enumerate(block.cause.tolist()):
        if cause >= 0:
            end = int(block.start[cause]) + int(block.duration[cause])
            assert abs(end - int(block.start[span])) <= 1
    assert len(block.legend) == len(block.colours)


def test_steps_without_spans_have_no_timeline():
    assert steps_timeline([StepRow("decode step", "", ())]) is None


def test_the_page_shows_the_timeline():
    page = page_of_answer(ask())
    assert any(isinstance(block, TimelineBlock) for block in page.sections[0].blocks)
