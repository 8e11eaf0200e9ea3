"""The rests of a leader between its steps: after a step with letters it waits, and does not step without work."""

import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.namespace.data_file import new_file_id
from lakemq.engine.sequencer.sequencer import Sequencer, StepReport
from lakemq.engine.sequencer.serving import _Pace, serve

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports new files")

SENDS = 20
WAIT = "wait"


class RecordingClock(SystemClock):
    """Records each wait for a letter among the steps, and lasts as long as the test needs."""

    def __init__(self, events: list[str | int]) -> None:
        self._events = events

    def wait(self, event: threading.Event, ms: float) -> bool:
        self._events.append(WAIT)
        return super().wait(event, ms)


class RecordedSequencer(Sequencer):
    """Records how many letters each step has taken."""

    events: list[str | int]

    def step(self) -> StepReport:
        report = super().step()
        self.events.append(report.letters)
        return report


@pytest.mark.slow
def test_a_step_with_letters_is_followed_by_a_wait(tmp_path: Path) -> None:
    events: list[str | int] = []
    clock = RecordingClock(events)
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq:
        sequencer = RecordedSequencer(mq.namespace, "leader", clock, new_file_id, has_lines=True)
        sequencer.events = events
        is_over = threading.Event()
        leader = threading.Thread(target=serve, args=(sequencer, mq.namespace.config, clock, is_over.is_set))
        leader.start()
        try:
            send_one_after_another(mq)
        finally:
            is_over.set()
            leader.join()
    after_letters = [following for event, following in pairwise(events) if event not in (0, WAIT)]
    assert len(after_letters) >= SENDS
    assert set(after_letters) == {WAIT}


def send_one_after_another(mq: Connection) -> None:
    mq.topics.create("t")
    with mq.producer(linger_ms=0) as producer:
        for number in range(SENDS):
            producer.send("t", str(number)).result()


def test_looks_after_a_letter_keep_to_the_tick() -> None:
    """engine.tick.ms limits what the looks cost."""
    pace = _Pace(EngineConfig({"engine.tick.ms": 100}))
    pace.rest_after_ms(StepReport(step=1, letters=1, backlog=False, is_watching=False), 15.0)
    quiet = StepReport(step=1, letters=0, backlog=False, is_watching=False)
    assert [pace.rest_after_ms(quiet, 15.0) for _ in range(3)] == [85.0, 85.0, 85.0]
