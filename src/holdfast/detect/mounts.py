"""How long a mount takes to answer, over all its clients: no single client's counters show that."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import SIGMAS, SIGNS, Rule
from holdfast.detect.signs import Sign
from holdfast.detect.stretches import findings
from holdfast.signals.frame import Floats

FAMILY = "node_mountstats_nfs_operations_{}_total"
REQUESTS, RESPONSE, SENT = (
    FAMILY.format(name) for name in ("requests", "response_time_seconds", "transmissions")
)
READ = (REQUESTS, RESPONSE, SENT)
SIGN_OF: dict[str, Sign] = {"READ": "slow-reads", "WRITE": "slow-writes"}
REQUESTS_PER_S_MIN = 1.0
"""Fewer requests say nothing about a mount."""
SLOWER_SHARE, SLOWER_S = 0.5, 0.003
"""A busy disk takes a millisecond or two more now and then."""
ROWS_MIN, LASTS_S_MIN = 2, 5.0
"""It has to be slow for this many scrapes and this long: two scrapes seconds apart are a hiccup."""
BRIDGE_S = 900.0
"""A problem that returns within this time never ended."""
BUSY_TIMES, BUSY_PER_S = 2.0, 50.0
"""A mount is crowded if others send this many times the usual requests, and at least this many more."""
RESENT_SHARE = 0.002
"""Share of the calls: a filer that is only busy answers all of them."""


class _Mount(NamedTuple):
    """One operation on one mount, at the times at which it had requests.

    before_s: its response times before anything was wrong; gap: the row before which time is left out.
    """

    name: str
    operation: str
    times_ns: NDArray[np.int64]
    response_s: Floats
    resent_share: Floats
    trust: Floats
    before_s: Floats
    gap: int | None


def _mount_findings(look: Look) -> Iterator[Finding]:
    requests, response, sent = (look.panels.rate(metric) for metric in READ)
    if requests is None or response is None:
        return
    window_ns = look.panels.window_ns
    past_ns = round(window_ns[0] + compare.PAST_SHARE * (window_ns[1] - window_ns[0]))
    for mount in _mounts(requests, response, sent, look.mounts):
        if len(mount.times_ns) > ROWS_MIN:
            yield from _slow(mount, max(ROWS_MIN, int(np.searchsorted(mount.times_ns, past_ns))))
            yield from _resent(mount)
    yield from _crowded(look, requests)


def _crowded(look: Look, asked: Panel) -> Iterator[Finding]:
    """Mounts that get far more requests than before from hosts outside the runs under examination."""
    if not look.hosts:
        return
    groups: dict[str, list[int]] = {}
    for column, labels in enumerate(asked.labels):
        if asked.subjects[column] not in look.hosts:
            groups.setdefault(_name_of(labels, look.mounts), []).append(column)
    for name, columns in groups.items():
        panel = Panel(
            metric=REQUESTS,
            subjects=(name,),
            labels=(),
            times_ns=asked.times_ns,
            values=np.nansum(asked.values[:, columns], axis=1, keepdims=True),
            trust=asked.trust[columns].mean(keepdims=True),
            before=None
            if asked.before is None
            else np.nansum(asked.before[:, columns], axis=1, keepdims=True),
            gap=asked.gap,
        )
        least = np.maximum((BUSY_TIMES - 1) * panel.usual, max(BUSY_PER_S, SIGMAS * panel.scatter))
        with np.errstate(invalid="ignore"):
            wrong = panel.values - panel.usual > least
        rule = Rule(sign="busy-mount", metric=REQUESTS, unit="/s", note=SIGNS["busy-mount"])
        yield from findings(rule, panel, wrong, panel.usual, least.astype(np.float32), BRIDGE_S)


def _mounts(asked: Panel, response: Panel, sent: Panel | None, known: Collection[str]) -> Iterator[_Mount]:
    """known: the filers in the topology."""
    waited = _at_times_of(asked, response)
    tried = None if sent is None else _at_times_of(asked, sent)
    for key, columns in _groups(asked, known).items():
        total = np.nansum(asked.values[:, columns], axis=1)
        waits = np.nansum(_same(waited, asked, columns), axis=1)
        sends = total if tried is None else np.nansum(_same(tried, asked, columns), axis=1)
        busy = total > REQUESTS_PER_S_MIN
        ahead = 0 if asked.gap is None else int(busy[: asked.gap].sum())
        yield _Mount(
            name=key[0],
            operation=key[1],
            times_ns=asked.times_ns[busy],
            response_s=(waits[busy] / total[busy])[:, None].astype(np.float32),
            resent_share=(sends[busy] / total[busy] - 1.0)[:, None].astype(np.float32),
            trust=asked.trust[columns].mean(keepdims=True),
            before_s=_before_s(asked, waited, columns),
            gap=ahead if 0 < ahead < int(busy.sum()) else None,
        )


def _before_s(asked: Panel, waited: Panel, columns: list[int]) -> Floats:
    if asked.before is None or waited.before is None or len(asked.before) != len(waited.before):
        return np.empty((0, 1), np.float32)
    total = np.nansum(asked.before[:, columns], axis=1)
    part = msgspec.structs.replace(waited, values=waited.before)
    waits = np.nansum(_same(part, asked, columns), axis=1)
    busy = total > REQUESTS_PER_S_MIN
    return np.asarray(waits[busy] / total[busy], np.float32)[:, None]


def _at_times_of(other: Panel, panel: Panel) -> Panel:
    """The panel at the times of the other one: each metric is read separately, from its own beginning."""
    if len(panel.times_ns) == len(other.times_ns) and (panel.times_ns == other.times_ns).all():
        return panel
    middles_ns = (panel.times_ns[1:] + panel.times_ns[:-1]) // 2
    rows = np.searchsorted(middles_ns, other.times_ns)
    off_ns = np.abs(panel.times_ns[rows] - other.times_ns)
    step_ns = np.median(np.diff(other.times_ns)) if len(other.times_ns) > 1 else 0
    values = np.where((off_ns <= step_ns)[:, None], panel.values[rows], np.nan)
    return msgspec.structs.replace(panel, times_ns=other.times_ns, values=values)


def _name_of(labels: Mapping[str, str], known: Collection[str]) -> str:
    """The filer's name in the topology: the name in the mounted export, or else its address."""
    server = labels.get("export", "").rpartition(":/")[0]
    return server if server in known else labels.get("mountaddr", "")


def _groups(panel: Panel, known: Collection[str]) -> dict[tuple[str, str], list[int]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for column, labels in enumerate(panel.labels):
        if labels.get("operation") in SIGN_OF:
            groups.setdefault((_name_of(labels, known), labels["operation"]), []).append(column)
    return groups


def _same(panel: Panel, other: Panel, columns: list[int]) -> Floats:
    """The columns of a panel that have the labels of the other one's columns."""
    if panel.labels == other.labels:
        return panel.values[:, columns]
    index = {tuple(sorted(labels.items())): column for column, labels in enumerate(panel.labels)}
    wanted = [index.get(tuple(sorted(other.labels[column].items()))) for column in columns]
    return panel.values[:, [column for column in wanted if column is not None]]


def _slow(mount: _Mount, past: int) -> Iterator[Finding]:
    """past: how many of its rows are the baseline, chosen by time: a slow mount has more busy rows."""
    sign, rows = SIGN_OF[mount.operation], np.arange(past)
    known = mount.response_s
    if len(mount.before_s) >= ROWS_MIN:
        known, rows = mount.before_s, np.arange(len(mount.before_s))
    usual = compare.usual(known, rows)
    scatter = SIGMAS * compare.spread(known, usual, rows)
    least = np.maximum(SLOWER_SHARE * usual, max(scatter, SLOWER_S)).astype(np.float32)
    scrapes = max(ROWS_MIN, compare.rows_in(mount.times_ns, LASTS_S_MIN))
    rule = Rule(sign=sign, metric=RESPONSE, unit="s", note=SIGNS[sign], scrapes=scrapes)
    yield from _found(rule, mount, mount.response_s, usual, least)


def _resent(mount: _Mount) -> Iterator[Finding]:
    rule = Rule(
        sign="resent-calls",
        metric=SENT,
        unit="of the calls",
        note=SIGNS["resent-calls"],
        against="limit",
        limit=RESENT_SHARE,
        scrapes=2,
    )
    limit = np.full(1, RESENT_SHARE, np.float32)
    yield from _found(rule, mount, mount.resent_share, limit, np.zeros(1, np.float32))


def _found(rule: Rule, mount: _Mount, values: Floats, usual: Floats, least: Floats) -> Iterator[Finding]:
    with np.errstate(invalid="ignore"):
        wrong = values - usual > least
    panel = Panel(
        metric=rule.metric,
        subjects=(mount.name,),
        labels=(),
        times_ns=mount.times_ns,
        values=values,
        trust=mount.trust,
        gap=mount.gap,
    )
    yield from findings(rule, panel, wrong, usual, least, clock_ns=_asked_ns(panel.clock_ns))


def _asked_ns(times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The times as if the mount had requests all the time. It has them now and then, as for checkpoints;
    until the next request its last state continues.
    """
    apart = np.diff(times_ns, prepend=times_ns[:1])
    usual = np.median(apart[1:]) if len(apart) > 1 else 0
    return np.cumsum(np.minimum(apart, usual)).astype(np.int64)


MOUNTS = FunctionDetector(
    (
        *(Sense(sign, (REQUESTS, RESPONSE)) for sign in SIGN_OF.values()),
        Sense("resent-calls", (REQUESTS, RESPONSE, SENT)),
        Sense("busy-mount", (REQUESTS, RESPONSE)),
    ),
    _mount_findings,
)
