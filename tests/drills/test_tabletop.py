"""The tabletop as data: the operator's view, and the truth nowhere before it is asked for."""

import re

import msgspec
import pytest
from quantity import sampled

from holdfast.drills.scenarios import SCENARIOS, play
from holdfast.drills.tabletop import tabletop

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sampled(SCENARIOS, ["cooling-pump", "gc-pause", "leaf-congestion", "quiet"]))
def test_the_operators_view_does_not_give_the_cause_away(name: str) -> None:
    one = play(name, 2)
    view = msgspec.json.encode(tabletop(one, reveal=False)).decode()
    assert name not in view
    assert one.truth.cause.mechanism not in view or not one.truth.is_incident
    assert one.truth.decides not in view
    assert tabletop(one, reveal=False).truth is None
    assert tabletop(one, reveal=True).truth == one.truth


def test_the_story_says_when_steps_became_slow_and_when_they_were_well() -> None:
    played = play("cooling-pump", 1)
    truth = played.truth
    slow, well = tabletop(played, reveal=False).story
    assert re.fullmatch(r"steps take [67]\.\d\d s, usually 6\.0\d s", slow.what)
    assert well.what == "steps are as usual again"
    assert truth.surface.at_ns is not None
    assert truth.ended_ns is not None
    assert 0 <= slow.at_ns - truth.surface.at_ns < 30 * 10**9
    assert abs(well.at_ns - truth.ended_ns) < 60 * 10**9
