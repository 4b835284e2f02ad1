"""Where a coordinator listens, and which machines can reach it."""

import socket

import pytest
from waiting import WAIT_S

from holdfast.run.site import EVERYWHERE, EVERYWHERE_IPV6, Site, listening, survey


@pytest.mark.parametrize(
    ("bind", "is_shared"),
    [
        ("127.0.0.1", False),
        ("::1", False),
        ("", False),
        ("192.0.2.7", True),
        (EVERYWHERE, True),
        (EVERYWHERE_IPV6, True),
    ],
)
def test_other_machines_reach_what_does_not_listen_on_loopback_alone(bind: str, is_shared: bool) -> None:
    assert Site(host="node1", port=1, token="a token", bind=bind).is_shared is is_shared


@pytest.mark.parametrize("at", ["127.0.0.1", "::1"])
def test_a_name_that_is_loopback_here_is_listened_for_in_both_families(at: str) -> None:
    """Other machines may know this one's name by an address of either family."""
    site = survey(("127.1", 0), "a token of 16 bytes", is_shared=True)  # a name that any resolver knows
    assert site.is_shared
    with listening(site.bind, 0) as listener:
        socket.create_connection((at, listener.getsockname()[1]), WAIT_S).close()
