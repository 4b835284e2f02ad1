"""How a client and the coordinator prove to each other that they have the token, without sending it.

The coordinator sends a nonce. The client answers with its role, its name, the address it connected to, a
nonce of its own and its proof. The coordinator's verdict carries the coordinator's proof, and the client
trusts nothing before that. Each proof is an HMAC over all of this and over the side that made it, so an
attacker cannot replay it, send it back, or relay it to or from another address. With TLS (tls.py) the
coordinator's certificate is part of the proof. This module does no input or output: see dial.py, link.py and
coordinator.py.
"""

import hashlib
import hmac
import ipaddress
import secrets
import socket
from typing import Any, Literal, TypeVar

import msgspec

from holdfast import wording
from holdfast.record.errors import HoldfastError
from holdfast.run import wire
from holdfast.run.tls import Channel

HANDSHAKE_WAIT_S = 5.0
"""A coordinator answers at once; a process that is silent for this long is something else."""
KNOWN_WAIT_S = 60.0
"""The same at an address that is known to have a coordinator. It, or this process, may get no core for a
while; if the coordinator is gone, the kernel says so at once."""
HANDSHAKE_BYTES_MAX = 1024
"""The largest frame from an unproven connection."""
ATTEMPTS_MAX = 5
"""How often a client connects if the other end hangs up: a coordinator with too many unproven connections
drops the oldest, which may be a client that was slow to answer."""
ATTEMPT_INTERVAL_S = 0.2
NONCE_BYTES = 32
CONTEXT = "holdfast control connection 4"

Side = Literal["client", "coordinator"]
Verdict = TypeVar("Verdict", wire.Accepted, wire.Refused)


class Unreachable(HoldfastError):
    """No process listens there, or the network is blocked."""


class Elsewhere(Unreachable):
    """An heir listens there. The coordinator is on another machine, or not chosen yet."""


class Stranger(HoldfastError):
    """The other end has not proved that it has the token, and is not trusted."""


class Rejected(HoldfastError):
    """The coordinator refuses us: the name is taken, or the connection was forwarded."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The content of both proofs of one connection. endpoint: the coordinator's, as the client sees it.
    certificate: the fingerprint of the coordinator's certificate; empty without TLS. received: as in `Proof`.
    """

    role: wire.Role
    name: str
    endpoint: str
    certificate: bytes
    asked: bytes
    answered: bytes
    received: int | None


def prove(token: str, side: Side, claim: Claim, said: bytes = b"") -> bytes:
    """The proof of one side. said: the rest of its message."""
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
        """The answer to a coordinator's challenge. Raise `MalformedFrame` if it is not a challenge."""
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
        """The verdict if the run accepts us. Raise `Rejected` if not, or `Stranger` if its proof is wrong."""
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
    """A client's handshake over one connection: it takes arriving bytes and returns the bytes to send."""

    def __init__(self, client: HandshakeClient) -> None:
        self.accepted = wire.Accepted(run="")
        """The run's verdict; without a run until it accepts us."""
        self.channel = Channel()
        self.frames = wire.FrameBuffer(HANDSHAKE_BYTES_MAX)
        self._client = client
        self._question: wire.AnyMessage | None = None
        self._is_answered = False

    @property
    def run(self) -> str | None:
        """The run that accepted us; None before that."""
        return self.accepted.run or None

    def take(self, data: bytes) -> bytes:
        """Continue with the bytes that arrived. Bytes after the verdict stay in `frames`."""
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
    fingerprint of its certificate; empty without TLS.
    """

    def __init__(self, token: str, *, endpoint: str, certificate: bytes = b"") -> None:
        self._token = token
        self._endpoint = endpoint
        self._certificate = certificate
        self._claim: Claim | None = None
        self.challenge = wire.Challenge(nonce=secrets.token_bytes(NONCE_BYTES), tls=bool(certificate))

    def refusal(self, proof: wire.Proof) -> wire.Refused | None:
        """Why this client is refused; None if it has the token and connected to our own address."""
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
            return wire.Refused(sentence="The token is not this run's.")
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
        """The verdict, with our proof if the client has shown that it has the token."""
        if self._claim is None:
            return verdict
        proof = prove(self._token, "coordinator", self._claim, _without_proof(verdict))
        return msgspec.structs.replace(verdict, proof=proof)


def endpoint_of(address: Any) -> str:
    """One end of a connection as text, the same from both sides. address: from getsockname or getpeername."""
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


def silent(place: str, wait_s: float) -> Stranger:
    return Stranger(
        f"The process that listens at {place} accepted the connection, but said "
        f"nothing within {wording.number(wait_s)} s.",
        hint="If it is the coordinator, it is stopped or its machine is busy: try again. If it is another "
        "program, choose another port with --coordinator HOST:PORT.",
    )


def _without_proof(verdict: wire.Accepted | wire.Refused) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(verdict, proof=b""))


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return "the host name is unknown"
    if isinstance(error, ConnectionRefusedError):
        return "no process listens there"
    return (error.strerror or "no answer").lower()
