"""Marks for diagnoses: right ones, wrong ones, late ones, and false alarms; the same for the same seed."""

import functools

import msgspec
import pytest
from quantity import sampled

from bench import papers
from bench.papers import HIDEABLE, MECHANISM_OF, PATIENT_S, Marks, Paper, examine
from holdfast.drills.scenarios import SCENARIOS, play
from holdfast.drills.scenarios.playing import START_NS
from holdfast.signals.catalogue import CATALOGUE
from holdfast.twin.cluster import Layout

pytestmark = pytest.mark.slow

GPUS = 256
SEED = 2


@functools.cache
def marks(scenario: str, *, without: tuple[str, ...] = (), dirt: float = 1.0) -> Marks:
    return examine(Paper(scenario=scenario, seed=SEED, gpus=GPUS, without=without, dirt=dirt))


def test_a_right_diagnosis_has_full_marks() -> None:
    found = marks("power-cap")
    truth = play("power-cap", SEED, layout=Layout(gpus=GPUS)).truth
    assert found.is_incident
    assert found.said == (("power-brake", truth.cause.subject),)
    assert (found.right, found.named, found.domain_right, found.owner_right) == (1, True, True, True)
    assert found.detect_s is not None
    assert found.name_s is not None
    assert 0 < found.detect_s <= found.name_s <= 120
    assert found.false_alarms == 0
    assert found.quiet_s > 0


def test_the_same_paper_has_the_same_marks() -> None:
    assert examine(Paper(scenario="power-cap", seed=SEED, gpus=GPUS)) == marks("power-cap")


@pytest.mark.soak
def test_a_diagnosis_that_does_not_know_is_noticed_and_not_right() -> None:
    """Nobody shows the hosts' processors: the run is seen to be slow, and that is all."""
    found = marks("cpu-steal", without=("pressure",))
    assert (found.right, found.named) == (0, False)
    assert found.said
    assert found.detect_s is not None
    assert found.name_s is None
    assert not found.owner_right


def test_a_diagnosis_of_something_else_is_wrong_in_everything() -> None:
    """Told at the same place and time, but of another kind: what was said is right for nothing."""
    played = play("cpu-steal", SEED, layout=Layout(gpus=GPUS))
    other = play("leaf-congestion", SEED, layout=Layout(gpus=GPUS)).truth
    wrong = msgspec.structs.replace(
        played, truth=msgspec.structs.replace(other, began_ns=played.truth.began_ns)
    )
    examiner = papers._Examiner(wrong, Paper(scenario="leaf-congestion", seed=SEED, gpus=GPUS))
    examiner.times_ns = examiner.times_ns[::6]  # until what never comes it would look at every scrape
    found = examiner.marks()
    assert found.said
    assert (found.right, found.named, found.domain_right, found.owner_right) == (0, False, False, False)
    assert found.detect_s is not None
    assert found.name_s is None


@pytest.mark.soak
def test_what_is_said_before_anything_is_wrong_is_a_false_alarm() -> None:
    played = play("cpu-steal", SEED, layout=Layout(gpus=GPUS))
    later_ns = START_NS + 1_740 * 10**9
    late = msgspec.structs.replace(played, truth=msgspec.structs.replace(played.truth, began_ns=later_ns))
    found = papers._Examiner(late, Paper(scenario="cpu-steal", seed=SEED, gpus=GPUS)).marks()
    assert found.false_alarms == 1
    assert (found.right, found.named) == (0, False)


@pytest.mark.parametrize(
    "scenario",
    sampled([name for name, one in SCENARIOS.items() if not one.is_incident], ["planned-maintenance"]),
)
def test_where_nothing_is_wrong_the_best_is_to_say_nothing(scenario: str) -> None:
    found = marks(scenario)
    assert not found.is_incident
    assert (found.said, found.false_alarms) == ((), 0)
    assert (found.detect_s, found.name_s, found.right, found.named) == (None, None, 0, False)
    assert found.quiet_s == pytest.approx(1_800, abs=60)


@pytest.mark.soak
def test_an_incident_that_is_called_nothing_is_a_false_alarm_each_time() -> None:
    played = play("cpu-steal", SEED, layout=Layout(gpus=GPUS))
    quiet = msgspec.structs.replace(played, truth=msgspec.structs.replace(played.truth, is_incident=False))
    found = papers._Examiner(quiet, Paper(scenario="cpu-steal", seed=SEED, gpus=GPUS)).marks()
    assert found.false_alarms >= 1
    assert not found.domain_right
    assert {mechanism for mechanism, _ in found.said} == {"cpu-contention"}


@pytest.mark.soak
def test_worse_telemetry_is_played_and_never_better_than_possible() -> None:
    found = marks("power-cap", dirt=3.0)
    assert found.paper.dirt == 3.0
    assert found.detect_s is None or found.detect_s <= PATIENT_S
    examine(Paper(scenario="quiet", seed=SEED, gpus=256, duration_s=900, dirt=1e6))


def test_every_incident_has_a_right_answer_and_everything_hidden_was_there() -> None:
    assert set(MECHANISM_OF) == {name for name, one in SCENARIOS.items() if one.is_incident}
    for family, prefixes in HIDEABLE.items():
        for prefix in prefixes:
            assert any(name.startswith(prefix) for name in CATALOGUE), (family, prefix)
