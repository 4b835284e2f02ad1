"""The state of a run at one moment, for the live view."""

from typing import Literal

import msgspec

from holdfast.record.events import Role
from holdfast.run.wire import Outcome, Spent, Stage

Severity = Literal["note", "trouble", "failure"]


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its role, its stage, the step it works on, and the lanes it was dealt.

    host: the name of its node's machine. spent: where its time went, by its last report and the one before.
    """

    name: str
    node: str
    slot: int
    role: Role
    stage: Stage
    step: int
    lanes: tuple[int, ...]
    alive: bool
    host: str = ""
    spent: tuple[Spent, Spent] = (Spent(), Spent())


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node. A lost one stays listed until it comes back under its name."""

    name: str
    alive: bool


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """One event, as told to the operator."""

    occurred_ns: int
    text: str
    severity: Severity


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the coordinator sees it.

    generation: the last formed one; 0 before the first. step: the last one that all members have. loss: of
    the last step that reported one. loss_curve: of the last steps, as (step, loss). rate: steps per second
    over the last steps, 0 while there are none. step_s: the mean time of the steps of the last second, or of
    the last step if that took longer; None while there are none. stall_s: how long training waited for the
    last checkpoint. write_s: how long that took to be durable, or how long the present one has taken so far
    if that is longer. snapshot_s: how long a member waited for the last snapshot. snapshot_step, mirror_step:
    of the newest snapshot, and of the newest that two nodes have; None if there is none. saved_step: of the
    newest durable checkpoint; 0 for none. proven, refuted: step and time of the last checkpoint whose proof
    agreed or disagreed. lanes_skipped: lanes of the last step that no member computed. happened: the last
    events. outcome: None while it runs.
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
