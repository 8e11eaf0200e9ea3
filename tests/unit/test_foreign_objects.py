"""Objects of strangers in the folders of a namespace, or of a namespace that was at its path before, stop nobody."""

import uuid
from pathlib import Path

import pytest
from s3_server import S3Server
from unit.served import CONFIG, has_line, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.clock import SystemClock
from lakemq.engine.namespace.line_frames import LineAddress, encode_address
from lakemq.engine.protocol.errors import NotLeader
from lakemq.engine.protocol.values.journal import Step
from lakemq.engine.sequencer.step_log import StepLog
from lakemq.tables.storage.coordination.sockets import MAX_LINE_BYTES, line_name
from lakemq.tables.storage.coordination.step_objects import list_steps, step_name
from lakemq.tables.storage.object_stores.files import ObjectFiles


def goes_on_line(mq: Connection) -> bool:
    """Make a request, and return whether it went on a line."""
    mq.topics.alter("t", {"ttl.ms": 60_000})
    return has_line(mq)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("line/9", b""),
        ("line/\u0669", b"garbage"),
        (line_name(10**20 - 1), b"garbage"),
        (line_name(10**20 - 1), bytes(MAX_LINE_BYTES + 1)),
        (line_name(7), encode_address(LineAddress("a namespace before", 7, "token", host="127.0.0.1", port=1))),
    ],
    ids=["few digits", "other digits", "garbage", "too large", "other namespace"],
)
def test_a_foreign_object_beside_a_leaders_keeps_no_client_from_its_line(
    tmp_path: Path, name: str, content: bytes
) -> None:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("t")
        mq.namespace.files.put(name, content, durable=False)
        with lakemq.connect(str(tmp_path / "mq"), config=CONFIG) as other:
            until(lambda: goes_on_line(other))


@pytest.mark.slow
def test_a_leader_does_not_go_on_from_step_0_of_a_namespace_that_was_created_again(s3: S3Server) -> None:
    """A store that identifies objects by their content must not take it for the step on which the leader stands."""
    path = s3.path(uuid.uuid4().hex)
    with lakemq.connect(path, storage_options=s3.options, create=True) as former:
        files = former.namespace.files
        identity = files.identity(step_name(0))
        assert identity is not None
        clock = SystemClock()
        log = StepLog(files, former.namespace.namespace_id, 0, identity, lambda: "nonce", clock.steady_ms)
        remove_all(files)
        with lakemq.connect(path, storage_options=s3.options, create=True):
            with pytest.raises(NotLeader):
                log.append(log.encode(Step(1, 1, 1, []), "former", 10_000))
            assert list_steps(files) == [0], "the former leader has left nothing"


def remove_all(files: ObjectFiles) -> None:
    import obstore

    obstore.delete(files._store, [meta["path"] for batch in obstore.list(files._store) for meta in batch])
