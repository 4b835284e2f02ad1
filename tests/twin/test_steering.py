"""Gray failures under several ways to act: the same failures for all, and control within its budgets."""

import msgspec
import pytest

from bench.control import CAMPAIGNS, measure, studies
from holdfast.twin.gray import MINDER, gray_hazards
from holdfast.twin.steering import SteeringFigures, SteeringStudy, Way, steer, steering_policy

SMALL = SteeringStudy(gpus=2_048, spares=8, days=30)


def played(study: SteeringStudy, way: Way, seed: int = 3) -> SteeringFigures:
    return steer(study, way, seed)


def test_the_rates_are_those_that_were_published() -> None:
    """76 slow nodes in Llama 3's 54 days, and six that computed wrongly."""
    rows = {row.name: row for row in gray_hazards().classes if row.kind == "gray"}
    slow = rows["throttle"].rate_per_1000_node_days + rows["link"].rate_per_1000_node_days
    assert slow * 110.592 == pytest.approx(76, abs=0.5)
    assert rows["silent-data-corruption"].rate_per_1000_node_days * 110.592 == pytest.approx(6, abs=0.01)
    assert set(rows) == {"throttle", "link", "silent-data-corruption"}


def test_the_same_seed_gives_the_same_and_shadow_changes_nothing() -> None:
    assert played(SMALL, "control") == played(SMALL, "control")
    none, shadow = played(SMALL, "none"), played(SMALL, "shadow")
    assert shadow.useful_gpu_hours == none.useful_gpu_hours
    assert (shadow.drains, shadow.calls) == (0, 0)
    assert shadow.would_save > 0


@pytest.mark.parametrize("is_elastic", [False, True])
def test_to_act_brings_more_than_not_to(is_elastic: bool) -> None:
    study = msgspec.structs.replace(SMALL, is_elastic=is_elastic)
    none, control = played(study, "none"), played(study, "control")
    assert none.useful_gpu_hours < control.useful_gpu_hours < control.paid_gpu_hours
    assert control.drains > 0
    assert control.out_max <= steering_policy().out.of(2_048 // 8 + 8)


def test_nothing_is_lost_where_nothing_is_wrong() -> None:
    """With a silent detector, control does nothing, and only crashes cause losses."""
    silent = msgspec.structs.replace(
        SMALL, detector=msgspec.structs.replace(MINDER, recall=0.0, false_per_day=0.0)
    )
    none, control = played(silent, "none"), played(silent, "control")
    assert (control.useful_gpu_hours, control.drains) == (none.useful_gpu_hours, 0)


@pytest.mark.parametrize("name", [*CAMPAIGNS])
def test_a_bad_detector_drains_no_more_than_the_budget(name: str) -> None:
    bad = msgspec.structs.replace(CAMPAIGNS[name], nodes=40, day=0.5)
    study = msgspec.structs.replace(SMALL, days=1, bad=(bad,))
    rule, control = played(study, "first-error"), played(study, "control")
    most = steering_policy().out.of(2_048 // 8 + 8)
    assert rule.drains >= 40
    assert control.out_max <= most < rule.drains
    assert control.trips == (1 if name == "burst" else 0)


def test_the_benchmark_has_every_way_and_adds_up() -> None:
    study = studies(2_048, 3)["job"]
    (case,) = measure({"job": study}, seeds=2, processes=1).cases
    assert [one.way for one in case.ways] == ["none", "first-error", "sure-error", "shadow", "control"]
    assert sum(one.wins for one in case.ways) == 2
    assert case.ways[0].ahead_of_none.p50 == 0
    assert case.drained_at_most == 4
