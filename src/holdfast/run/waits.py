"""How long a run waits for what: derived from what it has seen so far, each within named bounds.

There is nothing to tune. Each wait is a small multiple of the longest time that the thing waited for has
taken in this run; the lower bound covers what a busy machine does to a process, the upper one keeps a single
outlier from making every later wait useless.
"""

import msgspec

SECOND_NS = 10**9

LEASE_S_MIN, LEASE_S_MAX = 5.0, 30.0
"""Heartbeats come four times a second, but a machine with more threads than cores starves one for seconds."""
LEASE_GAPS = 4
REPLACE_S_MIN, REPLACE_S_MAX = 0.5, 10.0
"""Everybody stands still while a replacement gets ready: beyond this it is cheaper to go on without it."""
START_S_MIN, START_S_MAX = 10.0, 600.0
"""How long those that are ready wait for the others where nobody can step yet."""
JOIN_S_MIN, JOIN_S_MAX = 0.2, 10.0
"""How long a newcomer waits for others of its node, so that the run changes over once for all of them."""
FORM_S_MIN, FORM_S_MAX = 30.0, 900.0
"""To set up collectives takes a moment on one node, and 200 s on 98,000 GPUs (arXiv:2602.00277): until it was
seen once, nobody can know, and the longest is waited for."""
FORM_TIMES = 5
BROKEN_S_MIN, BROKEN_S_MAX = 0.25, 2.0
"""A collective fails because somebody died: the exit is seen within milliseconds of it."""
HUNG_S_MIN = 600.0
"""One member may evaluate alone for so long, while the others wait for it in a step."""
HUNG_STEPS = 20
IDLE_S_MAX = 1800.0
"""Nobody waits for anybody: all are busy outside a step, with an evaluation say, and that long at most."""
APART_S = 3.0
"""Between two looks at members that wait for each other in different places: longer than a busy machine keeps
a process from noticing what it has been told."""
LAST_CALL_S = 1.0
"""Nodes that start together join within this time of each other; more than `nodes_min` is better."""
EXPLAIN_S = 10.0
"""How long the record of a loss waits for the agent to say what it died of. Nothing else does. A script that
raises hangs up first, and then takes seconds to end (see HOLD_S in output.py)."""
DEVICE_EXIT_S = 5.0
"""How long a process whose GPU failed may take to end before it is killed: it holds that GPU's memory. On an
H200 it took 0.1 s."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
EXIT_MARGIN_S = 5.0
"""What an agent may need beyond the grace to see a killed process go."""
LATE_S = 1.0
"""The coordinator looked at the leases this much too late: it was held up itself and heard nobody."""


def ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)


class Observed(msgspec.Struct, kw_only=True):
    """The longest that each thing has taken in this run so far; 0: not seen yet."""

    gap_ns_max: int = 0
    start_ns_max: int = 0
    ready_ns_max: int = 0
    form_ns_max: int = 0
    step_ns_max: int = 0

    def note_gap(self, gap_ns: int) -> None:
        self.gap_ns_max = max(self.gap_ns_max, gap_ns)

    def note_start(self, took_ns: int) -> None:
        self.start_ns_max = max(self.start_ns_max, took_ns)

    def note_ready(self, took_ns: int) -> None:
        self.ready_ns_max = max(self.ready_ns_max, took_ns)

    def note_form(self, took_ns: int) -> None:
        self.form_ns_max = max(self.form_ns_max, took_ns)

    def note_step(self, took_ns: int) -> None:
        self.step_ns_max = max(self.step_ns_max, took_ns)

    @property
    def lease_ns(self) -> int:
        """Silence after which a member or node is given up: four times the longest gap between heartbeats."""
        return _within(LEASE_GAPS * self.gap_ns_max, LEASE_S_MIN, LEASE_S_MAX)

    @property
    def replace_ns(self) -> int:
        """From admission of a replacement: twice the longest that anybody took to get ready.

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
        """From a collective's failure with nobody lost: a step, in which the others notice it too."""
        return _within(self.step_ns_max, BROKEN_S_MIN, BROKEN_S_MAX)

    def form_wait_ns(self, *, at_boundary: bool) -> int:
        """From a generation's announcement: five times the longest formation, and the steps before it."""
        expected_ns = FORM_TIMES * self.form_ns_max or ns(FORM_S_MAX)
        wait_ns = _within(expected_ns, FORM_S_MIN, FORM_S_MAX)
        return wait_ns + (self.hung_ns if at_boundary else 0)

    @property
    def hung_ns(self) -> int:
        """Without a commit: twenty times the longest step. A first step may compile for minutes."""
        if not self.step_ns_max:
            return ns(IDLE_S_MAX)
        return max(ns(HUNG_S_MIN), HUNG_STEPS * self.step_ns_max)


def backoff_ns(failures: int) -> int:
    """Before the next process is started on a node, or has a seat, where so many in a row came to nothing."""
    return 0 if failures <= 1 else min(ns(BACKOFF_S_MAX), ns(BACKOFF_S_MIN) << min(failures - 2, 6))


def _within(value_ns: int, low_s: float, high_s: float) -> int:
    return max(ns(low_s), min(value_ns, ns(high_s)))
