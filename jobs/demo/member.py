"""One process of the demo's group: it copies long delays from one topic to another, a transaction per batch.

    python -m lakemq.jobs.demo.member --path NAMESPACE --name NAME --max-records N --hurry FILE

Its batches are small and slow until FILE exists, then large and fast. It ends when the group has read all flights.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from threading import Thread

import pyarrow as pa

import lakemq
from lakemq.engine.client.consume.group_stream import GroupStream
from lakemq.engine.client.transactions.scope import TransactionScope
from lakemq.jobs.demo.checks import parse_flights

SOURCE, TARGET, GROUP = "flights", "alerts", "delay-alerts"
DELAY_MINUTES = 60
WORK_S = 0.6
"""How long a batch takes, until the members are told to hurry."""
FAST_RECORDS = 20_000
"""Of a batch, once they hurry."""

_COLUMNS = pa.schema([("arr_delay", pa.int64())])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lakemq.jobs.demo.member")
    for option in ("--path", "--name", "--hurry"):
        parser.add_argument(option, required=True)
    parser.add_argument("--max-records", type=int, required=True)
    options = parser.parse_args()
    hurry = Path(options.hurry)

    def raise_alerts(messages: pa.Table, transaction: TransactionScope) -> None:
        delays = parse_flights(messages, _COLUMNS).column("arr_delay")
        late = messages.filter(pa.compute.greater(delays, DELAY_MINUTES))
        transaction.publish(TARGET, late.select(["key", "value", "timestamp"]))
        if not hurry.exists():
            time.sleep(WORK_S)

    with lakemq.connect(options.path) as mq:

        def stream() -> GroupStream:
            return mq.stream(GROUP, topics=[SOURCE], auto_offset_reset="earliest", client_id=options.name)

        def stop_at_hurry() -> None:
            while not hurry.exists():
                time.sleep(0.05)
            slow.stop()

        slow, transactional_id = stream(), f"{TARGET}-{options.name}"
        Thread(target=stop_at_hurry, daemon=True).start()
        slow.foreach_batch(raise_alerts, transactional_id=transactional_id, max_records=options.max_records)
        stream().foreach_batch(
            raise_alerts, transactional_id=transactional_id, max_records=FAST_RECORDS, available_now=True
        )


if __name__ == "__main__":
    main()
