"""How many examples a property tries: few, or many if $LAKEMQ_ALL_EXAMPLES is set, as `make test-nightly` sets it."""

import os

from hypothesis import settings

_ALL = "LAKEMQ_ALL_EXAMPLES" in os.environ


def number_of(many: int) -> int:
    return many if _ALL else max(3, many // 10)


def examples(many: int = 100) -> settings:
    """Return the settings of a property. many: the number of examples with $LAKEMQ_ALL_EXAMPLES."""
    return settings(max_examples=number_of(many), deadline=None)
