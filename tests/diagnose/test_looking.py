"""What the record says of a run's nodes, by the names of their machines."""

from holdfast.diagnose.looking import at_machines
from holdfast.record.events import ActionTaken, FaultObserved, KnownEvent, MemberJoined, RunStarted
from holdfast.topology.file import MachineSeat, read

RUN = "prod"


def joined(at_ns: int, host: str) -> MemberJoined:
    return MemberJoined(id=f"{at_ns}", occurred_ns=at_ns, run=RUN, subject="n0.0", node="n0", host=host)


def fault(at_ns: int) -> FaultObserved:
    return FaultObserved(id=f"{at_ns}", occurred_ns=at_ns, run=RUN, subject="n0", fault="xid-79")


def test_what_happened_at_a_node_is_of_the_machine_that_it_was_then() -> None:
    page = read("")
    cluster = page.described(page.survey).with_members({RUN: {"n0.0": MachineSeat("n0", "second")}})
    events: list[KnownEvent] = [
        fault(1),  # just before the join was recorded
        joined(2, "first"),
        fault(3),
        ActionTaken(id="4", occurred_ns=4, run=RUN, subject="n0", action="drain"),
        RunStarted(id="5", occurred_ns=5, run=RUN, gpus=1),
        joined(6, "second"),
        fault(7),
        FaultObserved(id="8", occurred_ns=8, run="other", subject="n0", fault="xid-79"),
    ]
    told = at_machines(events, cluster)
    named = [event.node if isinstance(event, MemberJoined) else event.subject for event in told]
    assert named == ["first"] * 4 + [""] + ["second"] * 2 + ["n0"]
