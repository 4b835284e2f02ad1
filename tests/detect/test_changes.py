"""What was changed, by the labels that say what runs."""

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.detect.detecting import Detected
from holdfast.signals.frame import Frame

RUN = "pretrain"
ROWS, SINCE = 60, 40
NODES = tuple(f"n{number:05}" for number in range(4))

Made = Callable[..., Frame]
Looked = Callable[..., Detected]


@pytest.mark.parametrize("empty_rows", [0, 1])
@pytest.mark.parametrize("renewed", [4, 1])
def test_a_version_that_most_gave_up_at_one_moment_is_a_change(
    framed: Made, looked: Looked, empty_rows: int, renewed: int
) -> None:
    """Also where the window begins a little before the first scrape, and its first row is empty."""
    clocks = np.full((ROWS, 8), 1980.0)
    clocks[SINCE:, :renewed] = np.nan
    clocks[:SINCE, 4:] = np.nan
    clocks[:, 4 + renewed :] = np.nan
    clocks[:empty_rows] = np.nan
    labels = [
        {"hostname": name, "gpu": "0", "DCGM_FI_DRIVER_VERSION": version}
        for version in ("570.86.15", "575.51.03")
        for name in NODES
    ]
    frame = framed("DCGM_FI_DEV_SM_CLOCK", clocks, [f"{name}.0" for name in NODES * 2], labels=labels)
    found = [one for one in looked(frame).runs[RUN] if one.sign == "changed"]
    if renewed == 1:  # one machine that was set up anew
        assert found == []
        return
    (change,) = found
    assert (change.subject, change.since_ns) == (RUN, frame.times_ns[SINCE])
    assert "570.86.15 to 575.51.03" in change.note
