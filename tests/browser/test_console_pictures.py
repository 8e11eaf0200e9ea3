"""The pictures of the console on the pages are those that Chromium takes of a real one.

LAKEMQ_WRITE_PICTURES=1 makes the test write them into docs/pictures (`make console-pictures`).
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.webdriver import CHROMIUM, DRIVER, Tab
from unit.browsing import Browser, open_browser
from unit.busy_namespace import READERS, WORKERS, BusyNamespace

from lakemq.jobs.console.parts import make_link

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")

DOCS = Path(__file__).parents[2] / "docs"
HEIGHT = 640
MOST_BYTES = 150_000
PICTURES = {
    "console-overview-light": ("/", "light", 960),
    "console-overview-dark": ("/", "dark", 960),
    "console-group-light": (make_link("/group", name=WORKERS), "light", 1200),
    "console-charts-light": ("/", "light", 960),
    "console-history-dark": ("/history", "dark", 960),
}
"""Name of a picture -> address of the page, the colours that the system asks for, and the width."""


@pytest.fixture(scope="module")
def visitor(busy: BusyNamespace) -> Iterator[Browser]:
    busy.mq.sql("SELECT 1", wait_ms=30_000)
    with open_browser(busy.mq, busy.serving) as browser:
        yield browser


def read_size(picture: bytes) -> tuple[int, int]:
    """Return width and height of a PNG: the first fields of its first chunk."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_pages_name_only_pictures_that_are_made() -> None:
    named = {
        name for page in DOCS.glob("*.md") for name in re.findall(r"pictures/(console-[\w-]+)\.png", page.read_text())
    }
    assert named == {*PICTURES}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_shows_its_page(visitor: Browser, tab: Tab, name: str) -> None:
    address, scheme, width = PICTURES[name]
    tab.emulate(width, HEIGHT, scheme)
    tab.open(visitor.address + address)
    assert READERS in tab.evaluate("document.body.innerText") or WORKERS in tab.evaluate("document.body.innerText")
    if "charts" in name:
        tab.evaluate("document.querySelectorAll('figure')[1].previousElementSibling.scrollIntoView()")
    picture = tab.photograph()
    assert read_size(picture) == (width, HEIGHT)
    assert len(picture) < MOST_BYTES
    file = DOCS / "pictures" / f"{name}.png"
    if os.environ.get("LAKEMQ_WRITE_PICTURES"):
        file.write_bytes(picture)
    assert read_size(file.read_bytes()) == (width, HEIGHT)
