"""Amounts, shares, durations and moments as people write them.

What is not zero is never written as zero, and what is not all is never written as all. Times are UTC and the
months are spelt here, so a page does not depend on the locale of whoever makes it.
"""

from datetime import UTC, datetime
from math import floor, log10

HOUR_NS = 3_600 * 10**9
SIGNIFICANT_DIGITS = 4
"""How many digits of the largest amount of a page are shown; the others have as many decimals."""
DECIMALS_MAX = 6
NAME_CHARS_MAX = 120
"""Names come from others and may be whole lines of a log; the record has the rest."""
SPAN_WITH_SECONDS_NS_MAX = 600 * 10**9
UNKNOWN = "–"

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


class Amounts:
    """GPU-time as GPU-hours and as shares of what was paid for, with one precision for a whole page."""

    def __init__(self, paid_gpu_ns: int) -> None:
        self.paid_gpu_ns = paid_gpu_ns
        digits_before_point = floor(log10(paid_gpu_ns / HOUR_NS)) + 1 if paid_gpu_ns else SIGNIFICANT_DIGITS
        self.decimals = max(0, min(DECIMALS_MAX, SIGNIFICANT_DIGITS - digits_before_point))

    def hours(self, gpu_ns: int) -> str:
        written = f"{gpu_ns / HOUR_NS:,.{self.decimals}f}"
        smallest = f"{10**-self.decimals:.{self.decimals}f}"
        return f"< {smallest}" if gpu_ns and not written.strip("0.") else written

    def share(self, gpu_ns: int) -> str:
        return percent(gpu_ns / self.paid_gpu_ns if self.paid_gpu_ns else None)


def percent(ratio: float | None) -> str:
    """A ratio, 0 to 1, with one decimal."""
    if ratio is None:
        return UNKNOWN
    written = f"{100 * ratio:.1f} %"
    if ratio > 0 and written == "0.0 %":
        return "< 0.1 %"
    return "> 99.9 %" if ratio < 1 and written == "100.0 %" else written


def duration(duration_ns: int) -> str:
    """The two largest units: `9 h 49 min`, `2 min 47 s`, `8 s`; below ten seconds with milliseconds."""
    if duration_ns < 10 * 10**9:
        return f"{round(duration_ns / 1e9, 3):g} s"
    parts: list[str] = []
    remaining_s = round(duration_ns / 1e9)
    for unit, unit_s in _UNITS:
        count, remaining_s = divmod(remaining_s, unit_s)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2]))


def opening(text: str) -> str:
    """Fit to begin a line, the rest left as it is: an `XID 79` stays one."""
    return text[:1].upper() + text[1:]


def short(name: str) -> str:
    """A name as far as a page has room for it."""
    return name if len(name) <= NAME_CHARS_MAX else name[: NAME_CHARS_MAX - 1] + "…"


def exact_seconds(nanoseconds: int) -> str:
    """All nine decimals: what an exact sum can be checked with."""
    return f"{nanoseconds // 10**9:,}.{nanoseconds % 10**9:09d}"


def day(moment_ns: int) -> str:
    at = _utc(moment_ns)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def moment(moment_ns: int) -> str:
    return f"{day(moment_ns)}, {_utc(moment_ns):%H:%M}"


def span(from_ns: int, to_ns: int) -> str:
    """From when until when: the day not said twice, seconds where minutes would not tell them apart."""
    clock = "%H:%M:%S" if to_ns - from_ns < SPAN_WITH_SECONDS_NS_MAX else "%H:%M"
    start, end = (f"{_utc(at_ns):{clock}}" for at_ns in (from_ns, to_ns))
    if day(from_ns) != day(to_ns):
        end = f"{day(to_ns)}, {end}"
    return f"{day(from_ns)}, {start} to {end} UTC"


def tick(moment_ns: int, step_ns: int) -> str:
    """A label on an axis of time whose labels are `step_ns` apart: no more than tells them apart."""
    at = _utc(moment_ns)
    month = _MONTHS[at.month - 1]
    if step_ns >= 31 * 24 * HOUR_NS:
        return f"{month} {at.year}"
    if step_ns >= 24 * HOUR_NS:
        return f"{at.day} {month}"
    return f"{at:%H:%M:%S}" if step_ns % (60 * 10**9) else f"{at:%H:%M}"


def _utc(moment_ns: int) -> datetime:
    return datetime.fromtimestamp(moment_ns // 10**9, UTC)
