"""The state of a run at one moment, for the live view."""

from typing import Literal

import msgspec

from holdfast.record.events import Role
from holdfast.run.wire import Outcome, Spent, Stage

Severity = Literal["note", "trouble", "failure"]


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process: role, what it does, the step it works on, and the lanes it was dealt.

    spent: where its time went, by its last report, and by the one before.
    """

    name: str
    node: str
    slot: int
    role: Role
    stage: Stage
    step: int
    lanes: tuple[int, ...]
    alive: bool
    spent: tuple[Spent, Spent] = (Spent(), Spent())


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node. A lost one stays listed until it comes back under its name."""

    name: str
    alive: bool


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, as the operator is told of it."""

    occurred_ns: int
    text: str
    severity: Severity


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the coordinator sees it.

    generation: the last one that was formed; 0 before the first. step: the last one that all members have.
    loss: that of the last step that reported one; loss_curve: those of the last steps, as (step, loss).
    rate: steps per second over the last ones, 0 while there are none. step_s: how long a step took, over
    those of the last second, or the last one where that took longer; None while there are none.
    stall_s, write_s: how long training waited for the last checkpoint, and how long that took to be durable,
    or the one that is being written has taken if that is longer. snapshot_s: how long a member waited for
    the last snapshot; snapshot_step, mirror_step: of the newest, and the newest that two nodes have; None:
    there is none. saved_step: of the newest durable checkpoint; 0: none. proven, refuted: step and moment of
    the last checkpoint that was computed with, and agreed or did not. lanes_skipped: of the last step, lanes
    that nobody computed. happened: the last things that did. outcome: None while it runs.
    """

    run: str
    started_ns: int
    generation: int
    step: int
    steps_total: int
    loss: float | None
    loss_curve: tuple[tuple[int, float], ...]
    rate: float
    members: tuple[MemberStatus, ...]
    nodes: tuple[NodeStatus, ...]
    happened: tuple[Happened, ...]
    outcome: Outcome | None
    team: str = ""
    step_s: float | None = None
    stall_s: float | None = None
    write_s: float | None = None
    lanes_skipped: int = 0
    snapshot_s: float | None = None
    snapshot_step: int | None = None
    mirror_step: int | None = None
    saved_step: int = 0
    proven: tuple[int, int] | None = None
    refuted: tuple[int, int] | None = None
