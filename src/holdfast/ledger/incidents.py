"""An incident: one failure with all that it cost, from its onset until the last step it made necessary
again.
"""

import msgspec

from holdfast.ledger.copies import copied
from holdfast.ledger.tally import Tally
from holdfast.record.events import AnyEvent, Severity

EVIDENCE_MAX = 16
"""How many of an incident's events are named; a node's loss can bring thousands."""


class LedgerIncident(msgspec.Struct, kw_only=True):
    """What happened, when it began, was noticed and was over, and the GPU-time it cost.

    silence: where nobody knows when it began, the key of the work that came to nothing, from when, to when.
    """

    what: str
    subject: str
    severity: Severity
    began_ns: int
    noticed_ns: int
    recovered_ns: int | None = None
    restarted_ns: int | None = None
    silence: tuple[int, int, int] | None = None
    restarts: int = 0
    members_lost: int = 0
    steps_rolled_back: int = 0
    evidence: list[str] = []
    tally: Tally = msgspec.field(default_factory=Tally)

    def add_evidence(self, event: AnyEvent) -> None:
        if len(self.evidence) < EVIDENCE_MAX:
            self.evidence.append(event.id)

    def copy(self) -> "LedgerIncident":
        return copied(self, "evidence", "tally")
