"""The rests of a leader between its steps."""

from lakemq.engine.namespace.config import EngineConfig
from lakemq.engine.sequencer.sequencer import StepReport
from lakemq.engine.sequencer.serving import _Pace


def test_looks_after_a_letter_keep_to_the_tick() -> None:
    """engine.tick.ms limits what the looks cost."""
    pace = _Pace(EngineConfig({"engine.tick.ms": 100}))
    pace.rest_after_ms(StepReport(step=1, letters=1, backlog=False, is_watching=False), 15.0)
    quiet = StepReport(step=1, letters=0, backlog=False, is_watching=False)
    assert [pace.rest_after_ms(quiet, 15.0) for _ in range(3)] == [85.0, 85.0, 85.0]
