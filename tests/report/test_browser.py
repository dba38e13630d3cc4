"""The pages in a real browser: nothing wrong in the console, nothing asked of a network, nothing wider than a phone."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.chromium import CHROMIUM, Browser, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here (Debian: apt install chromium)")

DESK, PHONE = (1280, 900), (390, 844)
# Elements that are wider than the window, but for those in a box of their own that scrolls.
TOO_WIDE = """[...document.body.querySelectorAll('*')].filter(one => !one.closest('.scroll, pre')
  && one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5).map(one => one.outerHTML)"""
OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(params=["server", "clients"])
def page(request: pytest.FixtureRequest, server_run: Path, client_run: Path) -> Path:
    return {"server": server_run, "clients": client_run}[request.param] / "report.html"


@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)], ids=["desk, light", "phone, dark"])
def test_a_page_is_quiet_and_fits(chromium: Browser, page: Path, size: tuple[int, int], dark: bool) -> None:
    width, height = size
    opened = chromium.open(page, width=width, height=height, dark=dark, opened=OPEN_ALL, scroll=WIDTH, wide=TOO_WIDE)
    assert opened.problems == [] and opened.requests == [page.as_uri()]
    assert opened.values["wide"] == [] and opened.values["scroll"] == width
    with Image.open(BytesIO(chromium.screenshot())) as picture:
        grey = np.asarray(picture.convert("L"))
    assert grey.min() < 60 and grey.max() > 200, "a blank page"
    assert (grey[2, 2] < 60) == dark


def test_the_checks_see_what_is_wrong(chromium: Browser, tmp_path: Path) -> None:
    """A page that is too wide, asks for a file and logs an error: else the other tests would look at nothing."""
    bad = tmp_path / "bad.html"
    viewport = "<meta name=viewport content=width=device-width>"
    bad.write_text(f"{viewport}<p style='width:900px'>x<img src='nothing.png'><script>console.error('oh')</script>")
    opened = chromium.open(bad, width=390, height=844, scroll=WIDTH, wide=TOO_WIDE)
    assert opened.problems and len(opened.requests) == 2
    assert opened.values["wide"] and opened.values["scroll"] >= 900
