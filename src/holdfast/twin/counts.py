"""Turn a published table of failures into failure classes: counts over node-days become rates.

Papers count the failures that stopped their jobs and seldom say more. Two assumptions fill the gaps:

- Repair times, by part: the outages of the InfiniteHBD fault trace, the only public ones, as lognormals with
  the trace's median and mean.
- Transient failures (the machine is fine, only the process must start again) are 73 % of all, as Unicron
  found. Software counts as always transient, broken parts as never, and the other rows get the share that
  makes the table's total 73 %.
"""

from collections.abc import Sequence
from math import log, sqrt

import msgspec

from holdfast import wording
from holdfast.twin.cluster import Domain
from holdfast.twin.failures import FailureClass, Kind, Part

TRANSIENT_SHARE = 0.73
"""Share of all failures; Unicron (arXiv:2401.00134), section 2."""

_REPAIR_MEDIAN_MEAN_H: dict[Part, tuple[float, float]] = {
    "gpu": (16.79, 155.4),
    "memory": (16.79, 155.4),
    "fabric": (37.43, 178.2),
    "cooling": (73.52, 217.4),
    "power": (351.1, 439.0),
    "host": (25.63, 58.7),
    "storage": (25.63, 58.7),
    "software": (19.11, 49.1),
    "unknown": (15.63, 111.9),
    "planned": (0.0, 0.0),
}
"""Outages of the InfiniteHBD fault trace (arXiv:2502.03885), 584 faults, computed from the file. The trace
does not separate GPU memory from the GPU; storage is taken to be like the host."""


_ASSUMED = "Assumed: kind, reach, transient share (Unicron, 73 % of all), repair time (InfiniteHBD's trace)."


class Count(msgspec.Struct, frozen=True):
    """A row of a published table. transient: share of its failures; None: chosen to fit the total."""

    name: str
    part: Part
    count: float
    transient: float | None = None
    kind: Kind = "crash"
    reach: Domain = "node"
    slowdown: float = 1.0


def classes(rows: Sequence[Count], node_days: float, source: str) -> tuple[FailureClass, ...]:
    """The rows as failure classes with rates, in the table's order."""
    open_share = _open_transient_share(rows)
    return tuple(
        FailureClass(
            name=row.name,
            part=row.part,
            rate_per_1000_node_days=1000 * row.count / node_days,
            reach=row.reach,
            kind=row.kind,
            transient_share=open_share if row.transient is None else row.transient,
            slowdown=row.slowdown,
            repair_median_h=_REPAIR_MEDIAN_MEAN_H[row.part][0],
            repair_sigma=_repair_sigma(row.part),
            source=f"{source}: {wording.number(row.count)} in {node_days:,.0f} node-days. {_ASSUMED}",
        )
        for row in rows
    )


def _open_transient_share(rows: Sequence[Count]) -> float:
    """The transient share of the open rows that makes the unplanned total TRANSIENT_SHARE; 0 to 1."""
    unplanned = [row for row in rows if row.kind != "planned"]
    wanted = TRANSIENT_SHARE * sum(row.count for row in unplanned)
    settled = sum(row.count * row.transient for row in unplanned if row.transient is not None)
    left = sum(row.count for row in unplanned if row.transient is None)
    return min(1.0, max(0.0, (wanted - settled) / left)) if left else 0.0


def _repair_sigma(part: Part) -> float:
    """Sigma of the lognormal with this median and mean: mean / median = exp(sigma^2 / 2)."""
    median, mean = _REPAIR_MEDIAN_MEAN_H[part]
    return sqrt(2 * log(mean / median)) if median else 0.0
