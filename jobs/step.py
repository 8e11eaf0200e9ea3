"""Decide the waiting requests and end: `lakemq step`, or `python jobs/step.py --path ...`.

Use it from a scheduler: nothing runs between two calls, and requests wait in the mailbox.
"""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from lakemq.errors import NotLeader
from lakemq.jobs import entry
from lakemq.jobs.process.probe import probe

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection

log = logging.getLogger("lakemq.step")


def run_steps(mq: Connection, until_idle: bool, wait_ms: int | None) -> int:
    """Run one step, or steps until no letter waits, and return the number of letters decided.

    Raises NotLeader if another sequencer leads for longer than `wait_ms`; with None, once it proves alive.
    """
    probe(mq.namespace.files)
    if until_idle:
        return mq.step_until_idle(wait_ms)
    from lakemq.engine.namespace.clock import SystemClock
    from lakemq.engine.sequencer.serving import wait_to_lead

    sequencer, clock = mq.sequencer(), SystemClock()
    try:
        wait_to_lead(sequencer, clock, None if wait_ms is None else clock.steady_ms() + wait_ms)
        return sequencer.step().letters
    finally:
        sequencer.resign()


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml --until-idle\n--path data/mq --until-idle --wait-ms 20000"
    parser = entry.make_job_parser("step", "Decide the waiting requests, update the tables, and end.", examples)
    parser.add_argument(
        "--until-idle", action="store_true", help="continue until no letter waits and nothing is overdue"
    )
    parser.add_argument(
        "--wait-ms",
        type=entry.whole_number,
        metavar="MS",
        help="how long to wait while another sequencer leads (default: until it proves alive, at most lease.ms)",
    )
    parser.add_argument(
        "--unless-led", action="store_true", help="end with 0 if another sequencer leads, which decides"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = entry.parse_arguments(parser(), arguments)

    def step() -> entry.Counts:
        with entry.connect_namespace(options) as mq:
            try:
                letters = run_steps(mq, options.until_idle, options.wait_ms)
            except NotLeader as leader:
                if not options.unless_led:
                    raise
                log.info("Another sequencer leads and decides the waiting requests: %s", leader)
                letters = 0
            return {"letters": letters, "step": mq.state().step}

    return entry.run("step", options, step)


if __name__ == "__main__":
    entry.run_as_script(main)
