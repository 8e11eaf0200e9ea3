"""A producer service: publish the order files that an application drops into a folder, each exactly once.

    python examples/producer_service.py data/shop outbox

The application writes `outbox/000001.jsonl`, `outbox/000002.jsonl` and so on. It writes each file under another name
and renames it when it is complete. The service publishes a file, then deletes it. If the service is killed in between,
it publishes the file again when it starts. LakeMQ then recognises the number of the file and stores nothing.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa

import lakemq

TOPIC = "orders"


def publish_file(mq: lakemq.Connection, file: Path) -> None:
    """Publish the orders of one file, all of them or none."""
    orders = [json.loads(line) for line in file.read_text().splitlines()]
    table = pa.table({"key": [order["customer"] for order in orders], "value": [json.dumps(order) for order in orders]})
    # a version that is not above the last one of this application is not published again
    published = mq.publish(TOPIC, table, txn_app_id="outbox", txn_version=int(file.stem))
    print(f"{file.name}: {'published before' if published.duplicate else f'{len(orders)} orders'}", flush=True)


def main(path: str, folder: str) -> None:
    with lakemq.connect(path) as mq:
        while True:
            for file in sorted(Path(folder).glob("[0-9]*.jsonl")):  # in the order of their numbers
                publish_file(mq, file)
                file.unlink()
            time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
