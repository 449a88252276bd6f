"""Headless Chromium for tests of reports: console messages, network requests, CPU time, axe-core."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

#: Path of axe.min.js, from the npm package axe-core.
AXE = os.environ.get("TRINE_AXE", "")


def missing_browser() -> str:
    """Return why no browser can be driven, "" if one can."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed (pip install selenium)"
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found (Debian: apt-get install chromium chromium-driver)" if absent else ""


def missing_axe() -> str:
    """Return why axe-core cannot run, "" if it can."""
    return "" if AXE and Path(AXE).is_file() else "TRINE_AXE names no axe.min.js (npm install axe-core)"


@contextmanager
def browser(profile: Path, width: int = 1280, *, is_dark: bool = False):
    """Start Chromium with an empty profile; yield its driver."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for switch in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "hide-scrollbars", f"user-data-dir={profile}",
        f"window-size={width},900",
    ):  # fmt: skip
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        yield driver
    finally:
        driver.quit()


def requests(driver) -> list[str]:
    """Return the addresses that the page asked for since the last call, from any server."""
    found = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return [url for url in found if url.startswith(("http", "ws"))]


def metrics(driver) -> dict[str, float]:
    """Return Chromium's counters of the page: seconds of script, layout, style and tasks."""
    return {each["name"]: each["value"] for each in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}


def serious_faults(driver) -> list[str]:
    """Return axe-core's serious and critical faults of the page as it is shown."""
    driver.execute_script(Path(AXE).read_text())
    answer = driver.execute_async_script("const done = arguments[0]; axe.run().then(done)")
    faults = []
    for fault in answer["violations"]:
        if fault["impact"] in ("serious", "critical"):
            places = [node["html"][:160] for node in fault["nodes"][:3]]
            faults.append(f"{fault['id']}: {fault['help']} {places}")
    return faults
