"""The parts of `holdfast bench gpu`: what each one runs, and its figures."""

from collections.abc import Callable, Iterable, Mapping
from statistics import median

import msgspec

from bench.gpu_recovery import (
    NCCL_PHASES,
    Recovered,
    Recoveries,
    Restarts,
    kill_members,
    kill_ranks,
)
from bench.gpu_runs import (
    NO_CHECKPOINTS,
    Plan,
    Trained,
    Training,
    completed,
    launch,
    script,
    train,
)
from holdfast.run.chaos import random_plan
from holdfast.run.wire import FaultKind, PlannedFault

ROUNDS = 12
ROUNDS_TINY = 3
STEPS_S_MAX = 120.0
COMPILE_S_MAX = 240.0
KERNELS_S_MAX = 90.0
COSTS_SHOWN_MAX = 8

STORM_SEED = 11
STORM_S_MAX = 300.0
STORM_PLANNED_SHARE = 1.1
"""Half of the faults are planned for moments of a recovery. Some of those never come before the run ends."""
STORM_FIRST_STEP = 8
STORM_STEPS_PER_PAIR = 6
STORM_TAIL_STEPS = 6
STORM_PAUSE_S = 0.06
STORM_AWAY_S = 0.5
STORM_WARM = 2
STORM_KINDS: tuple[FaultKind, ...] = ("kill", "kill", "kill", "kill", "kill", "node")

PLAIN = "plain loop"
PLAIN_DETERMINISTIC = "plain loop, deterministic kernels"
ONE = "one member"


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios are medians over the turns, of one member's time by that of the plain loop next to it."""

    ratio_plain: float
    ratio_plain_deterministic: float
    step_s: dict[str, float]


class Bits(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of 1 to 4 members, and one with a kill, the last."""

    contests: list[Trained]


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """A run with many faults, and the same without any."""

    disturbed: Trained
    undisturbed: Trained


class Relaxed(msgspec.Struct, frozen=True, kw_only=True):
    """What `deterministic=False` keeps: two members, one killed.

    loss_difference_max: relative, over all steps, from the deterministic run's.
    """

    steps_lost: int
    kills: int
    loss_difference_max: float
    survivors_lost: list[str]


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """One member with `torch.compile(model)` by a plain loop with the same and deterministic kernels."""

    ratio: float
    step_s: dict[str, float]


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """An operation, forward and backward, at the shapes of a lane. None: refused, and why."""

    fast_ms: float | None
    deterministic_ms: float | None
    refused: str = ""


class Deterministic(msgspec.Struct, frozen=True, kw_only=True):
    """What deterministic kernels cost a plain loop.

    ratio: how long the device is busy in a step with them, by one without, each in a process of its own with
    all of its settings. costs_ms: how much longer it is busy with an operation; the largest changes.
    """

    ratio: float
    costs_ms: dict[str, float]
    kernels: dict[str, Kernel]


class KernelsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The output of the kernels' script."""

    operations_ms: dict[str, float]
    candidates_ms: dict[str, float]
    refused: dict[str, str]


Result = Steps | Bits | Storm | Relaxed | Compiled | Deterministic | Recoveries | Restarts


def steps(plan: Plan) -> Steps:
    """One member and a plain loop, in turn in the same process, without checkpoints."""
    turns = _turns(plan, "step", "", STEPS_S_MAX)
    return Steps(
        ratio_plain=_ratio(turns, "member", "fast"),
        ratio_plain_deterministic=_ratio(turns, "member", "deterministic"),
        step_s={
            PLAIN: _median(turns, "fast"),
            PLAIN_DETERMINISTIC: _median(turns, "deterministic"),
            ONE: _median(turns, "member"),
        },
    )


def compiled(plan: Plan) -> Compiled:
    """The same, compiled."""
    turns = _turns(plan, "compile", "aot_eager" if plan.is_tiny else "inductor", COMPILE_S_MAX)
    return Compiled(
        ratio=_ratio(turns, "member", "deterministic"),
        step_s={
            f"{PLAIN_DETERMINISTIC}, compiled": _median(turns, "deterministic"),
            f"{ONE}, compiled": _median(turns, "member"),
        },
    )


def _turns(plan: Plan, name: str, backend: str, limit_s: float) -> list[dict[str, float]]:
    rounds = ROUNDS_TINY if plan.is_tiny else ROUNDS
    plan.tell(f"{name}: {rounds} turns")
    told = ("--size", plan.size, "--rounds", str(rounds), "--compile", backend)
    with plan.folder(name) as folder:
        run = launch(folder, "gpu_steps.py", "--warm", "0", *NO_CHECKPOINTS, told=told)
        completed(run, folder, name, limit_s)
        return msgspec.json.decode((folder / "turns.json").read_bytes(), type=list[dict[str, float]])


def _ratio(turns: list[dict[str, float]], ours: str, theirs: str) -> float:
    return median(turn[ours] / turn[theirs] for turn in turns)


def _median(turns: list[dict[str, float]], name: str) -> float:
    return median(turn[name] for turn in turns)


def bits(plan: Plan) -> Bits:
    """The same training with 1 to 4 members, and with one of them killed."""
    kill = PlannedFault(id=1, step=max(1, plan.steps - 3), moment="reduce", rank=1)
    counts = {ONE: 1, **{f"{count} members": count for count in range(2, plan.members_max + 1)}}
    trainings = [
        Training(name=name, nodes=count, steps=plan.steps, size=plan.size) for name, count in counts.items()
    ]
    killed = Training(
        name=f"{plan.members} members, one killed",
        nodes=plan.members,
        steps=plan.steps,
        size=plan.size,
        warm=1,
        plan=toml([kill]),
    )
    return Bits(contests=[train(plan, training) for training in (*trainings, killed)])


def storm(plan: Plan) -> Storm:
    """Many faults, in every moment of a step, a recovery and a join."""
    faults = storm_faults(round(plan.kills * STORM_PLANNED_SHARE), plan.members_max)
    steps_all = faults[-1].step + STORM_TAIL_STEPS
    calm = Training(name="undisturbed", nodes=1, steps=steps_all, size=plan.storm_size)
    struck = msgspec.structs.replace(
        calm,
        name="kills",
        nodes=plan.members_max,
        warm=STORM_WARM,
        plan=toml(faults),
        checkpoint_every=1,
        pause_s=STORM_PAUSE_S,
        limit_s=STORM_S_MAX,
    )
    return Storm(disturbed=train(plan, struck), undisturbed=train(plan, calm))


def storm_faults(count: int, members: int) -> tuple[PlannedFault, ...]:
    """Seeded ones, in pairs: the second strikes in the recovery from the first. Evenly spread, so that lost
    members have time to come back.
    """
    drawn = random_plan(
        STORM_SEED, steps=count, count=count, ranks=members, kinds=STORM_KINDS, for_s=STORM_AWAY_S
    )
    return tuple(
        msgspec.structs.replace(fault, step=STORM_FIRST_STEP + number // 2 * STORM_STEPS_PER_PAIR)
        for number, fault in enumerate(drawn)
    )


def relaxed(plan: Plan) -> Relaxed:
    """Two members and a kill without deterministic kernels, against one member with them."""
    kill = PlannedFault(id=1, step=max(1, plan.steps - 3), moment="lane", rank=1)
    strict = Training(name="deterministic", nodes=1, steps=plan.steps, size=plan.size)
    loose = msgspec.structs.replace(
        strict, name="deterministic=False", nodes=2, warm=1, plan=toml([kill]), relaxed=True
    )
    reference, found = train(plan, strict).losses, train(plan, loose)
    return Relaxed(
        steps_lost=found.steps_lost,
        kills=found.kills,
        loss_difference_max=max(
            abs(loss - reference[step]) / abs(reference[step]) for step, loss in found.losses.items()
        ),
        survivors_lost=found.survivors_lost,
    )


def deterministic(plan: Plan) -> Deterministic:
    """A plain loop with deterministic kernels and without, and where the difference goes."""
    fast, strict = _kernels(plan, "fast"), _kernels(plan, "deterministic", "--deterministic")
    return Deterministic(
        ratio=sum(strict.operations_ms.values()) / sum(fast.operations_ms.values()),
        costs_ms=extra_ms(fast.operations_ms, strict.operations_ms),
        kernels=kernels(fast, strict),
    )


def _kernels(plan: Plan, name: str, *more: str) -> KernelsSeen:
    plan.tell(f"deterministic: kernels, {name}")
    with plan.folder(f"kernels-{name}") as folder:
        told = ("--size", plan.size, *more)
        completed(script(folder, "gpu_kernels.py", told), folder, f"kernels, {name}", KERNELS_S_MAX)
        return msgspec.json.decode((folder / "kernels.json").read_bytes(), type=KernelsSeen)


def extra_ms(fast: Mapping[str, float], strict: Mapping[str, float]) -> dict[str, float]:
    """The largest changes, the costliest first."""
    changes = {name: strict.get(name, 0.0) - fast.get(name, 0.0) for name in {*fast, *strict}}
    largest = sorted(changes, key=lambda name: -abs(changes[name]))[:COSTS_SHOWN_MAX]
    return {name: changes[name] for name in sorted(largest, key=lambda name: -changes[name])}


def kernels(fast: KernelsSeen, strict: KernelsSeen) -> dict[str, Kernel]:
    names = [*fast.candidates_ms, *fast.refused]
    return {
        name: Kernel(
            fast_ms=fast.candidates_ms.get(name),
            deterministic_ms=strict.candidates_ms.get(name),
            refused=fast.refused.get(name) or strict.refused.get(name, ""),
        )
        for name in names
    }


def phases(recovered: Iterable[Recovered]) -> dict[str, float]:
    """The medians of each phase, and the share of all that is NCCL's."""
    found = [each.phases_s for each in recovered]
    medians = {phase: median(each[phase] for each in found) for phase in found[0]}
    return {**medians, "nccl": median(sum(each[phase] for phase in NCCL_PHASES) for each in found)}


def toml(faults: Iterable[PlannedFault]) -> str:
    """A plan as `holdfast run --chaos` reads it."""
    return "\n".join(
        f'[[fault]]\nstep = {fault.step}\nmoment = "{fault.moment}"\nrank = {fault.rank}\n'
        f'fault = "{fault.fault}"\nfor_s = {fault.for_s}\n'
        for fault in faults
    )


Part = Callable[[Plan], Result]
PARTS: dict[str, Part] = {
    "bits": bits,
    "kills": storm,
    "relaxed": relaxed,
    "step": steps,
    "compile": compiled,
    "deterministic": deterministic,
    "recovery": kill_members,
    "torchrun": kill_ranks,
}
TOGETHER = frozenset({"bits", "kills", "relaxed"})
"""These compare bits and count losses, and are not timed: they may share the GPU."""
