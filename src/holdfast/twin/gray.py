"""Gray failures at published rates, and models of detectors that miss some or report them late or wrongly.

In a gray failure a node is slow, or computes wrong numbers, and goes on. Rates per node and day are not
published. But the ratio of jobs that slowed down to jobs that hardware stopped is, so the rate here follows
from the rate of hardware failures. Assumed values are marked as such.
"""

from typing import Literal

import msgspec
import numpy as np

from holdfast.twin.failures import FailureClass, Hazards, LemonShare
from holdfast.twin.presets import preset

PRESET = "llama3-405b"
HARDWARE_PER_1000_NODE_DAYS = (419 - 54 - 2) / 110_592 * 1_000
"""Llama 3 (arXiv:2407.21783, Table 5): 419 unexpected interruptions, without software and dependencies."""
SLOW_PER_HARDWARE = 442 / (1_599 + 203 + 188 + 76 + 47)
"""ByteRobust (arXiv:2509.16293): declines of MFU per failure of InfiniBand, a kernel, GPU memory, a GPU or a
disk.
"""
CORRUPT = "silent-data-corruption"
"""Llama 3's six in 54 days."""
LEMONS = LemonShare(
    share=40 / 3_000,
    factor=20.0,
    source="40 of about 3,000 nodes: Meta RSC (arXiv:2410.21680); 3 of 63 nodes made half of the exclusions: "
    "arXiv:2605.09370",
)

AilmentKind = Literal["throttle", "link", "corrupt"]
MECHANISMS: dict[AilmentKind, str] = {
    "throttle": "gpu-throttle",
    "link": "link-errors",
    "corrupt": "gpu-fault",
}
SLOWDOWNS: dict[AilmentKind, tuple[float, float]] = {
    "throttle": (1.05, 1.3),
    "link": (1.1, 1.58),
    "corrupt": (1.0, 1.0),
}
"""Factors on the node's step time, from and to; assumed. 1.58: what Greyhound gains by mitigation."""
TRANSIENT = 0.5
PASSING_H, PASSING_SIGMA = 2.0, 1.0
"""Assumed: half of the slow nodes recover by themselves, after two hours in the median."""
REPAIR_H, REPAIR_SIGMA = 20.4, 1.0
"""InfiniteHBD's trace: the median outage. The spread is assumed."""


class DetectorModel(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of a detector.

    notice_s          from the onset to the alarm
    recall            the share of ailments that it ever reports
    precision         the share of these reports that name the right node
    false_per_day     false alarms a day, on the whole cluster
    false_h           how long a false alarm lasts
    knows_itself      whether wrong alarms tend to be less sure than right ones; otherwise all are 90 % sure
    """

    notice_s: float = 240.0
    recall: float = 0.883
    precision: float = 0.904
    false_per_day: float = 0.84
    false_h: float = 0.5
    knows_itself: bool = True

    def confidence(self, *, is_right: bool, rng: np.random.Generator) -> float:
        if not self.knows_itself:
            return 0.9
        return float(rng.beta(9, 1) if is_right else rng.beta(4, 3))


MINDER = DetectorModel()
"""Minder: precision 0.904, recall 0.883, an alarm after 4 minutes. False alarms: 0.84 a day on 504 GPUs
(arXiv:2605.09370), taken for the whole cluster; half an hour each, and confidences: assumed.
"""


def gray_hazards() -> Hazards:
    """Llama 3's failures with gray ones, and with lemons."""
    usual = preset(PRESET).hazards
    slow = HARDWARE_PER_1000_NODE_DAYS * SLOW_PER_HARDWARE / 2
    rows = [
        msgspec.structs.replace(row, kind="gray") if row.name == CORRUPT else row
        for row in usual.classes
        if row.kind != "planned"
    ]
    rows += [
        FailureClass(
            name=name,
            part="gpu" if name == "throttle" else "fabric",
            kind="gray",
            rate_per_1000_node_days=slow,
            transient_share=TRANSIENT,
            repair_median_h=REPAIR_H,
            repair_sigma=REPAIR_SIGMA,
            source="Llama 3's hardware failures, by ByteRobust's declines of MFU for each of them; half of "
            "them throttled GPUs and half slow links: assumed",
        )
        for name in ("throttle", "link")
    ]
    return msgspec.structs.replace(usual, classes=tuple(rows), lemons=LEMONS)


def kind_of_ailment(row: FailureClass) -> AilmentKind:
    return "corrupt" if row.name == CORRUPT else "throttle" if row.name == "throttle" else "link"
