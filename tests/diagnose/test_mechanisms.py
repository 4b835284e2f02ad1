"""The known mechanisms are data: every word in them must mean something to those who use it."""

from typing import get_args

import pytest

from bench.papers import MECHANISM_OF
from holdfast.detect.rules import SIGNS
from holdfast.diagnose.mechanisms import MECHANISMS, Mechanism
from holdfast.drills.scenarios import SCENARIOS
from holdfast.drills.scenarios.stage import Scenario
from holdfast.signals.domains import Domain, Seam
from holdfast.topology.graph import KINDS

BY_NAME = {mechanism.name: mechanism for mechanism in MECHANISMS}
each = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(MECHANISMS)


@each
def test_signs_kinds_domains_and_seams_exist(mechanism: Mechanism) -> None:
    named = {
        *mechanism.shows,
        *mechanism.follows,
        *mechanism.uneven,
        *mechanism.against,
        *mechanism.slows,
        *mechanism.needs,
    }
    assert named <= set(SIGNS)
    assert set(mechanism.origin.kinds) <= set(KINDS)
    assert mechanism.origin.domain in get_args(Domain)
    assert mechanism.origin.seam in get_args(Seam)


@each
def test_it_says_what_it_is_what_would_decide_and_what_to_do(mechanism: Mechanism) -> None:
    assert mechanism.title
    assert mechanism.decides.endswith(".")
    assert mechanism.action.endswith(".")


@each
def test_it_can_be_thought_of_and_explains_something(mechanism: Mechanism) -> None:
    """Without a sign that it needs, and that it accounts for, it would name a cause of nothing."""
    accounted = {*mechanism.shows, *mechanism.follows, *mechanism.slows}
    assert mechanism.needs or mechanism.shows
    assert set(mechanism.needs) <= accounted
    assert mechanism.slows


@each
def test_weights_speak_for_what_they_are_listed_under(mechanism: Mechanism) -> None:
    weights = (*mechanism.shows.values(), *mechanism.follows.values(), *mechanism.against.values())
    assert all(0 < weight <= 3 for weight in weights)
    assert not set(mechanism.shows) & set(mechanism.against)
    assert set(mechanism.uneven) <= set(mechanism.follows)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_every_simulated_incident_has_a_mechanism_of_its_own_team(scenario: Scenario) -> None:
    assert (scenario.name in MECHANISM_OF) is scenario.is_incident
    if scenario.is_incident:
        mechanism = BY_NAME[MECHANISM_OF[scenario.name]]
        assert (mechanism.origin.domain, mechanism.origin.seam) == (scenario.domain, scenario.seam)
        assert (mechanism.verdict == "not-hardware") is (scenario.domain == "software")


def test_no_two_incidents_are_the_same_mechanism() -> None:
    assert len(set(MECHANISM_OF.values())) == len(MECHANISM_OF)
