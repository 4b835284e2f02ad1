"""The simulation's own sums: all paid time is charged exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.categories import Category
from holdfast.twin.truth import RunTruth

JOB, PAID, STEP_NS = 8, 10, 100


def begun(active: int = JOB, **others: int) -> RunTruth:
    truth = RunTruth(paid_gpus=PAID, job_gpus=JOB, reference_gpu_ns=JOB * STEP_NS)
    outside = {"joining": 0, "spare": 0, "out": 0, **others}
    truth.reshape(0, active=active, **outside)
    return truth


def charged(truth: RunTruth) -> dict[str, int]:
    return {category.key: gpu_ns for category, gpu_ns in truth.gpu_ns.items() if gpu_ns}


def test_a_step_is_useful_up_to_the_reference() -> None:
    truth = begun(spare=2)
    truth.steps(3, STEP_NS, 300)
    truth.steps(1, 130, 430)
    truth.steps(1, 150, 580, Category.STARTING)
    truth.end(580)
    assert charged(truth) == {
        "useful": 5 * JOB * STEP_NS,
        "slowdown": JOB * 30,
        "starting": JOB * 50,
        "spare": 2 * 580,
    }


def test_a_step_that_was_done_before_is_recomputed() -> None:
    truth = begun(spare=2)
    truth.steps(5, STEP_NS, 500)
    truth.roll_back(2)
    truth.steps(4, STEP_NS, 900)
    truth.end(900)
    assert charged(truth) == {
        "useful": 6 * JOB * STEP_NS,
        "recomputed": 3 * JOB * STEP_NS,
        "spare": 2 * 900,
    }


def test_steps_that_are_never_done_again_are_lost_in_the_end() -> None:
    truth = begun(active=4, spare=2, out=4)
    truth.steps(2, STEP_NS, 200)  # half the GPUs, half the work
    truth.reshape(200, active=8, joining=0, spare=2, out=0)
    truth.steps(3, STEP_NS, 500)
    truth.roll_back(1)
    truth.steps(1, STEP_NS, 600)
    truth.roll_back(1)
    truth.end(600)
    assert charged(truth) == {
        "useful": 4 * STEP_NS,
        "discarded": 4 * STEP_NS + 3 * JOB * STEP_NS,
        "recomputed": JOB * STEP_NS,
        "spare": 2 * 600,
        "drained": 4 * 200,
    }


def test_what_was_lost_is_no_more_than_the_steps_it_can_have_been() -> None:
    truth = begun(active=6, spare=2)
    truth.lose(Category.DISCARDED, 0, 200, steps=1, beyond=Category.DEAD_UNDETECTED)
    truth.end(200)
    assert charged(truth) == {
        "discarded": JOB * STEP_NS,
        "dead_undetected": 6 * 200 - JOB * STEP_NS,
        "missing_members": 2 * 200,
        "spare": 2 * 200,
    }


def test_who_is_missing_shares_the_fate_of_a_run_that_stands() -> None:
    truth = begun(active=6, spare=2)
    truth.stand(Category.RECOVERING, 0, 10)
    truth.work(Category.CHECKPOINT_STALL, 10, 30)
    truth.end(30)
    assert charged(truth) == {
        "recovering": 8 * 10,
        "checkpoint_stall": 6 * 20,
        "missing_members": 2 * 20,
        "spare": 2 * 30,
    }


def test_newcomers_are_part_of_the_job_since_the_boundary() -> None:
    truth = begun(active=4, joining=4, spare=2)
    truth.steps(1, 20, 20)
    truth.reshape(50, active=4, joining=4, spare=2, out=0)
    truth.join_since(20, 50, 4)
    truth.reshape(50, active=8, joining=0, spare=2, out=0)
    truth.stand(Category.RECOVERING, 20, 60)
    truth.end(60)
    assert charged(truth) == {"useful": 4 * 20, "recovering": 8 * 40, "starting": 4 * 20, "spare": 2 * 60}


shapes = st.tuples(st.integers(0, JOB), st.integers(0, JOB), st.integers(0, 2), st.integers(0, PAID))
doings = st.sampled_from(["stand", "work", "lose", "steps", "roll back"])


@given(st.lists(st.tuples(doings, shapes, st.integers(1, 5), st.integers(1, 2 * STEP_NS)), max_size=30))
def test_the_sum_is_what_was_paid(stretches: list[tuple[str, tuple[int, int, int, int], int, int]]) -> None:
    truth, now_ns = begun(), 0
    for doing, (active, joining, spare, out), count, step_ns in stretches:
        truth.reshape(now_ns, active=active, joining=min(joining, JOB - active), spare=spare, out=out)
        from_ns, now_ns = now_ns, now_ns + count * step_ns
        if doing == "stand":
            truth.stand(Category.LOCALISING, from_ns, now_ns)
        elif doing == "work":
            truth.work(Category.CHECKPOINT_STALL, from_ns, now_ns)
        elif doing == "lose":
            truth.lose(Category.DISCARDED, from_ns, now_ns, steps=count, beyond=Category.UNATTRIBUTED)
        else:
            if doing == "roll back":
                truth.roll_back(truth.step // 2)
            again = truth.high - truth.step
            for part in (min(again, count), count - min(again, count)):
                truth.steps(part, step_ns, now_ns if part == count else from_ns + part * step_ns)
                from_ns += part * step_ns
    truth.end(now_ns)
    assert sum(truth.gpu_ns.values()) == PAID * now_ns
    assert all(gpu_ns >= 0 for gpu_ns in truth.gpu_ns.values())
