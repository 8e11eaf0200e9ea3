"""Browse a console as a person does: real HTTP, cookies, forms."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from lakemq.engine.client.connection import Connection
from lakemq.engine.sequencer.serving import Serving
from lakemq.jobs.console.app import serve_consoles
from lakemq.jobs.console.console import QUERY_LIMITS, ConsoleSettings
from lakemq.jobs.doctor.examination import examine


class Browser:
    """A visitor with cookies. It follows redirects and fills forms that a page has shown."""

    def __init__(self, address: str, **headers: str) -> None:
        self.address = address
        self.client = httpx.Client(base_url=address, headers={"Accept": "text/html", **headers}, timeout=60)
        self.client.follow_redirects = True

    def get(self, path: str, status: int = 200, **inputs: Any) -> str:
        """Return the text of a page."""
        response = self.client.get(path, params=inputs or None)
        assert response.status_code == status, (path, response.status_code, notices(response.text))
        return response.text

    def submit(self, page: str, action: str, status: int = 200, **inputs: str) -> str:
        """Fill the form that goes to `action` on a page, and return what comes back."""
        fields = form_fields(page, action) | inputs
        response = self.client.post(action, data=fields)
        assert response.status_code == status, (action, response.status_code, notices(response.text))
        return response.text

    def confirm(self, name: str, **inputs: str) -> str:
        """Open the confirmation page of a change, push its button, and return the page that follows."""
        return self.submit(self.get(f"/change/{name}", **inputs), f"/change/{name}")


def form_fields(page: str, action: str) -> dict[str, str]:
    """Return the fields of a form as the page fills them."""
    (form,) = re.findall(rf'<form method="post" action="{re.escape(action)}".*?</form>', page, re.DOTALL)
    fields = re.findall(r'<input [^>]*name="([^"]*)" value="([^"]*)"', form)
    fields += re.findall(r'<textarea name="([^"]*)"[^>]*>(.*?)</textarea>', form, re.DOTALL)
    return {name: html.unescape(value) for name, value in fields}


def notices(page: str) -> list[str]:
    """Return the sentences that stand out."""
    return [html.unescape(text) for text in re.findall(r'<p class="notice[^"]*"[^>]*>(.*?)</p>', page, re.DOTALL)]


def facts(page: str) -> dict[str, str]:
    """Return the names and values that a page shows in boxes."""
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page, re.DOTALL)
    return {name: html.unescape(re.sub(r"<[^>]+>", "", value)).strip() for name, value in pairs}


def table_rows(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table with this title."""
    (section,) = re.findall(rf"<section>\s*<h2>{re.escape(html.escape(title))}</h2>(.*?)</section>", page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)
    return [
        [
            html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        ]
        for row in rows[1:]
    ]


@contextmanager
def open_browser(
    mq: Connection, serving: Serving | None = None, query_timeout_s: float = 600, **settings: Any
) -> Iterator[Browser]:
    """Serve a console at a free port, and yield a visitor. query_timeout_s: patient, as a busy machine may be slow."""
    chosen = ConsoleSettings(**{"port": 0, **settings})
    limits = QUERY_LIMITS._replace(timeout_s=query_timeout_s)
    namespaces = [(mq, lambda: list(examine(mq.namespace.path, spark=False)))]
    with serve_consoles(namespaces, chosen, serving, query_limits=limits) as address:
        port = urlsplit(address).port
        browser = Browser(f"http://localhost:{port}" if "127.0.0.1" in address else address)
        with browser.client:
            yield browser
