"""Findings on hosts that need two metrics: how long a disk takes, how full it is, how short memory is."""

from collections.abc import Iterator

import msgspec
import numpy as np

from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.signs import Sign
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats, Labels

DISK = "node_disk_{}_total"
WAITS = {
    DISK.format("write_time_seconds"): DISK.format("writes_completed"),
    DISK.format("read_time_seconds"): DISK.format("reads_completed"),
}
"""The time of all requests, and their number."""
AVAILABLE, SIZE = "node_filesystem_avail_bytes", "node_filesystem_size_bytes"
MEMORY, MEMORY_ALL = "node_memory_MemAvailable_bytes", "node_memory_MemTotal_bytes"
TABLE, TABLE_ALL = "node_nf_conntrack_entries", "node_nf_conntrack_entries_limit"
BUFFER_FREE, BUFFER_USED = "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED"
NAMES = "coredns_dns_request_duration_seconds_count"
NAMES_TIME = "coredns_dns_request_duration_seconds_sum"
NAMES_S = 0.05
LUSTRE_TIME, LUSTRE_COUNT = "lustre_stats_time_total", "lustre_stats_total"
US_TO_S = 1e-6
TCP_AGAIN, TCP_SENT = "node_netstat_Tcp_RetransSegs", "node_netstat_Tcp_OutSegs"
SEGMENTS_PER_S_MIN, RESENT_TIMES, RESENT_SHARE = 200.0, 4.0, 0.01
CLOCKS = ("chrony_tracking_last_offset_seconds", "node_timex_offset_seconds")
CLOCK_OFF_S = 0.1
"""As for the flaw `clock`: with a larger offset, events of different hosts come out of order."""
REQUESTS_PER_S_MIN = 1.0
SLOWER_TIMES, SLOWER_S = 3.0, 0.015
NOT_LOCAL = frozenset(
    {"tmpfs", "squashfs", "iso9660", "nfs", "nfs4", "lustre", "overlay", "ramfs", "devtmpfs"}
)
SCARCE: dict[Sign, tuple[str, str]] = {
    "full-disk": (AVAILABLE, SIZE),
    "low-memory": (MEMORY, MEMORY_ALL),
    "full-table": (TABLE, TABLE_ALL),
    "full-buffer": (BUFFER_FREE, BUFFER_USED),
}
LEFT = {AVAILABLE: 0.03, MEMORY: 0.05, TABLE: 0.05, BUFFER_FREE: 0.02}
"""As a share of the whole: with less left, it is practically exhausted."""
LEFT_BEFORE, LEFT_EMPTY = 1.5, 0.001
"""The share left must have been this many times as large before; an empty one counts as `LEFT_EMPTY`. A disk
that has always been full is not reported.
"""


def _more(rule: Rule, panel: Panel, usual: Floats, times: float, least: float) -> Iterator[Finding]:
    """Find values above `times` the usual that also exceed it by at least `least`."""
    enough = np.maximum((times - 1) * usual, max(least, SIGMAS * panel.scatter)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        wrong = panel.values - usual > enough
    yield from findings(rule, panel, wrong, usual, enough)


def _slow_disks(look: Look) -> Iterator[Finding]:
    for waits, counts in WAITS.items():
        waited, count = look.panels.rate(waits), look.panels.rate(counts)
        if waited is None or count is None:
            continue
        each = _ratio(waited, count, least=REQUESTS_PER_S_MIN)
        if each is None:
            continue
        usual = np.where(np.isfinite(each.usual), each.usual, 0.0).astype(np.float32)
        rule = Rule(sign="slow-disk", metric=waits, unit="s", note=SIGNS["slow-disk"])
        yield from _more(rule, each, usual, SLOWER_TIMES, SLOWER_S)


def _slow_lustre(look: Look) -> Iterator[Finding]:
    """The mean time of a Lustre client's operations."""
    waited, count = look.panels.rate(LUSTRE_TIME), look.panels.rate(LUSTRE_COUNT)
    if waited is None or count is None or len(waited.times_ns) != len(count.times_ns):
        return
    each = _ratio(_by_host(waited), _by_host(count), least=REQUESTS_PER_S_MIN)
    if each is None:
        return
    each = each.scaled(US_TO_S)
    rule = Rule(sign="slow-lustre", metric=LUSTRE_TIME, unit="s", note=SIGNS["slow-lustre"])
    yield from _more(rule, each, each.usual, SLOWER_TIMES, SLOWER_S)


def _resent_segments(look: Look) -> Iterator[Finding]:
    """Hosts that resend a far larger share of their TCP segments than before."""
    again, sent = look.panels.rate(TCP_AGAIN), look.panels.rate(TCP_SENT)
    share = None if again is None or sent is None else _ratio(again, sent, least=SEGMENTS_PER_S_MIN)
    if share is None:
        return
    note = "packets are lost and sent again"
    rule = Rule(sign="resent-packets", metric=TCP_AGAIN, unit="of the segments", note=note)
    yield from _more(rule, share, share.usual, RESENT_TIMES, RESENT_SHARE)


def _clocks(look: Look) -> Iterator[Finding]:
    """Clocks that are off: events of such a host carry the wrong time."""
    for metric in CLOCKS:
        panel = look.panels.value(metric)
        if panel is None:
            continue
        off = msgspec.structs.replace(panel, values=np.abs(panel.values), before=None)
        with np.errstate(invalid="ignore"):
            wrong = off.values > CLOCK_OFF_S
        rule = Rule(sign="clock-off", metric=metric, unit="s", note=SIGNS["clock-off"], against="limit")
        limit = np.full(len(off.subjects), CLOCK_OFF_S, np.float32)
        yield from findings(rule, off, wrong, limit, np.zeros_like(limit))


def _by_host(panel: Panel) -> Panel:
    """One series for each host: the sum of its series."""
    groups: dict[str, list[int]] = {}
    for column, subject in enumerate(panel.subjects):
        groups.setdefault(subject, []).append(column)

    def added(values: Floats) -> Floats:
        return np.stack([np.nansum(values[:, own], axis=1) for own in groups.values()], axis=1)

    return msgspec.structs.replace(
        panel,
        subjects=tuple(groups),
        labels=tuple({} for _ in groups),
        values=added(panel.values),
        before=None if panel.before is None else added(panel.before),
        trust=np.array([panel.trust[own].min() for own in groups.values()], np.float32),
        words=(),
    )


def _slow_names(look: Look) -> Iterator[Finding]:
    """The mean time of an answer over all name servers."""
    waited, count = look.panels.rate(NAMES_TIME), look.panels.rate(NAMES)
    if waited is None or count is None or len(waited.times_ns) != len(count.times_ns):
        return
    before = None
    if waited.before is not None and count.before is not None and len(waited.before) == len(count.before):
        before = _divided(_all(waited.before), _all(count.before), 0.0)
    each = Panel(
        metric=NAMES_TIME,
        subjects=waited.subjects[:1],
        labels=(),
        times_ns=waited.times_ns,
        values=_divided(_all(waited.values), _all(count.values), 0.0),
        trust=waited.trust.mean(keepdims=True),
        before=before,
        gap=waited.gap,
    )
    rule = Rule(sign="slow-names", metric=NAMES_TIME, unit="s", note=SIGNS["slow-names"])
    yield from _more(rule, each, each.usual, SLOWER_TIMES, NAMES_S)


def _all(values: Floats) -> Floats:
    return np.asarray(np.nansum(values, axis=1, keepdims=True))


def _exhausted(look: Look) -> Iterator[Finding]:
    """Resources that were sufficient before and are now nearly used up."""
    for sign, (left, whole) in SCARCE.items():
        part, all_of_it = look.panels.value(left), look.panels.value(whole)
        if part is None or all_of_it is None:
            continue
        share = _ratio(part, all_of_it)
        if share is None:
            continue
        if left == TABLE:  # This metric counts the used entries.
            before = None if share.before is None else 1 - share.before
            share = msgspec.structs.replace(share, values=1 - share.values, before=before)
        share = share.some(np.flatnonzero([labels.get("fstype") not in NOT_LOCAL for labels in share.labels]))
        usual, least = share.usual, LEFT[left]
        with np.errstate(invalid="ignore"):
            wrong = (share.values < least) & (usual > LEFT_BEFORE * np.maximum(share.values, LEFT_EMPTY))
        rule = Rule(sign=sign, metric=left, unit="of it left", note=SIGNS[sign], falls=True)
        yield from findings(rule, share, wrong, usual, np.full(len(usual), least, np.float32))


def _ratio(part: Panel, whole: Panel, least: float = 0.0) -> Panel | None:
    """One metric divided by another, series by series; NaN if the divisor is not above `least`."""
    if len(part.times_ns) != len(whole.times_ns):
        return None
    place = {
        _key(subject, labels): n
        for n, (subject, labels) in enumerate(zip(whole.subjects, whole.labels, strict=True))
    }
    keys = map(_key, part.subjects, part.labels)
    pairs = np.array([(n, place[key]) for n, key in enumerate(keys) if key in place], np.int64)
    if not len(pairs):
        return None
    mine, theirs = part.some(pairs[:, 0]), whole.some(pairs[:, 1])
    before = None
    if mine.before is not None and theirs.before is not None and len(mine.before) == len(theirs.before):
        before = _divided(mine.before, theirs.before, least)
    return msgspec.structs.replace(
        mine,
        values=_divided(mine.values, theirs.values, least),
        before=before,
        trust=np.minimum(mine.trust, theirs.trust),
    )


def _divided(part: Floats, whole: Floats, least: float) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > least, part / whole, np.nan)


def _key(subject: str, labels: Labels) -> tuple[str, ...]:
    return (subject, labels.get("device", ""), labels.get("mountpoint", ""), labels.get("gpu", ""))


DISKS = FunctionDetector(tuple(Sense("slow-disk", pair) for pair in WAITS.items()), _slow_disks)
NAME_SERVERS = FunctionDetector((Sense("slow-names", (NAMES_TIME, NAMES)),), _slow_names)
EXHAUSTED = FunctionDetector(tuple(Sense(sign, pair) for sign, pair in SCARCE.items()), _exhausted)
LUSTRE = FunctionDetector((Sense("slow-lustre", (LUSTRE_TIME, LUSTRE_COUNT)),), _slow_lustre)
SEGMENTS = FunctionDetector((Sense("resent-packets", (TCP_AGAIN, TCP_SENT)),), _resent_segments)
CLOCK_OFFSETS = FunctionDetector(tuple(Sense("clock-off", (metric,)) for metric in CLOCKS), _clocks)
