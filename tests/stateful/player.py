"""A client and the leading sequencer, for interruptions that are played on purpose."""

from stateful.projections import assert_projections_are_the_replay
from stateful.world import Background, World

from lakemq.engine.client.fetch.log_reader import Reader
from lakemq.engine.namespace.clock import Clock
from lakemq.engine.protocol.values.kinds import AnyRequest
from lakemq.engine.protocol.values.log import Produce, Ranges
from lakemq.engine.protocol.values.topics import CreateTopic, TopicRef
from lakemq.engine.sequencer.sequencer import Sequencer


class Player:
    """A client, and the sequencer that leads now."""

    def __init__(self) -> None:
        self.world, self.published = World(), 0
        self.leader, self.background = self.new_leader()
        self.ask(CreateTopic("t", 1))

    def new_leader(self, clock: Clock | None = None) -> tuple[Sequencer, Background]:
        """Start a leader. clock: that of its process."""
        self.leader, self.background = self.world.sequencer(clock)
        self.world.lead(self.leader)
        return self.leader, self.background

    def ask(self, *requests: AnyRequest, inline: list[str] | None = None) -> None:
        """Put one letter of a new client."""
        self.world.put(self.world.new_id(), 1, list(requests), inline or [])

    def publish(self) -> None:
        """Put one more message into the mailbox."""
        ranges = Ranges([0], [0], [-1], [0], [1], [1000], [1000])
        self.ask(Produce([TopicRef("t", 1, 1)], ranges, self.leader.state.step), inline=[f"m{self.published}"])
        self.published += 1

    def step(self) -> None:
        self.leader.step()
        self.world.remember_steps()

    def read(self) -> list[tuple[int, str]]:
        """Return the messages that a new reader sees."""
        reader = Reader(self.world.namespace.store, self.world.clock)
        return self.world.logs(reader, reader.refresh().topic("t"))[0]

    def all_published(self) -> list[tuple[int, str]]:
        return [(i, f"m{i}") for i in range(self.published)]

    def settle(self) -> None:
        """Check that everything can be projected, and is right."""
        self.leader.resign()
        self.world.remember_steps()
        assert self.read() == self.all_published()
        self.world.finalize()
        self.world.check_final_messages()
        assert_projections_are_the_replay(self.world.namespace.store, self.world.history)
