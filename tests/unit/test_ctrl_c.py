"""Ctrl-C while nobody serves: one ends a program within about a second, and says what was not sent."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.extended]

PROGRAM = """
import signal, sys, threading, time
import lakemq
import pyarrow as pa

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in its background processes

def say_when_waiting():
    while (mq.requester.waited_ms() or 0) < 200:
        time.sleep(0.01)
    print("waiting", flush=True)

with lakemq.connect(sys.argv[1]) as mq:
    threading.Thread(target=say_when_waiting, daemon=True).start()
    BODY
"""

FLUSH = """with mq.producer() as producer:
        for number in range(3):
            producer.send("t", f"{number}")
        producer.flush()"""

UNKNOWN = "Interrupted while waiting for an answer. The outcome is unknown: the request may still take effect."

BODIES = {
    FLUSH: r"Interrupted. Messages were not delivered, or not acknowledged: 3 of 't'.",
    FLUSH.replace("with mq.producer() as producer", "for producer in [mq.producer()]"): r"not acknowledged: 3 of 't'.",
    'mq.publish("t", pa.table({"value": ["x"]}))': UNKNOWN,
    """with mq.consumer("g", topics=["t"]) as consumer:
        consumer.poll(timeout_ms=60_000)""": UNKNOWN,
    """with mq.transaction("id") as txn:
        txn.publish("t", pa.table({"value": ["x"]}))""": UNKNOWN,
    """for producer in [mq.producer() for _ in range(3)]:
        producer.send("t", "left open to the end of the block")""": r"(?s)(not acknowledged: 1 of 't'.*){3}",
}


@pytest.mark.parametrize("body", BODIES)
def test_ctrl_c_ends_a_waiting_call_and_says_what_is_unsent(leaderless: str, body: str, tmp_path: Path) -> None:
    program = PROGRAM.replace("BODY", body)
    process = subprocess.Popen(
        [sys.executable, "-c", program, leaderless], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n", process.communicate()
    begun_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    took_s = time.monotonic() - begun_s
    assert process.returncode in (-signal.SIGINT, 130), stderr
    assert re.search(BODIES[body], stderr), stderr
    assert "KeyboardInterrupt" in stderr
    assert took_s < 10, stderr
