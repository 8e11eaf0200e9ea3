"""`lakemq fsck`: name the damage of a namespace, with the doctor's checks, the plan of a repair, and the audit."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.quality.audit import INVARIANTS, SUBJECTS, prepare
from lakemq.engine.sequencer.repair import Repair
from lakemq.jobs.doctor.examination import run_check
from lakemq.jobs.doctor.namespace import Finding, make_checks
from lakemq.jobs.output import one_line

_CHECKS = ("namespace", "state", "data files", "final messages")
_SOME = 5


def find_damage(mq: Connection, tell: Callable[[str], None]) -> tuple[list[Finding], Repair]:
    """Return all findings, and the plan of a repair. It changes nothing, and a leader may go on beside it.

    tell: called after each check.
    """
    findings, checks = list[Finding](), make_checks(mq, mq.observer())
    for name in _CHECKS:
        findings.append(run_check(name, checks[name]))
        tell(f"checked {name}")
    plan = _plan_repair(mq)
    tell("checked tables")
    for damage in plan.damages:
        commands = [] if damage.is_beyond_repair else [["fsck", "--repair"]]
        findings.append(Finding(damage.table, False, one_line(damage.found), damage.advice, commands))
    if not plan.damages:
        findings.append(Finding("tables", True, "as the journal says"))
        findings.append(run_check("messages", lambda: _check_invariants(mq)))
    return findings, plan


def _plan_repair(mq: Connection) -> Repair:
    """Plan it. Beside a leader, a pass or a merge may be seen half done: then look again."""
    plan = Repair(mq.namespace)
    return Repair(mq.namespace) if plan.damages else plan


def _check_invariants(mq: Connection) -> Finding:
    """Check all rules of the audit. Raises MissingExtra."""
    audit = prepare(mq.namespace)
    with audit.database:
        broken = []
        for rule in INVARIANTS:
            if rule.table in audit.subjects and not rule.is_warning:
                query = rule.query.replace("{batch}", SUBJECTS[rule.table])
                rows = audit.database.execute(query).fetchmany(_SOME)
                broken += [f"{rule.says} Not so: {', '.join(map(str, row))}" for row in rows]
    if not broken:
        return Finding("messages", True, f"all rows are in their places, as of step {audit.step}")
    command = f"python -m lakemq.jobs.audit --path {shlex.quote(mq.namespace.path)}"
    return Finding("messages", False, one_line("; ".join(broken[:_SOME])), f"To see all of them, run `{command}`.")
