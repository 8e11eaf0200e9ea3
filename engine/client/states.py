"""All state machines of LakeMQ, for the page that draws them."""

from __future__ import annotations

from ..protocol.values.consuming.assignments import PARTITION_TRANSITIONS
from ..protocol.values.delayed.delays import DELAY_TRANSITIONS
from ..protocol.values.queues.dead_letters import REDRIVE_TRANSITIONS
from ..protocol.values.queues.stretches import DELIVERY_TRANSITIONS
from ..protocol.values.topics import LOG_TRANSITIONS
from ..protocol.values.transactions import TRANSACTION_TRANSITIONS
from ..protocol.values.transitions import Transitions
from .transactions.phase import PHASE_TRANSITIONS

__all__ = [
    "DELAY_TRANSITIONS",
    "DELIVERY_TRANSITIONS",
    "LOG_TRANSITIONS",
    "PARTITION_TRANSITIONS",
    "PHASE_TRANSITIONS",
    "REDRIVE_TRANSITIONS",
    "TRANSACTION_TRANSITIONS",
    "Transitions",
]
