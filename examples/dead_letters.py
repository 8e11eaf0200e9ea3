"""Dead letters: set messages aside that cannot be handled, and bring them back when the cause is repaired.

    python examples/dead_letters.py data/shop pack       # a service: packs orders, rejects those without a product
    python examples/dead_letters.py data/shop redrive    # the products are known by now: bring the orders back

`pack` acknowledges each order by itself. A rejected order becomes a message of `orders.dlq`, with the reason, and does
not stop the orders after it. If the program is killed, what it did not acknowledge is delivered again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lakemq

CATALOG = Path("products.json")


def pack(mq: lakemq.Connection) -> None:
    """Pack orders until stopped."""
    with mq.consumer("packing", topics=["orders"], protocol="queue") as orders:
        while True:
            for order in orders.poll(max_records=10, timeout_ms=1_000):
                known_products = json.loads(CATALOG.read_text())
                product = json.loads(order.value)["product"]
                if product in known_products:
                    print(f"packed {json.loads(order.value)['id']}", flush=True)
                    orders.ack(order)
                else:
                    orders.reject(order, error=f"unknown product {product}")
            orders.flush()


def redrive(mq: lakemq.Connection) -> None:
    """Bring back the rejected orders. A dead letter is brought back once, however often this runs."""
    redriven = mq.dead_letters.redrive("orders.dlq", "error LIKE 'unknown product%'")
    print(f"{redriven.messages} orders are back", flush=True)


def main(path: str, command: str) -> None:
    with lakemq.connect(path) as mq:
        match command:
            case "pack":
                pack(mq)
            case "redrive":
                redrive(mq)
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
