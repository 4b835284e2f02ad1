"""Findings that need two metrics, or a label: a PCIe link below its width, an error that the driver named."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.finding import Finding
from holdfast.detect.machines import findings
from holdfast.detect.rules import SIGNS, Rule
from holdfast.detect.xids import Overrides, XidPolicy, policy
from holdfast.signals.frame import Floats, Frame, Labels
from holdfast.signals.source import Source

WIDTH, WIDTH_MAX = "node_pcidevice_current_link_width", "node_pcidevice_max_link_width"
XIDS, XID_COUNTS = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
READ = (WIDTH, WIDTH_MAX, XIDS, XID_COUNTS)
IDENTITY = ("segment", "bus", "device", "function", "instance")
XID_CONFIDENCE = 0.97


def narrow_buses(source: Source, window_ns: tuple[int, int]) -> Iterator[Finding]:
    """Devices whose link has fewer lanes than they have themselves."""
    now, most = source.frame(WIDTH, window_ns), source.frame(WIDTH_MAX, window_ns)
    if now is None or most is None or not len(now.times_ns):
        return
    widest = np.fmax.reduce(most.values, axis=0)
    limit_of = dict(zip(map(_device, most.labels), widest.tolist(), strict=True))
    usual = np.array([limit_of.get(_device(labels), 0.0) for labels in now.labels], np.float32)
    with np.errstate(invalid="ignore"):
        wrong = now.values < usual
    rule = Rule(
        sign="narrow-bus", metric=WIDTH, unit="lanes", note=SIGNS["narrow-bus"], against="physics", scrapes=2
    )
    ones = np.ones(len(usual), np.float32)
    yield from findings(rule, now.subjects, now.values, wrong, usual, now.times_ns, ones, ones)


def _device(labels: Labels) -> tuple[str | None, ...]:
    return tuple(map(labels.get, IDENTITY))


def xid_findings(source: Source, window_ns: tuple[int, int], overrides: Overrides) -> Iterator[Finding]:
    """Codes that appeared in this window. The gauge never clears, so one that was there before is no news."""
    for metric in (XIDS, XID_COUNTS):
        frame = source.frame(metric, window_ns)
        if frame is None or not len(frame.times_ns):
            continue
        for row, column in np.argwhere(_changed(frame.values)).tolist():
            code = _code(frame, row, column)
            decided = None if code is None else policy(code, overrides=overrides)
            if decided is not None and decided.severity != "none":
                yield _reported(decided, frame, row, column)


def _changed(values: Floats) -> NDArray[np.bool_]:
    """Where a series shows a code, and another one or none at its last reading before."""
    with np.errstate(invalid="ignore"):
        columns = np.flatnonzero((values > 0).any(axis=0))
    changed = np.zeros(values.shape, np.bool_)
    before = np.where(np.isnan(values[0, columns]), 0.0, values[0, columns])
    for row in range(1, len(values)):
        now = np.where(np.isnan(values[row, columns]), before, values[row, columns])
        changed[row, columns] = (now > 0) & (now != before)
        before = now
    return changed


def _code(frame: Frame, row: int, column: int) -> int | None:
    """The gauge shows the code itself; of counts it is a label."""
    if frame.metric == XIDS:
        return int(frame.values[row, column])
    text = frame.labels[column].get("xid", "")
    return int(text) if text.isdecimal() else None


def _reported(decided: XidPolicy, frame: Frame, row: int, column: int) -> Finding:
    at_ns = int(frame.times_ns[row])
    is_recent = frame.times_ns[-1] - at_ns <= compare.BRIDGE_S * 1e9
    return Finding(
        sign="xid",
        subject=frame.subjects[column],
        metric=frame.metric,
        method="event",
        since_ns=at_ns,
        until_ns=None if is_recent else at_ns,
        noticed_ns=at_ns,
        confidence=XID_CONFIDENCE,
        value=decided.code,
        usual=0.0,
        unit="",
        note=f"XID {decided.code}: {decided.text}",
    )
