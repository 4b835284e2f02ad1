"""Findings that need two metrics, or a label: a PCIe link below its width, an error code from the driver."""

from collections.abc import Iterator

import numpy as np

from holdfast.detect import compare
from holdfast.detect.detector import FunctionDetector, Look, Sense
from holdfast.detect.finding import Finding
from holdfast.detect.panel import Panel
from holdfast.detect.rules import SIGNS, Rule
from holdfast.detect.signs import Sign
from holdfast.detect.stretches import findings
from holdfast.detect.xids import Action, XidPolicy, policy
from holdfast.signals.frame import Labels

WIDTH, WIDTH_MAX = "node_pcidevice_current_link_width", "node_pcidevice_max_link_width"
RATE = "node_pcidevice_current_link_transfers_per_second"
RATE_MAX = "node_pcidevice_max_link_transfers_per_second"
LINK_WIDTH, LINK_GEN = "DCGM_FI_DEV_PCIE_LINK_WIDTH", "DCGM_FI_DEV_PCIE_LINK_GEN"
IDLE_SHARE = 0.2
XIDS, XID_COUNTS = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
IDENTITY = ("segment", "bus", "device", "function", "instance")
XID_CONFIDENCE = 0.97
LOOKED_ROWS_MIN = 3
SIGN_OF_CODES: dict[Sign, frozenset[int]] = {
    "memory-xid": frozenset({48, 63, 64, 92, 94, 95, 140}),
    "nvlink-xid": frozenset({74, *range(144, 151)}),
}
"""Codes that name the affected part of the GPU."""
HARDWARE_ACTIONS: frozenset[Action] = frozenset({"reset-gpu", "reboot", "restart-vm", "drain", "mechanical"})
HARDWARE_CODES = frozenset({48, 74, 94})
"""Hardware faults, even if restarting the application helps for now."""


def _narrow_buses(look: Look) -> Iterator[Finding]:
    """Devices whose PCIe link is narrower or slower than the device supports."""
    for metric, of_device, unit in ((WIDTH, WIDTH_MAX, "PCIe lanes"), (RATE, RATE_MAX, "1/s")):
        now, most = look.panels.value(metric), look.panels.value(of_device)
        if now is None or most is None:
            continue
        widest = np.fmax.reduce(most.values, axis=0)
        limit_of = dict(zip(map(_device, most.labels), widest.tolist(), strict=True))
        usual = np.array([limit_of.get(_device(labels), 0.0) for labels in now.labels], np.float32)
        with np.errstate(invalid="ignore"):
            wrong = now.values < usual
        rule = Rule(
            sign="narrow-bus",
            metric=metric,
            unit=unit,
            note=SIGNS["narrow-bus"],
            against="physics",
            scrapes=2,
        )
        yield from findings(rule, now, wrong, usual, np.ones(len(usual), np.float32))


def _slow_buses(look: Look) -> Iterator[Finding]:
    """GPUs whose PCIe link is narrower, or of a lower generation, than before or than on most GPUs.

    An idle link may run at a lower generation to save power; then most links do, and none is below the
    others.
    """
    for metric in (LINK_WIDTH, LINK_GEN):
        panel = look.panels.value(metric)
        if panel is None:
            continue
        most = np.fmax.reduce(panel.values, axis=0)
        known = most[np.isfinite(most)]
        middle = float(np.median(known)) if len(known) else 0.0
        usual = np.fmax(panel.usual, middle).astype(np.float32)
        with np.errstate(invalid="ignore"):
            # If all went down together, they are idle.
            wrong = panel.values < usual
            wrong &= wrong.mean(axis=1, keepdims=True) < IDLE_SHARE
        unit = "PCIe lanes" if metric == LINK_WIDTH else "generation"
        rule = Rule(
            sign="narrow-bus", metric=metric, unit=unit, note=SIGNS["narrow-bus"], against="peers", scrapes=3
        )
        yield from findings(rule, panel, wrong, usual, np.ones(len(usual), np.float32))


def _device(labels: Labels) -> tuple[str | None, ...]:
    return tuple(map(labels.get, IDENTITY))


def _xid_findings(look: Look) -> Iterator[Finding]:
    """The XID findings, computed once for all looks at one moment: a stalled run asks for them again."""
    if "xids" not in look.kept:
        look.kept["xids"] = tuple(_new_codes(look))
    return iter(look.kept["xids"])


def _new_codes(look: Look) -> Iterator[Finding]:
    """Codes that appeared in this window. The gauge never clears, so a code from before is not new."""
    for metric in (XIDS, XID_COUNTS):
        panel = look.panels.value(metric)
        if panel is None:
            continue
        for row, column in _news(panel):
            code = _code(panel, row, column)
            decided = None if code is None else policy(code, overrides=look.xids)
            if decided is not None and decided.severity != "none":
                yield _reported(decided, panel, row, column)


def _news(panel: Panel) -> Iterator[tuple[int, int]]:
    """Where a GPU shows a code that it did not show before.

    A GPU's labels change with the job and with the code, so all its series are read as one.
    """
    with np.errstate(invalid="ignore"):
        suspects = np.flatnonzero((panel.values > 0).any(axis=0))
    if not len(suspects):
        return
    wanted = {_whose(panel, column) for column in suspects.tolist()}
    groups: dict[tuple[str, ...], list[int]] = {}
    for column in range(len(panel.subjects)):
        if (key := _whose(panel, column)) in wanted:
            groups.setdefault(key, []).append(column)
    for columns in groups.values():
        yield from _appeared(panel, columns)


def _whose(panel: Panel, column: int) -> tuple[str, ...]:
    """The key of one history. Counts have a series for each code, and each is a history of its own."""
    subject = panel.subjects[column]
    return (subject, panel.labels[column].get("xid", "")) if panel.metric == XID_COUNTS else (subject,)


def _appeared(panel: Panel, columns: list[int]) -> Iterator[tuple[int, int]]:
    values = panel.values[:, columns]
    known = np.flatnonzero(np.isfinite(values).any(axis=1))
    if not len(known):
        return
    now = np.fmax.reduce(values[known], axis=1)
    before = _last_before(panel, columns)
    if before is None:
        # The series begins with the error.
        is_new = known[0] > 0 and now[0] > 0 and _was_looked_at(panel, columns[0], int(known[0]))
        before = 0.0 if is_new else float(now[0])
    changed = (now > 0) & (now != np.concatenate(([before], now[:-1])))
    for row in known[changed].tolist():
        yield row, columns[int(np.nanargmax(values[row]))]


def _last_before(panel: Panel, columns: list[int]) -> float | None:
    if panel.before is None:
        return None
    known = panel.before[:, columns]
    known = known[np.isfinite(known).any(axis=1)]
    return float(np.nanmax(known[-1])) if len(known) else None


def _was_looked_at(panel: Panel, column: int, row: int) -> bool:
    """Whether the host's exporter was read often enough before to have shown an older error.

    A series that begins together with the others of its host may be older than our readings. If the host has
    no other series, it counts as new if it begins well after the window does.
    """
    host = _host(panel.subjects[column])
    others = [n for n, name in enumerate(panel.subjects) if n != column and _host(name) == host]
    if not others:
        return row >= LOOKED_ROWS_MIN
    return int(np.isfinite(panel.values[:row, others]).any(axis=1).sum()) >= LOOKED_ROWS_MIN


def _host(gpu: str) -> str:
    return gpu.rpartition(".")[0]


def _code(panel: Panel, row: int, column: int) -> int | None:
    """The gauge shows the code itself; counts have it as a label."""
    if panel.metric == XIDS:
        return int(panel.values[row, column])
    text = panel.labels[column].get("xid", "")
    return int(text) if text.isdecimal() else None


def _reported(decided: XidPolicy, panel: Panel, row: int, column: int) -> Finding:
    at_ns = int(panel.times_ns[row])
    is_recent = panel.times_ns[-1] - at_ns <= compare.BRIDGE_S * 1e9
    sign: Sign = next((sign for sign, codes in SIGN_OF_CODES.items() if decided.code in codes), "xid")
    grave = decided.action in HARDWARE_ACTIONS or decided.code in HARDWARE_CODES
    return Finding(
        sign=sign,
        subject=panel.subjects[column],
        metric=panel.metric,
        method="event",
        since_ns=at_ns,
        # A GPU that needs a reset is not fixed by falling silent. For memory and links the counters tell.
        until_ns=None if is_recent or (sign == "xid" and decided.action in HARDWARE_ACTIONS) else at_ns,
        noticed_ns=at_ns,
        confidence=XID_CONFIDENCE * float(panel.trust[column]),
        value=decided.code,
        note=f"XID {decided.code}: {decided.text}" if decided.text else f"XID {decided.code}",
        grave=grave,
    )


NARROW_BUSES = FunctionDetector(
    (Sense("narrow-bus", (WIDTH, WIDTH_MAX)), Sense("narrow-bus", (RATE, RATE_MAX))), _narrow_buses
)
SLOW_BUSES = FunctionDetector(
    (Sense("narrow-bus", (LINK_WIDTH,)), Sense("narrow-bus", (LINK_GEN,))), _slow_buses
)
XID_DETECTOR = FunctionDetector(
    tuple(Sense(sign, (metric,)) for metric in (XIDS, XID_COUNTS) for sign in ("xid", *SIGN_OF_CODES)),
    _xid_findings,
)
