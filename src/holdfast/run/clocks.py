"""Convert a time by a member's clock to the coordinator's clock."""

import msgspec

from holdfast.run.waits import ns

CLOCK_S = 60.0
"""How long a fast message counts. It is forgotten after twice this time at the latest."""


class MemberClock(msgspec.Struct, kw_only=True):
    """By how much our clock is ahead of a member's. We assume that the fastest recent message took no time; a
    slower one was held up on its way, for example because the coordinator was stopped.

    Only recent messages count, because the clock of a suspended machine stands still and any two clocks drift
    apart. Recent is measured by our clock, not the member's: messages that were held up for long arrive all
    at once, and are judged by the messages before them. since_ns: when we began to look for `least_ns`.
    earlier_ns: the result of the period before.
    """

    since_ns: int
    least_ns: int
    earlier_ns: int

    @classmethod
    def begun(cls, at_ns: int, now_ns: int) -> "MemberClock":
        """The clock after the member's first message, sent at the member's `at_ns` and received now."""
        return cls(since_ns=now_ns, least_ns=now_ns - at_ns, earlier_ns=now_ns - at_ns)

    def moment_ns(self, at_ns: int, now_ns: int) -> int:
        """The member's `at_ns` by our clock; never later than now."""
        ahead_ns = now_ns - at_ns
        if now_ns - self.since_ns >= ns(CLOCK_S):
            self.since_ns, self.earlier_ns, self.least_ns = now_ns, self.least_ns, ahead_ns
        self.least_ns = min(ahead_ns, self.least_ns)
        return at_ns + min(self.least_ns, self.earlier_ns)
