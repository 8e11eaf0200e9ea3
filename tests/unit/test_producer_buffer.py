"""Records on the buffer's quick path count like others: within the memory limit, and sent when they are due."""

import threading

import hypothesis.strategies as st
from clocks import ManualClock
from examples import examples
from hypothesis import given

from lakemq.engine.client.producer.buffer import Buffer
from lakemq.engine.client.producer.delivery import Batch, DeliveryMonitor
from lakemq.engine.client.producer.options import parse_producer_options

OPTIONS = parse_producer_options({"batch_size": 100, "buffer_memory": 300, "linger_ms": 1000})

records = st.tuples(st.sampled_from("ab"), st.integers(1, 120))
calls = records | st.sampled_from(["next", "settle"])


class BufferDriver:
    """A buffer and the records that a test has put into it."""

    def __init__(self, has_fast_path: bool) -> None:
        lock = threading.RLock()
        lock.acquire()
        self.buffer = Buffer(OPTIONS, ManualClock(), DeliveryMonitor(lock), has_fast_path)
        self.sent: list[Batch] = []
        self.quick_count = 0

    def do(self, call: str | tuple[str, int]) -> object:
        if isinstance(call, tuple):
            return self._give(*call)
        if call == "next" and self.buffer._due_in_ms() == 0:
            batch = self.buffer.next()
            assert batch is not None
            self.sent.append(batch)
        elif call == "settle" and self.sent:
            self.buffer.remove(self.sent.pop(0))
        return self._observe()

    def _give(self, topic: str, size: int) -> object:
        future = self.buffer.add_fast(topic, size, b"k", b"v")
        if future is not None:
            self.quick_count += 1
            return self._observe()
        if not self.buffer.has_room(size):
            return "full"
        self.buffer.add_record(topic, size, b"k", b"v", None)
        return self._observe()

    def _observe(self) -> object:
        queued = [(batch.number, batch.size_bytes, len(batch.records.values)) for batch in self.buffer._queue]  # type: ignore[union-attr]
        return self.buffer.held_bytes, self.buffer._due_in_ms(), queued


@examples()
@given(st.lists(calls, max_size=40))
def test_fast_and_slow_path_fill_the_buffer_alike(calls: list[str | tuple[str, int]]) -> None:
    quick, slow = BufferDriver(True), BufferDriver(False)
    for call in calls:
        assert quick.do(call) == slow.do(call)
    assert slow.quick_count == 0
