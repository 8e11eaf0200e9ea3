"""The interruptions that matter most, each played on purpose: the state machine meets them by chance only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.processes import MERGING_POINTS
from stateful.player import Player
from stateful.world import EXPIRATION_MS, GRACE_MS, Background, Killed
from targets import extended_but

from lakemq.engine.namespace import crash
from lakemq.engine.protocol.errors import NotLeader
from lakemq.engine.protocol.values.log import Produce, Published, Ranges
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import MESSAGES, file_stem
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.segments import SEGMENTS

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000


@pytest.fixture
def play() -> Iterator[Player]:
    player = Player()
    yield player
    player.world.close()


def test_a_zombies_projection_that_ends_after_the_new_leaders_adds_nothing(play: Player) -> None:
    play.step()
    play.publish()
    play.step()
    late = play.background
    assert late.waiting
    play.new_leader()
    play.publish()
    play.step()
    play.background.run()
    late.run()
    play.publish()
    try:
        play.step()
    except NotLeader:  # the zombie's commit came in between
        play.world.lead(play.leader)
        play.step()
    assert play.read() == play.all_published()
    play.settle()


def test_a_zombies_projection_that_ends_before_the_new_leaders_begins_is_as_good(play: Player) -> None:
    play.publish()
    play.step()
    late = play.background
    play.new_leader()
    late.run()
    play.publish()
    play.step()
    play.settle()


def test_two_that_think_they_lead_decide_once(play: Player) -> None:
    play.step()
    old = play.leader
    play.new_leader()
    play.publish()
    with pytest.raises(NotLeader):
        old.step()
    assert not old.leads
    with pytest.raises(NotLeader):
        old.step()
    play.step()
    assert play.read() == play.all_published()
    play.settle()


def go_on(play: Player, point: str) -> None:
    """Whatever passes the point."""
    if point == "sequencer.elected":
        play.background.alive = False
        play.new_leader()
    elif point == "sequencer.resigned":
        play.leader.resign()
    for _ in range(3):
        play.step()
        play.background.run()


@pytest.mark.parametrize(
    "point",
    extended_but(
        ["sequencer.step_landed", "projector.table_appended"],
        [p for p in crash.POINTS if p.startswith(("sequencer.", "projector."))],
    ),
)
def test_killed_at(play: Player, point: str) -> None:
    """What readers see is right right then, and after the next one has taken over; the point was reached."""
    play.publish()
    play.step()
    play.background.run()
    play.publish()
    if point == "sequencer.rows_written":
        play.world.reconfigure({"journal.rows.max.bytes": 0})
        play.background.alive = False
        play.new_leader()
    play.world.doomed = point
    with pytest.raises(Killed):
        go_on(play, point)
    play.world.remember_steps()
    assert_segments_find_their_files(play)
    seen = play.read()
    assert seen == play.all_published()[: len(seen)]
    assert len(seen) >= 1
    play.new_leader()
    play.step()
    assert play.read() == play.all_published()
    play.publish()
    play.step()
    play.settle()


def assert_segments_find_their_files(play: Player) -> None:
    """Who reads tables only, as SQL does, finds the rows of every segment: files are registered first."""
    store = play.world.namespace.store
    wanted = {file_stem(i) for i in store.open(SEGMENTS).read().column("file_id").to_pylist() if i is not None}
    assert wanted <= {Path(file.path).stem for file in store.open(MESSAGES).files()}


def data_files(play: Player) -> set[str]:
    return set(play.world.namespace.files.list(MESSAGES.name))


def one_more(play: Player) -> None:
    play.publish()
    play.step()
    play.background.run()
    play.world.clock.sleep(GRACE_MS + 1)


@pytest.mark.parametrize("point", extended_but(["housekeeping.segments_swapped"], MERGING_POINTS))
def test_killed_while_data_files_are_merged(play: Player, point: str) -> None:
    """What was read before is read at any time, by who came before too; in the end nothing is left of no use."""
    with pytest.raises(Killed):  # noqa: PT012
        for round in range(20):
            if round == 4:
                play.world.doomed = point
            one_more(play)
    play.world.remember_steps()
    assert_segments_find_their_files(play)
    seen = play.read()
    assert seen == play.all_published()[: len(seen)]
    play.new_leader()
    for _ in range(6):
        one_more(play)
        assert play.read() == play.all_published()
        assert_segments_find_their_files(play)
    play.world.clock.sleep(GRACE_MS + 1)
    play.step()
    assert len(data_files(play)) <= 6
    play.settle()
    registered = {f"{MESSAGES.name}/{file.path}" for file in play.world.namespace.store.open(MESSAGES).files()}
    assert data_files(play) == registered


@pytest.mark.extended
@pytest.mark.parametrize("publishing", [True, False])
@pytest.mark.parametrize("point", MERGING_POINTS)
def test_a_leader_that_is_stopped_while_it_merges_does_no_harm(play: Player, point: str, publishing: bool) -> None:
    """Others go on for so long that what it was about to name, or to remove, is gone by then."""
    stopped: list[Background] = []

    def others() -> None:
        stopped.append(play.background)
        if not publishing:  # nor do they commit to the tables for any other reason
            play.world.reconfigure({"compact.min.files": 1000, "checkpoint.interval": 1000})
        play.new_leader()
        for _ in range(6):
            if publishing:
                one_more(play)
            else:
                play.step()
                play.background.run()
                play.world.clock.sleep(GRACE_MS + 1)
        assert play.read() == play.all_published()

    for _ in range(4):
        one_more(play)
    play.world.meanwhile = (point, others)
    while not stopped:
        one_more(play)
    assert play.read() == play.all_published()
    assert_segments_find_their_files(play)
    for _ in range(6):
        try:
            one_more(play)
        except NotLeader:  # it was stopped in between its commits, and the last of them came in between
            play.world.lead(play.leader)
            play.step()
        assert_segments_find_their_files(play)
    assert play.read() == play.all_published()
    play.settle()


def test_a_file_stays_that_a_step_names_which_is_not_projected(play: Player) -> None:
    store, files = play.world.namespace.store, play.world.namespace.files
    file = play.world.write_file(["of a file"])
    name = f"{MESSAGES.name}/{file_stem(file.file_id)}.parquet"
    now_ms = files.time_ms()  # too young to be deleted for its age
    ranges = Ranges([0], [0], [0], [0], [1], [now_ms], [now_ms])

    def name_it() -> None:
        play.ask(Produce([TopicRef("t", 1, 1)], ranges, play.leader.state.step, [file]))
        play.step()

    name_it()
    play.background.run()
    play.world.clock.sleep(DAY_MS + 1)
    while file.file_id in store.open(SEGMENTS).read().column("file_id").to_pylist():
        one_more(play)
    one_more(play)  # now its list has been seen, and is due the next time
    assert files.size(name) is not None
    play.publish()
    play.step()
    files._seen[name] = files.time_ms()  # its time was wrong
    name_it()
    play.background.run()
    assert files.size(name) is not None
    assert [value for _, value in play.read()].count("of a file") == 2
    play.step()
    play.background.run()
    assert [value for _, value in play.read()].count("of a file") == 2


@pytest.mark.extended
def test_merging_leaves_the_view_as_it_is_and_the_tables_small(play: Player) -> None:
    """I11. With these settings a table is merged every five commits."""
    store, merges = play.world.namespace.store, 0
    play.step()
    for _ in range(14):
        play.publish()
        play.step()
        before = play.read()
        play.background.run()
        if len(store.open(BY_NAME["segments"]).files()) == 1:
            merges += 1
            assert play.read() == before == play.all_published()
        play.world.clock.sleep(100)
    assert merges >= 2
    for name in ("segments", "producers", "partitions", "watermarks", JOURNAL.name):
        assert len(store.open(BY_NAME[name]).files()) <= 10, name
    play.settle()


def test_a_leader_of_one_step_forgets_who_was_silent(play: Player) -> None:
    """A schedule of short runs must not remember every client for ever."""
    play.publish()
    play.step()
    assert len(play.leader.state.clients) == 2
    play.world.clock.sleep(EXPIRATION_MS + 1)
    play.new_leader()
    play.publish()
    play.step()
    assert len(play.leader.state.clients) == 1
    play.settle()


def test_an_answer_tells_where_the_messages_are(play: Player) -> None:
    play.step()
    client = play.world.new_id()
    ranges = Ranges([0, 0], [0, 0], [-1, -1], [1, 0], [1, 1], [0, 0], [0, 0])
    request = Produce([TopicRef("t", 1, 1)], ranges, play.leader.state.step)
    play.world.put(client, 1, [request], ["second", "first"])
    play.step()
    (result,) = play.world.take_reply(client, 1) or []
    assert isinstance(result, Published)
    assert [tuple(msg) for msg in play.read()] == [(0, "first"), (1, "second")]
    assert (result.units[0].base_offset, result.units[0].record_count) == (0, 2)
