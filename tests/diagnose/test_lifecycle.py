"""Incidents from one assessment to the next: named once, followed when the cause is revised, over in time."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.incident_text import change_line
from holdfast.diagnose.alerts import WORTH
from holdfast.diagnose.incident import Evidence, Incident
from holdfast.diagnose.lifecycle import (
    SUBJECTS_KEPT_MAX,
    UNSEEN_S_MAX,
    Casebook,
    IncidentChange,
    Taken,
    diagnosis,
    restored,
)
from holdfast.diagnose.webhook import sent
from holdfast.record.events import IncidentDiagnosed, Unknown

Make = Callable[..., Incident]
S = 10**9


@pytest.fixture
def began_ns(incident: Make) -> int:
    return incident().began_ns


def told(taken: Taken) -> list[tuple[str, str]]:
    return [(change.state, change.incident.name) for change in taken.changes]


def test_an_incident_is_told_once_and_keeps_its_name(incident: Make, began_ns: int) -> None:
    book = Casebook()
    assert told(book.take([incident(name="")], began_ns + 40 * S)) == [("open", "pretrain/s1")]
    assert told(book.take([incident(name="pretrain/s7", confidence=0.97)], began_ns + 50 * S)) == []
    (known,) = book.open
    assert (known.name, known.confidence) == ("pretrain/s1", 0.97)
    assert book.take([incident(name="")], began_ns + 60 * S).incidents == book.open
    assert known.noticed_ns == incident().noticed_ns


def test_a_second_cause_is_a_second_incident_and_runs_count_for_themselves(
    incident: Make, began_ns: int
) -> None:
    book = Casebook()
    other = incident(
        subject="fs-0000", mechanism="storage-slow", affected=("n00200",), evidence=(), began_ns=began_ns + 1
    )
    taken = book.take([incident(), other, incident(run="tune")], began_ns + 40 * S)
    assert told(taken) == [("open", "pretrain/s1"), ("open", "pretrain/s2"), ("open", "tune/s1")]


def test_a_revised_cause_is_the_same_incident_and_news(incident: Make, began_ns: int) -> None:
    book = Casebook()
    book.take([incident(subject="n00003", mechanism="slow-node")], began_ns + 40 * S)
    (change,) = book.take([incident(began_ns=began_ns - 20 * S)], began_ns + 60 * S).changes
    assert (change.state, change.incident.name) == ("changed", "pretrain/s1")
    assert change.before is not None
    assert change.before.cause.mechanism == "slow-node"
    assert change.incident.cause.mechanism == "coolant-flow"
    assert change.incident.began_ns == began_ns - 20 * S


def test_the_same_late_members_from_the_same_moment_are_one_trouble(incident: Make, began_ns: int) -> None:
    book = Casebook()
    book.take([incident(subject="", mechanism="unknown", verdict="unknown", evidence=())], began_ns)
    assert told(book.take([incident()], began_ns + 10 * S)) == [("changed", "pretrain/s1")]
    # Later, or elsewhere, it would have been another.
    elsewhere = incident(subject="leaf-0001", mechanism="leaf-congestion", evidence=(), affected=("n00900",))
    assert told(book.take([incident(), elsewhere], began_ns + 20 * S)) == [("open", "pretrain/s2")]


def test_that_the_run_is_slow_makes_no_two_incidents_one(incident: Make, began_ns: int) -> None:
    slow = Evidence(text="slow", weight=1.0, metric="holdfast_run_step_seconds", subjects=("pretrain",))
    book = Casebook()
    book.take([incident(evidence=(slow,))], began_ns)
    other = incident(
        mechanism="storage-slow", evidence=(slow,), affected=("n00900",), began_ns=began_ns + 900 * S
    )
    assert told(book.take([incident(evidence=(slow,)), other], began_ns)) == [("open", "pretrain/s2")]


def test_the_end_is_told_once_and_the_same_again_soon_reopens(incident: Make, began_ns: int) -> None:
    book = Casebook()
    book.take([incident()], began_ns + 40 * S)
    over = incident(ended_ns=began_ns + 300 * S)
    assert told(book.take([over], began_ns + 310 * S)) == [("resolved", "pretrain/s1")]
    assert told(book.take([over], began_ns + 320 * S)) == []
    assert book.open == ()
    again = incident(began_ns=began_ns + 500 * S)
    assert told(book.take([again], began_ns + 520 * S)) == [("open", "pretrain/s1")]
    book.take([incident(ended_ns=began_ns + 600 * S)], began_ns + 610 * S)
    much_later = incident(began_ns=began_ns + 9_000 * S)
    assert told(book.take([much_later], began_ns + 9_040 * S)) == [("open", "pretrain/s2")]


def test_one_look_without_it_is_not_the_end(incident: Make, began_ns: int) -> None:
    book = Casebook()
    at_ns = began_ns + 40 * S
    book.take([incident()], at_ns)
    assert told(book.take([], at_ns + 10 * S)) == []
    assert len(book.open) == 1
    (change,) = book.take([], at_ns + round(UNSEEN_S_MAX) * S).changes
    assert (change.state, change.incident.ended_ns) == ("resolved", at_ns)


def test_a_bill_that_doubles_is_news(incident: Make, began_ns: int) -> None:
    cost = incident().cost
    assert cost is not None

    def after(hours: float) -> Incident:
        return incident(
            cost=msgspec.structs.replace(cost, lost_gpu_hours=hours * 130, gpu_hours_per_hour=130)
        )

    book = Casebook()
    book.take([after(0.01)], began_ns)
    # First after a quarter of an hour: twice nearly nothing is nearly nothing.
    looks = [0.02, 0.04, 0.1, 0.24, 0.25, 0.49, 0.5, 0.9, 1.0]
    news = [hours for hours in looks if told(book.take([after(hours)], began_ns + round(hours * 3_600) * S))]
    assert news == [0.25, 0.5, 1.0]


def test_that_the_run_feels_it_now_is_news_once(incident: Make, began_ns: int) -> None:
    cost = incident().cost
    assert cost is not None
    free = msgspec.structs.replace(
        cost, lost_gpu_hours=0.0, usd=0.0, gpu_hours_per_hour=0.0, usd_per_hour=0.0
    )
    early = incident(slowdown=1.0, cost=free)
    book = Casebook()
    assert told(book.take([early], began_ns)) == [("open", "pretrain/s1")]
    assert told(book.take([early], began_ns + 10 * S)) == []
    felt = incident(slowdown=1.02, cost=msgspec.structs.replace(free, lost_gpu_hours=0.1))
    (change,) = book.take([felt], began_ns + 20 * S).changes
    assert (change.state, change.incident.slowdown) == ("changed", 1.02)
    assert told(book.take([early], began_ns + 30 * S)) == []
    assert told(book.take([felt], began_ns + 40 * S)) == []


def test_what_becomes_graver_is_news_and_what_wavers_is_not(incident: Make, began_ns: int) -> None:
    book = Casebook()
    looks = [1.1, 1.24, 1.26, 1.24, 1.26, 1.02, 1.3]
    said = [
        told(book.take([incident(slowdown=slowdown)], began_ns + number * 10 * S))
        for number, slowdown in enumerate(looks)
    ]
    assert [bool(changes) for changes in said] == [True, False, True, False, False, False, False]


def test_a_cause_that_is_found_for_what_was_unknown_is_the_same_incident(
    incident: Make, began_ns: int
) -> None:
    book = Casebook()
    unknown = incident(subject="pretrain", mechanism="unknown", verdict="unknown", evidence=(), affected=())
    book.take([unknown], began_ns + 40 * S)
    assert told(book.take([incident(affected=())], began_ns + 50 * S)) == [("changed", "pretrain/s1")]
    assert len(book.open) == 1


@pytest.mark.parametrize("apart_s", [-600, -80, 80, 600])
def test_a_cause_that_is_found_minutes_later_is_the_same_incident(
    incident: Make, began_ns: int, apart_s: int
) -> None:
    book = Casebook()
    unknown = incident(subject="pretrain", mechanism="unknown", verdict="unknown", evidence=(), affected=())
    gpu = incident(subject="n00007.3", mechanism="gpu-throttle", began_ns=began_ns + apart_s * S)
    at_ns = began_ns + 20 * S
    while at_ns <= began_ns + max(60, apart_s) * S:
        book.take([unknown], at_ns)
        at_ns += 10 * S
    (change,) = book.take([gpu], at_ns).changes
    assert (change.state, change.incident.name) == ("changed", "pretrain/s1")
    assert change.incident.cause.subject == "n00007.3"
    assert change.incident.began_ns == min(began_ns, gpu.began_ns)
    assert [told(book.take([gpu], at_ns + ago_s * S)) for ago_s in range(10, 200, 10)] == [[]] * 19


def test_a_cause_that_is_found_after_the_end_is_taken_over_and_told_once(
    incident: Make, began_ns: int
) -> None:
    book, ended_ns = Casebook(), began_ns + 100 * S
    unknown = incident(subject="pretrain", mechanism="unknown", verdict="unknown", evidence=(), affected=())
    over = msgspec.structs.replace(unknown, ended_ns=ended_ns)
    gpu = incident(subject="n00007.3", mechanism="gpu-throttle", ended_ns=ended_ns)
    book.take([unknown], began_ns + 40 * S)
    assert told(book.take([over], began_ns + 110 * S)) == [("resolved", "pretrain/s1")]
    assert told(book.take([over], began_ns + 120 * S)) == []
    (change,) = book.take([gpu], began_ns + 170 * S).changes
    assert (change.state, change.incident.name) == ("resolved", "pretrain/s1")
    assert (change.incident.verdict, change.incident.cause.mechanism) == ("cause", "gpu-throttle")
    assert change.before is not None
    assert change.before.verdict == "unknown"
    # Neither the same cause nor a look that misses it is news now.
    for number, shown in enumerate([gpu, over, gpu, over]):
        taken = book.take([shown], began_ns + (180 + 10 * number) * S)
        assert (told(taken), [one.cause.mechanism for one in taken.incidents]) == ([], ["gpu-throttle"])


def test_a_cause_that_began_after_a_healthy_while_is_another_incident(incident: Make, began_ns: int) -> None:
    book = Casebook()
    unknown = incident(subject="pretrain", mechanism="unknown", verdict="unknown", evidence=(), affected=())
    book.take([unknown], began_ns + 20 * S)
    book.take([msgspec.structs.replace(unknown, ended_ns=began_ns + 60 * S)], began_ns + 70 * S)
    gpu = incident(mechanism="gpu-throttle", began_ns=began_ns + 300 * S, noticed_ns=began_ns + 320 * S)
    assert told(book.take([gpu], began_ns + 330 * S)) == [("open", "pretrain/s2")]


def test_a_cause_that_slows_nothing_is_not_why_a_run_is_slow(incident: Make, began_ns: int) -> None:
    book = Casebook()
    unknown = incident(subject="pretrain", mechanism="unknown", verdict="unknown", evidence=(), affected=())
    book.take([unknown], began_ns + 20 * S)
    worn = incident(mechanism="memory-errors", slowdown=1.0, began_ns=began_ns - 900 * S)
    assert told(book.take([unknown, worn], began_ns + 30 * S)) == [("open", "pretrain/s2")]


def test_a_known_cause_is_not_forgotten_by_a_look_that_cannot_explain(incident: Make, began_ns: int) -> None:
    book, at_ns, known = Casebook(), began_ns + 40 * S, incident(cost=None)
    book.take([known], at_ns)
    vague = incident(subject="pretrain", mechanism="unknown", verdict="unknown", evidence=(), affected=())
    vague = msgspec.structs.replace(vague, began_ns=began_ns + 20 * S, slowdown=1.34, cost=None)
    for _ in range(59):
        at_ns += 10 * S
        taken = book.take([vague], at_ns)
        assert told(taken) == []
        (shown,) = taken.incidents
        assert (shown.name, shown.cause.mechanism, shown.slowdown) == ("pretrain/s1", "coolant-flow", 1.34)
    # When nothing has shown it for ten minutes, it is no longer known to be the cause.
    (change,) = book.take([vague], at_ns + 10 * S).changes
    assert (change.state, change.incident.name, change.incident.verdict) == (
        "changed",
        "pretrain/s1",
        "unknown",
    )
    assert told(book.take([known], at_ns + 20 * S)) == [("changed", "pretrain/s1")]


def test_a_look_at_the_past_ends_nothing_that_came_later(incident: Make, began_ns: int) -> None:
    changes = Casebook().take([incident()], began_ns + 40 * S).changes
    at_ns = began_ns - 600 * S
    assert told(Casebook(changes, now_ns=at_ns, is_only_look=True).take([], at_ns)) == []


def test_a_look_at_the_past_tells_the_cost_up_to_then(incident: Make, began_ns: int) -> None:
    cost = incident().cost
    assert cost is not None
    changes = Casebook().take([incident()], began_ns + 900 * S).changes
    by_then = msgspec.structs.replace(cost, lost_gpu_hours=0.1, lost_run_s=9.0)
    at_ns = began_ns + 100 * S
    (seen,) = (
        Casebook(changes, now_ns=at_ns).take([incident(began_ns=began_ns + S, cost=by_then)], at_ns).incidents
    )
    assert (seen.name, seen.cost) == ("pretrain/s1", by_then)


def test_what_came_back_after_its_end_has_its_own_onset_and_cost(incident: Make, began_ns: int) -> None:
    cost = incident().cost
    assert cost is not None
    book = Casebook()
    book.take([incident()], began_ns + 40 * S)
    book.take([incident(ended_ns=began_ns + 300 * S)], began_ns + 310 * S)
    own = msgspec.structs.replace(cost, lost_gpu_hours=0.1, lost_run_s=9.0)
    again_ns = began_ns + 500 * S
    again = incident(began_ns=again_ns, noticed_ns=again_ns + 20 * S, cost=own)
    assert told(book.take([again], began_ns + 536 * S)) == [("open", "pretrain/s1")]
    (known,) = book.open
    assert (known.began_ns, known.noticed_ns, known.cost) == (again_ns, again_ns + 20 * S, own)


def test_cost_goes_on_growing_when_the_window_has_left_the_beginning_behind(
    incident: Make, began_ns: int
) -> None:
    cost = incident().cost
    assert cost is not None
    book = Casebook()
    book.take([incident()], began_ns)
    hour = 3_600 * S
    book.take([incident(began_ns=began_ns + hour // 2)], began_ns + hour)
    (known,) = book.open
    assert known.cost is not None
    assert known.began_ns == began_ns
    assert known.cost.lost_gpu_hours == pytest.approx(cost.lost_gpu_hours + cost.gpu_hours_per_hour)
    assert known.cost.usd == pytest.approx((cost.usd or 0) + (cost.usd_per_hour or 0))
    assert known.cost.lost_run_s == pytest.approx(cost.lost_run_s + 900)


def test_what_was_written_down_is_found_again(incident: Make, began_ns: int) -> None:
    book = Casebook()
    changes = book.take([incident(), incident(run="tune")], began_ns).changes
    changes += book.take([incident(run="tune", ended_ns=began_ns + S)], began_ns + 5 * S).changes
    events = [
        IncidentDiagnosed(
            id=f"e-{number}",
            occurred_ns=began_ns,
            run=change.incident.run,
            incident=change.incident.name,
            state=change.state,
            diagnosis=diagnosis(change.incident),
        )
        for number, change in enumerate(changes)
    ]
    newer = msgspec.structs.replace(events[0], diagnosis='{"of": "another version"}')
    unknown = Unknown(id="u", occurred_ns=1, kind="incident.imagined")
    again = Casebook(restored([*events, newer, unknown]), now_ns=began_ns + 3_600 * S)
    assert [known.name for known in again.open] == ["pretrain/s1"]
    # An hour without a look does not mean that it was gone.
    assert told(again.take([], began_ns + 3_610 * S)) == []
    assert told(again.take([incident(run="tune", began_ns=began_ns + 9_000 * S)], began_ns + 3_620 * S)) == [
        ("open", "tune/s2")
    ]


def test_the_record_keeps_a_bounded_number_of_names(incident: Make) -> None:
    crowd = Evidence(text="hot", weight=1.0, metric="m", subjects=tuple(f"n{i}.0" for i in range(100_000)))
    kept = msgspec.json.decode(diagnosis(incident(evidence=(crowd,))), type=Incident)
    assert len(kept.evidence[0].subjects) == SUBJECTS_KEPT_MAX
    assert kept.affected == incident().affected


looks = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["cdu-0000", "leaf-0001"]), st.sampled_from(["a", "b"]), st.booleans()),
        max_size=4,
        unique_by=lambda seen: seen[:2],
    ),
    max_size=12,
)


@given(looks)
def test_whatever_is_assessed_the_changes_make_sense(
    incident: Make, looks: list[list[tuple[str, str, bool]]]
) -> None:
    """Nothing is changed or over that was not open, nothing opened twice, and all open ones were told."""
    book, said, at_ns = Casebook(), dict[str, str](), incident().began_ns
    for look in looks:
        at_ns += 30 * S
        taken = book.take(
            [
                incident(subject=subject, mechanism=mechanism, ended_ns=at_ns if is_over else None)
                for subject, mechanism, is_over in look
            ],
            at_ns,
        )
        assert len(taken.incidents) == len(look)
        for change in taken.changes:
            name = change.incident.name
            is_new = name not in said
            assert (change.state == "open" and said.get(name) in (None, "resolved")) or (
                change.state in ("changed", "resolved")
                and (said.get(name) in ("open", "changed") or (is_new and change.incident.ended_ns))
            )
            assert (change.before is None) is is_new
            said[name] = change.state
        assert {known.name for known in book.open} == {n for n, state in said.items() if state != "resolved"}


def test_what_a_single_look_does_not_see_is_over(incident: Make, began_ns: int) -> None:
    changes = Casebook().take([incident()], began_ns + 40 * S).changes
    at_ns = began_ns + 700 * S
    (change,) = Casebook(changes, now_ns=at_ns, is_only_look=True).take([], at_ns).changes
    assert change.state == "resolved"
    # It was last there when it was last shown, however much later the next look is.
    assert change.incident.ended_ns == began_ns + 40 * S
    assert told(Casebook(changes, now_ns=at_ns, is_only_look=True).take([incident()], at_ns)) == []


def test_a_single_look_ends_nothing_that_was_recorded_minutes_ago(incident: Make, began_ns: int) -> None:
    """`watch --once`, each minute: one look that misses it, in a bad phase of the scrapes, is not its end."""
    changes = Casebook().take([incident()], began_ns + 40 * S).changes
    at_ns = began_ns + 100 * S
    assert told(Casebook(changes, now_ns=at_ns, is_only_look=True).take([], at_ns)) == []
    at_ns += 60 * S
    again = Casebook(changes, now_ns=at_ns, is_only_look=True)
    assert told(again.take([incident()], at_ns)) == []


def cheap(incident: Make, slowdown: float = 1.004) -> Incident:
    """An incident that costs next to nothing."""
    cost = incident().cost
    assert cost is not None
    free = msgspec.structs.replace(
        cost, lost_gpu_hours=0.001, usd=0.004, gpu_hours_per_hour=0.001, usd_per_hour=0.004
    )
    return incident(mechanism="slow-node", slowdown=slowdown, cost=free)


def test_what_is_worth_no_alert_is_recorded_and_not_sent_until_it_is(incident: Make, began_ns: int) -> None:
    book = Casebook()
    (first,) = book.take([cheap(incident)], began_ns + 40 * S).changes
    assert (first.state, first.is_worth, sent(first)) == ("open", False, None)
    assert change_line(first, "", WORTH).endswith(" [not sent: under 1 % slower, 1.00 USD an hour]")
    assert change_line(first, "").endswith("(cdu-0000, facilities)")  # nobody is told anyway
    assert (len(book.open), book.worthy) == (1, ())
    (crossed,) = book.take([cheap(incident, slowdown=1.02)], began_ns + 50 * S).changes
    assert (crossed.state, crossed.is_worth, crossed.was_worth) == ("changed", True, False)
    message = sent(crossed)
    assert message is not None
    assert message.state == "open"  # to a receiver it is new
    assert book.worthy == book.open
    # What was sent is not taken back without a word.
    book.take([cheap(incident)], began_ns + 60 * S)
    assert book.worthy == book.open
    over = msgspec.structs.replace(cheap(incident), ended_ns=began_ns + 65 * S)
    (end,) = book.take([over], began_ns + 70 * S).changes
    told = sent(end)
    assert told is not None
    assert told.state == "resolved"


def test_a_new_watch_knows_from_the_record_what_was_sent(incident: Make, began_ns: int) -> None:
    book = Casebook()
    changes = [*book.take([cheap(incident)], began_ns + 40 * S).changes]
    ended = msgspec.structs.replace(cheap(incident), ended_ns=began_ns + 80 * S)
    (end,) = Casebook(changes, now_ns=began_ns + 90 * S).take([ended], began_ns + 90 * S).changes
    assert sent(end) is None
    changes += book.take([cheap(incident, slowdown=1.02)], began_ns + 50 * S).changes
    changes += book.take([cheap(incident)], began_ns + 400 * S).confirmed
    (end,) = Casebook(changes, now_ns=began_ns + 490 * S).take([ended], began_ns + 490 * S).changes
    assert sent(end) is not None


class Shared:
    """Watches that write into one record, and read it before each look."""

    def __init__(self, *books: Casebook) -> None:
        self._books, self._read = books, [0] * len(books)
        self.changes: list[IncidentChange] = []

    def look(self, number: int, incidents: list[Incident], at_ns: int) -> Taken:
        book = self._books[number]
        book.recall(self.changes[self._read[number] :], at_ns)
        self._read[number] = len(self.changes)
        taken = book.take(incidents, at_ns)
        self.changes += [*taken.changes, *taken.confirmed]
        return taken

    @property
    def state(self) -> str:
        return self.changes[-1].state


def test_one_watch_does_not_end_what_another_one_shows(incident: Make, began_ns: int) -> None:
    shared = Shared(Casebook(), Casebook())
    assert told(shared.look(0, [incident()], began_ns + 40 * S)) == [("open", "pretrain/s1")]
    for at_s in range(50, 3_600, 10):
        assert told(shared.look(0, [incident()], began_ns + at_s * S)) == []
        assert told(shared.look(1, [], began_ns + (at_s + 3) * S)) == []
        assert shared.state != "resolved"
    # In the record it is confirmed now and then, and not at each look.
    assert 10 <= len(shared.changes) <= 13
    # When the watch that shows it is no more, the other one ends it.
    ended = [
        change
        for at_s in range(3_600, 5_000, 10)
        for change in shared.look(1, [], began_ns + at_s * S).changes
    ]
    assert [(change.state, change.incident.name) for change in ended] == [("resolved", "pretrain/s1")]


def test_a_watch_that_lost_sight_of_it_does_not_end_it_while_another_one_shows_it(
    incident: Make, began_ns: int
) -> None:
    shared = Shared(Casebook(), Casebook())
    for at_s in range(40, 400, 10):
        shared.look(0, [incident()], began_ns + at_s * S)
        shared.look(1, [incident()], began_ns + (at_s + 3) * S)
    assert {change.incident.name for change in shared.changes} == {"pretrain/s1"}
    for at_s in range(400, 2_000, 10):
        shared.look(0, [incident()], began_ns + at_s * S)
        assert told(shared.look(1, [], began_ns + (at_s + 3) * S)) == []


def test_what_another_watch_calls_over_is_recorded_again_by_the_one_that_shows_it(
    incident: Make, began_ns: int
) -> None:
    shared = Shared(Casebook())
    shared.look(0, [incident()], began_ns + 40 * S)
    over = incident(ended_ns=began_ns + 45 * S)
    shared.changes.append(IncidentChange(state="resolved", at_ns=began_ns + 47 * S, incident=over))
    taken = shared.look(0, [incident()], began_ns + 50 * S)
    assert told(taken) == []  # whoever was paged is not paged again
    assert [(change.state, change.incident.ended_ns) for change in taken.confirmed] == [("changed", None)]


def test_what_is_older_than_the_end_opens_nothing_again(incident: Make, began_ns: int) -> None:
    """Watches write at the same time, and each reads of the others a little later."""
    over, late = incident(ended_ns=began_ns + 95 * S), incident(name="pretrain/s1")
    of_before = IncidentChange(state="changed", at_ns=began_ns + 99 * S, incident=late)
    ended_there = IncidentChange(state="resolved", at_ns=began_ns + 105 * S, incident=over)
    for heard in ([of_before], [ended_there, of_before]):
        shared = Shared(Casebook())
        shared.look(0, [incident()], began_ns + 40 * S)
        assert told(shared.look(0, [over], began_ns + 100 * S)) == [("resolved", "pretrain/s1")]
        shared.changes += heard
        assert told(shared.look(0, [over], began_ns + 110 * S)) == []
        assert told(shared.look(0, [], began_ns + 900 * S)) == []
    # A book that has both from the record alone takes the newer one, too.
    reader, end = Casebook(), IncidentChange(state="resolved", at_ns=began_ns + 100 * S, incident=over)
    reader.recall([end, of_before], began_ns + 110 * S)
    assert reader.open == ()
    # What is newer still counts: the other one shows it.
    reader.recall([msgspec.structs.replace(of_before, at_ns=began_ns + 120 * S)], began_ns + 130 * S)
    assert len(reader.open) == 1


def test_a_recorded_look_at_yesterday_opens_nothing_today(incident: Make, began_ns: int) -> None:
    """`diagnose --at YESTERDAY --record`, beside a watch."""
    shared, at_ns = Shared(Casebook()), began_ns + 86_400 * S
    shared.look(0, [], at_ns)
    shared.changes += Casebook().take([incident()], began_ns + 40 * S).changes
    (change,) = shared.look(0, [], at_ns + 10 * S).changes
    assert (change.state, change.incident.ended_ns) == ("resolved", began_ns + 40 * S)


def test_a_cause_that_another_watch_names_is_told_under_the_same_name(incident: Make, began_ns: int) -> None:
    """One of them reads steps only, the other one machines too."""
    shared = Shared(Casebook(), Casebook())
    unknown = incident(subject="pretrain", mechanism="unknown", verdict="unknown", evidence=(), affected=())
    vague = msgspec.structs.replace(unknown, cost=None)
    gpu = incident(subject="n00007.3", mechanism="gpu-throttle", began_ns=began_ns - 100 * S, cost=None)
    news: list[tuple[int, str, str, str]] = []
    for at_s in range(40, 900, 10):
        for number, shown in ((0, vague), (1, gpu if at_s > 100 else vague)):
            for change in shared.look(number, [shown], began_ns + (at_s + number) * S).changes:
                one = change.incident
                news.append((number, change.state, one.name, one.cause.mechanism))
    assert news == [
        (0, "open", "pretrain/s1", "unknown"),
        (1, "changed", "pretrain/s1", "gpu-throttle"),
        (0, "changed", "pretrain/s1", "gpu-throttle"),
    ]


def test_what_cannot_be_seen_is_not_over(incident: Make, began_ns: int) -> None:
    book = Casebook()
    book.take([incident(), incident(run="tune")], began_ns)
    old = incident(mechanism="unknown", affected=(), evidence=(), ended_ns=began_ns + S)
    assert told(book.take([old], began_ns + 600 * S, unseen=["pretrain"])) == [("resolved", "tune/s1")]
    # When it can be seen again, one look without it is still not enough.
    assert told(book.take([], began_ns + 610 * S)) == []
    assert told(book.take([], began_ns + 660 * S)) == [("resolved", "pretrain/s1")]


def test_cost_goes_on_from_what_was_written_down(incident: Make, began_ns: int) -> None:
    cost = incident().cost
    assert cost is not None
    changes = Casebook().take([incident()], began_ns).changes
    hour = 3_600 * S
    book = Casebook(changes, now_ns=began_ns + 2 * hour, is_only_look=True)
    (known,) = book.take([incident(began_ns=began_ns + hour)], began_ns + 2 * hour).incidents
    assert known.cost is not None
    assert known.cost.lost_gpu_hours == pytest.approx(cost.lost_gpu_hours + 2 * cost.gpu_hours_per_hour)


def test_what_was_over_long_before_it_was_seen_is_no_news(incident: Make, began_ns: int) -> None:
    over = incident(ended_ns=began_ns + 300 * S)
    assert told(Casebook().take([over], began_ns + 400 * S)) == [("resolved", "pretrain/s1")]
    taken = Casebook().take([over], began_ns + 3_600 * S)
    assert told(taken) == []
    assert [one.name for one in taken.incidents] == ["pretrain/s1"]


def test_with_the_run_all_is_over_that_was_wrong_with_it(incident: Make, began_ns: int) -> None:
    ends_ns = {"pretrain": began_ns + 90 * S}
    book = Casebook()
    book.take([incident()], began_ns + 40 * S)
    # Its last signals still show it.
    (change,) = book.take([incident()], began_ns + 100 * S, ends_ns=ends_ns).changes
    assert (change.state, change.incident.ended_ns) == ("resolved", began_ns + 90 * S)
    assert told(book.take([incident()], began_ns + 200 * S, ends_ns=ends_ns)) == []
    assert book.open == ()
    again = Casebook([change], now_ns=began_ns + 900 * S, is_only_look=True)
    assert told(again.take([incident()], began_ns + 900 * S, ends_ns=ends_ns)) == []
    # What begins after the end is not the run's.
    later = incident(began_ns=began_ns + 91 * S, mechanism="storage-slow")
    assert book.take([later], began_ns + 210 * S, ends_ns=ends_ns).incidents == ()


def test_what_nobody_saw_end_is_over_with_the_run(incident: Make, began_ns: int) -> None:
    opened = Casebook().take([incident()], began_ns + 40 * S).changes
    at_ns = began_ns + 10**7 * S
    ends_ns = {"pretrain": began_ns + 3_600 * S}
    (change,) = Casebook(opened, now_ns=at_ns).take([], at_ns, ends_ns=ends_ns).changes
    assert (change.state, change.incident.ended_ns) == ("resolved", began_ns + 3_600 * S)


def test_a_book_that_learns_its_past_later_takes_no_name_twice(incident: Make, began_ns: int) -> None:
    at_ns = began_ns + 40 * S
    before = Casebook().take([incident()], at_ns).changes
    book = Casebook(None)
    assert not book.knows_past
    (first,) = book.take([incident()], at_ns).changes
    assert first.incident.name == f"pretrain/s{at_ns // S}"
    book.recall(before, at_ns)
    assert book.knows_past
    assert {one.name for one in book.open} == {"pretrain/s1", first.incident.name}
    # Of the two, one goes on being seen, and the other is over.
    changes = [
        change
        for number in range(1, 70)
        for change in book.take([incident()], at_ns + number * 10 * S).changes
        if change.state == "resolved"
    ]
    assert len(changes) == 1
    assert len(book.open) == 1
