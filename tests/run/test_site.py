"""Where a coordinator listens, and which machines can reach it."""

import pytest

from holdfast.run.site import EVERYWHERE, Site


@pytest.mark.parametrize(
    ("bind", "is_shared"),
    [("127.0.0.1", False), ("::1", False), ("", False), ("192.0.2.7", True), (EVERYWHERE, True)],
)
def test_other_machines_reach_what_does_not_listen_on_loopback_alone(bind: str, is_shared: bool) -> None:
    assert Site(host="node1", port=1, token="a token", bind=bind).is_shared is is_shared
