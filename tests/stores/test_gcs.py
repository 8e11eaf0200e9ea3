"""What LakeMQ needs of Google Cloud Storage: puts with a generation precondition, and generations in identities."""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from gcs_server import VARIABLE, GcsServer

from lakemq.tables.storage.object_stores.files import open_files

pytestmark = pytest.mark.skipif(VARIABLE not in os.environ, reason="runs on fake-gcs-server, with make test-stores")

CLIENTS, NAMES = 8, 100


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


def test_list_returns_all_names_of_several_pages(gcs: GcsServer) -> None:
    """A page has a thousand names."""
    files = open_files(gcs.path(uuid.uuid4().hex), gcs.options)
    names = [f"folder/{number:04d}" for number in range(1_100)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda name: files.put(name, b"."), names))
    assert files.list("folder") == names
