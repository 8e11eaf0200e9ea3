"""One process of the demo's group: it takes messages, notes them in a file, and says that it is done with them.

    python -m lakemq.jobs.demo.crew_member --path NAMESPACE --topic TOPIC --name NAME --notes FOLDER --most N [--static]

SIGTERM ends it well: what it had is acknowledged, and if it is not static it leaves the group.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pathlib import Path
from typing import Any

import lakemq
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.jobs.demo.crew import GROUP, HURRY, WORK_S

_SESSION: dict[str, Any] = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--path", "--topic", "--name", "--notes"):
        parser.add_argument(name, required=True)
    parser.add_argument("--most", type=int, required=True)
    parser.add_argument("--static", action="store_true")
    given = parser.parse_args()
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    notes, hurry = Path(given.notes), Path(given.notes) / HURRY
    instance = given.name if given.static else None
    with (
        lakemq.connect(given.path) as mq,
        mq.consumer(GROUP, topics=[given.topic], auto_offset_reset="earliest", instance_id=instance, **_SESSION) as me,
        (notes / f"{given.name}-{time.time_ns()}.jsonl").open("w", buffering=1) as file,
    ):
        assert isinstance(me, QueueConsumer)
        file.write(json.dumps({"name": given.name, "member_id": me.member_id}) + "\n")
        while not ends:
            is_late = hurry.exists()
            batch = me.poll(5_000 if is_late else given.most, timeout_ms=100)
            if batch:
                rows = batch.to_arrow().select(["partition", "offset", "delivery_count"])
                file.write(json.dumps([time.time(), *(column.to_pylist() for column in rows.columns)]) + "\n")
                me.ack(batch)
            if not is_late:
                time.sleep(WORK_S)
        me.flush()


if __name__ == "__main__":
    main()
