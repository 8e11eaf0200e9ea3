"""Make the site from the pages as a code host shows them: diagrams, links out of docs/, the API reference, navigation.

MkDocs calls the functions `on_...`. The pages stay as they are, so that their links are also valid on a code host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from api import API_PAGES, build_api_page
from diagrams import DiagramError, draw_diagram
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

DOCS = Path(__file__).resolve().parents[1]
CHECKOUT = DOCS.parent
OUTSIDE = "project"
"""Folder of the site for files of the checkout that lie outside docs/ and that a page links to."""

_FENCE = re.compile(r"^(```+)(.*?)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_EXTERNAL = ("http://", "https://", "mailto:")


# -- files ----------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation."""
    listed = set(_paths_of(config.nav or []))
    pages = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.glob("*.md"))]
    _section(config.nav, "Guides").extend(page for page in pages if page not in listed)
    decisions = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "adr").glob("[0-9]*.md"))
    _section(config.nav, "Decisions").extend(decisions)
    api = [{page.title: path} for path, page in API_PAGES.items()]
    _section(config.nav, "Reference").insert(0, {"Python API": api})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API reference, and the files outside docs/ that pages link to."""
    for path, page in API_PAGES.items():
        files.append(File.generated(config, path, content=build_api_page(page)))
    for target in sorted(_find_outside_files()):
        content = target.read_text(encoding="utf-8") if target.suffix == ".md" else target.read_bytes()
        # A page that nobody lists in the navigation is still built and found by the search.
        files.append(File.generated(config, _site_path(target), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def _paths_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for value in entry.values():
                yield from _paths_of(value if isinstance(value, list) else [value])


def _section(entries: list[Any] | None, title: str) -> list[Any]:
    for entry in entries or []:
        if isinstance(entry, dict) and isinstance(entry.get(title), list):
            return entry[title]
    raise PluginError(f"The navigation in mkdocs.yml has no section '{title}'. Add it.")


def _find_outside_files() -> set[Path]:
    """Return the files outside docs/ that pages link to, directly or through another such page."""
    found: set[Path] = set()
    unread = sorted(path for path in DOCS.rglob("*.md"))
    while unread:
        page = unread.pop()
        targets = {target for _, target in _local_links(page.read_text(encoding="utf-8"), page)}
        new = {target for target in targets if target.is_file() and DOCS not in target.parents} - found
        found |= new
        unread += [target for target in new if target.suffix == ".md"]
    return found


def _site_path(target: Path) -> str:
    """Return the path of a file of the checkout in the site."""
    if DOCS in target.parents:
        return target.relative_to(DOCS).as_posix()
    path = target.relative_to(CHECKOUT)
    # MkDocs would make `index.html` of a README, where links to its folder lead.
    name = "readme.md" if path.name == "README.md" else path.name
    return (Path(OUTSIDE) / path.parent / name).as_posix()


def _source_path(site_path: str) -> Path:
    """Return the file of the checkout that a page of the site was made from."""
    outside, _, path = site_path.partition("/")
    if outside != OUTSIDE:
        return DOCS / site_path
    return CHECKOUT / (path.removesuffix("readme.md") + "README.md" if path.endswith("readme.md") else path)


# -- pages ----------------------------------------------------------------------------------------------


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the diagrams of a page, and turn its links into links of the site."""
    source = _source_path(page.file.src_uri)

    def draw(language: str, body: str, block: str) -> str:
        if language != "mermaid":
            return block
        try:
            return f'<div class="diagram" data-search-exclude>{draw_diagram(body)}</div>\n'
        except DiagramError as error:
            raise PluginError(f"{page.file.src_uri}: {error}") from None

    return _map_page(markdown, draw, lambda prose: _rewrite_links(prose, page.file.src_uri, source))


def _map_page(text: str, map_block: Callable[[str, str, str], str], map_prose: Callable[[str], str]) -> str:
    """Return a page with its code blocks and the prose between them replaced."""
    parts, position = [], 0
    for block in _FENCE.finditer(text):
        parts.append(map_prose(text[position : block.start()]))
        parts.append(map_block(block[2].strip(), block[3], block[0]))
        position = block.end()
    return "".join([*parts, map_prose(text[position:])])


def _rewrite_links(prose: str, page_path: str, source: Path) -> str:
    def rewrite(link: re.Match[str]) -> str:
        target = _resolve(link[2], source)
        if target is None or not target.is_file() or (DOCS in target.parents and DOCS in source.parents):
            return link[0]
        _, hash_, anchor = link[2].partition("#")
        return f"{link[1]}{get_relative_url(_site_path(target), page_path)}{hash_}{anchor}{link[3]}"

    return _LINK.sub(rewrite, prose)


def _local_links(text: str, source: Path) -> Iterator[tuple[str, Path]]:
    prose: list[str] = []
    _map_page(text, lambda *_: "", lambda part: prose.append(part) or "")
    for link in _LINK.finditer("".join(prose)):
        target = _resolve(link[2], source)
        if target is not None:
            yield link[2], target


def _resolve(link: str, source: Path) -> Path | None:
    path = unquote(link.partition("#")[0])
    if not path or link.startswith(_EXTERNAL):
        return None
    target = (source.parent / path).resolve()
    return target if CHECKOUT in target.parents else None
