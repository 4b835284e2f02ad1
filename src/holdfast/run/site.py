"""Where a run's coordinator is meant to be, whether that is here, and whether it is there yet."""

import asyncio
import ipaddress
import socket

import msgspec

from holdfast.record.errors import InputError
from holdfast.run import wire
from holdfast.run.dial import dial
from holdfast.run.handshake import Rejected, Unreachable

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
ELSEWHERE = "192.0.2.1"
"""An address that belongs to nobody (RFC 5737): the way there is the way out."""
TOKEN_CHARS_MIN = 16
"""As `openssl rand -hex 8` gives: tokens can be tried at leisure, and 64 bits take too long."""
DIAL_INTERVAL_S = 0.5
"""How often a node looks whether its coordinator is there by now."""

_TOKEN_HINT = "Set one for all nodes: export HOLDFAST_TOKEN=$(openssl rand -hex 16), then srun holdfast run …"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator's place. bind: the address to listen on; empty where the place is on another machine.

    address: where other machines reach this one; empty: as its way to the coordinator tells. is_encrypted:
    a coordinator that does not use TLS will not do.
    """

    host: str
    port: int
    token: str
    bind: str = ""
    address: str = ""
    is_encrypted: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether other machines can reach a coordinator that listens there."""
        return bool(self.bind) and not ipaddress.ip_address(self.bind).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def survey(place: tuple[str, int] | None, token: str, *, is_shared: bool) -> Site:
    """Look at the place the user named; without one it is this machine, for itself.

    is_shared: other launchers are to bring nodes. `InputError` where they could not.
    """
    if token and len(token) < TOKEN_CHARS_MIN:
        raise InputError(
            f"HOLDFAST_TOKEN has {len(token)} characters; a token has at least {TOKEN_CHARS_MIN}.",
            hint=_TOKEN_HINT,
        )
    host, port = place or (LOOPBACK, 0)
    addresses = _resolve(host)
    is_loopback = all(address.is_loopback for address in addresses)
    is_name = host != "localhost" and not _is_address(host)
    if not token and (is_shared or not is_loopback or is_name):
        raise InputError(
            f"The nodes of a run with the coordinator {host}:{port} need a token to know each other by.",
            hint=_TOKEN_HINT,
        )
    token = token or wire.fresh_token()
    if is_loopback and is_name:
        # This machine calls itself by a loopback address (Debian's 127.0.1.1); the others cannot.
        return Site(host=host, port=port, token=token, bind=EVERYWHERE, address=_way_out())
    here = next((str(address) for address in addresses if is_here(str(address))), "")
    return Site(host=host, port=port, token=token, bind=here)


async def reach(site: Site, wait_s: float) -> str:
    """The name of the run whose coordinator answers there, for which so long is waited.

    `Unreachable` where none does, `Stranger` where something else does, `InputError` for another token or
    one without TLS, where that is wanted.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time() + wait_s
    while True:
        try:
            connection = await dial(site.host, site.port, site.token, role="operator")
        except Unreachable:
            if loop.time() >= due_s:
                raise
        except Rejected as error:
            raise InputError(
                f"The coordinator at {site} does not let this node in. {error.sentence}", hint=error.hint
            ) from None
        else:
            await connection.close()
            if site.is_encrypted and not connection.is_encrypted:
                raise InputError(
                    f"The coordinator at {site} was started without --tls, and this node with it.",
                    hint="Start all nodes of the run with --tls; HOLDFAST_TLS=1 does the same.",
                )
            return connection.run
        await asyncio.sleep(DIAL_INTERVAL_S)


def _resolve(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            f"The coordinator's host {host!r} is not known here.", hint="Give its address, or check the name."
        ) from None
    return [ipaddress.ip_address(str(address[4][0]).partition("%")[0]) for address in found]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_here(address: str) -> bool:
    """Whether this machine has the address: only then can something be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _way_out() -> str:
    """The address of this machine on its way to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
        return address
