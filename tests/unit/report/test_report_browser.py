"""Does a report work in a real browser: no error, no request, no markup from names, quick, accessible, printable?"""

from __future__ import annotations

import base64
import statistics
import time

import pytest
from chromium import browser, metrics, missing_axe, missing_browser, requests, serious_faults
from report_pages import HOSTILE, every_block, many_spans, page_of_blocks, repeated_spans

from trine.report.html import write_page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing_browser()), reason=missing_browser())]

#: Spans of a large step, the limit of the renderer's CPU seconds, and limits of a pan: median and longest, in seconds.
MANY, MAX_RENDER_S, MEDIAN_PAN_S, MAX_PAN_S = 100_000, 2.0, 0.050, 0.200


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    """Return a function that writes a page and opens it; one browser serves all tests."""
    folder = tmp_path_factory.mktemp("reports")
    from selenium.webdriver.support.ui import WebDriverWait

    with browser(folder / "profile") as driver:

        def open_page(page, fragment: str = ""):
            path = folder / f"{time.monotonic_ns()}.html"
            write_page(page, path)
            driver.get(f"{path.as_uri()}{fragment}")
            drawn = "return document.readyState === 'complete' && !!document.querySelector('main')"
            WebDriverWait(driver, 60, poll_frequency=0.05).until(lambda each: each.execute_script(drawn))
            return driver

        yield open_page


def errors(driver) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser")]


def test_every_block_is_drawn_without_errors_or_requests(drive):
    driver = drive(page_of_blocks(every_block("name")))
    assert driver.execute_script("return document.querySelectorAll('figure, .block.text').length") >= 11
    assert driver.execute_script("return document.querySelector('canvas').width") > 500
    assert errors(driver) == []
    assert requests(driver) == []


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text(drive, name: str):
    driver = drive(page_of_blocks(every_block(name), title=name))
    assert driver.title != "broken"
    assert driver.execute_script("return document.images.length") == 0
    assert driver.execute_script("return document.scripts.length") == 2
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1280
    shown = driver.execute_script("return document.body.innerText")
    assert "\u202e" not in shown
    assert "\x00" not in shown
    assert errors(driver) == []
    assert requests(driver) == []


def test_a_section_is_shown_at_a_time_and_keys_change_it(drive):
    from selenium.webdriver.common.by import By

    driver = drive(page_of_blocks((), (), ()))

    def shown() -> list[str]:
        return driver.execute_script("return [...document.querySelectorAll('section:not(.hidden)')].map((s) => s.id)")

    assert shown() == ["part-0"]
    driver.find_element(By.TAG_NAME, "body").send_keys("]")
    assert shown() == ["part-1"]
    driver.find_element(By.LINK_TEXT, "Question 2?").click()
    assert shown() == ["part-2"]
    assert driver.find_element(By.CSS_SELECTOR, "nav a[aria-current]").text == "Question 2?"


def test_the_first_line_names_an_older_version(drive):
    driver = drive(page_of_blocks(()))
    first = driver.execute_script("return document.querySelector('header').innerText").splitlines()[0]
    assert first.startswith("Result of trine 0.1.0, shown by trine")


def test_many_spans_render_and_pan_in_time(drive):
    driver = drive(page_of_blocks(()))
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    drive(page_of_blocks((many_spans(MANY),)))
    driver.execute_script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    spent = metrics(driver)
    assert spent["TaskDuration"] < MAX_RENDER_S
    pans = []
    driver.execute_script("document.querySelector('[aria-label=\"Zoom in\"]').click()")
    for number in range(40):
        before = metrics(driver)["TaskDuration"]
        driver.execute_script(
            "const port = document.querySelector('.port');"
            "port.dispatchEvent(new WheelEvent('wheel', {deltaX: arguments[0], bubbles: true, cancelable: true}));"
            "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))",
            -25 if number % 2 else 40,
        )
        pans.append(metrics(driver)["TaskDuration"] - before)
    pan_ms, longest_ms = 1e3 * statistics.median(pans), 1e3 * max(pans)
    print(f"render {spent['TaskDuration']:.2f} s, pan {pan_ms:.1f} ms, longest {longest_ms:.1f} ms")
    assert statistics.median(pans) < MEDIAN_PAN_S
    assert max(pans) < MAX_PAN_S


def test_a_click_shows_the_cause_and_the_path_back(drive):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = drive(page_of_blocks((many_spans(160, 2),)))
    port = driver.find_element(By.CSS_SELECTOR, ".port")
    box = driver.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.width, b.height]", port)
    width = box[0] - 112
    # the gap behind the third of 40 spans: 280 to 300 of 4,000 units
    place = 112 + width * 290 / 4000
    ActionChains(driver).move_to_element_with_offset(
        port, place - box[0] / 2, 22 + 24 + 10 - box[1] / 2
    ).click().perform()
    details = driver.find_element(By.CSS_SELECTOR, ".details").text
    assert details.startswith("Wait before gemm")
    assert "waited for\ncompute" in details
    assert "Released by, back in time:" in details
    port.send_keys("b")
    assert driver.find_element(By.CSS_SELECTOR, ".details h3").text.startswith("norm")
    port.send_keys(Keys.ESCAPE)
    search = driver.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("atten")
    assert driver.find_element(By.CSS_SELECTOR, ".controls [role=status]").text.startswith("52 spans")


def test_folded_periods_expand_and_causes_follow_the_copies(drive):
    from selenium.webdriver.common.by import By

    driver = drive(page_of_blocks((repeated_spans(3),)))
    button = driver.find_element(By.XPATH, "//button[starts-with(text(), 'Expand 3')]")
    button.click()
    search = driver.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("middle")
    assert driver.find_element(By.CSS_SELECTOR, ".controls [role=status]").text.startswith("4 spans")
    search.clear()
    search.send_keys("last\ue007")
    causes = [each.text for each in driver.find_elements(By.CSS_SELECTOR, ".details ol li")]
    assert [cause.split()[0] for cause in causes] == ["middle"] * 4 + ["first"]


@pytest.mark.skipif(bool(missing_axe()), reason=missing_axe())
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_axe_finds_no_serious_fault(tmp_path, width: int, is_dark: bool):
    path = tmp_path / "page.html"
    write_page(page_of_blocks(every_block("a name"), ()), path)
    with browser(tmp_path / "profile", width, is_dark=is_dark) as driver:
        driver.get(path.as_uri())
        time.sleep(0.3)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert serious_faults(driver) == []


def test_charts_fit_a_narrow_screen_whole(drive):
    from selenium.webdriver.support.ui import WebDriverWait

    driver = drive(page_of_blocks(every_block("a name")))
    charts = "[...document.querySelectorAll('svg.chart:not(.wide)')]"
    right_ends = f"return Math.max(...{charts}.map((each) => each.getBoundingClientRect().right))"
    widths = f"return [...new Set({charts}.map((each) => each.getAttribute('viewBox').split(' ')[2]))]"
    assert driver.execute_script(widths) == ["860"]
    screen = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        WebDriverWait(driver, 20).until(lambda each: each.execute_script(widths) == ["380"])
        assert driver.execute_script(right_ends) <= 400
        assert errors(driver) == []
    finally:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**screen, "width": 1280})


@pytest.mark.skipif(bool(missing_axe()), reason=missing_axe())
def test_axe_finds_a_fault_that_is_put_in(drive):
    driver = drive(page_of_blocks(()))
    driver.execute_script("document.querySelector('main').append(new Image())")
    assert any(fault.startswith("image-alt") for fault in serious_faults(driver))


def test_the_theme_button_changes_the_colours(drive):
    from selenium.webdriver.common.by import By

    driver = drive(page_of_blocks(every_block("name")))

    def paper() -> str:
        return driver.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = paper()
    driver.find_element(By.CSS_SELECTOR, "button.theme").click()
    assert paper() != light
    driver.find_element(By.CSS_SELECTOR, "button.theme").click()
    assert paper() == light


def test_a_print_has_all_sections_and_no_buttons(drive):
    driver = drive(page_of_blocks(every_block("first"), every_block("second")))
    one = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert one.startswith(b"%PDF")
    assert one.count(b"/Type /Page\n") + one.count(b"/Type /Page ") + one.count(b"/Type /Page/") >= 2
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = (
        "return [...document.querySelectorAll('.screen, nav')].every((e) => getComputedStyle(e).display === 'none')"
    )
    assert driver.execute_script(hidden)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert errors(driver) == []


def test_a_click_on_a_collective_shows_the_command_that_zooms(drive, tmp_path):
    """The command names the collective's layer; the zoom that was run is there, too."""
    import re

    from click.testing import CliRunner
    from selenium.webdriver.common.by import By

    from trine.cli.main import app

    path = tmp_path / "step.html"
    line = ["train", "model:gpt-2,layers=2,sequence=128", "--tp", "4", "--batch", "1", "--cluster", "dgx-h100"]
    assert CliRunner().invoke(app, [*line, "--zoom", "largest", "--report", str(path)]).exit_code == 0
    driver = drive(page_of_blocks(()))
    driver.get(f"{path.as_uri()}#slow")
    word = re.search(r'"zoomed":"([^"]+)"', path.read_text())[1]
    search = driver.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys(f"{word},\ue007")
    shown = driver.find_element(By.CSS_SELECTOR, ".details .zoom")
    command = shown.find_element(By.TAG_NAME, "code").text
    assert command.endswith(f" --zoom {word}")
    assert command.count("--zoom") == 1
    assert command.startswith("trine train model:gpt-2,layers=2,sequence=128 --tp 4")
    assert "at the operator level and" in shown.text
    shown.find_element(By.LINK_TEXT, "Causes").click()
    assert driver.execute_script("return [...document.querySelectorAll('section:not(.hidden)')].map((s) => s.id)") == [
        "zoom"
    ]


def test_a_click_on_an_operator_shows_the_command_that_zooms(drive, tmp_path):
    from click.testing import CliRunner
    from selenium.webdriver.common.by import By

    from trine.cli.main import app

    path = tmp_path / "step.html"
    line = ["train", "model:gpt-2,layers=2,sequence=128", "--tp", "4", "--batch", "1", "--cluster", "dgx-h100"]
    command = [*line, "--zoom", "aten::linear,layers.1.mlp.up", "--report", str(path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    driver = drive(page_of_blocks(()))
    driver.get(f"{path.as_uri()}#slow")
    search = driver.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("mlp.up")
    for _ in range(20):
        search.send_keys("\ue007")
        heading = driver.find_element(By.CSS_SELECTOR, ".details h3").text
        if heading == "aten::linear · layers.1.mlp.up":
            break
    shown = driver.find_element(By.CSS_SELECTOR, ".details .zoom")
    assert shown.find_element(By.TAG_NAME, "code").text.endswith(" --zoom aten::linear,layers.1.mlp.up")
    assert "Load by load: aten::linear of layers.1.mlp.up takes" in shown.text
    shown.find_element(By.LINK_TEXT, "Causes").click()
    assert "tiles and waves" in driver.find_element(By.ID, "zoom").text
    assert errors(driver) == []


def test_the_address_opens_the_same_view(drive):
    """Zoom, selected span and search are in the address, so that a colleague who opens it sees the same."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    driver = drive(page_of_blocks((many_spans(1600, 2),)), "#part-0")
    driver.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("norm")
    driver.find_element(By.CSS_SELECTOR, ".port").send_keys("wwn")
    WebDriverWait(driver, 10).until(lambda each: "span=" in each.current_url)
    WebDriverWait(driver, 10).until(lambda each: "find=norm" in each.current_url)
    address = driver.current_url
    seen = [driver.find_element(By.CSS_SELECTOR, selector).text for selector in (".details h3", ".controls .number")]
    assert "20.4 us" not in seen[1]
    driver.get("about:blank")
    driver.get(address)
    again = [driver.find_element(By.CSS_SELECTOR, selector).text for selector in (".details h3", ".controls .number")]
    assert again == seen
    assert driver.find_element(By.CSS_SELECTOR, "input[type=search]").get_attribute("value") == "norm"
    for broken in (
        "from=9&to=1",
        "from=-1&to=<b>",
        "from=1e9&to=2",
        "span=99999999999",
        "from=0&to=10&span=4000000000",
    ):
        driver.get("about:blank")
        driver.get(f"{address.split('?')[0]}?{broken}")
        assert driver.find_element(By.CSS_SELECTOR, ".port").is_displayed()
    assert errors(driver) == []


def test_an_area_of_the_timeline_has_sums(drive):
    """Of 40 spans a track, 100 units apart and 80 long, the area from the start on has its share, span by span."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = drive(page_of_blocks((many_spans(160, 2),)))
    port = driver.find_element(By.CSS_SELECTOR, ".port")
    port.send_keys("m")
    shown = driver.find_element(By.CSS_SELECTOR, ".details").text
    assert shown.startswith("Area of 4 \u00b5s, 4 tracks")
    assert "null" not in shown
    assert "160 spans, 12.80 \u00b5s together, 80.0 % of the area" in shown
    names = driver.execute_script("return [...document.querySelectorAll('.details tbody tr')].map((r) => r.innerText)")
    assert [name.split()[:3] for name in names] == [
        ["gemm", "56", "4.48"], ["attention", "52", "4.16"], ["norm", "52", "4.16"],
    ]  # fmt: skip
    box = driver.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.width, b.height]", port)
    scale = (box[0] - 112) / 4000
    left, top = 112 + 1000 * scale - box[0] / 2, 22 + 24 + 10 - box[1] / 2
    move = ActionChains(driver).key_down(Keys.SHIFT).move_to_element_with_offset(port, left, top).click_and_hold()
    move.move_by_offset(round(1000 * scale), 2).release().key_up(Keys.SHIFT).perform()
    shown = driver.find_element(By.CSS_SELECTOR, ".details").text
    assert shown.startswith("Area of ")
    assert ", 1 track" in shown
    assert "10 spans" in shown or "11 spans" in shown
    assert errors(driver) == []
