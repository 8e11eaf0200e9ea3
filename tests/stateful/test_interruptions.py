"""The most important interruptions, each played on purpose. The state machine meets them only by chance."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from faults.processes import MERGING_POINTS
from faulty_files import FaultyFiles
from stateful.player import Player
from stateful.world import EXPIRATION_MS, EXPIRY_INTERVAL_MS, FINAL_MS, GRACE_MS, Background, Killed, World
from targets import extended_but, nightly_but

from lakemq.engine.maintenance import compaction
from lakemq.engine.maintenance.final_files import STALE_MS
from lakemq.engine.protocol.errors import NotLeader
from lakemq.engine.protocol.values.log import Produce, Ranges
from lakemq.engine.protocol.values.producers import InitProducer
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, TopicRef
from lakemq.tables.specs.messages import BODY_SCHEMA, FINAL_FILES, MESSAGES, file_stem, final_file_path
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.delta.leftovers import Leftovers

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000


@pytest.fixture
def player() -> Iterator[Player]:
    player = Player()
    yield player
    player.world.close()


def test_a_zombies_projection_that_ends_after_the_new_leaders_adds_nothing(player: Player) -> None:
    player.step()
    player.publish()
    player.step()
    late = player.background
    assert late.waiting
    player.new_leader()
    player.publish()
    player.step()
    player.background.run()
    late.run()
    player.publish()
    try:
        player.step()
    except NotLeader:  # the zombie's commit came in between
        player.world.lead(player.leader)
        player.step()
    assert player.read() == player.all_published()
    player.settle()


@pytest.mark.parametrize("point", ["sequencer.letters_taken", "sequencer.step_landed"])
def test_two_leaders_decide_a_letter_once(player: Player, point: str) -> None:
    """Another one leads when the first has taken the letters, or has put its step. The answer is that of the step."""
    player.step()
    old, client = player.leader, player.world.new_id()
    letter_counts: list[int] = []

    def let_another_lead() -> None:
        player.new_leader()
        letter_counts.append(player.leader.step().letters)

    player.world.meanwhile = (point, let_another_lead)
    player.publish()
    player.world.put(client, 1, [CreateTopic("made-once", 3)], [])
    with pytest.raises(NotLeader):
        old.step()
    assert letter_counts == [2 if point == "sequencer.letters_taken" else 0]
    assert not old.leads
    assert not old.try_lead()
    with pytest.raises(NotLeader):
        old.step()
    player.step()
    (created,) = player.world.take_answer(client, 1) or []
    assert created.partitions == 3
    assert player.world.namespace.mailbox.list_waiting(10) == []
    assert player.read() == player.all_published()
    player.settle()


@pytest.mark.extended
def test_stream_of_final_messages_finds_its_last_batch_however_late(player: Player) -> None:
    """Entries of the log, and the files they name, stay for `final.removed.ms` before the newest message."""
    folder, late_ms = Path(player.world.folder, "final_messages"), 2_000_000

    def publish_final(count: int) -> None:
        for _ in range(count):
            player.publish()
            player.world.finalize()

    def list_entries() -> list[Path]:
        return sorted((folder / "_delta_log").glob("*.json"))

    player.leader.resign()
    publish_final(6)
    of_messages = list_entries()
    player.world.clock.sleep(late_ms)
    for end in (2, 5):
        player.ask(DeleteRecords("t", {0: end}))
        player.world.finalize()
    player.world.check_final_messages()
    assert list_entries()[: len(of_messages)] == of_messages
    actions = [json.loads(line) for entry in list_entries() for line in entry.read_text().splitlines()]
    assert all((folder / action["add"]["path"]).exists() for action in actions if "add" in action)
    publish_final(6)
    player.world.clock.sleep(late_ms)
    publish_final(2)
    assert not set(list_entries()) & set(of_messages)
    player.world.check_final_messages()


@pytest.mark.extended
def test_final_files_stay_for_running_queries_and_until_a_step_has_decided_them(player: Player) -> None:
    """`final.removed.ms` and `reader.grace.ms` may be as short as they can be."""
    settings = {"final.removed.ms": 60_000, "reader.grace.ms": 1_000, "merge.grace.ms": 2_000_000}
    player.leader.resign()
    player.world.reconfigure(settings)
    folder, files = Path(player.world.folder, "final_messages"), player.world.namespace.files
    for _ in range(2):
        player.publish()
    player.world.finalize()
    (removed,) = folder.glob("topic=*/*.parquet")
    player.ask(DeleteRecords("t", {0: 1}))
    player.world.finalize()
    written = folder / final_file_path("t", FINAL_FILES | 1 << 40)
    Leftovers(files).announce_new(folder.name, final_file_path("t", FINAL_FILES | 1 << 40))
    written.write_bytes(b"")

    def finalize_later(ms: int) -> tuple[bool, bool]:
        player.world.clock.sleep(ms)
        player.publish()
        player.world.finalize()
        return removed.exists(), written.exists()

    assert finalize_later(STALE_MS) == (True, True)
    assert finalize_later(1_000_000) == (True, True)
    assert finalize_later(2_000_000) == (False, False)


REWRITING_POINTS = ("finalizing.segments_swapped", "finalizing.files_rewritten")


@pytest.mark.parametrize("point", extended_but(REWRITING_POINTS[:1], REWRITING_POINTS))
def test_sequencer_killed_while_it_compacts_keeps_the_newest_message(
    player: Player, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """All messages have one key, no files are merged, and no empty rows stay."""
    monkeypatch.setattr(compaction, "LONG_RUN", 1)
    body = player.world.body
    key = BODY_SCHEMA.get_field_index("key")
    monkeypatch.setattr(
        player.world,
        "body",
        lambda values: body(values).set_column(key, BODY_SCHEMA.field("key"), [[b"k"] * len(values)]),
    )
    player.world.reconfigure({"compact.min.files": 1000})
    player.new_leader()
    player.ask(AlterTopic("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}))
    player.step()
    player.world.doomed = point
    with pytest.raises(Killed):  # noqa: PT012
        for _ in range(12):
            player.publish()
            player.world.pass_time(player.leader)  # readers must know of the final messages
            player.step()
            player.background.run()
            player.world.clock.sleep(FINAL_MS)
    player.world.remember_steps()
    shown = player.read()
    assert shown
    assert set(shown) <= set(player.all_published())
    player.new_leader()
    for _ in range(3):
        player.publish()
        player.step()
        player.background.run()
        assert player.read()[-1] == player.all_published()[-1]
    player.leader.resign()
    player.world.remember_steps()
    for _ in range(3):
        player.world.finalize()
    assert player.read() == player.all_published()[-1:]


def assert_segments_find_their_files(player: Player) -> None:
    """A reader of tables only, such as SQL, finds the rows of every segment: files are registered first."""
    store = player.world.namespace.store
    named = store.open(SEGMENTS).read(["file_id"], pc.field("file_id") < FINAL_FILES).column("file_id")
    named_files = {file_stem(file_id) for file_id in named.to_pylist()}
    assert named_files <= {Path(file.path).stem for file in store.open(MESSAGES).files()}


def data_files(player: Player) -> set[str]:
    return set(player.world.namespace.files.list(MESSAGES.name))


def publish_and_project(player: Player) -> None:
    player.publish()
    player.step()
    player.background.run()
    player.world.clock.sleep(GRACE_MS + 1)


@pytest.mark.parametrize("point", extended_but(["housekeeping.segments_swapped"], MERGING_POINTS))
def test_sequencer_killed_while_merging_loses_nothing(player: Player, point: str) -> None:
    """Old and new readers can read at any time what they could read before. In the end no useless file is left."""
    with pytest.raises(Killed):  # noqa: PT012
        for round in range(20):
            if round == 4:
                player.world.doomed = point
            publish_and_project(player)
    player.world.remember_steps()
    assert_segments_find_their_files(player)
    messages = player.read()
    assert messages == player.all_published()[: len(messages)]
    player.new_leader()
    for _ in range(6):
        publish_and_project(player)
        assert player.read() == player.all_published()
        assert_segments_find_their_files(player)
    player.world.clock.sleep(GRACE_MS + 1)
    player.step()
    assert len(data_files(player)) <= 6
    player.settle()
    registered = {f"{MESSAGES.name}/{file.path}" for file in player.world.namespace.store.open(MESSAGES).files()}
    assert data_files(player) == registered


@pytest.mark.extended
@pytest.mark.parametrize("publishing", nightly_but([True], [True, False]))
@pytest.mark.parametrize("point", MERGING_POINTS)
def test_leader_stopped_while_it_merges_loses_no_message(player: Player, point: str, publishing: bool) -> None:
    """Other leaders go on for so long that the files which it was about to name or remove are gone by then."""
    stopped: list[Background] = []

    def let_others_lead() -> None:
        stopped.append(player.background)
        if not publishing:  # then they also commit nothing else to the tables
            player.world.reconfigure({"compact.min.files": 1000, "checkpoint.interval": 1000})
        player.new_leader()
        for _ in range(6):
            if publishing:
                player.publish()
            player.step()
            player.background.run()
            player.world.clock.sleep(GRACE_MS + 1)
        assert player.read() == player.all_published()

    for _ in range(4):
        publish_and_project(player)
    player.world.meanwhile = (point, let_others_lead)
    while not stopped:
        publish_and_project(player)
    assert player.read() == player.all_published()
    assert_segments_find_their_files(player)
    for _ in range(6):
        try:
            publish_and_project(player)
        except NotLeader:  # it was stopped between its commits, and others have committed since
            player.world.lead(player.leader)
            player.step()
        assert_segments_find_their_files(player)
    assert player.read() == player.all_published()
    player.settle()


def test_file_of_a_step_that_is_not_projected_is_not_deleted(player: Player) -> None:
    store, files = player.world.namespace.store, player.world.namespace.files
    file = player.world.write_file(["of a file"])
    name = f"{MESSAGES.name}/{file_stem(file.file_id)}.parquet"
    now_ms = files.time_ms()  # too young to be deleted for its age
    ranges = Ranges([0], [0], [0], [0], [1], [now_ms], [now_ms])

    def name_the_file() -> None:
        player.ask(Produce([TopicRef("t", 1, 1)], ranges, player.leader.state.step, [file]))
        player.step()

    name_the_file()
    player.background.run()
    player.world.clock.sleep(DAY_MS + 1)
    while file.file_id in store.open(SEGMENTS).read().column("file_id").to_pylist():
        publish_and_project(player)
    publish_and_project(player)  # now a merge has seen its list, which is due the next time
    assert files.size(name) is not None
    player.publish()
    player.step()
    files.set_modified_ms(name, files.time_ms())  # its time was wrong
    name_the_file()
    player.background.run()
    assert files.size(name) is not None
    assert [value for _, value in player.read()].count("of a file") == 2
    player.step()
    player.background.run()
    assert [value for _, value in player.read()].count("of a file") == 2


def test_leader_of_one_step_forgets_silent_clients(player: Player) -> None:
    """A schedule of short runs must not remember every client."""
    player.publish()
    player.step()
    assert len(player.leader.state.clients) == 2
    player.world.clock.sleep(EXPIRATION_MS + 1)
    player.new_leader()
    player.publish()
    player.step()
    assert len(player.leader.state.clients) == 1
    player.settle()


def test_client_is_not_forgotten_while_its_decided_letter_cannot_be_deleted() -> None:
    """The next leader would decide the letter again."""
    world = World()
    files = FaultyFiles(world.folder, undeletable="-stuck-")
    world.namespace = replace(world.namespace, files=files)
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
    (created,) = world.take_answer("stuck", 1) or []
    assert (created.topic_id, len(heir.state.topics)) == (1, 1)
    files.undeletable = ""
    for _ in range(20):
        world.clock.sleep(EXPIRY_INTERVAL_MS)
        heir.step()
    assert world.namespace.mailbox.list_waiting(9) == []
    assert heir.state.clients == {}
    world.close()
