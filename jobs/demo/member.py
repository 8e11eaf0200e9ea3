"""One process of the demo's group: it copies long delays from one topic to another, a transaction per batch.

    python -m lakemq.jobs.demo.member --path NAMESPACE --name NAME --max-records N --signals FOLDER

The tour tells it by files in FOLDER: after `hurry` its batches take no rest, and after `kill-NAME` it kills itself in
its next transaction. It ends when the group has read all flights.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa

import lakemq
from lakemq.engine.client.transactions.scope import TransactionScope
from lakemq.jobs.demo.checks import parse_flights

SOURCE, TARGET, GROUP = "flights", "alerts", "delay-alerts"
DELAY_MINUTES = 60
REST_S = 1.0
"""How long a batch takes longer than it must, until the members are told to hurry."""
HURRY, KILL = "hurry", "kill-"

_COLUMNS = pa.schema([("arr_delay", pa.int64())])


def end_with_parent(parent_id: int) -> None:
    """End this process when the demo that started it is gone, for example killed."""
    while os.getppid() == parent_id:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lakemq.jobs.demo.member")
    for option in ("--path", "--name", "--signals"):
        parser.add_argument(option, required=True)
    parser.add_argument("--max-records", type=int, required=True)
    options = parser.parse_args()
    signals = Path(options.signals)
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()

    def raise_alerts(messages: pa.Table, transaction: TransactionScope) -> None:
        delays = parse_flights(messages, _COLUMNS).column("arr_delay")
        late = messages.filter(pa.compute.greater(delays, DELAY_MINUTES))
        transaction.publish(TARGET, late.select(["key", "value", "timestamp"]))
        if (signals / f"{KILL}{options.name}").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if not (signals / HURRY).exists():
            time.sleep(REST_S)

    with lakemq.connect(options.path) as mq:
        stream = mq.stream(GROUP, topics=[SOURCE], auto_offset_reset="earliest", client_id=options.name)
        stream.foreach_batch(
            raise_alerts,
            transactional_id=f"{TARGET}-{options.name}",
            max_records=options.max_records,
            available_now=True,
        )


if __name__ == "__main__":
    main()
