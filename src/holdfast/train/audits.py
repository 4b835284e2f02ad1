"""A member's part in audits: which lanes it computes a second time, what it reports, how members judge.

Prints travel with the gradients, so an audit costs no extra message. All members see the same prints before
anything is committed, and reach the same decision. Only if two prints differ do members compute the lane
again and exchange their results through the coordinator.
"""

import math
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec
import torch

from holdfast import wording
from holdfast.run import wire
from holdfast.run.audits import AuditFinding, PlannedAudit, compare_states, judge, planned
from holdfast.train import data
from holdfast.train.control import Control
from holdfast.train.gradients import Computed, Sum, Telling
from holdfast.train.measures import DeviceWatch
from holdfast.train.prints import PARTS, number_of, parts_of, print_of_state
from holdfast.train.protected import Protected
from holdfast.train.seat import Seat

OWNER, AUDITOR, STATE = (slice(first, first + PARTS) for first in (0, PARTS, 2 * PARTS))
EVERY = slice(3 * PARTS, 3 * PARTS + 1)
STATE_SHARE = 0.008
"""Comparing states takes at most this share of the time of steps; it sets how often they are compared."""
EVERY_MAX = 64
"""The most steps between two comparisons of states, however short steps are."""
TIMED_MIN, TIMED_MAX = 4, 8
"""How many comparisons must be timed before the interval is chosen, and how many times are kept. The minimum
counts, because the first comparison takes longer than all others.
"""
SPIKE_TIMES = 30.0
"""A loss is odd if it is this many times as large as every other lane's and as the previous step's."""


class Dispute(NamedTuple):
    """A lane that all members compute again. first: the disputed value by the rank that found it. loss: the
    lane's loss, if the loss is odd; else empty.
    """

    step: int
    lane: int
    first: dict[int, int]
    loss: str = ""


class Auditor:
    """The audits of one member. Off until a generation says otherwise."""

    def __init__(self, control: Control, seat: Seat, state: Protected, seed: int, watch: DeviceWatch) -> None:
        self._control = control
        self._seat = seat
        self._state = state
        self._seed = seed
        self._rate: float | None = None
        self._plan: tuple[PlannedAudit, ...] = ()
        self._found: list[tuple[int, torch.Tensor]] = []
        self._cadence = _Cadence(watch)

    def restart(self) -> None:
        """Begin again with a generation that was just formed."""
        self._rate = self._seat.audit_rate
        self._plan, self._found = (), []
        self._cadence.restart()

    # ---- a step ------------------------------------------------------------------------------------------

    def begin(self, step: int) -> tuple[int, ...]:
        """The lanes of other members that this member computes in this step. It computes them before its own
        lanes, because the memory they take is needed by its own lanes later.
        """
        seat = self._seat
        self._plan, self._found = (), []
        if self._rate and data.ONWARD_ONLY:
            self._tell(AuditFinding(kind="streams", step=step))
            self._rate = 0.0
        if self._rate and not seat.is_patched:
            self._plan = planned(self._seed, step, self._rate, seat.shares)
        return tuple(audit.lane for audit in self._plan if audit.auditor == seat.rank)

    def is_audited(self, lane: int) -> bool:
        """Whether another member also computes this lane."""
        return any(audit.lane == lane for audit in self._plan)

    def computed(self, lane: int, found: Computed) -> None:
        """Keep the print of another member's lane."""
        self._found.append((lane, found.print))

    def told(self, step: int, lane: int) -> list[Telling]:
        """The prints and figures that this member's last lane carries to the others."""
        if self._rate is None:
            return []
        told: list[Telling] = [(AUDITOR, audited, found) for audited, found in self._found]
        if self._cadence.is_due(step):
            with self._cadence:
                told.append((STATE, lane, parts_of(print_of_state(self._state))))
        wanted = torch.full((1,), float(self._cadence.wanted), device=self._state.device)
        return [*told, (EVERY, lane, wanted)]

    def examine(self, step: int, total: Sum) -> AuditFinding | Dispute | None:
        """The problem found in a step whose sum all members have, or None. All members find the same."""
        seat = self._seat
        self._cadence.note_step()
        if self._rate is None or seat.size < 2:
            return None
        if not seat.is_patched:
            columns = total.prints[:, list(seat.tellers)].T.tolist()
            states = [number_of(column[STATE]) for column in columns]
            self._cadence.agree([column[EVERY][0] for column in columns])
            if None not in states:
                suspect = self._cadence.compared(step)
                finding = compare_states([state for state in states if state is not None], step=step)
                if finding is not None:
                    return msgspec.structs.replace(finding, suspect=suspect)
        return self._disagreement(step, total) or self._odd(step, total)

    def _disagreement(self, step: int, total: Sum) -> Dispute | None:
        for audit in self._plan:
            column = total.prints[:, audit.lane].tolist()
            owned, audited = number_of(column[OWNER]), number_of(column[AUDITOR])
            if owned is not None and audited is not None and owned != audited:
                return Dispute(step, audit.lane, {audit.owner: owned, audit.auditor: audited})
        return None

    def _odd(self, step: int, total: Sum) -> Dispute | None:
        """A lane whose loss is not finite or out of proportion; None if the previous loss was not finite."""
        before = self._seat.loss
        if self._seat.is_patched or (before is not None and not math.isfinite(before)):
            return None
        lane = odd_lane(total.losses, before)
        if lane is None:
            return None
        owner = next((rank for rank, share in enumerate(self._seat.shares) if lane in share), None)
        loss = total.losses[lane]
        return None if owner is None else Dispute(step, lane, {owner: bits_of(loss)}, wording.number(loss))

    # ---- a dispute -----------------------------------------------------------------------------------------

    def settle(self, dispute: Dispute, found: Sequence[Computed]) -> AuditFinding:
        """Exchange results with all members and judge them. Raises `Superseded`."""
        seat, key = self._seat, f"again/{dispute.step}/{dispute.lane}"
        mine = [(_number(one), bits_of(float(one.loss))) for one in found]
        self._control.publish(seat.number, f"{key}/{seat.rank}", msgspec.msgpack.encode(mine))
        told = [
            self._control.lookup(seat.number, f"{key}/{rank}", forming=False) for rank in range(seat.size)
        ]
        found_by = [msgspec.msgpack.decode(one, type=list[tuple[int, int]]) for one in told]
        of = 1 if dispute.loss else 0
        again = [[one[of] for one in own] for own in found_by]
        finding = judge(dispute.first, again, step=dispute.step, lane=dispute.lane)
        usual, _ = Counter(one[0] for own in found_by for one in own).most_common(1)[0]
        is_odd = finding.kind == "lane" and not finding.culprits
        return msgspec.structs.replace(
            finding, kind="odd" if is_odd else finding.kind, loss=dispute.loss, print=f"{usual:016x}"
        )

    def conclude(self, finding: AuditFinding) -> bool:
        """Whether the step is kept. If not, all members wait for a generation without the culprits."""
        self._tell(finding)
        if finding.kind == "unsteady":
            self._rate = 0.0
        return finding.kind not in ("lane", "state", "apart")

    def _tell(self, finding: AuditFinding) -> None:
        """Report the finding; only the first member that is not to blame does, on behalf of all."""
        seat = self._seat
        to_blame = finding.culprits if finding.kind in ("lane", "state") else ()
        if seat.rank == next((rank for rank in range(seat.size) if rank not in to_blame), 0):
            self._control.say(
                wire.Audited(member=self._control.member, generation=seat.number, finding=finding)
            )


def odd_lane(losses: Sequence[float], before: float | None) -> int | None:
    """The first lane whose loss is not finite, or far larger than all others and the last step's."""
    for lane, loss in enumerate(losses):
        if not math.isfinite(loss):
            return lane
    sizes = [abs(loss) for loss in losses]
    lane = sizes.index(max(sizes))
    others = [*sizes[:lane], *sizes[lane + 1 :]]
    if before is None or not others:
        return None
    return lane if sizes[lane] > SPIKE_TIMES * max(*others, abs(before)) else None


def bits_of(loss: float) -> int:
    """The bits of a loss. All losses that are NaN have the same bits."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", math.nan if math.isnan(loss) else loss))
    return int(bits)


def _number(found: Computed) -> int:
    number = number_of(found.print.tolist())
    assert number is not None
    return number


class _Cadence:
    """How often states are compared: in every step, or so rarely that it takes only a small share of the
    time. Each member proposes an interval, and the longest one applies.
    """

    def __init__(self, watch: DeviceWatch) -> None:
        self._watch = watch
        self._marks: tuple[Any, Any] | None = None
        self._took_s: deque[float] = deque(maxlen=TIMED_MAX)
        self._steps_s: deque[float] = deque(maxlen=TIMED_MAX)
        self._last_s: float | None = None
        self._every = 1
        self._compared: int | None = None

    def restart(self) -> None:
        self._every, self._last_s, self._compared = 1, None, None

    def is_due(self, step: int) -> bool:
        return step % self._every == 0

    def __enter__(self) -> None:
        if self._marks is not None:  # of an earlier step
            self._took_s.append(self._watch.seconds(*self._marks))
        self._marks = (self._watch.mark(), None)

    def __exit__(self, *_: object) -> None:
        assert self._marks is not None
        self._marks = (self._marks[0], self._watch.mark())

    def note_step(self) -> None:
        now_s = time.monotonic()
        if self._last_s is not None:
            self._steps_s.append(now_s - self._last_s)
        self._last_s = now_s

    @property
    def wanted(self) -> int:
        """The proposed interval in steps; a power of two, so that the members' proposals fit each other."""
        if len(self._took_s) < TIMED_MIN or not self._steps_s:
            return 1
        every = min(self._took_s) / (STATE_SHARE * median(self._steps_s))
        return min(EVERY_MAX, 1 << max(0, math.ceil(math.log2(max(every, 1e-9)))))

    def compared(self, step: int) -> int:
        """How many steps were committed since the previous comparison."""
        before, self._compared = self._compared, step
        return 0 if before is None else step - before - 1

    def agree(self, wanted: Sequence[float]) -> None:
        if all(wanted):
            self._every = int(max(wanted))
