"""How the coordinator acts on audits: it ends, names and replaces a member that is wrong.

The members themselves find out which of them are wrong (audits.py), and all find the same. They hold the step
until the wrong ones are gone, so that nothing the wrong ones sent is used.
"""

from holdfast.record.events import FaultObserved, LaneExamined
from holdfast.run import ending, losses, replacing
from holdfast.run.audits import AuditFinding
from holdfast.run.state import Generation, Member, RunState
from holdfast.run.wire import Audited
from holdfast.wording import many

FAULT = "silent corruption"
ODD_SAID_MAX = 8
"""The most lanes with an odd loss that are reported; a diverged run has them in every step."""


def heard(state: RunState, message: Audited) -> bool:
    """Act on an audit's finding; whether it may require further action."""
    generation, finding = state.generations.announced, message.finding
    if generation is None or message.generation != generation.number:
        generation = state.generations.formed
    if generation is None or message.generation != generation.number or state.ending.closing is not None:
        return False
    if any(not 0 <= rank < len(generation.members) for rank in finding.culprits):
        return False
    names = [generation.members[rank] for rank in finding.culprits]
    if finding.print:
        _record_lane(state, finding, names[0] if finding.kind == "lane" and names else "")
    match finding.kind:
        case "lane" | "state":
            for member in filter(None, map(state.roster.living, names)):
                _blame(state, member, finding, len(generation.members))
        case "apart":
            _apart(state, generation, finding)
        case "undecided":
            _undecided(state, finding, names)
            return False
        case "odd":
            _odd(state, generation, finding)
            return False
        case "unsteady" | "streams":
            _stop(state, finding)
            return False
    return True


def _blame(state: RunState, member: Member, finding: AuditFinding, size: int) -> None:
    seat = (member.node, member.slot)
    times = state.audits.seats[seat] = state.audits.seats.get(seat, 0) + 1
    state.outbox.say(f"{FAULT} on node {member.node}: {_evidence(member.name, finding, size)}", "trouble")
    losses.fence(state, member, FAULT, onset_ns=None, account=f"{FAULT}: {_where(finding)}")
    if times > 1:
        state.outbox.say(
            f"this is number {times} in slot {member.slot} of {member.node}: suspect the device or the node; "
            + replacing.advice(state, member.node),
            "trouble",
        )


def _where(finding: AuditFinding) -> str:
    if finding.kind == "lane":
        return f"lane {finding.lane} of step {finding.step}"
    return f"state before step {finding.step}"


def _evidence(name: str, finding: AuditFinding, size: int) -> str:
    others = many(size - len(finding.culprits), "other member")
    if finding.kind == "state":
        sentence = (
            f"in step {finding.step} the weights or optimizer state of {name} differ from those of {others}"
        )
        if not finding.suspect:
            return sentence
        return f"{sentence}; its lanes of the {many(finding.suspect, 'step')} before it may be wrong, too"
    loss = f" (loss {finding.loss})" if finding.loss else ""
    if finding.once:
        return (
            f"{name} computed lane {finding.lane} of step {finding.step}{loss} wrongly; when it computed the "
            "lane again, it agreed with the others"
        )
    return f"{name} computes lane {finding.lane} of step {finding.step}{loss} differently from {others}"


def _apart(state: RunState, generation: Generation, finding: AuditFinding) -> None:
    """No state has a majority, so none can be used, and the run goes back to its checkpoint. If that ends the
    same way, the script is the cause and not a machine.
    """
    members = ", ".join(generation.members)
    sentence = f"in step {finding.step} the states of {members} differ, and no majority has the same"
    if state.audits.apart_step == state.progress.step_max:
        ending.fail(state, f"{sentence}, as before: the script changes the state differently on each member")
        return
    state.audits.apart_step = state.progress.step_max
    state.outbox.say(
        f"{FAULT}: {sentence}; all are ended, and the run goes back to its checkpoint", "trouble"
    )
    for member in filter(None, map(state.roster.living, generation.members)):
        losses.fence(state, member, FAULT, onset_ns=None, account=f"{FAULT}: {_where(finding)}")


def _undecided(state: RunState, finding: AuditFinding, names: list[str]) -> None:
    if frozenset(names) in state.audits.doubted:
        return
    state.audits.doubted.add(frozenset(names))
    pair = " and ".join(names)
    sentence = (
        f"{pair} compute lane {finding.lane} of step {finding.step} differently, each the same way again: "
        "one of them is wrong, but only a third member could show which. The run continues unchanged"
    )
    state.outbox.say(f"{FAULT}: {sentence}", "trouble")
    for name in names:
        _record(state, name, sentence)


def _odd(state: RunState, generation: Generation, finding: AuditFinding) -> None:
    state.audits.odd += 1
    if state.audits.odd > ODD_SAID_MAX:
        return
    sentence = (
        f"the loss of lane {finding.lane} in step {finding.step} is {finding.loss}; all "
        f"{many(len(generation.members), 'member')} computed the same, so it is not corruption but data, "
        "model or learning rate"
    )
    state.outbox.say(sentence, "trouble")


def _stop(state: RunState, finding: AuditFinding) -> None:
    if state.audits.is_over:
        return
    state.audits.is_over = True
    where = f"lane {finding.lane} in step {finding.step}"
    why = (
        f"several members computed {where} again and got other bits: a kernel is not deterministic"
        if finding.kind == "unsteady"
        else "its data are streams without seek(), which an auditor would have to read from their beginning"
    )
    state.outbox.say(f"lanes are not audited any more: {why}. States are still compared", "trouble")


def _record_lane(state: RunState, finding: AuditFinding, culprit: str) -> None:
    """Record the lane for `holdfast replay`."""
    if state.audits.odd < ODD_SAID_MAX:
        state.outbox.record(
            LaneExamined(
                id="",
                occurred_ns=state.now_ns,
                subject=culprit,
                step=finding.step,
                lane=finding.lane,
                loss=finding.loss,
                print=finding.print,
            )
        )


def _record(state: RunState, subject: str, detail: str) -> None:
    state.outbox.record(
        FaultObserved(
            id=f"{FAULT} {subject} {state.now_ns}",
            occurred_ns=state.now_ns,
            subject=subject,
            fault=FAULT,
            severity="degraded",
            detail=detail,
        )
    )
