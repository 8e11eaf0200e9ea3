"""The console's door: tokens, foreign hosts, oversized requests, security headers; and settings before it listens."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from typer.testing import CliRunner
from unit.browsing import Browser, form_fields, notices, open_browser

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.process import new_client_id
from lakemq.errors import InvalidConfig
from lakemq.jobs.cli import app
from lakemq.jobs.console import guard
from lakemq.jobs.console.app import choose_roots
from lakemq.jobs.console.console import TOKEN_VARIABLE, ConsoleSettings, is_loopback, make_settings

TOKEN = "0123456789abcdef0123"


async def _echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


def ask(settings: ConsoleSettings, method: str = "GET", path: str = "/x", **options: Any) -> httpx.Response:
    """Send one request through the guard to an application that tells how long the body was."""
    guarded = guard.Guard(Starlette(routes=[Route("/{path:path}", _echo, methods=["GET", "POST"])]), settings)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(guarded, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


def test_request_for_a_host_of_another_machine_is_refused() -> None:
    own = ["localhost", "localhost:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:8080", "LOCALHOST"]
    assert {ask(ConsoleSettings(), headers={"Host": host}).status_code for host in own} == {200}
    others = ["evil.example", "127.0.0.1.evil.example", "localhost.evil:8080", "", "192.168.0.1"]
    refusals = [ask(ConsoleSettings(), method, headers={"Host": host}) for host in others for method in ("GET", "POST")]
    assert [refusal.status_code for refusal in refusals] == [421] * 10


def test_every_answer_has_the_security_headers() -> None:
    for response in (ask(ConsoleSettings()), ask(ConsoleSettings(), headers={"Host": "evil.example"})):
        assert {name: response.headers[name] for name in guard.SECURITY_HEADERS} == guard.SECURITY_HEADERS
    policy = guard.SECURITY_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src 'self';" in policy


def test_console_with_a_token_shows_nothing_without_it() -> None:
    settings = ConsoleSettings("0.0.0.0", token=TOKEN)
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer \xe9"},
        {"Cookie": f"{guard.SESSION_COOKIE}={TOKEN}"},
        {"Cookie": f"{guard.SESSION_COOKIE}="},
        {"Cookie": f"{guard.SESSION_COOKIE}=99999999999.{'0' * 64}"},
        {"Cookie": f"{guard.SESSION_COOKIE}={guard.make_session(TOKEN, time.time() - guard.SESSION_S - 1)}"},
        {"Cookie": f"{guard.SESSION_COOKIE}={guard.make_session(TOKEN, 0).replace('43200', '99999999999')}"},
    ):
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        response = ask(settings, headers=encoded)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), headers
        assert ask(settings, "POST", headers=encoded).status_code == 401
    assert ask(settings, headers={"Accept": "text/html"}).headers["location"] == "/login"
    for headers in (
        {"Authorization": f"Bearer {TOKEN}"},
        {"Cookie": f"{guard.SESSION_COOKIE}={guard.make_session(TOKEN, time.time())}", "Host": "console.example:8080"},
    ):
        assert ask(settings, headers=headers).status_code == 200


def test_oversized_requests_are_refused() -> None:
    settings = ConsoleSettings()
    assert ask(settings, "POST", content=b"x" * guard.MAX_BODY_BYTES).text == str(guard.MAX_BODY_BYTES)
    assert ask(settings, "POST", content=b"x" * (guard.MAX_BODY_BYTES + 1)).status_code == 413
    assert ask(settings, path=f"/{'x' * 10_000}").status_code == 414
    assert ask(settings, path="/x", params={"q": "x" * 10_000}).status_code == 414
    for length in ("-1", "x", "9" * 30, "²"):
        response = ask(settings, "POST", headers={"Content-Length": length.encode()})
        assert response.status_code == 413, length

    async def endless() -> Any:
        for _ in range(guard.MAX_BODY_BYTES // 1000 + 2):
            yield b"x" * 1000

    assert ask(settings, "POST", content=endless()).status_code == 413


def test_form_of_another_site_is_refused() -> None:
    for headers, status in (
        ({}, 200),
        ({"Origin": "http://localhost:8080"}, 200),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ):
        assert ask(ConsoleSettings(), "POST", headers=headers).status_code == status, headers


def test_pages_are_loaded_for_other_sites_only_by_a_link() -> None:
    for site, mode, destination, status in (
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "cors", "empty", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("same-site", "no-cors", "script", 403),
        ("cross-site", "navigate", "document", 200),
        ("same-origin", "no-cors", "style", 200),
        ("none", "navigate", "document", 200),
    ):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
        assert ask(ConsoleSettings(), headers=headers).status_code == status, headers


# -- settings -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_a_token_is_needed_where_others_can_reach_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "console.example"):
        with pytest.raises(InvalidConfig, match=r"--token-file"):
            make_settings(host, 8080, None, False)
    for host in ("127.0.0.1", "localhost", "::1"):
        assert make_settings(host, 8080, None, False).token is None
        with pytest.raises(InvalidConfig, match="--allow-changes without a token"):
            make_settings(host, 8080, None, True)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert make_settings("0.0.0.0", 8080, file, True) == ConsoleSettings("0.0.0.0", 8080, TOKEN, True)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert make_settings("0.0.0.0", 8080, None, False).token == TOKEN
    assert TOKEN not in repr(make_settings("0.0.0.0", 8080, None, False))


def test_visitor_has_the_name_of_its_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"alice {TOKEN}\n\nbob {TOKEN[::-1]}\n{TOKEN * 2}\n")
    settings = make_settings("0.0.0.0", 8080, file, True)
    shown = {"alice": TOKEN, "bob": TOKEN[::-1], "": TOKEN * 2}
    for name, token in shown.items():
        cookie = f"{guard.SESSION_COOKIE}={guard.make_session(token, time.time())}"
        for headers in ({"Authorization": f"Bearer {token}"}, {"Cookie": cookie}):
            assert guard.find_visitor(Headers(headers), settings) == name
            assert ask(settings, headers=headers).status_code == 200
    for wrong in ("alice", f"alice {TOKEN}", ""):
        assert guard.find_visitor(Headers({"Authorization": f"Bearer {wrong}"}), settings) is None
    file.write_text(f"alice {TOKEN}\nbob short")
    with pytest.raises(InvalidConfig, match="5 characters in token 2"):
        make_settings("0.0.0.0", 8080, file, True)


@pytest.mark.parametrize(
    "content",
    [
        "correct horse batterystaplelonger",
        "correct-horse batterystaplelonger",
        f"alice smith {TOKEN}",
        f"alice  {TOKEN}",
        f"\u00e9lodie {TOKEN}",
        f"a_ {TOKEN}",
        f"{'a' * 41} {TOKEN}",
        f"a {TOKEN}\na {TOKEN[::-1]}",
        f"a {TOKEN}\nb {TOKEN}",
    ],
)
def test_tokens_with_names_that_the_journal_cannot_tell_apart_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidConfig, match="one space and a token") as refused:
        make_settings("0.0.0.0", 8080, file, True)
    assert not {*content.split()} & {*str(refused.value.found).split()} - {"a"}


def test_visitors_keep_their_names_in_the_ids_of_clients() -> None:
    for name in ("alice", "a.b", "a_b", "x" * 40):
        assert new_client_id(["console", name]).split("-")[1] == name


def test_short_or_malformed_tokens_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in ("", "short", "0123456789abcdé\x00f", "0123456789\n0123456789"):
        file.write_text(content)
        with pytest.raises(InvalidConfig) as refused:
            make_settings("127.0.0.1", 8080, file, False)
        assert not content or content not in str(refused.value)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        make_settings("127.0.0.1", 8080, tmp_path / "nosuch", False)


def test_loopback_is_known_by_number_and_name() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "localhost.example", "127.0.0.1.example", "1270.0.0.1")))


@pytest.mark.parametrize(
    ("namespaces", "expected"),
    [
        (["/data/mq"], [""]),
        (["/data/mq", "s3://bucket/other 1"], ["/mq", "/other-1"]),
        (["/a/mq", "/b/mq", "/mq.d/.two..", "/"], ["/a-mq", "/b-mq", "/two", "/namespace"]),
        (["/x/a/mq", "/y/a/mq", "/y/a-mq"], ["/x-a-mq", "/y-a-mq-1", "/y-a-mq-2"]),
        (["/a/mq", "/mq"], ["/a-mq", "/mq-1"]),
    ],
)
def test_addresses_of_namespaces_have_distinct_names_in_any_order(namespaces: list[str], expected: list[str]) -> None:
    named = list(zip(namespaces, map(str, range(len(namespaces))), strict=True))
    assert choose_roots(named) == expected
    assert choose_roots(named[::-1]) == expected[::-1]


# -- a real console -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_visitor_sees_nothing_before_the_login(mq: Connection) -> None:
    with open_browser(mq, token=TOKEN) as visitor:
        page = visitor.get("/topics")
        assert "token of this console" in page
        assert "<table" not in page
        assert mq.namespace.path not in page
        wrong = visitor.submit(page, "/login", 403, token="0" * 20)
        assert "not the token" in notices(wrong)[0]
        assert mq.namespace.path not in wrong
        assert "<h1>Overview</h1>" in visitor.submit(page, "/login", token=TOKEN)
        assert "<h1>Topics</h1>" in visitor.get("/topics")
        cookies = visitor.client.post("/login", data={}).headers.get_list("set-cookie")
        assert all("HttpOnly" in cookie and "SameSite=strict" in cookie for cookie in cookies)
        assert TOKEN not in "".join(visitor.client.cookies.values())
        script = Browser(visitor.address, Authorization=f"Bearer {TOKEN}", Accept="*/*")
        assert "lakemq_topics" in script.get("/metrics")
    with open_browser(mq, token="another-token-of-this") as second:
        second.client.cookies.set(guard.SESSION_COOKIE, guard.make_session(TOKEN, time.time()))
        assert "token of this console" in second.get("/topics")


@contextmanager
def run_command(*arguments: str, addresses: int, folder: str) -> Iterator[list[str]]:
    """Run the command until it has written so many addresses, the one of metrics last; then end it by a signal."""
    command = [sys.executable, "-m", "lakemq.jobs.cli", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stderr
        found: list[str] = []
        try:
            while len(found) < addresses and (line := process.stderr.readline()):
                found += re.findall(r"(?:console is|metrics are) at (http://[\w.:/]*[\w/])", line)
            yield sorted(found, key=lambda address: address.endswith("/metrics"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
    assert process.returncode == 0, arguments


@pytest.mark.extended
@pytest.mark.slow
def test_commands_serve_console_and_metrics_until_a_signal(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    lakemq.connect(path, create=True).close()
    serve = ["serve", "--console", "--console-port", "0", "--metrics-port", "0"]
    for arguments, texts in (
        (["console", "--port", "0"], ["No sequencer leads"]),
        (serve, ["mean step of this process", "lakemq_step_duration_seconds_count"]),
    ):
        with run_command("--path", path, *arguments, addresses=len(texts), folder=path) as addresses:
            for address, text in zip(addresses, texts, strict=True):
                assert text in httpx.get(address, timeout=60).text


@pytest.mark.extended
@pytest.mark.slow
def test_console_shows_several_namespaces_at_one_port_to_those_who_have_the_token(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a/mq", "b/mq", "c/two 2")]
    for path in paths:
        lakemq.connect(path, create=True).close()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    spellings = [f"{paths[0]}/", "console", f"{tmp_path}/a/../b/mq", *paths[1:], "."]
    options = [f"--token-file={token}", "--port=0", "--allow-changes"]
    with (
        lakemq.connect(paths[1]) as mq,
        mq.serving(),
        run_command("--path", *spellings, *options, addresses=2, folder=paths[0]) as addresses,
        httpx.Client(base_url=addresses[0], timeout=60, headers={"Accept": "text/html"}) as client,
    ):
        assert addresses == addresses[:1] * 2
        roots = ["/a-mq", "/b-mq", "/two-2"]
        for path in ("/", "/a-mq/", "/b-mq/topics", "/a-mq/metrics", "/two-2/login", "/none"):
            assert client.get(path).headers["location"] == "/login", path
            assert client.post(path).status_code == 401, path
        assert not any(name in client.get("/login").text for name in (*paths, *roots))
        client.follow_redirects = True
        assert client.post("login", data={"token": TOKEN}).url.path == "/a-mq/"
        client.follow_redirects = False
        redirects = {
            "/a-mq": "/a-mq/",
            "/?refresh=5": "/a-mq/?refresh=5",
            "/b-mq/topics/?text=a": "/b-mq/topics?text=a",
        }
        assert {path: client.get(path).headers["location"] for path in redirects} == redirects
        client.follow_redirects = True
        for root, path in zip(roots, [".", *paths[1:]], strict=True):
            page = client.get(f"{root}/topics").text
            assert f'<span class="namespace">{path}</span>' in page
            others = [f'<a href="{r}/">{p}</a>' for r, p in zip(roots, [".", *paths[1:]], strict=True) if r != root]
            assert all(other in page for other in others), "the pages lead to each other"
            addresses = re.findall(r'(?:href|action)="(/[^"]*)"', page)
            known = ("/static/", *(f"{r}/" for r in roots))
            assert all(link.startswith(known) for link in addresses), addresses
            shown = {link for link in addresses if link.startswith(f"{root}/") and "?" not in link}
            assert {client.get(link).status_code for link in shown - {f"{root}/change/create-topic"}} == {200}
            assert client.get(f"{root}/none").status_code == 404
            assert f'href="{root}/topics"' in client.get(f"{root}/none").text
        assert client.get("/none").status_code == 404
        made = {"topic": "made", "partitions": "1"}
        create = "/b-mq/change/create-topic"
        fields = form_fields(client.get(create, params=made).text, create)
        assert client.post(create, data=fields).url.path == "/b-mq/topic"
        assert [topic.topic for topic in mq.topics.list()] == ["made"]


@pytest.mark.slow
def test_console_that_others_could_reach_does_not_start_without_a_token(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    lakemq.connect(path, create=True).close()
    for arguments in (["console", "--host", "0.0.0.0"], ["serve", "--console", "--console-host", "0.0.0.0"]):
        done = CliRunner().invoke(app, ["--path", path, *arguments])
        assert done.exit_code == 3
        assert done.stderr.startswith("INVALID_CONFIG: The console needs a token")
