"""Where a run's coordinator should be, whether that is this machine, and whether it answers yet."""

import asyncio
import ipaddress
import socket
from contextlib import suppress

import msgspec

from holdfast.record.errors import InputError
from holdfast.run import wire
from holdfast.run.dial import dial
from holdfast.run.handshake import Rejected, Unreachable

LOOPBACK = "127.0.0.1"
EVERYWHERE, EVERYWHERE_IPV6 = "0.0.0.0", "::"
ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses reserved for documentation (RFC 5737, RFC 3849): the route to them leads out of this machine."""
BACKLOG = 1024
"""The most connections that wait in the kernel: all workers of a large run may connect at once."""
TOKEN_CHARS_MIN = 16
"""The length of `openssl rand -hex 8`: tokens can be guessed offline, and 64 bits take too long."""
DIAL_INTERVAL_S = 0.5
"""How often a node checks whether its coordinator answers by now."""

_TOKEN_HINT = "Set one for all nodes: export HOLDFAST_TOKEN=$(openssl rand -hex 16), then srun holdfast run …"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator's place. bind: the address to listen on; empty if the place is on another machine.

    address: where other machines reach this one; empty to use the address that the connection to the
    coordinator has. is_encrypted: the coordinator must use TLS.
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
    """Examine the place that the user named; without one, it is this machine alone.

    is_shared: other launchers will add nodes. Raise `InputError` if they could not.
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
    if not token and is_shared and place is None:
        raise InputError(
            "Without --coordinator HOST:PORT other machines cannot find the run.",
            hint="Give it and $HOLDFAST_TOKEN on every machine; --nodes N starts N nodes on this one.",
        )
    if not token and (is_shared or not is_loopback or is_name):
        raise InputError(
            f"The nodes of a run with the coordinator {host}:{port} need a token to authenticate each other.",
            hint=_TOKEN_HINT,
        )
    token = token or wire.fresh_token()
    if is_loopback and is_name:
        # This machine's name resolves to a loopback address here (Debian's 127.0.1.1), but not elsewhere: it
        # may be an IPv4 address there, an IPv6 address, or both.
        bind = EVERYWHERE_IPV6 if socket.has_dualstack_ipv6() else EVERYWHERE
        return Site(host=host, port=port, token=token, bind=bind, address=_way_out())
    here = next((str(address) for address in addresses if is_here(str(address))), "")
    return Site(host=host, port=port, token=token, bind=here)


async def reach(site: Site, wait_s: float) -> str:
    """The name of the run whose coordinator answers there within `wait_s`.

    Raise `Unreachable` if none does, `Stranger` if another program does, and `InputError` if the coordinator
    has another token, or no TLS although TLS is required.
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
                f"The coordinator at {site} refuses this node. {error.sentence}", hint=error.hint
            ) from None
        else:
            await connection.close()
            if site.is_encrypted and not connection.is_encrypted:
                raise InputError(
                    f"The coordinator at {site} was started without --tls, but this node with --tls.",
                    hint="Start all nodes of the run with --tls; HOLDFAST_TLS=1 does the same.",
                )
            return connection.run
        await asyncio.sleep(DIAL_INTERVAL_S)


def _resolve(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            f"The coordinator's host {host!r} is unknown here.", hint="Give its address, or check the name."
        ) from None
    return [ipaddress.ip_address(str(address[4][0]).partition("%")[0]) for address in found]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_here(address: str) -> bool:
    """Whether this machine has the address, so that a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _way_out() -> str:
    """This machine's address on the route to other machines; nothing is sent."""
    for family, elsewhere in ELSEWHERE.items():
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            address: str = probe.getsockname()[0]
            return address
    return LOOPBACK


def listening(host: str, port: int) -> socket.socket:
    """Listen at the address; at `EVERYWHERE_IPV6`, at all of both families. Raise `OSError` if that fails."""
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=BACKLOG,
        dualstack_ipv6=host == EVERYWHERE_IPV6,
    )
