"""Is an option without effect refused, or does the answer state that it has no effect?"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.errors import PlanError
from trine.gpu.collective import LoadStoreOptions, loadstore_collective

TRACE = "vgg13-h100-b128"
DGX = ("--dp", 8, "--cluster", "dgx-h100")
INSIDE = ("collective", "all_reduce", "--size", "4K", "--cluster", "dgx-h100", "--gpus", 4, "--fidelity", "loadstore")


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", TRACE, *DGX, "--routing", "ecmp-split"), "--routing ecmp-split changes nothing"),
        (("train", TRACE, *DGX, "--slow-link", "host0->host1:0.5"), "--slow-link host0->host1:0.5 changes nothing"),
        (("train", TRACE, *DGX, "--algorithm", "all_gather=ring"), "the job has no all_gather; it has all_reduce"),
        (
            ("cluster", "show", "dgx-h100", "--nodes", 4, "--fabric", "clos:4"),
            "all NICs hang on one leaf switch of 64 ports",
        ),
    ],
)
def test_an_option_that_can_move_nothing_is_refused(words, says):
    done = invoke(*words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_note_names_a_link_that_only_a_second_run_shows_to_be_idle():
    question = ("collective", "all_reduce", "--size", "1K", "--cluster", "dgx-h100", "--slow-link")
    idle, used = (
        json.loads(invoke(*question, link, "--json", "-").stdout)["notes"]
        for link in ("host0->host1:0.5", "gpu0->nvswitch:0.01")
    )
    assert idle[-1].startswith("--slow-link host0->host1:0.5 changes no time")
    assert not any("--slow-link" in note for note in used)


def test_a_note_names_a_link_that_was_not_tried():
    question = "collective all_reduce --size 1M --network fair --cluster dgx-h100 --nodes 16 --slow-link"
    link = "node0.host0->node0.host1:0.5"
    notes = json.loads(invoke(*question.split(), link, "--json", "-").stdout)["notes"]
    assert notes[-1].startswith(f"--slow-link {link} may change no time")


def test_the_usual_routing_may_be_spelt_out():
    assert invoke("train", TRACE, *DGX, "--routing", "shortest").exit_code == 0


def test_an_algorithm_of_a_collective_that_the_job_has_not_is_refused_in_python_too():
    with pytest.raises(PlanError, match=r"algorithm broadcast=ring cannot matter"):
        trine.simulate(TRACE, trine.Plan(dp=2, algorithm=(("broadcast", "ring"),)), cluster="dgx-h100")


def test_buffers_of_a_model_without_any_say_so():
    told = " ".join(invoke("train", TRACE, *DGX, "--buffers", "none").stdout.split())
    assert "buffers 'none' changes nothing: vgg13-h100-b128 has no buffers" in told


@pytest.mark.parametrize("option", [("--wavefronts", 2), ("--max-outstanding", 4), ("--arbitration", "fair")])
def test_options_of_kernels_say_where_they_move_no_time(option):
    name = option[0].removeprefix("--").replace("-", "_")
    for details in ((), ("--details",)):
        assert f"{name} {option[1]} changes no time at these sizes" in invoke(*INSIDE, *option, *details).stdout


def test_options_of_kernels_that_move_the_time_are_not_said_to_be_idle():
    cluster = trine.load_cluster("dgx-h100", gpus=4)
    moved = loadstore_collective("all_reduce", [4096, 65536], cluster, options=LoadStoreOptions(unroll=1))
    assert not any("changes no time" in note for note in moved.notes)
    plain = loadstore_collective("all_reduce", [4096, 65536], cluster)
    assert moved.times_ps != plain.times_ps


def test_flag_spacing_says_how_far_it_moves_the_time():
    words = ("eidolon", "run", "gemv-allreduce", "--rows", 128, "--cols", 128)
    told = " ".join(invoke(*words, "--flag-spacing", 4096).stdout.split())
    assert "flag_spacing 4096: the time differs by 0 ps from 8 bytes" in told
    assert "flag_spacing" not in " ".join(invoke(*words).stdout.split())


def test_cpu_launches_say_what_they_expose():
    told = " ".join(invoke("train", TRACE, "--cpu", "--details").stdout.split())
    assert "5 us of it exposed on rank 0" in told
