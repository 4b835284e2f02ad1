"""NCCL keeps what a transport promises, between members that share a GPU."""

import pytest
import transport_scenarios as scenarios
from forked_ranks import Ranks
from transport_contract import TransportContract

RACES = 8


class TestNccl(TransportContract):
    """Over loopback, each member a host of its own."""

    def test_an_abort_in_the_call_of_an_exchange_leaves_the_thread_usable(self, ranks: Ranks) -> None:
        """gloo does not keep this: it may lose a send that begins while the other end closes, for ever."""
        if ranks.transport != "nccl":
            pytest.skip("gloo may wait for ever here")
        assert ranks.run(scenarios.aborts_race_with_exchanges, 2, trials=RACES) == [RACES, RACES]
