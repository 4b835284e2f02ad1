"""A coordinator's desk that lets every client in, for tests that say only what it does with messages."""

from holdfast.run import wire
from holdfast.run.handshake import Host
from holdfast.run.serving import ClientConnection
from holdfast.run.tls import Identity

TOKEN = "0123456789abcdef"


class OpenDesk:
    """A `Desk` (serving.py) for all clients that have the token."""

    identity: Identity | None = None

    def opened(self, connection: ClientConnection) -> None:
        pass

    def handshake(self, endpoint: str) -> Host:
        return Host(TOKEN, endpoint=endpoint, certificate=b"")

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        return None

    def accepted(
        self, connection: ClientConnection, received: int | None
    ) -> tuple[wire.Accepted, list[bytes]]:
        return wire.Accepted(run="r", term=1), []

    def closed(self, connection: ClientConnection) -> None:
        pass
