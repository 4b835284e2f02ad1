"""An heir on another machine than the coordinator: where it listens."""

import socket

import pytest
from waiting import WAIT_S

from holdfast.run.distant import _listening


@pytest.mark.parametrize(
    ("address", "at"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("192.0.2.7", "127.0.0.1"),  # no machine has it (RFC 5737)
        ("2001:db8::7", "::1"),  # no machine has it (RFC 3849)
    ],
)
def test_an_heir_listens_in_the_family_of_the_address_that_others_use(address: str, at: str) -> None:
    """If this machine does not have the address, a router translates it, and the heir listens everywhere."""
    with _listening(address) as listener:
        socket.create_connection((at, listener.getsockname()[1]), WAIT_S).close()
