"""`make mutations`: the changes that it makes, and that each change on its list of exceptions exists."""

import pytest
import yaml
from mutations.run import ALLOWED, MODULES, changes_of, is_noticed

from lakemq.engine.protocol.rules.offsets import _may_commit

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_allowed_mutations_exist_and_have_reasons() -> None:
    names = {change.name for module in MODULES for change in changes_of(module)}
    allowed = yaml.safe_load(ALLOWED.read_text(encoding="utf-8"))
    assert [entry["change"] for entry in allowed if entry["change"] not in names] == []
    assert all(entry["why"].endswith(".") for entry in allowed)
    assert len({entry["change"] for entry in allowed}) == len(allowed)


def test_mutation_is_noticed_by_its_story_and_undone() -> None:
    """Two comparisons decide whether an offset belongs to its member."""
    changes_of_function = [change for change in changes_of("offsets") if change.function == "_may_commit"]
    changes = [
        change for change in changes_of_function if "assignment.owner ==" in change.name or ": != -> ==" in change.name
    ]
    assert len(changes) == 2
    story = ("tests/golden", "-k", "story and judged")
    assert [is_noticed(change, story) for change in changes] == [True, True]
    assert not is_noticed(changes[0]._replace(code=_may_commit.__code__), story)
