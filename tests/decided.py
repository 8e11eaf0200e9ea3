"""Read everything that was decided, from `journal` and from the steps that the tables do not hold yet."""

import itertools

from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.step_reader import follow_from_watermark
from lakemq.engine.protocol.codec.steps import decode_steps
from lakemq.engine.protocol.values.clients import LeaderElected
from lakemq.engine.protocol.values.journal import Step
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.delta.store import Store


def read_steps(store: Store) -> list[Step]:
    """Return all decided steps that `journal` and the step objects still have, in order."""
    watermark, reader = follow_from_watermark(store, SystemClock().steady_ms)
    newer = reader.read()
    return decode_steps(store.open(JOURNAL).read(step=(None, watermark.step))) + newer


def read_terms(store: Store) -> list[tuple[int, str]]:
    """Return epoch and leader of each term, in order. Steps that renew or end a term are left out."""
    records = [entry.record for step in read_steps(store) for entry in step.entries]
    elections = [record for record in records if isinstance(record, LeaderElected) and record.leader]
    return [term for term, _ in itertools.groupby((record.epoch, record.leader) for record in elections)]
