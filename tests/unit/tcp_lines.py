"""A leader that listens on TCP."""

import socket
from pathlib import Path

from unit.line_peers import PATIENCE_S, LineClient, LineLeader

from lakemq.engine.client.requests.direct_line import connect_to_leader
from lakemq.engine.namespace.line_frames import Frame, FrameKind, Hello, LineAddress, encode_hello
from lakemq.engine.sequencer.letters.line_opener import make_tls_context
from lakemq.engine.sequencer.letters.line_table import LineListener
from lakemq.tables.storage.coordination import sockets
from lakemq.tables.storage.object_stores.files import Files


class TcpLeader(LineLeader):
    """Lines on a loopback address. files: of the namespace, for the leader alone."""

    def __init__(self, folder: Path, files: Files | None = None, namespace_id: str = "ns") -> None:
        self.folder = folder
        context, fingerprint = make_tls_context()
        listening = sockets.listen_tcp("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        address = LineAddress(namespace_id, 3, "token", "", "127.0.0.1", self.port, fingerprint)
        super().__init__(folder, LineListener(listening, is_tcp=True, context=context), address, files)

    def reach(self, client_id: str = "client") -> tuple[LineClient, Hello]:
        """Connect as a client does, and return the hello that it would send."""
        reached = connect_to_leader(self.files, self.address, client_id, PATIENCE_S, PATIENCE_S)
        assert reached is not None
        return LineClient(reached[0]), reached[1]

    def connect(self, client_id: str = "client") -> LineClient:
        """Return a client that has been welcomed."""
        client, hello = self.reach(client_id)
        client.send(encode_hello(hello))
        assert client.receive() == Frame(FrameKind.WELCOME, b"")
        return client

    def connect_without_tls(self) -> LineClient:
        """Return a connection on which nothing was sent."""
        return LineClient(socket.create_connection(("127.0.0.1", self.port), PATIENCE_S))

    def serve(self, client: LineClient, number: int = 1) -> None:
        """Check that the leader takes and answers a letter of this client now."""
        client.send_letter(number, b"a letter")
        letter = self.take()
        assert (letter.name.number, letter.body) == (number, b"a letter")
        self.lines.table.answer(letter, b"an answer")
        assert client.receive() == Frame(FrameKind.ANSWER, b"an answer")
