"""TCP keeps the promises of a transport. NCCL is tested on machines with a GPU: tests/gpu."""

import pytest
from forked_ranks import Ranks
from transport_contract import TransportContract

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return Ranks("tcp")


class TestTcp(TransportContract):
    """Over loopback, between CPUs."""
