"""What every transport of a generation promises: TCP between CPUs, NCCL between GPUs.

A test class for each of them derives from this one and provides the processes to run it with.
"""

import time
from pathlib import Path

import transport_scenarios as scenarios
from forked_ranks import Ranks

RACES = 16
GIVE_UP_S_MAX = 30.0
"""From the moment at which a group is no longer wanted to the end of making it, on a busy machine."""
KILL_S = 0.25
"""How long something large is exchanged before a peer is killed."""
TELL_S = 0.3
"""How long after a death the others are told to leave; a member that has not noticed by then waits."""
DEATHS_S = (0.0, 0.005, 0.02, 0.06)
"""How long after it first looks for the others a rank dies."""
SLACK = {"threads": 2, "descriptors": 4, "sockets": 2, "resident_mb": 64, "device_mb": 64}
"""How much more may be held after fifty generations than after five: less than a tenth of one
thing for each.
"""


class TransportContract:
    """Needs a fixture `ranks`."""

    def test_everything_arrives_in_order_whatever_it_is(self, ranks: Ranks) -> None:
        ranks.run(scenarios.everything_arrives, 3)

    def test_what_is_computed_along_is_in_the_order_of_the_exchanges(self, ranks: Ranks) -> None:
        total = (1 + 2) / 2 + sum(range(20))
        assert ranks.run(scenarios.a_chain_of_sums, 2) == [[total, total]] * 2

    def test_tensors_under_way_are_kept_without_other_references(self, ranks: Ranks) -> None:
        ranks.run(scenarios.what_is_under_way_is_kept, 2)

    def test_waiting_holds_the_host_up_only_where_the_group_says_so(self, ranks: Ranks) -> None:
        (is_ordered, took_s), _ = ranks.run(scenarios.waiting_holds_up, 2)
        assert is_ordered == (ranks.transport == "nccl")
        assert (took_s < scenarios.PROMPT_S) == is_ordered

    def test_what_was_settled_is_confirmed_by_all_where_a_peer_s_end_may_look_like_data(
        self, ranks: Ranks
    ) -> None:
        has_noticed, _ = ranks.run(scenarios.confirm_needs_all, 2)
        assert has_noticed == (ranks.transport == "nccl")

    def test_an_abort_wakes_waiters_here_and_at_the_other_end(self, ranks: Ranks) -> None:
        for took_s in ranks.run(scenarios.abort_wakes, 2):
            assert 0 < took_s < ranks.wake_s_max

    def test_an_abort_may_come_at_any_moment_twice_and_from_several_threads(self, ranks: Ranks) -> None:
        ranks.run(scenarios.aborts_of_all_sorts, 4)

    def test_an_abort_in_the_call_of_an_exchange_leaves_the_thread_usable(self, ranks: Ranks) -> None:
        assert ranks.run(scenarios.aborts_race_with_exchanges, 2, trials=RACES) == [RACES, RACES]

    def test_any_thread_may_exchange_before_and_after_a_group_is_broken(self, ranks: Ranks) -> None:
        ranks.run(scenarios.threads_of_backward, 2)

    def test_a_peer_that_never_comes_is_given_up_as_soon_as_it_is_not_wanted(self, ranks: Ranks) -> None:
        assert max(ranks.run(scenarios.no_peer_comes, 2)) < GIVE_UP_S_MAX

    def test_a_peer_that_dies_while_a_group_is_made_does_not_hold_up_the_next(self, ranks: Ranks) -> None:
        with ranks.running(scenarios.dies_being_made, 2 + len(DEATHS_S), delays_s=DEATHS_S) as running:
            for number in range(len(DEATHS_S)):
                running.bury(2 + number)
            assert max(running.results((0, 1))) < GIVE_UP_S_MAX

    def test_a_peer_that_dies_in_an_exchange_leaves_no_garbage(self, ranks: Ranks) -> None:
        for took_s in self._outlive(ranks, is_idle=False):
            assert took_s < ranks.wake_s_max

    def test_a_peer_that_dies_between_exchanges_is_noticed_in_the_next(self, ranks: Ranks) -> None:
        for took_s in self._outlive(ranks, is_idle=True):
            assert took_s < ranks.wake_s_max

    def _outlive(self, ranks: Ranks, *, is_idle: bool) -> list[float]:
        """How long after they were told to leave the survivors were free."""
        with ranks.running(scenarios.dies_in_exchange, 3, is_idle=is_idle) as running:
            running.hear("begun")
            time.sleep(KILL_S)
            running.kill(2)
            time.sleep(TELL_S)
            running.board.publish("abort", repr(time.monotonic()).encode())
            return [took_s for took_s, _ in running.results((0, 1))]

    def test_fifty_generations_leave_nothing_behind(self, ranks: Ranks) -> None:
        for before, after in ranks.run(scenarios.fifty_generations, 2):
            more = {name: after[name] - before[name] for name in before}
            assert all(more[name] <= SLACK[name] for name in more), f"{more} more than {before}"

    def test_the_script_s_own_group_goes_on_beside_ours(self, ranks: Ranks, tmp_path: Path) -> None:
        ranks.run(scenarios.beside_the_script_s_own, 2, folder=str(tmp_path))
