"""A reading: one value of one series at one time, as a collector takes it."""

import msgspec

from holdfast.signals.frame import Labels


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a collector yields. value: None where there was no number; word: the text that was there."""

    metric: str
    labels: Labels
    at_ns: int
    value: float | None
    word: str = ""
