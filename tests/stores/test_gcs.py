"""What LakeMQ needs of Google Cloud Storage: puts with a generation precondition, and generations in identities."""

from __future__ import annotations

import http.client
import os
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from gcs_server import BUCKET, VARIABLE, GcsServer

from lakemq.tables.storage.object_stores.files import open_files

pytestmark = pytest.mark.skipif(VARIABLE not in os.environ, reason="runs on fake-gcs-server, with make test-stores")

CLIENTS, NAMES = 8, 100


def test_the_server_lets_one_of_many_conditional_puts_win(gcs: GcsServer) -> None:
    """The server itself, without obstore. All other tests rely on this promise."""
    folder, start = uuid.uuid4().hex, threading.Barrier(CLIENTS)

    def put_all(client: int) -> Counter[tuple[str, int]]:
        connection = http.client.HTTPConnection(urlsplit(gcs.url).netloc, timeout=60)
        answers: Counter[tuple[str, int]] = Counter()
        for number in range(NAMES):
            start.wait(60)
            name = f"{folder}/{number}"
            headers = {"x-goog-if-generation-match": "0"}
            connection.request("PUT", f"/{BUCKET}/{name}", str(client).encode(), headers)
            answer = connection.getresponse()
            answer.read()
            answers[name, answer.status] += 1
        connection.close()
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = sum(pool.map(put_all, range(CLIENTS)), Counter[tuple[str, int]]())
    expected = {(f"{folder}/{number}", status) for number in range(NAMES) for status in (200, 412)}
    assert set(answers) == expected
    assert {answers[name, status] for name, status in expected if status == 200} == {1}


def test_an_object_with_the_same_content_in_place_of_another_has_another_identity(gcs: GcsServer) -> None:
    """The ETag is the same, because it is the hash of the content."""
    files = open_files(gcs.path(uuid.uuid4().hex), gcs.options)
    first = files.put("name", b"content")
    assert first == files.identity("name") == files.get_identified("name")[1]
    files.delete(["name"])
    second = files.put("name", b"content")
    assert second != first
    assert second == files.identity("name")
    assert second.rpartition("-")[0] == first.rpartition("-")[0]


def test_a_listing_of_several_pages_is_whole(gcs: GcsServer) -> None:
    """A page has a thousand names."""
    files = open_files(gcs.path(uuid.uuid4().hex), gcs.options)
    names = [f"folder/{number:04d}" for number in range(1_100)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda name: files.put(name, b"."), names))
    assert files.list("folder") == names
