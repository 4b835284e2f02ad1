"""How a client and the coordinator prove to each other that they have the token, without sending it.

The coordinator asks with a nonce. The client answers with its role, its name, where it connected to, a nonce
of its own and its proof. The coordinator's verdict carries the coordinator's proof, and the client believes
nothing before that. Each proof is an HMAC over all of this and over who made it: so one that was heard, sent
back, or passed on to or from another address, is worth nothing. With TLS (tls.py) the coordinator's
certificate is part of it. Nothing here reads or writes: see dial.py, link.py and coordinator.py.
"""

import hashlib
import hmac
import ipaddress
import secrets
import socket
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.record.errors import HoldfastError
from holdfast.run import wire
from holdfast.run.tls import Channel

HANDSHAKE_WAIT_S = 10.0
"""A coordinator answers at once; what is silent for so long is something else."""
KNOWN_WAIT_S = 60.0
"""The same where a coordinator is known to be: it is there, and gets no core for a while, or we get none.
Where it is gone, the kernel says so at once."""
HANDSHAKE_BYTES_MAX = 1024
"""Of a frame from a connection that has proved nothing yet."""
ATTEMPTS_MAX = 5
"""So often a client connects that is hung up on: a coordinator beset by strangers drops the oldest of them,
and may drop a client that was slow to answer."""
ATTEMPT_INTERVAL_S = 0.2
NONCE_BYTES = 32
CONTEXT = "holdfast control connection 4"

Side = Literal["client", "coordinator"]
Verdict = TypeVar("Verdict", wire.Accepted, wire.Refused)


class Unreachable(HoldfastError):
    """No process listens there, or the way there is blocked."""


class Elsewhere(Unreachable):
    """There is an heir, and no coordinator: that is on another machine, or not chosen yet."""


class Stranger(HoldfastError):
    """The other end has not proved that it has the token, and is not believed."""


class Rejected(HoldfastError):
    """The coordinator does not want us: a name that is taken, or a way that it does not know."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What both proofs of one connection are about. endpoint: the coordinator's, as the client sees it.
    certificate: the fingerprint of the one that the coordinator showed; empty without TLS. received: as in
    `Proof`.
    """

    role: wire.Role
    name: str
    endpoint: str
    certificate: bytes
    asked: bytes
    answered: bytes
    received: int | None


def prove(token: str, side: Side, claim: Claim, said: bytes = b"") -> bytes:
    """said: what else this side says with it."""
    return hmac.digest(token.encode(), msgspec.msgpack.encode([CONTEXT, side, claim, said]), hashlib.sha256)


class HandshakeClient:
    """A client's side of one connection. endpoint: where its socket is connected. received: see `Proof`."""

    def __init__(
        self, token: str, *, role: wire.Role, name: str, endpoint: str, received: int | None = None
    ) -> None:
        self._token = token
        self._role: wire.Role = role
        self._name = name
        self._endpoint = endpoint
        self._received = received
        self._claim: Claim | None = None

    def answer(self, question: wire.AnyMessage, certificate: bytes = b"") -> wire.Proof:
        """What to answer to a coordinator's first message; `MalformedFrame` where it is none."""
        if not isinstance(question, wire.Challenge) or len(question.nonce) != NONCE_BYTES:
            raise wire.MalformedFrame("no challenge")
        if question.protocol != wire.PROTOCOL:
            raise Stranger(
                f"The process that listens at {self._endpoint} speaks protocol {question.protocol}, "
                f"this process {wire.PROTOCOL}.",
                hint="Use the same version of Holdfast on all nodes.",
            )
        claim = Claim(
            role=self._role,
            name=self._name,
            endpoint=self._endpoint,
            certificate=certificate,
            asked=question.nonce,
            answered=secrets.token_bytes(NONCE_BYTES),
            received=self._received,
        )
        self._claim = claim
        return wire.Proof(
            role=claim.role,
            name=claim.name,
            endpoint=claim.endpoint,
            nonce=claim.answered,
            proof=prove(self._token, "client", claim),
            received=claim.received,
        )

    def accepted_by(self, verdict: wire.AnyMessage) -> wire.Accepted:
        """How a run lets us in; `Rejected` where it does not, `Stranger` where it proves nothing."""
        if self._claim is None or not isinstance(verdict, wire.Accepted | wire.Refused):
            raise wire.MalformedFrame("no verdict")
        expected = prove(self._token, "coordinator", self._claim, _without_proof(verdict))
        if not hmac.compare_digest(expected, verdict.proof):
            raise Stranger(
                f"The process that listens at {self._endpoint} does not have this run's token.",
                hint="All nodes of a run need the same HOLDFAST_TOKEN. If they have it, another program holds"
                " that port: choose another one with --coordinator HOST:PORT.",
            )
        if isinstance(verdict, wire.Refused) and verdict.is_elsewhere:
            raise Elsewhere(verdict.sentence, hint=verdict.hint)
        if isinstance(verdict, wire.Refused):
            raise Rejected(verdict.sentence, hint=verdict.hint)
        return verdict


class Entry:
    """A client's way in over one connection: it is given what arrives, and says what to send."""

    def __init__(self, client: HandshakeClient) -> None:
        self.accepted = wire.Accepted(run="")
        """How a run has let us in."""
        self.channel = Channel()
        self.frames = wire.FrameBuffer(HANDSHAKE_BYTES_MAX)
        self._client = client
        self._question: wire.AnyMessage | None = None
        self._is_answered = False

    @property
    def run(self) -> str | None:
        """The run that has let us in."""
        return self.accepted.run or None

    def take(self, data: bytes) -> bytes:
        """Go on with what has come. What comes behind the verdict is kept in `frames`."""
        said = self.channel.open(data)
        if self._question is None:
            self._question = next(self.frames.feed(said), None)
            if isinstance(self._question, wire.Challenge) and self._question.tls:
                if self.frames.is_begun:
                    raise wire.MalformedFrame("more than a challenge before TLS")
                return self.channel.join()
        elif self._is_answered and (verdict := next(self.frames.feed(said), None)) is not None:
            self.accepted = self._client.accepted_by(verdict)
            self.channel.is_proven, self.frames.bytes_max = True, wire.FRAME_BYTES_MAX
        if self._question is None or self._is_answered or not self.channel.is_ready:
            return self.channel.pending()
        self._is_answered = True
        return self.channel.seal(wire.frame(self._client.answer(self._question, self.channel.fingerprint)))


class Host:
    """The coordinator's side of one connection. endpoint: where the connection arrived. certificate: the
    fingerprint of what it shows there; empty without TLS.
    """

    def __init__(self, token: str, *, endpoint: str, certificate: bytes = b"") -> None:
        self._token = token
        self._endpoint = endpoint
        self._certificate = certificate
        self._claim: Claim | None = None
        self.challenge = wire.Challenge(nonce=secrets.token_bytes(NONCE_BYTES), tls=bool(certificate))

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        """Why this client may not come in; None: it has the token, and connected to where we are."""
        claim = Claim(
            role=proof.role,
            name=proof.name,
            endpoint=proof.endpoint,
            certificate=self._certificate,
            asked=self.challenge.nonce,
            answered=proof.nonce,
            received=proof.received,
        )
        if len(proof.nonce) != NONCE_BYTES or not hmac.compare_digest(
            prove(self._token, "client", claim), proof.proof
        ):
            return wire.Refused(sentence="The token is not that of this run.")
        self._claim = claim
        if proof.protocol != wire.PROTOCOL:
            return wire.Refused(
                sentence=f"The coordinator speaks protocol {wire.PROTOCOL}, this process {proof.protocol}.",
                hint="Use the same version of Holdfast on all nodes.",
            )
        if proof.endpoint != self._endpoint:
            return wire.Refused(
                sentence=f"A connection to {proof.endpoint} arrived at {self._endpoint}: it was forwarded.",
                hint="Give the coordinator's own address and port with --coordinator.",
            )
        return None

    def sealed(self, verdict: Verdict) -> Verdict:
        """The verdict with our proof, where the client has shown that it has the token; otherwise without."""
        if self._claim is None:
            return verdict
        proof = prove(self._token, "coordinator", self._claim, _without_proof(verdict))
        return msgspec.structs.replace(verdict, proof=proof)


def endpoint_of(address: Any) -> str:
    """An end of a connection, the same as seen from both: of what getsockname or getpeername gives."""
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    host = mapped or host
    return f"[{host}]:{address[1]}" if host.version == 6 else f"{host}:{address[1]}"


def unreachable(place: str, error: OSError | UnicodeError) -> Unreachable:
    return Unreachable(
        f"The coordinator at {place} cannot be reached: {_reason(error)}.",
        hint="Start `holdfast run` with the same --coordinator on that host; check port and firewall.",
    )


def stranger(place: str) -> Stranger:
    return Stranger(
        f"The process that listens at {place} is not a coordinator of Holdfast.",
        hint="Choose another port with --coordinator HOST:PORT.",
    )


def _without_proof(verdict: wire.Accepted | wire.Refused) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(verdict, proof=b""))


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "no process listens there"
    return (error.strerror or "no answer").lower()
