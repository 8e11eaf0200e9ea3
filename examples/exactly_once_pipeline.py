"""An exactly-once pipeline for a scheduler: turn the orders that are there into shipments, and end.

    */5 * * * *  python examples/exactly_once_pipeline.py data/shop        # cron; in Airflow: a task that calls main

The shipments of a batch and the progress of the group are one transaction. If a run is killed, its open transaction is
aborted, and the next run continues with the first order that was not shipped. A run reads all orders that exist when it
begins. If it cannot read them all, it ends with an error, so that the scheduler tries again.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa

import lakemq


def main(path: str) -> int:
    shipped = 0
    # the run serves itself where no `lakemq serve` does
    with lakemq.connect(path) as mq, mq.serving():
        mq.topics.create("shipments", partitions=4, exist_ok=True)
        transaction = mq.transaction("shipping-job")  # an earlier run that still lives cannot commit any more
        with mq.consumer("shipping", topics=["orders"]) as orders:
            for batch in orders.until_end(max_records=50):
                parcels = [json.dumps({"ship": json.loads(message.value)["id"]}) for message in batch]
                with transaction:
                    transaction.publish("shipments", pa.table({"key": [m.key for m in batch], "value": parcels}))
                    transaction.send_offsets(batch)
                shipped += batch.record_count
                print(f"{shipped} shipped", flush=True)
    return shipped


if __name__ == "__main__":
    main(*sys.argv[1:])
