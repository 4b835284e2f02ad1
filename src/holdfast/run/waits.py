"""How long a run waits for what: derived from what it has seen so far, each within named bounds.

Nothing has to be tuned. Each wait is a small multiple of the longest time that the thing waited for has taken
in this run; the lower bound covers what a busy machine does to a process, the upper one keeps a single
outlier from making every later wait useless.
"""

from typing import Literal

import msgspec

from holdfast.wording.units import SECOND_NS

LEASE_S_MIN, LEASE_S_MAX = 5.0, 30.0
"""Heartbeats come four times a second, but a machine with more threads than cores starves one for seconds."""
LEASE_GAPS = 4
REPLACE_S_MIN, REPLACE_S_MAX = 0.5, 10.0
"""All members stand still while a replacement gets ready: beyond this it is cheaper to go on without it."""
START_S_MIN, START_S_MAX = 10.0, 600.0
"""How long those that are ready wait for the others where no member can step yet."""
JOIN_S_MIN, JOIN_S_MAX = 0.2, 10.0
"""How long a newcomer waits for others of its node, so that the run changes over once for all of them."""
FORM_S_MIN, FORM_S_MAX = 30.0, 900.0
"""To set up collectives takes a moment on one node, and 200 s on 98,000 GPUs (arXiv:2602.00277): until it was
seen once, nobody can know, and the longest is waited for."""
FORM_TIMES = 5
BROKEN_S_MIN, BROKEN_S_MAX = 0.25, 2.0
"""A collective fails because a member died: the exit is seen within milliseconds of it."""
HUNG_S_MIN = 60.0
"""What a busy machine, a slow disk or a first evaluation may hold a step up for before a member is ended."""
STUCK_S_MIN = 12.0
"""The same, where the process itself shows that it is stuck: see explaining.py."""
STUCK_STEPS = 8
OVERDUE_S_MIN = 0.5
OVERDUE_TIMES = 2
"""Times the longest step, or pause between two. Nobody is ended for that alone: it is when to look who can be
reached."""
HUNG_STEPS = 30
HUNG_PAUSES = 4
"""Times the longest that the script took between two steps: the next evaluation may be a larger one."""
HUNG_FIRST_STEPS = 10
"""Times the longest first step of a generation: it compiles, and the next one may compile more."""
HUNG_WORKS = 4
"""Times the longest work that a script declared."""
IDLE_S_MAX = 1800.0
"""The longest wait for a commit. So long at least is waited where nobody waits for anybody, where the last
copies of the state would be given up, and for work that the script has declared."""
LOOK_S_MAX = 60.0
"""A step that takes longer than this is told, however long it may take."""
QUIET_LOOK_S = 30.0
"""Between two looks at workers of a script that never joins, as long as it prints nothing."""
LOCATE_S = 2.0
"""What an agent has to find out where its member is: it takes some milliseconds."""
PATIENT_S = 6 * 3600.0
"""How long the run is more patient after a member was ended for want of progress: it may have worked, and its
replacement may have to do the same work."""
APART_S = 3.0
"""Between two looks at members that wait for each other in different places: longer than a busy machine keeps
a process from noticing what it has been told."""
LAST_CALL_S = 1.0
"""Nodes that start together join within this time of each other; more than `nodes_min` is better."""
EXPLAIN_S = 10.0
"""How long the record of a loss waits for the agent to say what it died of. Nothing else does. A script that
raises hangs up first, and then takes seconds to end (see HOLD_S in output.py)."""
DEVICE_EXIT_S = 5.0
"""Then a process whose GPU failed is killed: it holds the GPU's memory. With an H200 it took 0.1 s."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
EXIT_MARGIN_S = 5.0
"""What an agent may need beyond the grace to see a killed process go."""
LATE_S = 1.0
"""The coordinator looked at the leases this much too late: it was held up itself and heard nobody."""


Thing = Literal["gap", "start", "ready", "form", "step", "pause", "first", "work", "stand"]


def ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)


class Observed(msgspec.Struct, kw_only=True):
    """The longest that each thing has taken in this run so far; 0: not seen yet.

    gap: between two heartbeats of a node. step: from its first lane to its commit, on the member that kept
    nobody waiting. pause: what the script does between two steps. first: the first step of a generation, from
    its formation. work: what the script has declared; it is no part of the others. stand: that no worker of a
    script that never joins got further, until they did.
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
        """A node that is silent, or a member that is stopped, for four times the longest gap is given up."""
        return _within(LEASE_GAPS * self.gap_ns_max, LEASE_S_MIN, LEASE_S_MAX)

    @property
    def replace_ns(self) -> int:
        """From admission of a replacement: twice the longest that a member took to get ready.

        0 where even the usual time exceeds the bound: then nobody waits for it at all.
        """
        if self.ready_ns_max > ns(REPLACE_S_MAX):
            return 0
        return _within(2 * self.ready_ns_max, REPLACE_S_MIN, REPLACE_S_MAX)

    @property
    def start_wait_ns(self) -> int:
        """From when the first one is ready: twice what starting and getting ready took at most."""
        return _within(2 * (self.start_ns_max + self.ready_ns_max), START_S_MIN, START_S_MAX)

    @property
    def join_ns(self) -> int:
        """From when the first newcomer of a node is ready: as long as getting ready takes."""
        return _within(self.ready_ns_max, JOIN_S_MIN, JOIN_S_MAX)

    @property
    def broken_ns(self) -> int:
        """From a collective's failure with no member lost: a step, in which the others notice it too."""
        return _within(self.step_ns_max, BROKEN_S_MIN, BROKEN_S_MAX)

    @property
    def form_wait_ns(self) -> int:
        """From when all members have left the generation before: five times the longest formation."""
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
        """The same, where it shows that a member is stuck in its step: eight times the longest."""
        return _within(STUCK_STEPS * self.step_ns_max, STUCK_S_MIN, IDLE_S_MAX)

    def overdue_ns(self, *, is_first: bool) -> int | None:
        """Without a commit: twice the longest that the run has seen. None: it has seen no step yet."""
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
        """From when work was declared."""
        return max(ns(IDLE_S_MAX), HUNG_WORKS * self.work_ns_max)


def backoff_ns(failures: int) -> int:
    """Before the next process is started on a node, or has a seat, where so many in a row came to nothing."""
    return 0 if failures <= 1 else min(ns(BACKOFF_S_MAX), ns(BACKOFF_S_MIN) << min(failures - 2, 6))


def _within(value_ns: int, low_s: float, high_s: float) -> int:
    return max(ns(low_s), min(value_ns, ns(high_s)))
