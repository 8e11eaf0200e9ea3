"""The guard in front of all pages: refuse foreign hosts, missing tokens and oversized requests; add security headers.

- A page on the web can make a browser send requests to this machine. If it also lets its own name resolve to this
  machine (DNS rebinding), it could read the answers. So without a token, the Host header must name this machine.
- With a token, a browser shows it in a cookie that only this console's own pages send (SameSite=Strict). The cookie is
  derived from the token and cannot be turned back into it.
- Pages load nothing from elsewhere, and run only the files that draw charts or follow a topic: the
  Content-Security-Policy says so to the browser. A script within a page does not run.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import urlsplit, urlunsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakemq.jobs.console.console import ConsoleSettings, is_loopback

SESSION_COOKIE = "lakemq_session"
LOGIN = "/login"
STATIC = {
    "/static/console.css": "text/css",
    "/static/icon.svg": "image/svg+xml",
    "/static/charts.js": "text/javascript",
    "/static/tail.js": "text/javascript",
    "/static/uPlot.min.css": "text/css",
    "/static/uPlot.iife.min.js": "text/javascript",
}
"""Files of the package and their types."""
MAX_BODY_BYTES = 256 << 10
"""Room for a form with the longest texts: a browser sends a character as up to twelve bytes."""
MAX_TARGET_BYTES = 8 << 10
_TOO_LARGE = f"The request is too large. At most {MAX_BODY_BYTES} bytes are read."
OPEN_PATHS = (LOGIN, *STATIC)
"""Paths that need no token."""

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not no-referrer: that would also make browsers send `Origin: null` with forms
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


SESSION_S = 12 * 3600
"""How long a browser that has shown the token need not show it again."""


def make_session(token: str, now_s: float) -> str:
    """Return the cookie of a browser that has shown the token now."""
    return _sign_session(token, str(int(now_s) + SESSION_S))


def _sign_session(token: str, until_s: str) -> str:
    mark = hmac.new(token.encode(), f"lakemq console session until {until_s}".encode(), hashlib.sha256)
    return f"{until_s}.{mark.hexdigest()}"


def _is_session(cookie: str, token: str, now_s: float) -> bool:
    until_s = cookie.partition(".")[0]
    is_number = until_s.isascii() and until_s.isdecimal() and len(until_s) < 20
    return is_number and are_equal(cookie, _sign_session(token, until_s)) and now_s < int(until_s)


class Guard:
    """An ASGI middleware that lets only acceptable requests pass."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if "location" in headers:  # behind a proxy with TLS, this process does not know the whole address
                    target = urlsplit(headers["location"])
                    headers["location"] = urlunsplit(("", "", f"/{target.path.lstrip('/')}", target.query, ""))
            await send(message)

        refusal = self._refuse(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self._app(scope, _limit_body(receive), send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the answer to a request that must not pass; None: it may."""
        headers = Headers(scope=scope)
        if len(scope["path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            return _refusal(414, f"The address is too long. At most {MAX_TARGET_BYTES} bytes are read.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= MAX_BODY_BYTES):
            return _refusal(413, _TOO_LARGE)
        if self._settings.token is None and not is_loopback(_host_name(headers.get("host", ""))):
            return _refusal(421, "The Host header does not name this machine. Open http://localhost with the port.")
        if _is_embedded_elsewhere(headers):
            return _refusal(403, "Another site has asked for this page in the background. Open the console itself.")
        if scope["method"] == "POST" and not _is_same_origin(headers):
            return _refusal(403, "The form was sent from another site. Open the console and use its own form.")
        if scope["path"] in OPEN_PATHS or find_visitor(headers, self._settings) is not None:
            return None
        if "text/html" in headers.get("accept", "") and scope["method"] == "GET":
            return RedirectResponse(LOGIN, status_code=303)
        return PlainTextResponse(
            "This console needs its token: Authorization: Bearer TOKEN.\n", 401, {"WWW-Authenticate": "Bearer"}
        )


def find_visitor(headers: Headers, settings: ConsoleSettings) -> str | None:
    """Return the name of the token that a request shows, empty if it has none; None if it shows no token."""
    if settings.token is None:
        return ""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    bearer = shown.strip() if scheme.lower() == "bearer" else ""
    cookie = cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE, "")
    names = (
        name for name, token in settings.tokens if are_equal(bearer, token) or _is_session(cookie, token, time.time())
    )
    return next(names, None)


def _limit_body(receive: Receive) -> Receive:
    """Return a `receive` that refuses a body without a declared length when it is too long."""
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return receive_limited


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


def _host_name(host: str) -> str:
    """Return the Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_same_origin(headers: Headers) -> bool:
    """Return whether a form comes from a page of this console. Programs that are no browsers send no origin.

    All browsers send the origin with a form. So forms need no tokens, which would prove the same.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _is_embedded_elsewhere(headers: Headers) -> bool:
    """Return whether a browser asks for a page on behalf of another site, which cannot show it.

    A link of another site, such as a wiki, passes: a visitor sees the page. Programs that are no browsers say nothing.
    """
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return False
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != ("navigate", "document")


def are_equal(shown: str, expected: str) -> bool:
    """Compare secrets in a time that tells nothing about them."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), expected.encode())
