"""How long a run waits for each thing: derived from its own times so far, each within named bounds.

Nothing has to be tuned. Each wait is a small multiple of the longest time that the thing has taken in this
run. The lower bound covers delays on a busy machine; the upper bound keeps a single outlier from making every
later wait useless.
"""

from typing import Literal

import msgspec

from holdfast.wording.units import SECOND_NS

LEASE_S_MIN, LEASE_S_MAX = 5.0, 30.0
"""Heartbeats come four times a second, but a machine with more threads than cores starves one for seconds."""
LEASE_GAPS = 4
REPLACE_S_MIN, REPLACE_S_MAX = 0.5, 10.0
"""All members wait while a replacement gets ready: after this it is cheaper to continue without it."""
START_S_MIN, START_S_MAX = 10.0, 600.0
"""How long ready members wait for the others if no member can step yet."""
JOIN_S_MIN, JOIN_S_MAX = 0.2, 10.0
"""How long a newcomer waits for others of its node, so that the run changes over once for all of them."""
FORM_S_MIN, FORM_S_MAX = 30.0, 900.0
"""Setting up collectives takes a moment on one node, and 200 s on 98,000 GPUs (arXiv:2602.00277). Until the
run has seen it once, the time is unknown and the longest wait applies."""
FORM_TIMES = 5
BROKEN_S_MIN, BROKEN_S_MAX = 0.25, 2.0
"""A collective usually fails because a member died, whose exit is seen within milliseconds."""
HUNG_S_MIN = 60.0
"""How long a busy machine, a slow disk or a first evaluation may hold up a step before a member is ended."""
STUCK_S_MIN = 12.0
"""The same, if the process itself shows that it is stuck: see explaining.py."""
STUCK_STEPS = 8
OVERDUE_S_MIN = 0.5
OVERDUE_TIMES = 2
"""Times the longest step, or pause between two. No member is ended for that alone: it is the time to check
which members can be reached."""
HUNG_STEPS = 30
HUNG_PAUSES = 4
"""Times the longest pause of the script between two steps: the next evaluation may be larger."""
HUNG_FIRST_STEPS = 10
"""Times the longest first step of a generation: it compiles, and the next one may compile more."""
HUNG_WORKS = 4
"""Times the longest work that a script declared."""
IDLE_S_MAX = 1800.0
"""The longest wait for a commit. It is the shortest wait if no member waits for another, if the last copies
of the state would be given up, and for work that the script has declared."""
LOOK_S_MAX = 60.0
"""A step that takes longer than this is reported, even if it may take longer."""
QUIET_LOOK_S = 30.0
"""The time between two looks at workers of a script that never joins, while it prints nothing."""
LOCATE_S = 2.0
"""How long an agent may take to find out where its member is; it takes some milliseconds."""
PATIENT_S = 6 * 3600.0
"""How long the run is more patient after a member was ended for lack of progress: it may have been working,
and its replacement may have to do the same work."""
APART_S = 3.0
"""The time between two looks at members that wait for each other in different places: longer than a busy
machine delays a process in reading its messages."""
LAST_CALL_S = 1.0
"""Nodes that start together join within this time of each other. It is worth waiting for more than
`nodes_min`."""
OWN_NODES_S = 30.0
"""How long the first start waits for another node while fewer have joined than the launcher itself starts:
their agents may need longer on a busy machine. torchrun waits as long for further nodes."""
EXPLAIN_S = 10.0
"""How long the record of a loss waits for the agent to report the cause. Nothing else waits. A script that
raises closes its connection first, and then takes seconds to end (see HOLD_S in output.py)."""
DEVICE_EXIT_S = 5.0
"""After this, a process whose GPU failed is killed, because it holds the GPU's memory. With an H200, exiting
took 0.1 s."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
EXIT_MARGIN_S = 5.0
"""How long an agent may take, beyond the grace, to see a killed process exit."""
LATE_S = 1.0
"""If the coordinator checks the leases this much too late, it was held up itself and read no messages."""


Thing = Literal["gap", "start", "ready", "form", "step", "pause", "first", "work", "stand"]


def ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)


class Observed(msgspec.Struct, kw_only=True):
    """The longest time that each thing has taken in this run so far; 0 if not seen yet.

    gap: between two heartbeats of a node. step: from the first lane to the commit, on the member that waited
    least for others. pause: the script's work between two steps. first: the first step of a generation, from
    its formation. work: work that the script has declared, which is not part of the others. stand: a
    standstill of all workers of a script that never joins, until they made progress again.
    """

    gap_ns_max: int = 0
    start_ns_max: int = 0
    ready_ns_max: int = 0
    form_ns_max: int = 0
    step_ns_max: int = 0
    pause_ns_max: int = 0
    first_ns_max: int = 0
    work_ns_max: int = 0
    stand_ns_max: int = 0

    def note(self, what: Thing, took_ns: int) -> None:
        name = f"{what}_ns_max"
        setattr(self, name, max(getattr(self, name), took_ns))

    @property
    def lease_ns(self) -> int:
        """How long a node may be silent, or a member stopped, before it is given up: four times the longest
        gap.
        """
        return _within(LEASE_GAPS * self.gap_ns_max, LEASE_S_MIN, LEASE_S_MAX)

    @property
    def replace_ns(self) -> int:
        """From admission of a replacement: twice the longest that a member took to get ready.

        0 if even the usual time exceeds the bound: then the run does not wait at all.
        """
        if self.ready_ns_max > ns(REPLACE_S_MAX):
            return 0
        return _within(2 * self.ready_ns_max, REPLACE_S_MIN, REPLACE_S_MAX)

    @property
    def start_wait_ns(self) -> int:
        """From when the first member is ready: twice the longest time to start and get ready."""
        return _within(2 * (self.start_ns_max + self.ready_ns_max), START_S_MIN, START_S_MAX)

    @property
    def join_ns(self) -> int:
        """From when the first newcomer of a node is ready: the longest time to get ready."""
        return _within(self.ready_ns_max, JOIN_S_MIN, JOIN_S_MAX)

    @property
    def broken_ns(self) -> int:
        """From a collective's failure with no member lost: a step, in which the others notice it too."""
        return _within(self.step_ns_max, BROKEN_S_MIN, BROKEN_S_MAX)

    @property
    def form_wait_ns(self) -> int:
        """From when all members have left the previous generation: five times the longest formation."""
        return _within(FORM_TIMES * self.form_ns_max or ns(FORM_S_MAX), FORM_S_MIN, FORM_S_MAX)

    @property
    def hung_ns(self) -> int:
        """Without a commit: thirty times the longest step, or four times the longest pause between two."""
        if not self.step_ns_max:
            return self.hung_first_ns
        expected_ns = max(HUNG_STEPS * self.step_ns_max, HUNG_PAUSES * self.pause_ns_max)
        return _within(expected_ns, HUNG_S_MIN, IDLE_S_MAX)

    @property
    def stuck_ns(self) -> int:
        """Without a commit, if a member is visibly stuck in its step: eight times the longest step."""
        return _within(STUCK_STEPS * self.step_ns_max, STUCK_S_MIN, IDLE_S_MAX)

    def overdue_ns(self, *, is_first: bool) -> int | None:
        """Without a commit: twice the longest step or pause. None if the run has seen no step yet."""
        if not self.step_ns_max:
            return None
        longest_ns = max(self.step_ns_max, self.pause_ns_max, self.first_ns_max if is_first else 0)
        return max(ns(OVERDUE_S_MIN), OVERDUE_TIMES * longest_ns)

    @property
    def hung_first_ns(self) -> int:
        """In the first step of a generation, which may compile for minutes: ten times the longest so far."""
        return _within(HUNG_FIRST_STEPS * self.first_ns_max or ns(IDLE_S_MAX), HUNG_S_MIN, IDLE_S_MAX)

    @property
    def work_wait_ns(self) -> int:
        """From when work was declared: four times the longest such work, or more."""
        return max(ns(IDLE_S_MAX), HUNG_WORKS * self.work_ns_max)


def backoff_ns(failures: int) -> int:
    """How long to wait before the next process on a node, or in a seat, after this many failures in a row."""
    return 0 if failures <= 1 else min(ns(BACKOFF_S_MAX), ns(BACKOFF_S_MIN) << min(failures - 2, 6))


def _within(value_ns: int, low_s: float, high_s: float) -> int:
    return max(ns(low_s), min(value_ns, ns(high_s)))
