"""Findings that need two metrics, or a label: a PCIe link below its width, an error that the driver named."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.detect import compare
from holdfast.detect.detector import Look, MachineDetector, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.machines import findings
from holdfast.detect.panel import Panel
from holdfast.detect.rules import SIGNS, Rule
from holdfast.detect.xids import XidPolicy, policy
from holdfast.signals.frame import Floats, Labels

WIDTH, WIDTH_MAX = "node_pcidevice_current_link_width", "node_pcidevice_max_link_width"
XIDS, XID_COUNTS = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
IDENTITY = ("segment", "bus", "device", "function", "instance")
XID_CONFIDENCE = 0.97


def _narrow_buses(look: Look) -> Iterator[Finding]:
    """Devices whose link has fewer lanes than they have themselves."""
    now, most = look.panels.value(WIDTH), look.panels.value(WIDTH_MAX)
    if now is None or most is None:
        return
    widest = np.fmax.reduce(most.values, axis=0)
    limit_of = dict(zip(map(_device, most.labels), widest.tolist(), strict=True))
    usual = np.array([limit_of.get(_device(labels), 0.0) for labels in now.labels], np.float32)
    with np.errstate(invalid="ignore"):
        wrong = now.values < usual
    rule = Rule(
        sign="narrow-bus", metric=WIDTH, unit="lanes", note=SIGNS["narrow-bus"], against="physics", scrapes=2
    )
    yield from findings(rule, now, wrong, usual, np.ones(len(usual), np.float32))


def _device(labels: Labels) -> tuple[str | None, ...]:
    return tuple(map(labels.get, IDENTITY))


def _xid_findings(look: Look) -> Iterator[Finding]:
    """Codes that appeared in this window. The gauge never clears, so one that was there before is no news."""
    for metric in (XIDS, XID_COUNTS):
        panel = look.panels.value(metric)
        if panel is None:
            continue
        for row, column in np.argwhere(_changed(panel.values)).tolist():
            code = _code(panel, row, column)
            decided = None if code is None else policy(code, overrides=look.xids)
            if decided is not None and decided.severity != "none":
                yield _reported(decided, panel, row, column)


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


def _code(panel: Panel, row: int, column: int) -> int | None:
    """The gauge shows the code itself; of counts it is a label."""
    if panel.metric == XIDS:
        return int(panel.values[row, column])
    text = panel.labels[column].get("xid", "")
    return int(text) if text.isdecimal() else None


def _reported(decided: XidPolicy, panel: Panel, row: int, column: int) -> Finding:
    at_ns = int(panel.times_ns[row])
    is_recent = panel.times_ns[-1] - at_ns <= compare.BRIDGE_S * 1e9
    return Finding(
        sign="xid",
        subject=panel.subjects[column],
        metric=panel.metric,
        method="event",
        since_ns=at_ns,
        until_ns=None if is_recent else at_ns,
        noticed_ns=at_ns,
        confidence=XID_CONFIDENCE * float(panel.trust[column]),
        value=decided.code,
        usual=0.0,
        unit="",
        note=f"XID {decided.code}: {decided.text}",
    )


NARROW_BUSES = MachineDetector((Sense("narrow-bus", (WIDTH, WIDTH_MAX)),), _narrow_buses)
XID_DETECTOR = MachineDetector((Sense("xid", (XIDS,)), Sense("xid", (XID_COUNTS,))), _xid_findings)
