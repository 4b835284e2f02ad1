"""Amounts, shares, durations and moments as people write them, on a page and in the terminal alike.

A value that is not zero is never written as zero, nor a share below 100 % as 100 %. Times are UTC and the
months are spelt here, so nothing depends on the locale.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from math import floor, isfinite, log10

from holdfast.wording.units import DAY_S, HOUR_NS, HOUR_S, MINUTE_NS, MINUTE_S, SECOND_NS

SIGNIFICANT_DIGITS = 4
"""How many digits the largest amount of a report has; the others have as many decimals as it."""
DECIMALS_MAX = 2
"""A hundredth of a GPU-hour is half a minute of one GPU. Smaller amounts need no more precision."""
USD_WITH_CENTS_MAX = 1_000
NAME_CHARS_MAX = 120
"""Names come from other programs and may be whole lines of a log; the record has all of them."""
SPAN_WITH_SECONDS_NS_MAX = 10 * MINUTE_NS
DIGITS = 6
"""How many digits a number has that was given or measured, unless fewer are wanted."""
NUMBER_MIN = 1e-9
"""What is less is written as less than this."""
UNKNOWN = "–"
GPU, CPU_MEMBER = "GPU", "CPU member"
"""What is paid for by the hour, and its name where members have no GPU."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LARGE = (("trillion", 1e12), ("billion", 1e9), ("million", 1e6))
_BYTE_UNITS = (("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_UNITS = (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S), ("s", 1))


class Amounts:
    """GPU-time as GPU-hours and as shares of the paid time, with one precision for a whole report."""

    def __init__(self, paid_gpu_ns: int, counted: str = GPU) -> None:
        self.paid_gpu_ns, self.counted = paid_gpu_ns, counted
        digits_before_point = floor(log10(paid_gpu_ns / HOUR_NS)) + 1 if paid_gpu_ns else SIGNIFICANT_DIGITS
        self.decimals = max(0, min(DECIMALS_MAX, SIGNIFICANT_DIGITS - digits_before_point))

    def hours(self, gpu_ns: int) -> str:
        return _amount(gpu_ns / HOUR_NS, self.decimals)

    def share(self, gpu_ns: int) -> str:
        return percent(gpu_ns / self.paid_gpu_ns if self.paid_gpu_ns else None)

    def three(self, useful_gpu_ns: int, lost_gpu_ns: int, unknown_gpu_ns: int) -> str:
        """`7,076 GPU-hours useful, 887 lost, 0 not known`."""
        useful, lost, unknown = map(self.hours, (useful_gpu_ns, lost_gpu_ns, unknown_gpu_ns))
        return f"{useful} {self.counted}-hours useful, {lost} lost, {unknown} not known"


_CURRENCY: ContextVar[tuple[str, float]] = ContextVar("currency", default=("USD", 1.0))


@contextmanager
def in_currency(code: str, usd_per: float) -> Iterator[None]:
    """Write amounts, which are in USD, in another currency, one unit of which is worth `usd_per` USD."""
    token = _CURRENCY.set((code, usd_per))
    try:
        yield
    finally:
        _CURRENCY.reset(token)


def currency() -> str:
    """The currency that amounts are written in: the heading of a column of `usd_cell`."""
    return _CURRENCY.get()[0]


def converted(amount: float) -> float:
    """An amount of USD, as a number of the currency of the report."""
    return amount / _CURRENCY.get()[1]


def from_report(amount: float) -> float:
    """The value in USD of an amount in the currency of the report."""
    return amount * _CURRENCY.get()[1]


def with_unit(value: float, unit: str) -> str:
    """A number and its unit; `USD` and units such as `USD/h` are converted to the currency of the report."""
    if unit.partition("/")[0] == "USD":
        value, unit = round(converted(value), 4), unit.replace("USD", currency(), 1)
    return f"{number(value, 10)} {unit}"


def number(value: float, digits: int = DIGITS) -> str:
    """`1,020`, `0.0143`, `3.99`: so many digits at most, but every one before the point, and no exponent."""
    if 0 < abs(value) < NUMBER_MIN:
        return f"{'<' if value > 0 else '>'} {_signed(value, plain(NUMBER_MIN))}"
    return _signed(value, _digits(abs(value), digits, ","))


def plain(value: float, digits: int = 12) -> str:
    """A number as files and flags have it, without separators: `33750`, `0.00001`, `-1.5`."""
    return f"{'-' if value < 0 else ''}{_digits(abs(value), digits, '')}"


def seconds(value_s: float, digits: int = 3) -> str:
    """A time that was measured: `18.2 ms`, `1.24 s`, `46.3 s`, `17 min`."""
    if 0 < value_s < 0.1:
        return f"{number(1_000 * value_s, digits)} ms"
    return f"{number(value_s, digits)} s" if value_s < MINUTE_S else lasting(value_s)


def usd(amount: float) -> str:
    """An amount of USD, in the currency of the report."""
    code, usd_per = _CURRENCY.get()
    value = amount / usd_per
    return f"{_amount(value, 2 if abs(value) < USD_WITH_CENTS_MAX else 0)} {code}"


def usd_cell(amount: float | None, largest: float) -> str:
    """A cell in a column of USD with this largest amount: either all amounts have cents, or none has."""
    if amount is None:
        return UNKNOWN
    usd_per = _CURRENCY.get()[1]
    return _amount(amount / usd_per, 2 if largest / usd_per < USD_WITH_CENTS_MAX else 0)


def rough(amount: float) -> str:
    """A number with few digits: `4.19 million`, `5,143`, `−39.8`."""
    magnitude = abs(amount)
    for name, size in _LARGE:
        if magnitude >= size:
            return _signed(amount, f"{number(magnitude / size, 3)} {name}")
    return _amount(amount, 0 if magnitude >= 100 or amount == int(amount) else 1)


def size(size_bytes: int) -> str:
    """`2.3 TB`, with three digits at most before and one after the point."""
    for unit, unit_bytes in _BYTE_UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:,.1f} {unit}"
    return many(size_bytes, "byte")


def set_back(run_hours: float, steps: float | None, tokens: float | None) -> str:
    """A loss as progress: `5 h 44 min of the whole run, 2,583 steps, 23.9 % of a day's progress`."""
    parts = [f"{duration(round(run_hours * HOUR_NS))} of the whole run"]
    if steps is not None:
        parts.append(f"{rough(steps)} {'step' if steps == 1 else 'steps'}")
    if tokens is not None:
        parts.append(f"{rough(tokens)} tokens")
    return ", ".join([*parts, f"{percent(run_hours / 24)} of a day's progress"])


def many(count: float, noun: str) -> str:
    """`1 restart`, `1,920 steps`, `2.5 days`: a number with a noun whose plural is regular."""
    written = f"{count:,}" if isinstance(count, int) else number(count)
    return f"{written} {noun}{'' if count == 1 else 's'}"


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count:,} times"


def ending(outcome: str, reason: str, survived_errors: int) -> str:
    """How a run ended: `Failed: SIGKILL`, `Completed with 2 survived errors`."""
    survived = f" with {many(survived_errors, 'survived error')}" if survived_errors else ""
    return opening(outcome) + survived + (f": {reason}" if reason else "")


def percent(ratio: float | None) -> str:
    """A ratio, 0 to 1, with one decimal."""
    if ratio is None:
        return UNKNOWN
    written = f"{100 * ratio:.1f} %"
    if ratio > 0 and written == "0.0 %":
        return "< 0.1 %"
    return "> 99.9 %" if ratio < 1 and written == "100.0 %" else written


def between(bounds: tuple[float, float]) -> str:
    """The bounds of a ratio: `50.0 % to 100.0 %`."""
    least, most = bounds
    return f"{percent(least)} to {percent(most)}"


def duration(duration_ns: int) -> str:
    """The two largest units: `9 h 49 min`, `2 min 47 s`, `8 s`; below ten seconds with milliseconds."""
    if duration_ns < 10 * 10**9:
        written = f"{number(round(duration_ns / 1e9, 3))} s"
        return "< 0.001 s" if duration_ns and written == "0 s" else written
    return lasting(duration_ns / SECOND_NS)


def lasting(seconds: float) -> str:
    """The two largest units: `3 h 20 min`, `4 min 10 s`, `8 s`."""
    left_s = max(0, round(seconds))
    parts: list[str] = []
    for unit, unit_s in _UNITS:
        count, left_s = divmod(left_s, unit_s)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2])) or "0 s"


def listed(names: Sequence[str], most: int) -> str:
    """`n00001, n00002 and 14 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def opening(text: str) -> str:
    """The text with a capital at its beginning; the rest is unchanged, such as an `XID 79`."""
    return text[:1].upper() + text[1:]


def short(name: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """A name, cut if it is too long."""
    return name if len(name) <= chars_max else name[: chars_max - 1] + "…"


def run_label(run: str, name: str, chars_max: int = NAME_CHARS_MAX, *, part: str = "") -> str:
    """A run, or a part of it, by its id, and by its name if it has another one."""
    label = short(f"{run}{part}", chars_max)
    return label if name in ("", run) else f"{label} ({short(name, chars_max)})"


def kept(steps: int) -> str:
    """How many steps a run gained; after a rollback in the window it may have fewer than before."""
    return f"{many(-steps, 'step')} fewer than before" if steps < 0 else f"{many(steps, 'step')} kept"


def exact_seconds(nanoseconds: int) -> str:
    """An amount with all nine decimals, to check exact sums with."""
    return f"{nanoseconds // 10**9:,}.{nanoseconds % 10**9:09d}"


def day(moment_ns: int) -> str:
    at = _utc(moment_ns)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def moment(moment_ns: int) -> str:
    return f"{day(moment_ns)}, {_utc(moment_ns):%H:%M}"


def moment_of_year(moment_ns: int) -> str:
    """A moment without its year, for narrow columns."""
    at = _utc(moment_ns)
    return f"{at.day} {_MONTHS[at.month - 1]}, {at:%H:%M}"


def stamp(moment_ns: int) -> str:
    """A moment for lines of a log: to the second, sortable as text, and accepted by `--since`."""
    return f"{_utc(moment_ns):%Y-%m-%d %H:%M:%SZ}"


def span(from_ns: int, to_ns: int) -> str:
    """A span of time: the day only once, and seconds only if minutes would be the same."""
    clock = "%H:%M:%S" if to_ns - from_ns < SPAN_WITH_SECONDS_NS_MAX else "%H:%M"
    start, end = (f"{_utc(at_ns):{clock}}" for at_ns in (from_ns, to_ns))
    if day(from_ns) != day(to_ns):
        end = f"{day(to_ns)}, {end}"
    return f"{day(from_ns)}, {start} to {end} UTC"


def window(from_ns: int | None, to_ns: int | None) -> str:
    """`from 1 Oct 2026, 00:00 UTC`, `before 1 Nov 2026, 00:00 UTC`, or both."""
    parts = [] if from_ns is None else [f"from {moment(from_ns)}"]
    parts += [] if to_ns is None else [f"before {moment(to_ns)}"]
    return " and ".join(parts)


def tick(moment_ns: int, step_ns: int) -> str:
    """A label on an axis of time whose labels are `step_ns` apart, with no more detail than needed."""
    at = _utc(moment_ns)
    month = _MONTHS[at.month - 1]
    if step_ns >= 31 * 24 * HOUR_NS:
        return f"{month} {at.year}"
    if step_ns >= 24 * HOUR_NS:
        return f"{at.day} {month}"
    return f"{at:%H:%M:%S}" if step_ns % (60 * 10**9) else f"{at:%H:%M}"


def _amount(value: float, decimals: int) -> str:
    written = f"{abs(value):,.{decimals}f}"
    if value and not written.strip("0."):
        return f"{'<' if value > 0 else '>'} {_signed(value, f'{10**-decimals:.{decimals}f}')}"
    return _signed(value, written)


def _digits(magnitude: float, digits: int, separator: str) -> str:
    before_point = floor(log10(magnitude)) + 1 if magnitude and isfinite(magnitude) else 1
    written = f"{magnitude:{separator}.{max(0, digits - before_point)}f}"
    return written.rstrip("0").rstrip(".") if "." in written else written


def _signed(value: float, magnitude: str) -> str:
    return f"−{magnitude}" if value < 0 else magnitude


def _utc(moment_ns: int) -> datetime:
    return datetime.fromtimestamp(moment_ns // 10**9, UTC)


def resting(figure: str, basis: str) -> str:
    """A figure with its basis beside it, if it is estimated."""
    return f"{figure} ({basis})" if basis else figure
