"""A sequencer and a letter or reply that the store cannot read, write or delete: only its client waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from stateful.world import EXPIRATION_MS, EXPIRY_INTERVAL_MS, World

from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone
from lakemq.engine.protocol.values.topics import CreateTopic
from lakemq.tables.storage.coordination.mailbox import LetterName

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.namespace = replace(world.namespace, files=FaultyFiles(world.folder))
    yield world
    world.close()


def faults(world: World) -> FaultyFiles:
    files = world.namespace.files
    assert isinstance(files, FaultyFiles)
    return files


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)], ids=["pipe", "folder", "loop"]
)
def test_a_letter_that_is_no_file_lets_all_others_be_decided(world: World, make: Callable[[Path], None]) -> None:
    sequencer, _ = world.sequencer()
    world.lead(sequencer)
    world.put("a", 1, [InitProducer()], [])
    make(Path(world.folder, "mailbox", LetterName.of("bad", 1, 0).name))
    for number in (2, 3, 4):
        sequencer.step()
        assert world.take_reply("a", number - 1) == [ProducerDone(number - 2, 0)]
        world.put("a", number, [InitProducer()], [])


def test_an_answer_that_cannot_be_given_is_decided_and_given_later(world: World) -> None:
    sequencer, _ = world.sequencer()
    world.lead(sequencer)
    blocked = Path(world.folder, "replies/b")
    blocked.parent.mkdir()
    blocked.touch()
    for client_id in ("a", "b", "c"):
        world.put(client_id, 1, [InitProducer()], [])
    assert sequencer.step().letters == 3
    assert [world.take_reply(client_id, 1) for client_id in ("a", "c")] == [[ProducerDone(0, 0)], [ProducerDone(2, 0)]]
    assert world.namespace.mailbox.list_waiting(9) == []
    blocked.unlink()
    world.clock.sleep(1_000)
    sequencer.step()
    assert world.take_reply("b", 1) == [ProducerDone(1, 0)]
    assert sequencer.leads


def test_a_client_is_not_forgotten_while_its_decided_letter_cannot_be_deleted(world: World) -> None:
    """The next leader would decide the letter again."""
    faults(world).undeletable = "-stuck-"
    sequencer, background = world.sequencer()
    world.lead(sequencer)
    world.put("stuck", 1, [CreateTopic("paid", 1)], [])
    world.put("other", 1, [InitProducer()], [])
    sequencer.step()
    for _ in range(20):
        world.clock.sleep(EXPIRATION_MS // 10)
        sequencer.step()
    assert "stuck" in sequencer.state.clients
    sequencer.resign()
    background.run()
    heir, _ = world.sequencer()
    assert heir.try_lead()
    heir.step()
    assert world.take_reply("stuck", 1)[0].topic_id == 1  # type: ignore[index]
    assert len(heir.state.topics) == 1
    faults(world).undeletable = ""
    for _ in range(20):
        world.clock.sleep(EXPIRY_INTERVAL_MS)
        heir.step()
    assert world.namespace.mailbox.list_waiting(9) == []
    assert heir.state.clients == {}
