"""The Structured Streaming job of `examples/` counts each order once, although it is killed and started again."""

from collections import Counter
from pathlib import Path

import pytest
from faults.examples import Shop

import lakemq

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_a_killed_streaming_job_that_runs_again_counts_each_order_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    try:
        shop.order(200)
        job = shop.start("streaming_job", str(tmp_path / "checkpoint"))
        job.wait_for("published batch 1")
        job.kill()
        shop.start("streaming_job", str(tmp_path / "checkpoint")).wait_for_success()
        expected = Counter[str]()
        for number in range(200):
            expected[f"customer-{number % 5}"] += number
        with lakemq.connect(shop.path) as mq:
            sums = [(message.key.decode(), int(message.value)) for message in mq.fetch("totals")]
        assert dict(sums) == expected  # the newest sum of each customer
        assert len(sums) == len(set(sums))  # no batch was published twice
    finally:
        shop.stop()
