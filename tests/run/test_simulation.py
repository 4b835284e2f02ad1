"""The membership in simulated schedules of faults, and deliberately broken rules, which must be noticed."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from quantity import examples, sampled

from tests.simulation import broken
from tests.simulation.broken_heirs import BROKEN
from tests.simulation.heirs import Rules, run_heirs, run_many_heirs
from tests.simulation.member import Script
from tests.simulation.schedule import run_many, run_one, story
from tests.simulation.setting import Fault, Setting, drawn
from tests.simulation.world import Advance

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCHEDULES = 400
"""In `make test` half as many, in `make quick` a fifth, from a new seed each time."""
SOAKED = 1_000_000
HEIR_SCHEDULES = 60
HEIRS_SOAKED = 10_000
HEIRS_CAUGHT_WITHIN = 300
CAUGHT_WITHIN = 2000
"""Within this many schedules a broken rule must show; each takes some milliseconds."""


def test_schedules_from_a_new_seed_keep_all_promises() -> None:
    first = random.SystemRandom().randrange(1 << 48)
    failures = run_many(range(first, first + examples(SCHEDULES)))
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("seed", sampled([272, 1044, 1187, 1243, 1306, 1879], [272, 1187]))
def test_newcomers_do_not_wait_for_a_part_that_no_member_has(seed: int) -> None:
    """The run once waited in vain: see replicas.py, `arrange`."""
    _, failure = run_one(seed)
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", [3005168, 3026588, 3031496])
def test_a_run_is_not_complete_because_its_only_process_was_cut_off(seed: int) -> None:
    """Its connection ended before any member had joined: see membership.py, `_judge`."""
    _, failure = run_one(seed)
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", [3039757])
def test_nodes_that_are_left_have_a_seat_for_every_part(seed: int) -> None:
    """Both had seats of one part only, and the run waited in vain: see replicas.py, `move_nodes`."""
    _, failure = run_one(seed)
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", [5194866, 5304698, 5311447, 5409923, 5438105, 5457823, 5691723, 5713730])
def test_what_was_waited_for_nodes_is_no_part_of_the_wait_for_members(seed: int) -> None:
    """A node returned late, and its members had only the rest of the time: see joined.py, `_stall`."""
    _, failure = run_one(seed)
    assert failure is None, str(failure)


def test_a_member_with_the_mirror_of_a_lost_part_is_in_the_next_replica() -> None:
    """Another of its rail was in it, and the run waited in vain: see replicas.py, `_take_in`."""
    _, failure = run_one(5758848)
    assert failure is None, str(failure)


def test_a_stand_in_for_another_member_does_not_keep_a_run_from_its_end() -> None:
    """Generations followed each other without end: see replicas.py, `would_grow`."""
    _, failure = run_one(5145132)
    assert failure is None, str(failure)


def test_members_do_not_begin_again_because_several_say_that_only_a_leaving_one_has_a_part() -> None:
    """The first report undid the replacement, and the second one ended all members: see `part_lost`."""
    _, failure = run_one(5190883)
    assert failure is None, str(failure)


def test_a_given_up_member_may_begin_again_in_its_old_generation() -> None:
    """It is alone there, and commits nothing; the simulation once took that for a return of the run."""
    _, failure = run_one(4009835)
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", [5021477, 5608549])
def test_tensor_parallel_ranks_of_several_nodes_are_no_replica(seed: int) -> None:
    """Members of a whole replica did the first step again instead of waiting for those of a broken one. The
    simulation once took that for a loss. It is one only if the run already had that step.
    """
    _, failure = run_one(seed)
    assert failure is None, str(failure)
    _, failure = run_one(seed, step=broken.has_what_one_has)
    assert failure is not None
    assert "goes back to step 0, though" in failure.wrong[0]


def test_steps_of_an_attempt_that_the_run_gave_up_are_not_taken_for_others() -> None:
    """A member came back with the same step of another attempt, and its weights stayed: see histories.py."""
    _, failure = run_one(8628112)
    assert failure is None, str(failure)


def test_a_generation_that_is_not_wanted_any_more_is_not_formed_by_a_late_word() -> None:
    """A stand-in was lost, its member stayed, and the stand-in counted as present: see joined.py,
    `regrouped`.
    """
    _, failure = run_one(16410997)
    assert failure is None, str(failure)


def test_a_leaving_member_may_commit_the_last_step_after_its_stand_in_has_it() -> None:
    """The simulation once took that for a step of two generations."""
    _, failure = run_one(16265936)
    assert failure is None, str(failure)


def test_a_run_that_was_alone_has_no_mirrors_to_spare() -> None:
    """Others join a generation of one member, and one of them cannot be reached while it forms."""
    _, failure = run_one(52144189)
    assert failure is None, str(failure)


def test_a_member_that_only_lost_its_connection_is_ended() -> None:
    """It lived on for a minute, and the run waited for it at its end: see `give_up_explanations`."""
    _, failure = run_one(59779919)
    assert failure is None, str(failure)


def test_a_shelved_member_is_asked_for_a_part_before_all_members_begin_again() -> None:
    """It had made steps in a generation that the coordinator never heard was formed: see `part_lost`."""
    _, failure = run_one(58174992)
    assert failure is None, str(failure)


def test_members_on_the_shelf_go_on_from_an_earlier_step_if_all_others_die() -> None:
    told, failure = story(61607688)
    assert failure is None, str(failure)
    assert "no member has step 2: back to step 1, the last that any member has; 1 step (" in told


def test_a_member_that_should_get_the_last_step_continues_if_it_never_comes() -> None:
    """The only member that had left the loop was cut off while it gave its state to the others."""
    _, failure = run_one(55513773)
    assert failure is None, str(failure)


def test_steps_of_members_that_are_never_heard_again_belong_to_another_attempt() -> None:
    """They made them with fewer lanes and died; members on the shelf made them again, with all lanes."""
    _, failure = run_one(55569870)
    assert failure is None, str(failure)


def test_steps_of_the_only_member_that_stayed_in_a_drained_run_belong_to_another_attempt() -> None:
    """It made them with fewer lanes and was cut off; the members that were to leave made them again: see
    `makers` in state.py.
    """
    _, failure = run_one(80082809)
    assert failure is None, str(failure)


def test_a_sum_with_other_lanes_than_the_last_step_is_not_a_part_of_it() -> None:
    """A shelved member had one with all lanes, and the step was made without some of them. The simulation
    once took it for the lost part.
    """
    _, failure = run_one(90243191)
    assert failure is None, str(failure)


def test_a_step_of_members_that_are_to_leave_is_not_made_again_without_them() -> None:
    """The others had lost their connection in it: see wire.py, `Announced.admits`."""
    _, failure = run_one(90850604)
    assert failure is None, str(failure)


def test_a_member_that_comes_back_from_the_shelf_is_admitted_at_any_boundary() -> None:
    """It had lost its connection in a step that the others made again long ago."""
    _, failure = run_one(64000577)
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", [12446128, 12904787])
def test_a_sum_of_an_earlier_attempt_from_the_same_state_is_used(seed: int) -> None:
    """Without it a part was lost, and all began again."""
    _, failure = run_one(seed)
    assert failure is None, str(failure)


def test_the_latest_agreement_on_what_a_step_skips_counts() -> None:
    """A member on the shelf brought an older one, and the step was made differently: see shortage.py."""
    _, failure = run_one(10161931)
    assert failure is None, str(failure)


def test_a_member_with_the_last_step_is_preferred_to_one_that_need_not_have_it() -> None:
    """All began again, although a member that was left out had the part: see replicas.py, `_take_in`."""
    _, failure = run_one(10207285)
    assert failure is None, str(failure)


@pytest.mark.soak
def test_a_million_schedules_keep_all_promises() -> None:
    first = random.SystemRandom().randrange(1 << 48)
    command = (sys.executable, "-m", "tests.simulation", "--processes", str(os.cpu_count() or 1))
    done = subprocess.run(
        (*command, "--seeds", f"{first}:{first + SOAKED}"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ---- deliberately broken rules ---------------------------------------------------------------------------


def _at_commits(seed: int) -> Setting:
    """Members die around commits, no process takes their places, and lanes are skipped meanwhile."""
    setting, draw = drawn(seed), random.Random(seed)
    faults = tuple(
        Fault(
            kind="kill",
            point=draw.choice(("sum", "commit")),
            times=draw.randint(1, 9),
            other=draw.random() < 0.4,
            after_ns=draw.choice((0, 300_000)),
            for_ns=0,
            returns=True,
        )
        for _ in range(3)
    )
    policy = msgspec.structs.replace(setting.policy, warm=0)
    return msgspec.structs.replace(setting, policy=policy, faults=faults, is_smaller=True)


def _first_words(make: Callable[[int], Setting], **rule: Advance | type[Script]) -> str:
    """The words of the first failure that a broken rule causes."""
    for seed in range(CAUGHT_WITHIN):
        _, failure = run_one(seed, setting=make(seed), **rule)  # type: ignore[arg-type]
        if failure is not None:
            return failure.wrong[0]
    raise AssertionError(f"{rule} did not show in {CAUGHT_WITHIN} schedules")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (broken.hears_one_for_all, ("is recorded as formed without", "does not have it")),
        (broken.counts_one_for_all, ("does not have it",)),
        (broken.heeds_the_fenced, ("was given up, and its",)),
        (broken.ends_no_member, ("lives on",)),
        (broken.leaves_out_the_last, ("leaves out",)),
        (broken.forgets_the_unheard, ("though living members have every part",)),
    ],
)
def test_a_broken_rule_of_the_membership_shows(step: Advance, words: tuple[str, ...]) -> None:
    told = _first_words(drawn, step=step)
    assert any(part in told for part in words), told


def test_lanes_that_are_counted_for_another_step_show() -> None:
    assert "has the lanes" in _first_words(drawn, script=broken.StaleClaims)


def test_a_checkpoint_that_is_passed_over_shows() -> None:
    assert "opens at step" in _first_words(drawn, script=broken.BeginsAnew)


def test_skipped_lanes_that_do_not_bind_show() -> None:
    assert "is not the same on" in _first_words(_at_commits, script=broken.FreeSkips)


# ---- succession ------------------------------------------------------------------------------------------


def test_schedules_of_succession_keep_all_promises() -> None:
    first = random.SystemRandom().randrange(1 << 48)
    failures = run_many_heirs(range(first, first + examples(HEIR_SCHEDULES)))
    assert not failures, "\n".join(map(str, failures))


def test_a_member_that_was_cut_off_one_way_hears_of_its_generation_later() -> None:
    _, failure = run_heirs(218516469733940)
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", [4000243, 4000378, 4000906])
def test_half_of_the_votes_do_not_depose_whom_the_arbiter_has_chosen(seed: int) -> None:
    """They stood again and again in vain, and heeded no coordinator of an earlier term: see
    `Elector.undecided`.
    """
    _, failure = run_heirs(seed)
    assert failure is None, str(failure)


@pytest.mark.soak
def test_many_schedules_of_succession_keep_all_promises() -> None:
    first = random.SystemRandom().randrange(1 << 48)
    command = (sys.executable, "-m", "tests.simulation", "--heirs", "--processes", str(os.cpu_count() or 1))
    done = subprocess.run(
        (*command, "--seeds", f"{first}:{first + HEIRS_SOAKED}"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("rules", "words"), BROKEN)
def test_a_broken_rule_of_succession_shows(rules: Rules, words: tuple[str, ...]) -> None:
    for seed in range(HEIRS_CAUGHT_WITHIN):
        _, failure = run_heirs(seed, rules)
        if failure is not None:
            assert any(part in failure.wrong[0] for part in words), str(failure)
            return
    raise AssertionError(f"{rules} did not show")


# ---- the simulation itself -------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_seed_tells_the_same_story_in_any_process() -> None:
    """Regardless of the order of sets and dictionaries there."""
    told, failure = story(7)
    elsewhere = subprocess.run(
        (sys.executable, "-m", "tests.simulation", "--seed", "7"),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert failure is None
    assert "to n0: StartWorker" in told
    assert elsewhere.stdout.rstrip() == told


def test_a_failure_names_its_seed_and_the_command_that_replays_it() -> None:
    failures = [run_one(seed, step=broken.counts_one_for_all)[1] for seed in range(20)]
    told = str(next(failure for failure in failures if failure is not None))
    assert told.startswith("seed ")
    assert "replay: python -m tests.simulation --seed " in told
