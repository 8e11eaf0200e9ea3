"""A console that a browser refreshes for an hour keeps its memory and its files."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from unit.busy_namespace import ORDERS, WORKERS, BusyNamespace

PAGES = ("/", f"/group?name={WORKERS}", f"/topic?name={ORDERS}", "/delayed", "/history", "/metrics")
WARM_UP, REFRESHES = 8, 15
"""Rounds of all pages. After the first ones, 90 pages are measured, as many as an hour of refreshes every 40 s."""

MOST_GROWTH_KB = 10_000
"""The allocators' own noise: memory goes up and down by 4,000 kB. A leak of 110 kB per page is more."""


@contextmanager
def run_console(path: str) -> Iterator[tuple[int, str]]:
    """Yield the process id and the address of a console of its own process."""
    command = [sys.executable, "-m", "lakemq.jobs.cli", "--path", path, "console", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            lines = (re.search(r"the console is at (\S+)/", line) for line in process.stderr)
            yield process.pid, next(match[1] for match in lines if match)
        finally:
            process.terminate()


def read_memory_kb(pid: int) -> int:
    """Return the resident memory that is the process's own, without files that are mapped."""
    (size,) = re.findall(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(size)


def count_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def count_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_hour_of_refreshes_leaks_nothing(busy: BusyNamespace) -> None:
    with (
        run_console(busy.mq.namespace.path) as (pid, address),
        httpx.Client(base_url=address.replace("127.0.0.1", "localhost"), timeout=60) as client,
    ):

        def look(rounds: int) -> None:
            for _ in range(rounds):
                for page in PAGES:
                    assert client.get(page).status_code == 200, page

        look(WARM_UP)
        before_kb, files, threads = read_memory_kb(pid), count_files(pid), count_threads(pid)
        look(REFRESHES)
        growth_kb = read_memory_kb(pid) - before_kb
        assert growth_kb < MOST_GROWTH_KB, f"{growth_kb:,} kB after {REFRESHES * len(PAGES)} pages"
        assert count_files(pid) <= files + 5
        assert count_threads(pid) <= threads + 5
        print(f"memory {before_kb:,} kB, growth {growth_kb:,} kB, files {files}, threads {threads}")
