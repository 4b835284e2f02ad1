"""Numbers as people read them: times, durations, shares and GPU-hours."""

from datetime import UTC, datetime

_HOUR_NS = 3_600 * 10**9


def moment(ns: int) -> str:
    """A time in UTC, to the second."""
    return datetime.fromtimestamp(ns // 10**9, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(ns: int) -> str:
    """A span in its two largest units, such as 2 h 14 min."""
    seconds = ns / 10**9
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def gpu_hours(gpu_ns: int) -> str:
    hours = gpu_ns / _HOUR_NS
    return f"{hours:,.0f}" if hours >= 1000 else f"{hours:,.1f}" if hours >= 10 else f"{hours:,.3g}"


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * ratio:.1f} %"
