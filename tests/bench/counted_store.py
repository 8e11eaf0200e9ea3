"""A real S3 server for benchmarks, alone or behind a proxy that counts requests or answers later."""

import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection

sys.path.insert(0, str(Path(__file__).parents[1]))

from s3_server import BUCKET, S3Server
from store_proxy import StoreProxy, run_proxy
from versitygw import build, serve_versitygw

TOPIC = "measured"


class CountedRequest(NamedTuple):
    """A kind of request. folder: the first folder below the namespace."""

    method: str
    folder: str


class RequestCounter:
    """Counts the requests that pass a proxy."""

    def __init__(self) -> None:
        self._counts: Counter[CountedRequest] = Counter()

    def count(self, method: str, path: str) -> None:
        url = urlsplit(path)
        query = parse_qs(url.query)
        if "list-type" in query:
            method, path = "LIST", f"/{BUCKET}/{query.get('prefix', [''])[0]}"
        # /bucket/<random>/mq/<folder>/...
        folders = [*urlsplit(path).path.split("/"), "", "", "", ""]
        self._counts[CountedRequest(method, folders[4])] += 1

    def take(self) -> Counter[CountedRequest]:
        """Return the counts since the last call."""
        counts, self._counts = self._counts, Counter()
        return counts


@contextmanager
def serve_store(folder: str) -> Iterator[S3Server]:
    """Run the S3 server until the block ends, and build it if it is missing."""
    with serve_versitygw(str(build()), Path(folder)) as server:
        yield server


@contextmanager
def count_requests(server: S3Server, delay_ms: int = 0) -> Iterator[tuple[S3Server, RequestCounter]]:
    """Yield the server as it is reached through a proxy, which answers this much later, and what counts there."""
    counter = RequestCounter()
    with StoreProxy(server.url, counter.count, delay_ms) as proxy:
        yield server.at(proxy.url), counter


@contextmanager
def run_slow_proxy(server: S3Server, delay_ms: int) -> Iterator[S3Server]:
    """Yield the server as it is reached through a proxy of another process, which answers this much later."""
    with run_proxy(server.url, "--delay-ms", str(delay_ms)) as url:
        yield server.at(url)


def new_path(server: S3Server) -> str:
    return server.path(f"{uuid.uuid4().hex}/mq")


@contextmanager
def serve_namespace(server: S3Server, config: Mapping[str, int | str] | None = None) -> Iterator[Connection]:
    """Yield a connection to a new namespace with a topic. Another process serves it until the block ends."""
    path = new_path(server)
    with run_sequencer(path, config, server.options), lakemq.connect(path, storage_options=server.options) as mq:
        mq.topics.create(TOPIC, partitions=8)
        yield mq
