"""The sequencers that a connection makes: in a thread of its process, or in a call."""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lakemq.tables.storage.coordination.leader_locks import LeaderLocks

from ..namespace.data_file import new_file_id
from ..namespace.namespace import Namespace
from ..namespace.processes import crash
from ..namespace.processes.clock import Clock
from .arguments import parse_whole_number

if TYPE_CHECKING:
    from ..sequencer.sequencer import Sequencer
    from ..sequencer.serving import Serving


class SequencerFactory:
    """Creates sequencers of one namespace. Thread-safe. It imports them when it needs them: few clients do."""

    def __init__(
        self, namespace: Namespace, clock: Clock, crash_point: crash.CrashPoint, check_open: Callable[[], None]
    ) -> None:
        """check_open: raises IllegalState once the connection is closed."""
        self._namespace, self._clock, self._crash_point, self._check_open = namespace, clock, crash_point, check_open
        self._numbers = itertools.count(1)

    def create(self, has_lines: bool = False) -> Sequencer:
        """Return a new sequencer. has_lines: it answers clients of this machine directly, too."""
        from ..sequencer.sequencer import Sequencer

        name = f"{socket.gethostname()}-{os.getpid()}-{next(self._numbers)}-{uuid.uuid4().hex[:6]}"
        locks = LeaderLocks(self._namespace.files)
        return Sequencer(
            self._namespace, name, self._clock, new_file_id, self._crash_point, locks=locks, has_lines=has_lines
        )

    def serve(self, waited_ms: Callable[[], float | None]) -> Serving:
        """Run a sequencer in a thread, until the connection is closed. waited_ms: see `Requester.waited_ms`."""
        from ..sequencer.serving import Serving

        return Serving(self._create_while_open, self._namespace.config, self._clock, waited_ms)

    def serve_while_closing(self) -> Serving:
        """Run a sequencer in a thread, also while the connection closes."""
        from ..sequencer.serving import Serving

        return Serving(partial(self.create, has_lines=True), self._namespace.config, self._clock)

    def step_until_idle(self, wait_ms: int | None) -> int:
        """Run a sequencer in this call; see `Connection.step_until_idle`."""
        from ..sequencer.serving import step_until_idle

        wait_ms = None if wait_ms is None else parse_whole_number("wait_ms", wait_ms, 0)
        self._check_open()
        return step_until_idle(self.create(), self._namespace.config, self._clock, wait_ms)

    def _create_while_open(self) -> Sequencer:
        self._check_open()
        return self.create(has_lines=True)
