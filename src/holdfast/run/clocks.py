"""When a member did something, by the coordinator's clock, if the member says when by its own."""

import msgspec

from holdfast.run.waits import ns

CLOCK_S = 60.0
"""How long a quick message counts. What came before is forgotten after twice this time at the latest."""


class MemberClock(msgspec.Struct, kw_only=True):
    """By how much our clock is ahead of a member's. The message that came quickest of late came at once; what
    takes longer was held up on its way, as by a coordinator that was stopped.

    Only of late: the clock of a machine that is suspended stands still meanwhile, and any two drift apart. By
    our clock, not by the member's: what was held up for long comes all at once, and is judged by what came
    before it. since_ns: when we began to look for `least_ns`; earlier_ns: what was found the time before.
    """

    since_ns: int
    least_ns: int
    earlier_ns: int

    @classmethod
    def begun(cls, at_ns: int, now_ns: int) -> "MemberClock":
        """By its first message: now, and for the member `at_ns`."""
        return cls(since_ns=now_ns, least_ns=now_ns - at_ns, earlier_ns=now_ns - at_ns)

    def moment_ns(self, at_ns: int, now_ns: int) -> int:
        """By our clock, when the member did what it now says it did at `at_ns`; never later than now."""
        ahead_ns = now_ns - at_ns
        if now_ns - self.since_ns >= ns(CLOCK_S):
            self.since_ns, self.earlier_ns, self.least_ns = now_ns, self.least_ns, ahead_ns
        self.least_ns = min(ahead_ns, self.least_ns)
        return at_ns + min(self.least_ns, self.earlier_ns)
