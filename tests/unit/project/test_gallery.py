"""Does the gallery show each kind of picture as its command draws it today?"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import gallery  # noqa: E402


def test_the_page_is_that_of_the_tool():
    assert gallery.PAGE.read_text() == gallery.page()


def test_every_picture_is_stored_and_small():
    stored = {path.name for path in gallery.FOLDER.iterdir()}
    assert stored == {f"{drawing.name}.png" for drawing in gallery.DRAWINGS}
    assert sum(path.stat().st_size for path in gallery.FOLDER.iterdir()) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("drawing", gallery.DRAWINGS, ids=lambda drawing: drawing.name)
def test_its_commands_draw_it(drawing, tmp_path):
    picture = gallery.draw(drawing, tmp_path)
    assert gallery.shape_of(picture) == gallery.shape_of(gallery.FOLDER / picture.name)
