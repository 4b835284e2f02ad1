"""How a client proves to the coordinator that it has the token, with threads as with asyncio.

The coordinator asks, the client answers, the coordinator lets it in or says why not. Nothing here reads or
writes; who does is in dial.py and link.py.
"""

import socket

from holdfast.record.errors import HoldfastError
from holdfast.run.wire import Accepted, AnyMessage, Challenge, MalformedFrame, Proof, Refused, Role, prove

HANDSHAKE_WAIT_S = 10.0
"""A coordinator answers at once; what is silent for so long is something else."""


class Unreachable(HoldfastError):
    """Nobody listens there, or the way there is blocked."""


class Stranger(HoldfastError):
    """Somebody listens there who is no coordinator of this version of Holdfast."""


class Rejected(HoldfastError):
    """The coordinator does not want us: a wrong token, or a name that is taken."""


def answer(question: AnyMessage, token: str, role: Role, name: str) -> Proof:
    """What to answer to a coordinator's first message; `MalformedFrame` where it is none."""
    if not isinstance(question, Challenge):
        raise MalformedFrame("no challenge")
    return Proof(role=role, name=name, proof=prove(token, question.nonce))


def accepted_by(verdict: AnyMessage) -> str:
    """The run that lets us in with this; `Rejected` where it does not."""
    if isinstance(verdict, Refused):
        raise Rejected(verdict.sentence, hint=verdict.hint)
    if not isinstance(verdict, Accepted):
        raise MalformedFrame("no verdict")
    return verdict.run


def unreachable(place: str, error: OSError) -> Unreachable:
    return Unreachable(
        f"The coordinator at {place} cannot be reached: {_reason(error)}.",
        hint="Start `holdfast run` with the same --coordinator on that host; check port and firewall.",
    )


def stranger(place: str) -> Stranger:
    return Stranger(
        f"What listens at {place} is no coordinator of Holdfast.",
        hint="Choose another port with --coordinator HOST:PORT.",
    )


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    return (error.strerror or "no answer").lower()
