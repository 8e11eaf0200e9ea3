"""The documentation site: it builds without warnings, loads nothing from elsewhere, and holds every page."""

import importlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def build_site(target: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make site` does, with a proxy that refuses every request."""
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        **dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"], "http://127.0.0.1:9"),
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    return subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


class Loads(HTMLParser):
    """Collects what a browser loads or offers on a page: `loaded` at once, `linked` on a click."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        if source := values.get("src"):
            self.loaded.append(source)
        if target := values.get("href"):
            is_loaded = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect")
            (self.loaded if is_loaded else self.linked).append(target)


def check_pages_load_files_of_the_site_only(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        loaded = Loads(page).loaded
        assert loaded
        for address in loaded:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
            # 404.html is served for any address, so its paths begin at the root of the site.
            base = site if address.startswith("/") else page.parent
            assert (base / unquote(address.partition("?")[0]).lstrip("/")).exists(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text(encoding="utf-8")), style


def check_no_page_makes_the_theme_load_mermaid(site: Path) -> None:
    """The theme's script loads Mermaid from elsewhere if an element has the class `mermaid`."""
    for page in site.rglob("*.html"):
        assert not re.search(r'class="[^"]*\bmermaid\b', page.read_text(encoding="utf-8")), page


def check_every_diagram_is_drawn(site: Path) -> None:
    for source in DOCS.rglob("*.md"):
        count = len(MERMAID.findall(source.read_text(encoding="utf-8")))
        built = site / source.relative_to(DOCS).with_suffix(".html")
        if count:
            assert built.read_text(encoding="utf-8").count('<div class="diagram" data-search-exclude><svg') == count, (
                source.name
            )


def check_every_page_is_in_the_navigation(site: Path) -> None:
    linked = {(site / link.partition("#")[0]).resolve() for link in Loads(site / "index.html").linked}
    for source in DOCS.rglob("*.md"):
        page = source.relative_to(DOCS).as_posix().replace("README.md", "index.html").replace(".md", ".html")
        assert (site / page).resolve() in linked, source.name


def check_links_between_pages_lead_to_files(site: Path) -> None:
    for page in site.rglob("*.html"):
        for link in Loads(page).linked:
            path = unquote(link.partition("#")[0])
            if path and not re.match(r"https?://|mailto:|/|\.$|\.\.$", path):
                assert (page.parent / path).exists(), f"{page.relative_to(site)}: {link}"


def check_the_search_finds_pages_and_the_reference(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"] for entry in entries}
    assert {"flows.html#a-hand-off", "project/CHANGELOG.html#unreleased"} <= places
    assert any(place.startswith("api/connection.html#") and place.endswith(".Connection.fetch") for place in places)


def check_the_reference_shows_arguments_and_errors(site: Path) -> None:
    page = (site / "api/connection.html").read_text(encoding="utf-8")
    assert "folder or object-store URI of the namespace" in page
    assert "NewerFormat" in page
    assert "_open_fetcher" not in page


@pytest.mark.extended
@pytest.mark.slow
def test_site_builds_without_warnings_and_has_no_dead_link(tmp_path: Path) -> None:
    """One test, because a build takes longer than all checks, and parallel tests would build once per process."""
    site = tmp_path / "site"
    build = build_site(site)
    assert build.returncode == 0, build.stdout + build.stderr
    check_pages_load_files_of_the_site_only(site)
    check_no_page_makes_the_theme_load_mermaid(site)
    check_every_diagram_is_drawn(site)
    check_every_page_is_in_the_navigation(site)
    check_links_between_pages_lead_to_files(site)
    check_the_search_finds_pages_and_the_reference(site)
    check_the_reference_shows_arguments_and_errors(site)


# -- diagrams -------------------------------------------------------------------------------------------


@pytest.fixture
def diagrams(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    return importlib.import_module("diagrams")


def test_diagrams_that_cannot_be_drawn_are_refused(diagrams: ModuleType) -> None:
    for source, message in (
        ("pie\n  a: 3", "Cannot draw a diagram of the kind 'pie'"),
        ("sequenceDiagram\n  participant A\n  A->>B: x", "'B' is not a participant"),
        ("sequenceDiagram\n  Note over A: x", "Cannot draw the line 'Note over A: x'"),
        ("stateDiagram-v2\n  state a", "Cannot draw the line 'state a'"),
        ("flowchart LR\n  A --- B", "Cannot draw the line 'A --- B'"),
    ):
        with pytest.raises(diagrams.DiagramError, match=re.escape(message)):
            diagrams.draw_diagram(source)
