"""The registry: every detector says which signs it gives and what it reads, and all of that is true."""

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from holdfast.detect.compare import lasting
from holdfast.detect.detecting import MACHINES, METRICS, RUNS, Detected, measured
from holdfast.detect.detector import Detector
from holdfast.detect.devices import WIDTH, WIDTH_MAX
from holdfast.detect.mounts import REQUESTS, RESPONSE
from holdfast.detect.physics import LINK_RATE
from holdfast.detect.rules import SIGNS
from holdfast.detect.signs import Sign
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.frame import Floats, Frame

S = 10**9
ROWS = 120

every_detector = pytest.mark.parametrize(
    "detector", [*MACHINES, *RUNS], ids=lambda one: "-".join(dict.fromkeys(s.sign for s in one.senses))
)


@every_detector
def test_a_detector_names_signs_and_metrics_that_exist(detector: Detector) -> None:
    assert detector.senses
    for sense in detector.senses:
        assert sense.sign in SIGNS
        assert set(sense.metrics) <= set(CATALOGUE)


def test_every_sign_has_a_detector() -> None:
    assert {sense.sign for one in (*MACHINES, *RUNS) for sense in one.senses} == set(SIGNS)
    assert set(get_args(Sign)) == set(SIGNS)


def test_what_is_measured_follows_from_what_is_there() -> None:
    assert measured(frozenset()) == frozenset()
    assert measured(frozenset({WIDTH})) == frozenset()
    assert measured(frozenset({WIDTH, WIDTH_MAX})) >= {"narrow-bus"}
    assert measured(frozenset({REQUESTS, RESPONSE})) == {"slow-reads", "slow-writes", "busy-mount"}
    assert measured(frozenset(METRICS)) | {"slow-checkpoint", "frequent-checkpoints"} >= set(SIGNS)


@pytest.mark.parametrize("metric", [WIDTH, LINK_RATE])
def test_series_with_gaps_are_believed_less_by_every_detector(
    metric: str, framed: Callable[..., Frame], noisy: Callable[..., Floats], looked: Callable[..., Detected]
) -> None:
    """One in five scrapes is missing: `gaps`."""
    subjects = [f"n{number:05}/mlx5_0" for number in range(4)]
    labels = [{"device": "mlx5_0", "instance": f"n{number:05}"} for number in range(4)]
    values = np.full((ROWS, 4), 16.0)
    values[60:, 1] = 4.0
    most = framed(WIDTH_MAX, np.full((ROWS, 4), 16.0), subjects, labels=labels)
    (whole,) = looked(framed(metric, values, subjects, labels=labels), most).machines
    values[::5, 1] = np.nan
    (holed,) = looked(framed(metric, values, subjects, labels=labels), most).machines
    assert (whole.subject, whole.sign) == (holed.subject, holed.sign)
    assert holed.confidence < 0.75 * whole.confidence


def test_what_was_not_looked_at_for_a_while_lasts_as_long_as_its_bridge() -> None:
    """A mount that is asked every ten minutes and was slow both times is slow now."""
    wrong = np.zeros((4, 1), np.bool_)
    wrong[:2] = True
    times_ns = np.array([0, 10, 20, 500]) * S
    known = np.ones((4, 1), np.bool_)
    assert [one.lasting for one in lasting(wrong, known, times_ns, 2)] == [False]
    assert [one.lasting for one in lasting(wrong, known, times_ns, 2, bridge_s=900.0)] == [True]
