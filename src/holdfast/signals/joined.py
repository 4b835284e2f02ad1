"""Two frames of one metric as one: series that came by different ways."""

import msgspec
import numpy as np

from holdfast.signals.frame import Frame
from holdfast.wording.units import SECOND_NS


def joined(one: Frame | None, other: Frame, *, is_again: bool = False) -> Frame | None:
    """Both, at the times of the first. Of a subject that both have, what the first says, unless `is_again`.

    Each metric is read by itself, so its rows may begin elsewhere, or be farther apart.
    """
    if one is None:
        return other if other.subjects else None
    known = set() if is_again else set(one.subjects)
    columns = [column for column, subject in enumerate(other.subjects) if subject not in known]
    if not columns or not len(other.times_ns):
        return one
    middles_ns = (other.times_ns[1:] + other.times_ns[:-1]) // 2
    rows = np.searchsorted(middles_ns, one.times_ns)
    step_ns = float(np.median(np.diff(one.times_ns))) if len(one.times_ns) > 1 else SECOND_NS
    near = np.abs(other.times_ns[rows] - one.times_ns) <= step_ns
    added = np.where(near[:, None], other.values[rows][:, columns], np.nan)
    return msgspec.structs.replace(
        one,
        subjects=(*one.subjects, *(other.subjects[column] for column in columns)),
        labels=(*one.labels, *(other.labels[column] for column in columns)),
        values=np.concatenate([one.values, added], axis=1),
    )
