"""What a test wants to know of a page of HTML."""

from html.parser import HTMLParser


class HtmlOutline(HTMLParser):
    """The headings of a page, and all addresses in tags that load something."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.loads: list[str] = []
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_heading = tag == "h2"
        if tag in ("script", "link", "img", "iframe"):
            self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings.append(data)
            self._in_heading = False
