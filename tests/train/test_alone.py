"""A script without a coordinator: a run with one member, its record, its checkpoints, and its mistakes."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import holdfast.train as hf
from holdfast.record.errors import InputError
from holdfast.record.events import RunEnded
from holdfast.record.journal import read_directory
from holdfast.train.checkpoint import DirectoryCheckpoints

pytestmark = pytest.mark.slow

WIDTH = 4


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, lane: hf.Lane) -> torch.Tensor:
    result: torch.Tensor = model(torch.full((2, WIDTH), lane.step + lane.index / lane.of)).square().mean()
    return result


def train(steps: int, *, lanes: int = 4, seed: int = 1) -> str:
    with hf.join() as run:
        model, optimizer = build()
        state = run.protect(model, optimizer, lanes=lanes, seed=seed)
        for step in state.steps(steps):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
            step.commit()
        assert state.version == steps
    return state.digest()


def events(journal: Path) -> list[str]:
    return [type(event).__name__ for event in read_directory(journal)]


# ---- a stop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["in the commit", "behind it"])
def test_a_stop_keeps_the_state(alone: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(alone.parent / "checkpoints"))
    before = signal.getsignal(signal.SIGTERM)
    seen: list[int] = []

    def train_until(last: int) -> None:
        with hf.join() as run:
            model, optimizer = build()

            def on_commit() -> None:
                if state.version + 1 == last and moment == "in the commit":
                    os.kill(os.getpid(), signal.SIGTERM)

            state = run.protect(model, optimizer, lanes=4, seed=1, on_commit=on_commit)
            for step in state.steps(6):
                for lane in step.lanes:
                    lane.backward(loss_of(model, lane))
                step.commit()
                if step.number == last and moment == "behind it":
                    os.kill(os.getpid(), signal.SIGTERM)
                seen.append(step.number)  # work after a committed step is done before the script leaves

    with pytest.raises(SystemExit) as stop:
        train_until(3)
    assert stop.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    train_until(0)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_an_exception_keeps_the_state(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(alone.parent / "checkpoints"))

    def train_until(last: int) -> list[int]:
        seen: list[int] = []
        with hf.join() as run:
            model, optimizer = build()
            for step in run.protect(model, optimizer, lanes=4, seed=1).steps(6):
                for lane in step.lanes:
                    lane.backward(loss_of(model, lane))
                step.commit()
                seen.append(step.number)
                if step.number == last:
                    raise OSError("the weights cannot be saved")
        return seen

    with pytest.raises(OSError, match="cannot be saved"):
        train_until(3)
    assert train_until(0) == [4, 5, 6]


def test_a_run_that_was_stopped_early_is_not_trained_on(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in docs/checkpoints.md: only what follows the loop is done again."""
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(alone.parent / "checkpoints"))

    def train_until_old(is_saved: bool) -> tuple[list[int], int]:
        seen: list[int] = []
        with hf.join() as run:
            model, optimizer = build()
            best = hf.Best(model)

            def keep_best() -> None:
                best.offer(0.0, step=state.version + 1)

            state = run.protect(model, optimizer, best, lanes=4, seed=1, on_commit=keep_best)
            for step in state.steps(20):
                if best.step is not None and state.version - best.step >= 3:
                    break
                for lane in step.lanes:
                    lane.backward(loss_of(model, lane))
                step.commit()
                seen.append(step.number)
            if not is_saved:
                raise OSError("the weights cannot be saved")
        return seen, state.version

    with pytest.raises(OSError, match="cannot be saved"):
        train_until_old(False)
    assert train_until_old(True) == ([], 4)
    assert train_until_old(True) == ([], 4)  # also if it was completed


@pytest.mark.parametrize(
    ("missing", "instead"),
    [("lanes", {}), ("lanes", {"lanes": torch.ones(2)}), ("version", {"version": "3"}), ("state", {})],
)
def test_a_checkpoint_without_what_a_run_needs_is_refused(
    alone: Path, monkeypatch: pytest.MonkeyPatch, missing: str, instead: dict[str, object]
) -> None:
    kept = {"lanes": 4, "seed": 1, "threads": torch.get_num_threads(), "version": 3, "loss": 0.5, "state": []}
    del kept[missing]
    DirectoryCheckpoints(alone.parent / "kept", told=lambda *_, **__: None).save(3, kept | instead)
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(alone.parent / "kept"))
    with pytest.raises(InputError, match=f"has no usable {missing}"):
        train(4)


# ---- the record --------------------------------------------------------------------------------------------


def test_a_run_by_itself_writes_its_record(alone: Path) -> None:
    train(3)
    assert events(alone) == [
        "RunStarted",
        "MemberJoined",
        "GenerationOpened",
        "StepCommitted",
        "StepCommitted",
        "StepCommitted",
        "RunEnded",
    ]


def test_declared_work_is_done_and_changes_nothing(alone: Path) -> None:
    done: list[str] = []
    with hf.join() as run:
        with run.alone("evaluation"), run.together("export"):
            done.append("both")
        with pytest.raises(ZeroDivisionError), run.together("export"):
            _ = 1 / 0
    assert done == ["both"]


def test_a_script_that_fails_ends_its_run(alone: Path) -> None:
    def fail() -> None:
        with hf.join() as run:
            for step in run.protect(*build(), lanes=2, seed=1).steps(3):
                _ = step.number / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    ended = list(read_directory(alone))[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.outcome, ended.reason) == ("failed", "division by zero")


def test_a_script_that_protects_nothing_or_makes_no_step_works(alone: Path) -> None:
    with hf.join() as run:
        assert run.rank == 0
    assert not alone.exists()
    with hf.join() as run:
        run.protect(*build(), lanes=2, seed=1)
    assert events(alone)[-1] == "RunEnded"


# ---- checkpoints -------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoints(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_EVERY", "1")
    return tmp_path / "checkpoints"


def test_a_run_goes_on_from_its_checkpoint_with_the_same_bits(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(2)
    resumed = train(5)
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS", str(checkpoints.with_name("others")))
    assert resumed == train(5)


@pytest.mark.parametrize(("setting", "value"), [("lanes", 8), ("seed", 2)])
def test_a_checkpoint_made_otherwise_is_refused(checkpoints: Path, setting: str, value: int) -> None:
    train(2)
    with pytest.raises(InputError, match=f"{setting}=[14], this run has {value}"):
        train(5, **{setting: value})


def test_a_checkpoint_of_another_model_is_refused_with_a_sentence(checkpoints: Path) -> None:
    train(2)
    model = nn.Sequential(nn.Linear(WIDTH, 2), nn.Dropout(0.1), nn.Linear(2, WIDTH))
    sentence = mistake(go, model, lanes=4)
    assert "does not fit what is protected" in sentence
    assert "size mismatch" in sentence


# ---- mistakes ----------------------------------------------------------------------------------------------

Script = Callable[[hf.State, nn.Module], None]


def mistake(script: Script, model: nn.Module | None = None, **told: Any) -> str:
    """The error message for a script that does this."""
    built = build() if model is None else (model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InputError) as refused, hf.join() as run:
        script(run.protect(*built, **{"lanes": 2, "seed": 1, **told}), built[0])
    assert refused.value.hint
    return refused.value.sentence


def go(state: hf.State, model: nn.Module) -> None:
    for step in state.steps(2):
        for lane in step.lanes:
            lane.backward(loss_of(model, lane))
        step.commit()


@pytest.mark.parametrize("cost", [0, -1.0, math.inf, math.nan, "12", None, True])
def test_an_invalid_cost(alone: Path, cost: Any) -> None:
    def priced(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(2):
            for lane in step.lanes:
                lane.cost = cost
                lane.backward(loss_of(model, lane))
            step.commit()

    assert f"The cost of lane 0 is {cost!r}" in mistake(priced)


@pytest.mark.parametrize("lanes", [6, 0, -8, 1 << 17])
def test_lanes_that_are_not_a_power_of_two(alone: Path, lanes: int) -> None:
    assert f"lanes={lanes} is not a power of two" in mistake(go, lanes=lanes)


@pytest.mark.parametrize(
    ("name", "value"), [("lanes", "8"), ("seed", None), ("seed", 1.5), ("accumulate", "2")]
)
def test_what_should_be_a_whole_number(alone: Path, name: str, value: object) -> None:
    assert f"{name}={value!r} is a {type(value).__name__}." in mistake(go, None, **{name: value})


def test_an_invalid_batch_size() -> None:
    with pytest.raises(InputError, match="batch_size='4' is a str"):
        hf.MapData([1, 2], batch_size="4", seed=1)  # type: ignore[arg-type]


def test_accumulating_nothing(alone: Path) -> None:
    assert "accumulate=0" in mistake(go, accumulate=0)


def test_protecting_twice_or_outside_the_run(alone: Path) -> None:
    with hf.join() as run:
        run.protect(*build(), lanes=2, seed=1)
        with pytest.raises(InputError, match="called twice"):
            run.protect(*build(), lanes=2, seed=1)
    run = hf.join()
    with pytest.raises(InputError, match="outside `with"):
        run.protect(*build(), lanes=2, seed=1)


def test_a_lane_without_backward(alone: Path) -> None:
    def script(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            assert list(step.lanes)

    assert "Lane 0 had 0 calls" in mistake(script)


def test_a_lane_with_more_backwards_than_declared(alone: Path) -> None:
    def script(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
                lane.backward(loss_of(model, lane))

    assert "too often in a lane (2 times)" in mistake(script)
    assert "had 1 calls of lane.backward(), not 2" in mistake(go, accumulate=2)


def test_a_backward_that_bypasses_the_lane(alone: Path) -> None:
    def script(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
                loss_of(model, lane).backward()  # type: ignore[no-untyped-call]

    assert "its gradient in two parts" in mistake(script)


class Reentrant(nn.Module):
    """One layer, used in two segments whose backward passes are separate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


def test_a_parameter_whose_gradient_comes_in_parts(alone: Path) -> None:
    """The first part has already been sent when the second comes."""
    assert "its gradient in two parts" in mistake(go, Reentrant())


def test_an_invalid_loss(alone: Path) -> None:
    def script(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for lane in step.lanes:
                lane.backward(model(torch.ones(2, WIDTH)))

    assert "a loss of one element" in mistake(script)


def test_committing_too_early_or_twice_or_never(alone: Path) -> None:
    def early(state: hf.State, model: nn.Module) -> None:
        next(iter(state.steps(1))).commit()

    def twice(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
            step.commit()
            step.commit()

    def never(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(2):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))

    def loss_before(state: hf.State, model: nn.Module) -> None:
        assert next(iter(state.steps(1))).loss

    assert "commit() was called before the lanes" in mistake(early)
    assert "committed twice" in mistake(twice)
    assert "left without step.commit()" in mistake(never)
    assert "loss of step 1 was asked for before" in mistake(loss_before)


def test_leaving_the_lanes_early_or_going_through_them_twice(alone: Path) -> None:
    def leaving(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
                break
            step.commit()

    def again(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for _ in range(2):
                for lane in step.lanes:
                    lane.backward(loss_of(model, lane))
            step.commit()

    assert "before the lanes of step 1 were through" in mistake(leaving)
    assert "lanes of step 1 were asked for twice" in mistake(again)


# ---- between steps -----------------------------------------------------------------------------------------


def test_collectives_of_one_member_return_its_own(alone: Path) -> None:
    with hf.join() as run:
        model, optimizer = build()
        state = run.protect(model, optimizer, lanes=2, seed=1, clip_norm=math.inf)
        assert run.broadcast({"id": (1, b"x")}) == {"id": (1, b"x")}
        for step in state.steps(3):
            assert step.lr == 0.01
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
            step.commit()
            assert run.is_main
            assert (run.reduce(3), run.reduce(2.5, "mean"), run.gather("a")) == (3, 2.5, ["a"])
            assert torch.equal(run.reduce(torch.ones(2, dtype=torch.float16), "min"), torch.ones(2).half())
            assert run.share("abc", str.upper) == ["A", "B", "C"]
            assert run.share([], str.upper) == []
            run.barrier()
            assert step.grad_norm > 0
        assert run.broadcast(lambda: "called") == "called"


def test_collectives_in_the_wrong_place_are_reported(alone: Path) -> None:
    def in_lanes(run: hf.Run, state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for _lane in step.lanes:
                run.barrier()

    def before_commit(run: hf.Run, state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
            run.gather(step.loss)

    def in_work(run: hf.Run, state: hf.State, model: nn.Module) -> None:
        run.share([1], lambda _: run.barrier())

    def no_norm(run: hf.Run, state: hf.State, model: nn.Module) -> None:
        for step in state.steps(1):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
            step.commit()
            assert step.grad_norm

    def log_early(run: hf.Run, state: hf.State, model: nn.Module) -> None:
        run.log(lambda _step, _values: None)(next(iter(state.steps(1))), loss=1.0)

    def go_wrong(call: Callable[[hf.Run, hf.State, nn.Module], object]) -> None:
        with hf.join() as run:
            model, optimizer = build()
            call(run, run.protect(model, optimizer, lanes=2, seed=1), model)

    def said(call: Callable[[hf.Run, hf.State, nn.Module], object]) -> str:
        with pytest.raises(InputError) as raised:
            go_wrong(call)
        return raised.value.told

    assert "barrier() was called inside a step" in said(in_lanes)
    assert "gather() was called inside a step" in said(before_commit)
    assert "called in the work of another" in said(in_work)
    assert "math.inf measures" in said(no_norm)
    assert "logged before its lanes were through" in said(log_early)
    assert "cannot be sent" in said(lambda run, *_: run.broadcast({1, 2}))
    assert "no operation 'product'" in said(lambda run, *_: run.reduce(1, "product"))
    assert "given a str" in said(lambda run, *_: run.reduce("a"))
    with pytest.raises(InputError, match=r"share\(\) was called before protect"), hf.join() as run:
        run.share([1], str)


def test_epochs_whose_steps_are_counted_from_0(alone: Path) -> None:
    def epochs(state: hf.State, model: nn.Module) -> None:
        for _ in range(2):
            go(state, model)

    assert "steps(2) was called again" in mistake(epochs)


def test_epochs_whose_steps_are_counted_from_the_beginning(alone: Path) -> None:
    numbers = []
    with hf.join() as run:
        model, optimizer = build()
        state = run.protect(model, optimizer, lanes=2, seed=1)
        for epoch in range(3):
            for step in state.steps((epoch + 1) * 2):
                for lane in step.lanes:
                    lane.backward(loss_of(model, lane))
                step.commit()
                numbers.append(step.number)
                if step.number == 3:
                    break
    assert numbers == [1, 2, 3, 4, 5, 6]


class Keeping(nn.Module):
    """Changes a buffer in the given way whenever it is called."""

    def __init__(self, keep: Callable[["Keeping"], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(3))
        self.seen: torch.Tensor
        self.keep = keep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keep(self)
        result: torch.Tensor = self.layer(x)
        return result


def in_place(model: Keeping) -> None:
    model.seen += 1


def anew(model: Keeping) -> None:
    model.seen = model.seen + 1


def behind_the_back(model: Keeping) -> None:
    model.seen.data.add_(1)


@pytest.mark.parametrize("keep", [in_place, anew, behind_the_back])
def test_a_buffer_that_forward_changes(alone: Path, keep: Callable[[Keeping], None]) -> None:
    assert "'seen' was changed in a lane" in mistake(go, Keeping(keep))
    with hf.join() as run:
        model = Keeping(keep)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        go(run.protect(model, optimizer, lanes=2, seed=1, moving=["seen"]), model)
        assert model.seen.tolist() == [2, 2, 2]


def test_a_moving_buffer_that_is_changed_outside_the_lanes(alone: Path) -> None:
    def script(state: hf.State, model: nn.Module) -> None:
        for step in state.steps(2):
            for lane in step.lanes:
                lane.backward(loss_of(model, lane))
            step.commit()
            model(torch.ones(2, WIDTH))  # model.eval() was forgotten

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    assert "'1.num_batches_tracked' was changed outside the lanes" in mistake(script, model)


def test_zero_grad_wherever_a_script_is_used_to_call_it(alone: Path) -> None:
    def digest_of(calls: set[str]) -> str:
        with hf.join() as run:
            model, optimizer = build()
            state = run.protect(model, optimizer, lanes=2, seed=1)
            for step in state.steps(3):
                if "step" in calls:
                    optimizer.zero_grad()
                for lane in step.lanes:
                    if "before" in calls:
                        optimizer.zero_grad()
                    lane.backward(loss_of(model, lane))
                    if "after" in calls:
                        optimizer.zero_grad()
                step.commit()
                if "commit" in calls:
                    optimizer.zero_grad()
        return state.digest()

    assert len({digest_of(calls) for calls in ({"-"}, {"step", "commit"}, {"before"}, {"after"})}) == 1


def test_all_of_it_inside_autocast_uses_the_newest_weights(alone: Path) -> None:
    """autocast caches weights until it ends, and would compute with those of the first step."""

    def digest_of(outer: bool) -> str:
        with hf.join() as run:
            model, optimizer = build()
            state = run.protect(model, optimizer, lanes=2, seed=1)
            with torch.autocast("cpu", torch.bfloat16, enabled=outer):
                for step in state.steps(3):
                    for lane in step.lanes:
                        with torch.autocast("cpu", torch.bfloat16, enabled=True, cache_enabled=outer):
                            lane.backward(loss_of(model, lane))
                    step.commit()
        return state.digest()

    assert digest_of(outer=True) == digest_of(outer=False)
