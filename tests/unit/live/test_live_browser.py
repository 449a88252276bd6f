"""Can a person steer a run by clicks (pause, step, resume, stop), on a page without errors and foreign requests?"""

import threading

import pytest
from chromium import browser, missing_axe, missing_browser, requests, serious_faults

import trine
from trine.common.observer import observing
from trine.live.server import LiveServer
from trine.live.state import LiveRun

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing_browser()), reason=missing_browser())]
HOSTILE = "trine train <img src=x onerror=document.title='broken'> \u202e"


def wait_for(driver, condition, seconds=60):
    """Wait until a script returns a true value; return it."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, seconds, poll_frequency=0.05).until(lambda each: each.execute_script(condition))


def text_of(driver, name):
    return driver.find_element("id", name).text


def clicks(server, profile, seen):
    """Look at a paused run, step it, resume it; called in a thread of its own."""
    with browser(profile) as driver:
        driver.get(server.address)
        wait_for(driver, "return document.getElementById('state').textContent === 'paused'")
        wait_for(driver, "return document.getElementById('links').children.length || "
                         "document.getElementById('facts').children.length > 2")  # fmt: skip
        seen["title"] = (text_of(driver, "title"), driver.title)
        seen["disabled"] = [name for name in ("pause", "resume", "step", "stop")
                            if not driver.find_element("id", name).is_enabled()]  # fmt: skip
        driver.find_element("id", "rank").send_keys("3")
        for _ in range(3):
            before = text_of(driver, "facts")
            driver.find_element("id", "step").click()
            wait_for(driver, f"return document.getElementById('facts').innerText !== {before!r}")
        wait_for(driver, "return document.getElementById('tasks').children.length > 0")
        seen["tasks"] = text_of(driver, "tasks")
        seen["axe"] = [] if missing_axe() else serious_faults(driver)
        driver.find_element("id", seen["last"]).click()
        wait_for(driver, "return ['finished', 'the run has ended'].includes("
                         "document.getElementById('state').textContent)", 120)  # fmt: skip
        seen["requests"] = requests(driver)
        seen["errors"] = [entry["message"] for entry in driver.get_log("browser")
                          if "ERR_CONNECTION_REFUSED" not in entry["message"]]  # fmt: skip


def steered(tmp_path, last):
    """Run a job that the page pauses, steps and then resumes or stops; return (what was seen, the result or None)."""
    run = LiveRun(HOSTILE)
    server = LiveServer(run)
    seen = {"last": last}
    run.pause()
    client = threading.Thread(target=clicks, args=(server, tmp_path / "profile", seen))
    client.start()
    result = None
    try:
        with observing(control=run):
            plan = trine.Plan(dp=4, tp=2, pp=2, batch=16, micro_batch=1, schedule="1f1b")
            result = trine.simulate("model:gpt-2", plan, cluster=trine.load_cluster("dgx-h100", nodes=2), fold="off")
    except KeyboardInterrupt:
        pass
    finally:
        run.finish()
        client.join(120)
        server.close()
    return seen, result


def test_pause_step_and_resume(tmp_path):
    seen, result = steered(tmp_path, "resume")
    plan = trine.Plan(dp=4, tp=2, pp=2, batch=16, micro_batch=1, schedule="1f1b")
    alone = trine.simulate("model:gpt-2", plan, cluster=trine.load_cluster("dgx-h100", nodes=2), fold="off")
    assert result is not None
    assert result.step_time_ps == alone.step_time_ps
    assert "<img" in seen["title"][0]
    assert seen["title"][1] == "trine: live"
    assert seen["disabled"] == ["pause"]
    assert "runs" in seen["tasks"]
    assert seen["axe"] == []
    assert seen["errors"] == []
    assert all(url.startswith("http://127.0.0.1:") for url in seen["requests"])


def test_stop(tmp_path):
    seen, result = steered(tmp_path, "stop")
    assert result is None
    assert seen["errors"] == []
