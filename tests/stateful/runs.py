"""How machines run: the same few examples every day, or as many random ones as $LAKEMQ_STATEFUL_EXAMPLES says.

$LAKEMQ_STATEFUL_SHRINK shortens a failure, which takes long.
"""

import os

from examples import number_of
from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("LAKEMQ_STATEFUL_EXAMPLES", "0"))
_SHRINK = "LAKEMQ_STATEFUL_SHRINK" in os.environ


def runs(examples: int, steps: int) -> settings:
    """Return settings for a machine. examples: those of the daily run; steps: the most rules in one example."""
    return settings(
        max_examples=EXAMPLES or number_of(examples),
        stateful_step_count=steps,
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if phase is not Phase.shrink or _SHRINK],
    )
