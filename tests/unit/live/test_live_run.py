"""Does the live page's server show and steer a run, leave its answer alone, and answer nobody else?"""

import http.client
import json
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import trine
from trine.common.observer import observing
from trine.errors import InputError
from trine.live.server import HOST, TOKEN_HEADER, LiveServer
from trine.live.state import STEP_EVENTS, LiveRun

PLAN = {"dp": 4, "tp": 2, "pp": 2, "batch": 16, "micro_batch": 1, "schedule": "1f1b"}


@contextmanager
def serving():
    run = LiveRun("trine train <script>alert(1)</script>")
    server = LiveServer(run)
    try:
        yield run, server
    finally:
        server.close()


def request(server, method, path, token=None, host=None):
    """Return the status and the body of a request."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10)
    headers = {} if token is None else {TOKEN_HEADER: token}
    headers["Host"] = f"{HOST}:{server.port}" if host is None else host
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def status_of(server, rank=-1):
    code, body = request(server, "GET", f"/status?rank={rank}", server.token)
    assert code == 200
    return json.loads(body)


@pytest.mark.parametrize("path", ["/", "/status", "/nothing"])
@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_a_wrong_token_gets_403(path, token):
    with serving() as (_, server):
        sent = None if token is None else token.encode().decode("latin-1")
        assert request(server, "GET", path, sent)[0] == 403


@pytest.mark.parametrize("path", ["http://[/", "http://[::1/status", "http://a]b/live.js"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_malformed_address_gets_400_and_no_traceback(method, path, capfd):
    with serving() as (_, server):
        assert request(server, method, path, server.token)[0] == 400
    assert capfd.readouterr().err == ""


PARAMETERS = st.text(st.characters(codec="utf-8", exclude_characters="#"), max_size=30)


def test_any_parameters_get_an_answer(capfd):
    """Parameters of an address that a person or another program types: 200 with a number of a rank, or of none."""
    with serving() as (_, server):

        @settings(max_examples=150, deadline=None)
        @given(PARAMETERS, PARAMETERS)
        @example("rank", "9" * 30)
        @example("rank", "١")
        @example("rank", "%ff")
        @example("rank", "-0")
        def answers(name, value):
            query = f"{quote(name, safe='%&=')}={quote(value, safe='%&=')}"
            code, body = request(server, "GET", f"/status?token={server.token}&{query}")
            assert code == 200
            shown = json.loads(body)
            assert (shown["state"], shown["done"]) == ("running", 0)

        answers()
    assert capfd.readouterr().err == ""


def test_a_foreign_host_gets_403_also_with_the_token():
    with serving() as (_, server):
        for host in ("example.com", f"example.com:{server.port}", "", "127.0.0.1", f"127.0.0.1:{server.port + 1}"):
            for path in ("/", "/status", "/live.js"):
                assert request(server, "GET", path, server.token, host)[0] == 403, host
            assert request(server, "POST", "/stop", server.token, host)[0] == 403
        assert request(server, "GET", "/", server.token, f"localhost:{server.port}")[0] == 200


def test_commands_need_the_token_in_a_header():
    """A form or an image of another site can send an address, but no header of this name."""
    with serving() as (run, server):
        assert request(server, "POST", f"/pause?token={server.token}")[0] == 403
        assert request(server, "GET", "/pause", server.token)[0] == 404
        assert run.status()["state"] == "running"
        assert request(server, "POST", "/pause", server.token)[0] == 200
        assert run.status()["state"] == "paused"
        assert request(server, "POST", "/__init__", server.token)[0] == 404


def test_the_server_listens_on_this_machine_alone_and_closes():
    with serving() as (_, server):
        assert server.address.startswith("http://127.0.0.1:")
        assert len(server.token) >= 32
        with pytest.raises(InputError, match="cannot be used"):
            LiveServer(LiveRun("again"), port=server.port)
    with pytest.raises(OSError):
        request(server, "GET", "/", server.token)


def test_pages_forbid_everything_that_they_do_not_need():
    with serving() as (_, server):
        connection = http.client.HTTPConnection(HOST, server.port, timeout=10)
        connection.request("GET", f"/?token={server.token}")
        answer = connection.getresponse()
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert b"innerHTML" not in request(server, "GET", "/live.js")[1]


def drive(server, seen):
    """Pause the run at once, look, step three times, and let it go on."""
    while status_of(server)["state"] != "paused":
        time.sleep(0.01)
    while not status_of(server).get("view"):
        time.sleep(0.01)
    for _ in range(3):
        before = status_of(server, rank=0)["view"]["events"]
        assert request(server, "POST", "/step", server.token)[0] == 200
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            after = status_of(server, rank=0)
            if after["view"]["events"] > before:
                break
            time.sleep(0.01)
        seen.append((before, after["view"]["events"], after))
    request(server, "POST", "/resume", server.token)


def test_steps_are_short_and_the_answer_stays_the_same():
    """A paused run processes at most 10,000 events a step, and ends as an undisturbed one."""
    job = {"workload": "model:gpt-2,layers=8", "cluster": "dgx-h100", "fold": "off"}
    cluster = trine.load_cluster("dgx-h100", nodes=2)

    def run_step():
        return trine.simulate(job["workload"], trine.Plan(**PLAN), cluster=cluster, fold="off")

    alone = run_step()
    with serving() as (run, server):
        seen = []
        run.pause()
        client = threading.Thread(target=drive, args=(server, seen))
        client.start()
        with observing(control=run):
            steered = run_step()
        run.finish()
        client.join(30)
        assert status_of(server)["state"] == "finished"
    assert steered.step_time_ps == alone.step_time_ps
    assert len(seen) == 3
    for before, after, status in seen:
        assert before < after <= before + 2 * STEP_EVENTS  # flows that start count as events beside ended tasks
        assert status["view"]["level"] == "operators"
        assert status["view"]["tasks"]
        assert all(0 <= link["share"] <= 1 for link in status["view"]["links"])
    assert seen[-1][2]["view"]["ranks"] == 16


def test_a_load_store_run_names_what_wavefronts_wait_for():
    views = []

    class Watcher(LiveRun):
        def chunk(self, most, view):
            views.append(view(0))
            return min(most, 2000)

    with observing(control=Watcher("test")):
        result = trine.loadstore_collective("all_reduce", "64K", cluster=trine.load_cluster("astra3-generic", gpus=4))
    assert result.rows
    waits = [row for view in views for row in view["waiting"]]
    assert any("semaphore" in row["for"] for row in waits)
    assert all(row["since_ps"] >= 0 for row in waits)
    assert any(view.get("units") for view in views)
    assert max(sum(view["wavefronts"].values()) for view in views) > 0
    assert all(view["ended"] <= after["ended"] for view, after in pairwise(views) if view["now_ps"] <= after["now_ps"])


def test_stop_ends_the_run_as_an_interrupt_does():
    with serving() as (run, server):
        request(server, "POST", "/stop", server.token)
        with pytest.raises(KeyboardInterrupt), observing(control=run):
            trine.simulate("model:gpt-2", trine.Plan(dp=8, batch=8), cluster="dgx-h100", fold="off")


def test_a_closed_page_costs_no_views():
    """Nobody has asked for five seconds: the simulation computes no view."""
    run = LiveRun("test")
    assert run.chunk(1000, pytest.fail) == 1000


def test_wall_time_left_excludes_pauses():
    run = LiveRun("test")
    run.progress(1, 4, 10)
    run.pause()
    time.sleep(0.2)
    run.resume()
    status = run.status()
    assert status["paused_s"] >= 0.2
    assert status["left_s"] < 3 * status["wall_s"]
    assert (status["done"], status["total"], status["now_ps"]) == (1, 4, 10)
