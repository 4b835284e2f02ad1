from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bench.commits import UNTOLD, Commit, Whole, read_commits, step_s, steps_lost, whole_steps

SECOND_NS = 10**9


def commit(process: int, step: int, at_ns: int, *, world: int = 2) -> Commit:
    return Commit(process=process, step=step, world=world, at_ns=at_ns)


def test_files_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "11.commits").write_text("1 2 100\n2 2 300\n3 2", encoding="ascii")
    (tmp_path / "12.commits").write_text("1 2 200\n", encoding="ascii")
    (tmp_path / "12.marks").write_text("joined 5\n", encoding="ascii")
    assert read_commits(tmp_path) == [commit(11, 1, 100), commit(12, 1, 200), commit(11, 2, 300)]


def test_a_step_is_whole_when_all_members_have_committed_it_after_the_kill() -> None:
    commits = [
        commit(11, 1, 100),
        commit(12, 1, 120),
        commit(11, 2, 200),  # the kill comes at 210
        commit(13, 2, 220),
        commit(11, 3, 300, world=1),
        commit(11, 4, 400),
        commit(11, 4, 401),
        commit(13, 4, 410),
    ]
    assert whole_steps(commits, 2, after_ns=210) == [
        Whole(step=4, at_ns=410, processes=frozenset({11, 13})),
    ]
    assert [whole.step for whole in whole_steps(commits, 2)] == [1, 2, 4]
    assert [whole.step for whole in whole_steps(commits, 1)] == [3]


def test_a_step_that_is_done_again_is_lost() -> None:
    commits = [commit(11, 7, 100), commit(11, 8, 200), commit(12, 9, 250)]
    for resumed, lost in ((10, 0), (9, 1), (7, 3)):
        whole = Whole(step=resumed, at_ns=900, processes=frozenset({11, 12}))
        assert steps_lost(commits, whole, killed_ns=300) == lost
    assert steps_lost(commits, Whole(step=9, at_ns=900, processes=frozenset()), killed_ns=220) == 0


@given(st.lists(st.integers(1, SECOND_NS), min_size=1, max_size=20))
def test_the_step_time_is_the_median_of_the_gaps(gaps_ns: list[int]) -> None:
    moments = [sum(gaps_ns[:count]) for count in range(len(gaps_ns) + 1)]
    steps = [Whole(step=step, at_ns=at_ns, processes=frozenset()) for step, at_ns in enumerate(moments)]
    ordered = sorted(gaps_ns)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    assert step_s(steps) == middle / SECOND_NS


def test_where_processes_do_not_tell_how_many_they_are_they_are_counted() -> None:
    commits = [commit(process, 3, 100 + process, world=UNTOLD) for process in (11, 12, 13)]
    assert whole_steps(commits, 3) == [Whole(step=3, at_ns=113, processes=frozenset({11, 12, 13}))]
    assert whole_steps(commits, 4) == []
