"""Read everything that was decided, from `journal` and from the steps that the tables do not hold yet."""

from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.step_reader import follow_from_watermark
from lakemq.engine.protocol.codec.steps import decode_steps
from lakemq.engine.protocol.values.journal import Step
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.delta.store import Store


def read_steps(store: Store) -> list[Step]:
    """Return all decided steps that `journal` and the step objects still have, in order."""
    watermark, reader = follow_from_watermark(store, SystemClock().steady_ms)
    newer = reader.read()
    return decode_steps(store.open(JOURNAL).read(step=(None, watermark.step))) + newer
