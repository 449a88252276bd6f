"""Is a report one file that needs nothing else, whose texts are data, and whose bytes depend on the page alone?"""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from report_pages import HOSTILE, every_block, many_spans, page_of_blocks

from trine.report.html import DARK_PALETTE, MAX_TEXT, SCRIPTS, STYLE, plain, render

#: Limit of the own scripts and styles (issue 40), in lines.
MAX_LINES = 2500


def parts_of(html: str) -> tuple[str, str, str]:
    """Return the data, the script and the style of a file."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    script = re.search(r"<script>(.*?)</script>", html, re.S)
    style = re.search(r"<style>(.*?)</style>", html, re.S)
    assert None not in (data, script, style)
    return data[1], script[1], style[1]


def test_the_policy_allows_this_script_and_this_style_alone():
    html = render(page_of_blocks(every_block("name"))).decode()
    _, script, style = parts_of(html)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    for name, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy[1]
    assert policy[1].startswith("default-src 'none';")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_becomes_markup(name: str):
    html = render(page_of_blocks(every_block(name), title=name)).decode()
    data, script, _ = parts_of(html)
    assert html.count("<script") == html.count("</script>") == 2
    assert "<" not in data
    assert html.split("<title>")[1].split("</title>")[0].count("<") == 0
    assert script == parts_of(render(page_of_blocks()).decode())[1]
    content = json.loads(data)
    title = content["page"]["title"]
    assert title.isprintable()
    assert len(title) <= MAX_TEXT


def test_equal_pages_give_equal_bytes():
    one, two = (render(page_of_blocks(every_block("name"), title="t")) for _ in range(2))
    assert one == two


def test_the_file_names_no_other_place():
    html = render(page_of_blocks(every_block("name"))).decode()
    addresses = set(re.findall(r"https?://[^\s\"'`]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, which is never fetched
    assert not re.search(r"\son[a-z]+=", html.split("<script>")[0])
    assert "innerHTML" not in html
    assert "insertAdjacentHTML" not in html
    assert "document.write" not in html


def test_arrays_keep_their_numbers():
    values = np.array([[1, 2, 300], [4, 5, 2**31]], np.uint32)
    packed = plain(values)
    assert packed["dtype"] == "u4"
    assert packed["shape"] == [2, 3]
    back = np.frombuffer(base64.b64decode(packed["base64"]), "<u4").reshape(2, 3)
    assert (back == values).all()


def test_numbers_that_json_lacks_are_missing():
    assert plain([float("nan"), float("inf"), 1.5]) == [None, None, 1.5]


def test_a_large_step_fits_in_five_megabytes():
    assert len(render(page_of_blocks((many_spans(120_000),)))) < 5 * 2**20


def test_scripts_and_styles_stay_small():
    from importlib.resources import files

    assets = files("trine.report") / "assets"
    lines = {name: len((assets / name).read_text().splitlines()) for name in (*SCRIPTS, STYLE, DARK_PALETTE)}
    assert set(lines) == {each.name for each in assets.iterdir()}
    assert sum(lines.values()) <= MAX_LINES
