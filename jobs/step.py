"""Decide what waits and end: `lakemq step`, or `spark-submit jobs/step.py --path ...` (no Spark is started).

For schedules: nothing runs between two calls, requests wait in the mailbox.
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import TYPE_CHECKING

from lakemq.errors import NotLeader
from lakemq.jobs.entry import Counts, arguments_of, connected, parsed, run, started, whole
from lakemq.jobs.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection

log = logging.getLogger("lakemq.step")

_LOOK_S = 0.2


def run_steps(mq: Connection, until_idle: bool, wait_ms: int) -> int:
    """The number of letters decided, by one step or by as many as it takes until none waits.

    Raises NotLeader when another sequencer leads for longer than `wait_ms`.
    """
    probe(mq.namespace.files)
    if until_idle:
        return mq.step_until_idle(wait_ms)
    sequencer, deadline_s = mq.sequencer(), time.monotonic() + wait_ms / 1000
    try:
        while not sequencer.try_lead():
            if time.monotonic() > deadline_s:
                raise NotLeader("Another sequencer leads.", found=sequencer.state.leader)
            time.sleep(min(_LOOK_S, wait_ms / 1000))
        return sequencer.step().letters
    finally:
        sequencer.resign()


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml --until-idle\n--path data/mq --until-idle --wait-ms 20000"
    parser = arguments_of("step", "Decide what waits in the mailbox, project it, and end.", examples)
    parser.add_argument("--until-idle", action="store_true", help="go on until no letter waits and nothing is overdue")
    parser.add_argument(
        "--wait-ms", type=whole, default=0, metavar="MS", help="how long to wait while another sequencer leads"
    )
    parser.add_argument("--unless-led", action="store_true", help="end with 0 where another leads: it decides")
    return parser


def main(arguments: list[str] | None = None) -> int:
    given = parsed(parser(), arguments)

    def step() -> Counts:
        with connected(given) as mq:
            try:
                letters = run_steps(mq, given.until_idle, given.wait_ms)
            except NotLeader as leader:
                if not given.unless_led:
                    raise
                log.info("it is left to the sequencer that leads: %s", leader)
                letters = 0
            return {"letters": letters, "step": mq.state().step}

    return run("step", given, step)


if __name__ == "__main__":
    started(main)
