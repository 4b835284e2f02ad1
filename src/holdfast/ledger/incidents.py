"""An incident: one failure with all that it cost, from its onset until the last step it made necessary
again.
"""

import copy

from holdfast.ledger.tally import Tally
from holdfast.record.events import AnyEvent, Severity

EVIDENCE_MAX = 16
"""How many of an incident's events are named; a node's loss can bring thousands."""


class LedgerIncident:
    """What happened, when it began, was noticed and was over, and the GPU-time it cost."""

    __slots__ = (
        "began_ns",
        "evidence",
        "members_lost",
        "noticed_ns",
        "recovered_ns",
        "restarted_ns",
        "restarts",
        "severity",
        "silence",
        "steps_rolled_back",
        "subject",
        "tally",
        "what",
    )

    def __init__(
        self, what: str, subject: str, *, began_ns: int, noticed_ns: int, severity: Severity = "fatal"
    ) -> None:
        self.what = what
        self.subject = subject
        self.severity: Severity = severity
        self.began_ns = began_ns
        self.noticed_ns = noticed_ns
        self.recovered_ns: int | None = None
        self.restarted_ns: int | None = None
        # Where nobody knows when it began: the key of the work that came to nothing, from when, to when.
        self.silence: tuple[int, int, int] | None = None
        self.restarts = 0
        self.members_lost = 0
        self.steps_rolled_back = 0
        self.evidence: list[str] = []
        self.tally = Tally()

    def add_evidence(self, event: AnyEvent) -> None:
        if len(self.evidence) < EVIDENCE_MAX:
            self.evidence.append(event.id)

    def copy(self) -> "LedgerIncident":
        twin = copy.copy(self)
        twin.evidence = self.evidence.copy()
        twin.tally = self.tally.copy()
        return twin
