"""The web application and its server: which address shows which page, and how errors look.

It keeps nothing between requests.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from lakemq.engine.namespace.extras import needs

with needs("console"):
    from lakemq.jobs.process.http_listener import HttpLimits, serve_http

with needs("console"):
    import python_multipart  # noqa: F401  # forms need it, and starlette imports it late
    from prometheus_client import CollectorRegistry
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response
    from starlette.routing import Mount, Route

from lakemq.engine.client.connection import Connection
from lakemq.errors import GroupIdNotFound, LakeMQError, TransactionalIdNotFound, UnknownTopicOrPartition
from lakemq.jobs.console import guard
from lakemq.jobs.console.changes import CHANGES, DESTROYING, BadInput, Change, check_names, read_text
from lakemq.jobs.console.console import QUERY_LIMITS, Busy, Console, ConsoleSettings, NotPossible
from lakemq.jobs.console.pages import delayed, groups, messages, overview, queries, topics
from lakemq.jobs.console.parts import Field, Form, Link, Notice, Page, make_templates
from lakemq.jobs.metrics.server import make_endpoint, open_registry
from lakemq.jobs.process.exits import describe_error

if TYPE_CHECKING:
    from lakemq.engine.client.sql.query import QueryLimits
    from lakemq.engine.sequencer.serving import Serving
    from lakemq.jobs.doctor.namespace import Finding

log = logging.getLogger("lakemq.console")

Inputs = Mapping[str, Any]


class PageReader(NamedTuple):
    """A function that reads a page, and the names of the inputs that it takes."""

    read: Callable[[Console, Inputs], Page]
    inputs: tuple[str, ...] = ()

    def read_if_inputs_fit(self, console: Console, inputs: Inputs) -> Page:
        """Return the page. Raises BadInput if there is an input that it does not take."""
        check_names(inputs, self.inputs)
        return self.read(console, inputs)


MENU = (
    Link("Overview", "/"),
    Link("Topics", "/topics"),
    Link("Groups", "/groups"),
    Link("Delayed", "/delayed"),
    Link("Dead letters", "/dead-letters"),
    Link("Transactions", "/transactions"),
    Link("History", "/history"),
    Link("Changes", "/changes"),
    Link("Tables", "/tables"),
    Link("SQL", "/sql"),
    Link("Doctor", "/doctor"),
    Link("Metrics", "/metrics"),
)

PAGES: dict[str, PageReader] = {
    "/": PageReader(overview.read_overview, ("minutes",)),
    "/topics": PageReader(topics.read_topics, ("text",)),
    "/topic": PageReader(topics.read_topic, ("name", "keys", "minutes")),
    "/messages": PageReader(messages.read_messages, (*messages.INPUTS, "from")),
    "/tail": PageReader(messages.read_tail, (*messages.INPUTS, "after")),
    "/message": PageReader(messages.read_message, ("topic", "partition", "offset", "as")),
    "/groups": PageReader(groups.read_groups, ("text",)),
    "/group": PageReader(groups.read_group, ("name", "minutes")),
    "/delayed": PageReader(delayed.read_delayed),
    "/dead-letters": PageReader(delayed.read_dead_letters),
    "/dead-letter-topic": PageReader(delayed.read_dead_letter_topic, ("topic", "as", "limit")),
    "/transactions": PageReader(topics.read_transactions, ("state",)),
    "/history": PageReader(queries.read_history_page, ("at", "minutes")),
    "/changes": PageReader(queries.read_changes, ("text",)),
    "/tables": PageReader(queries.read_tables),
    "/sql": PageReader(queries.read_sql_box, ("text",)),
    "/doctor": PageReader(overview.read_doctor),
}
"""Pages by their address. They only read."""

POSTED_PAGES: dict[str, PageReader] = {
    "/sql": PageReader(queries.run_sql_box, ("text",)),
    "/doctor": PageReader(overview.run_doctor),
}
"""Pages that read much, so that no other site may make a browser ask for them."""

REFRESH_S = (5, 15, 60)
_REFRESH_COOKIE = "lakemq_refresh"
_NEVER_REFRESHED = ("/sql", "/tail", guard.LOGIN, "/change/")
"""Beginnings of the paths of pages that a visitor types into, or that follow a topic."""
_NOT_FOUND = (UnknownTopicOrPartition, GroupIdNotFound, TransactionalIdNotFound)


class WebApplication:
    """Answers requests with the pages of a console."""

    def __init__(self, console: Console, registry: CollectorRegistry, roots: Mapping[str, str]) -> None:
        """roots: namespace -> the beginning of the addresses of its pages, of this console and the others."""
        self._console, self._registry, self._roots = console, registry, roots
        self.root = roots[console.mq.namespace.path]
        self._templates = make_templates()

    def make_app(self) -> Starlette:
        """Return what answers the addresses of the pages."""
        routes = [
            *(Route(path, self._show(page)) for path, page in PAGES.items()),
            *(Route(path, self._show_form_answer(page), methods=["POST"]) for path, page in POSTED_PAGES.items()),
            Route("/change/{name}", self._confirm_change),
            Route("/preview/{name}", self._confirm_form, methods=["POST"]),
            Route("/change/{name}", self._apply_change, methods=["POST"]),
            Route("/metrics", make_endpoint(self._registry)),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self.explain_http_error})

    # -- pages that read --------------------------------------------------------------------------------

    def _show(self, page: PageReader) -> Callable[[Request], Response]:
        return lambda request: self._answer(
            request, lambda: page.read_if_inputs_fit(self._console, request.query_params)
        )

    def _show_form_answer(self, page: PageReader) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            inputs = await _read_form(request)
            return await run_in_threadpool(
                self._answer, request, lambda: page.read_if_inputs_fit(self._console, inputs)
            )

        return endpoint

    def _answer(self, request: Request, read: Callable[[], Page]) -> Response:
        """Return a page, or one that explains why it cannot be shown."""
        try:
            return self._render(request, read())
        except BadInput as error:
            return self._explain(request, "This input cannot be used", str(error), 400)
        except NotPossible as error:
            return self._explain(
                request, "This is not possible now", str(error), 503 if isinstance(error, Busy) else 409
            )
        except _NOT_FOUND as error:
            return self._explain(request, "Not found", str(error), 404)
        except LakeMQError as error:
            return self._explain(request, "LakeMQ refused this", str(error), 503 if error.retriable else 400)
        except Exception as error:  # the console goes on; the visitor and the log see what is wrong
            log.error("The page %s cannot be shown: %s", request.url.path, error, exc_info=error)
            return self._explain(request, "This page cannot be shown", describe_error(error), 500)

    def _explain(self, request: Request, title: str, text: str, status: int) -> Response:
        return self._render(request, Page(title, [Notice(text, "bad")]), status)

    def _render(self, request: Request, page: Page, status: int = 200) -> Response:
        path = request.url.path.removeprefix(self.root)
        may_refresh = request.method == "GET" and not path.startswith(_NEVER_REFRESHED)
        refresh_s = _find_refresh_s(request) if may_refresh else None
        done = CHANGES.get(request.query_params.get("done", ""))
        is_open = request.url.path == guard.LOGIN  # to everybody: it tells nothing of the namespace
        html = self._templates.get_template("page.html").render(
            page=page,
            root="" if is_open else self.root,
            menu=() if is_open else MENU,
            path=path,
            silence="" if is_open else self._console.describe_silence(),
            namespace="" if is_open else self._console.mq.namespace.path,
            identity="" if is_open else self._console.identity,
            others=[] if is_open else [Link(*other) for other in self._roots.items() if other[1] != self.root],
            allow_changes=self._console.settings.allow_changes,
            refresh=refresh_s,
            refresh_links=_list_refresh_links(request) if may_refresh else [],
            done=done.done if done and status == 200 else "",
        )
        response = HTMLResponse(html, status)
        if "refresh" in request.query_params:  # the next pages do the same
            response.set_cookie(_REFRESH_COOKIE, str(refresh_s or 0), httponly=True, samesite="strict")
        return response

    # -- forms ------------------------------------------------------------------------------------------

    def explain_http_error(self, request: Request, error: Exception) -> Response:
        """Return the page for an address that does not exist, or a wrong method."""
        assert isinstance(error, HTTPException)
        return self._explain(request, "This request is refused", error.detail, error.status_code)

    # -- changes ----------------------------------------------------------------------------------------

    def _find_change(self, request: Request) -> Change:
        change = CHANGES.get(request.path_params["name"])
        if change is None:
            raise HTTPException(404, "There is no such change.")
        if not self._console.settings.allow_changes:
            raise HTTPException(403, "This console only shows. Start it with --allow-changes to change something.")
        return change

    def _confirm_change(self, request: Request) -> Response:
        return self._confirm(request, request.query_params)

    async def _confirm_form(self, request: Request) -> Response:
        return await run_in_threadpool(self._confirm, request, await _read_form(request))

    def _confirm(self, request: Request, form: Inputs) -> Response:
        change, name = self._find_change(request), request.path_params["name"]

        def read() -> Page:
            inputs = _pick_inputs(change, form)
            if "namespace" in form:  # a link has none: this page is the first that says what would change
                self._console.check_identity(form["namespace"])
            self._console.check_leader()
            fields = [Field(field, field, value, is_hidden=True) for field, value in inputs.items()]
            parts = change.preview(self._console, inputs)
            loses = name in DESTROYING or any(isinstance(part, Notice) and part.level == "bad" for part in parts)
            button = f"{change.title} now"
            confirmation = Form("Confirm", f"/change/{name}", fields, button, "post", is_change=True, destroys=loses)
            return Page(change.title, [*parts, confirmation])

        return self._answer(request, read)

    async def _apply_change(self, request: Request) -> Response:
        change = self._find_change(request)
        inputs = await _read_form(request)
        return await run_in_threadpool(self._apply, request, change, inputs)

    def _apply(self, request: Request, change: Change, form: Inputs) -> Response:
        name = request.path_params["name"]
        pages: list[str] = []

        def apply() -> Page:
            inputs = _pick_inputs(change, form)
            self._console.check_identity(form.get("namespace", ""))
            self._console.check_leader()
            visitor = guard.find_visitor(request.headers, self._console.settings) or "visitor"
            address = request.client.host if request.client else "unknown"
            log.info("%s in %s: %s at %s", name, self._console.mq.namespace.path, visitor, address)
            # a client of its own, whose id says in the journal who asked
            with Connection(self._console.mq.namespace, client_names=("console", visitor, address)) as mq:
                change.apply(replace(self._console, mq=mq), inputs)
            pages.append(change.page(inputs))
            return Page(change.title, [Notice(change.done, "good")])

        answer = self._answer(request, apply)
        if not pages:
            return answer
        # reloading the page that follows must not do it again
        return RedirectResponse(f"{self.root}{pages[0]}{'&' if '?' in pages[0] else '?'}done={name}", 303)

    # -- the token --------------------------------------------------------------------------------------

    def show_login(self, request: Request) -> Response:
        """Return the page that asks for the token."""
        form = Form("Token", guard.LOGIN, [Field("token", "token of this console", is_secret=True)], "Open", "post")
        return self._answer(request, lambda: Page("Open the console", [form]))

    async def log_in(self, request: Request) -> Response:
        """Let a browser with the token in."""
        inputs, tokens = await _read_form(request), [token for _, token in self._console.settings.tokens]
        if not tokens:
            return RedirectResponse("/", 303)
        token = next((token for token in tokens if guard.are_equal(inputs.get("token", ""), token)), None)
        if token is None:
            return self._explain(request, "Open the console", "This is not the token of this console.", 403)
        response = RedirectResponse("/", 303)
        session = guard.make_session(token, time.time())
        response.set_cookie(guard.SESSION_COOKIE, session, max_age=guard.SESSION_S, httponly=True, samesite="strict")
        return response


def build_app(consoles: Sequence[tuple[Console, CollectorRegistry]]) -> guard.Guard:
    """Return the ASGI application of consoles, with the guard in front. Several have their names in addresses."""
    paths = [console.mq.namespace.path for console, _ in consoles]
    roots = dict(zip(paths, choose_roots([(console.place, console.identity) for console, _ in consoles]), strict=True))
    applications = [WebApplication(console, registry, roots) for console, registry in consoles]
    first = applications[0]
    routes = [
        Route(guard.LOGIN, first.show_login),
        Route(guard.LOGIN, first.log_in, methods=["POST"]),
        *(Route(path, _serve_file(path, media_type)) for path, media_type in guard.STATIC.items()),
        *(
            [Route("/", lambda request: RedirectResponse(request.url.replace(path=f"{first.root}/")))]
            if first.root
            else []
        ),
        *(Mount(application.root, application.make_app()) for application in applications),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: first.explain_http_error})
    return guard.Guard(app, consoles[0][0].settings)


def choose_roots(namespaces: Sequence[tuple[str, str]]) -> list[str]:
    """Return the beginning of the addresses of each namespace's pages: of one with this place and identity.

    It is empty for a single one. Else it is the name of the folder, with those above as far as others have the name,
    too. So it does not depend on the order of the namespaces.
    """
    if not namespaces[1:]:
        return [""]
    names = [_list_names(place) for place, _ in namespaces]
    counts = Counter(name for of_one in names for name in of_one)
    return [
        "/" + next((name for name in of_one if counts[name] == 1), f"{of_one[-1]}-{identity}")
        for of_one, (_, identity) in zip(names, namespaces, strict=True)
    ]


def _list_names(place: str) -> list[str]:
    """Return the name of a folder as a part of addresses, then those with folders above it."""
    folders = (re.sub(r"[^\w.-]", "-", folder, flags=re.ASCII).strip(".-") for folder in place.split("/"))
    words = [folder for folder in folders if folder] or ["namespace"]
    return ["-".join(words[start:]) for start in reversed(range(len(words)))]


async def _read_form(request: Request) -> dict[str, Any]:
    form = await request.form(max_files=0, max_fields=20)
    return {name: value for name, value in form.items() if isinstance(value, str)}


def _find_refresh_s(request: Request) -> int | None:
    """Return how often the page refreshes itself: as its address says, else as was chosen on a page before."""
    chosen = request.query_params.get("refresh", request.cookies.get(_REFRESH_COOKIE, ""))
    return next((seconds for seconds in REFRESH_S if chosen == str(seconds)), None)


def _list_refresh_links(request: Request) -> list[Link]:
    url = request.url.remove_query_params(["refresh", "done"])
    choices = [("off", 0), *((f"{seconds} s", seconds) for seconds in REFRESH_S)]
    links = [(text, url.include_query_params(refresh=seconds)) for text, seconds in choices]
    # without the host, so that a wrong Host header leads nowhere
    return [Link(text, f"{target.path}?{target.query}") for text, target in links]


def _serve_file(path: str, media_type: str) -> Callable[[Request], Response]:
    content = files("lakemq.jobs.console").joinpath(path.lstrip("/")).read_bytes()
    return lambda request: Response(content, media_type=media_type)


def _pick_inputs(change: Change, inputs: Inputs) -> dict[str, str]:
    """Return the inputs of a change, within their lengths. Raises BadInput, also if there is any other."""
    check_names(inputs, (*change.fields, "namespace"))
    return {name: read_text(inputs, name, "") for name in change.fields}


# Serve consoles from a thread of this process.


LIMITS = HttpLimits(connections=64)
"""A browser opens six connections, and keeps them for five seconds."""
_OPTIONS = "--host and --port, with `lakemq serve` --console-host and --console-port"


@contextmanager
def serve_consoles(
    namespaces: Sequence[tuple[Connection, Callable[[], Sequence[Finding]]]],
    settings: ConsoleSettings,
    serving: Serving | None = None,
    limits: HttpLimits = LIMITS,
    query_limits: QueryLimits = QUERY_LIMITS,
) -> Iterator[str]:
    """Answer browsers inside the block, and yield the address.

    Args:
        namespaces: the connection to read each with, and a function that runs the doctor's checks of it.
        settings: where to listen, and what to allow.
        serving: the sequencer of this process, if it runs one. Then there is one namespace.
        limits: what clients may take.
        query_limits: bounds of a query.

    Raises:
        InvalidConfig: the address cannot be listened on.
        MissingExtra: the extra `console` is not installed.
    """
    with ExitStack() as stack:
        consoles = []
        for mq, examine in namespaces:
            registry, collector, observer = stack.enter_context(open_registry(mq, serving))
            consoles.append((Console(mq, observer, collector, settings, examine, query_limits), registry))
        serve = serve_http(build_app(consoles), "console", settings.host, settings.port, limits, _OPTIONS)
        host, port = stack.enter_context(serve)
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        log.info("the console is at %s", address)
        yield address
