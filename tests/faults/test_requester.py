"""A client that the sequencer has forgotten starts over, at the latest when the sequencer says so."""

import pytest
from faults.processes import QUICK, TOPIC, Processes, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.requests.requester import IDLE_MS
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.data_file import new_file_id
from lakemq.engine.protocol.errors import ClientEnded
from lakemq.engine.sequencer.sequencer import EXPIRY_INTERVAL_MS, Sequencer
from lakemq.engine.sequencer.serving import Serving
from lakemq.testing import MovableClock

EXPIRATION_MS = 60_000
CONFIG = {**QUICK, "client.expiration.ms": EXPIRATION_MS, "request.gap.ms": 50, "request.timeout.ms": 20_000}


def test_an_idle_client_starts_over_before_it_is_forgotten(family: Processes):
    clock = MovableClock()
    namespace = lakemq.connect(family.path, config=CONFIG).namespace
    sequencer = Sequencer(namespace, "s", SystemClock(), new_file_id)
    with Connection(namespace, clock=clock) as mq, Serving(lambda: sequencer, namespace.config, SystemClock()):
        mq.topics.alter(TOPIC, config={})
        mq.topics.alter(TOPIC, config={})
        before = set(sequencer.state.clients)
        clock.ahead_ms += IDLE_MS + 1
        mq.topics.alter(TOPIC, config={})
        (new,) = set(sequencer.state.clients) - before
        assert sequencer.state.clients[new].number == 1


def test_a_forgotten_client_is_told_so_and_works_again(family: Processes):
    """The client is forgotten while a letter is on its way, because a clock has jumped."""
    clock = MovableClock()
    namespace = lakemq.connect(family.path, config=CONFIG).namespace
    sequencer = Sequencer(namespace, "s", clock, new_file_id)
    with Connection(namespace) as mq, Serving(lambda: sequencer, namespace.config, clock):
        mq.topics.alter(TOPIC, config={})
        clock.ahead_ms += EXPIRATION_MS + EXPIRY_INTERVAL_MS
        until(lambda: not sequencer.state.clients, "expiry")
        with pytest.raises(ClientEnded):
            mq.topics.alter(TOPIC, config={})
        assert mq.topics.alter(TOPIC, config={}).topic == TOPIC
        until(lambda: not namespace.files.list("mailbox"), "empty mailbox")
