"""The parts of `holdfast bench sharded`: what each one runs, and its figures.

On a GPU every rank is a node of its own and poses as a host, so that several may share it; without one all
ranks are on one node.
"""

import random
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench import losses
from bench.contestants import RESTARTS_MAX, UNBOUNDED_STEPS, Launch, Processes, Task, torchrun
from bench.gpu_parts import toml
from bench.gpu_recovery import RANK_SETTLE_STEPS, SETTLE_STEPS, Recovered, await_warm, member_names
from bench.gpu_runs import NO_CHECKPOINTS, Plan, completed, launch
from bench.kills import (
    START_S_MAX,
    Failed,
    Kill,
    Recovery,
    awaited,
    replace_phases_s,
    settled,
    shrink_phases_s,
)
from holdfast.record.events import AnyEvent, GenerationOpened
from holdfast.record.journal import events_of
from holdfast.run.chaos import STEP_MOMENTS
from holdfast.run.wire import Moment, PlannedFault

REPLICAS = 2
SHARD = 2
MEMBERS = REPLICAS * SHARD
BITS_LANES = 2 * MEMBERS
"""Two for each rank, so that a rank holds more than one lane of a step."""
BITS_FIRST_STEP = 4
BITS_STEPS_PER_KILL = 6
BITS_TAIL_STEPS = 6
BITS_PAUSE_S = 0.1
BITS_S_MAX = 900.0
BITS_MOMENTS: tuple[Moment, ...] = (*STEP_MOMENTS, "agree")
SEED = 1
BLOCK_STEPS = 2
TURNS = 10
TURN_S_MAX = 120.0
HANG_S = 3600
"""A rank that waits for its turn is not hung."""
REDUCE_ROUNDS = 20
REDUCE_RANKS = (2, 4)
REDUCE_S_MAX = 240.0

MIRROR_LANES = 8
"""Of each rank: as many as a pipeline has microbatches, or a large batch passes."""
MIRROR_TURNS = 3
MIRROR_EVERY = 8
"""Steps from one mirrored state to the next, as `protect` has it unless told; and of a turn."""
END = "end"
"""Of turns, as bench/workers/turns.py has it."""

_DIGEST = re.compile(r"completed\b.*: step (\d+), digest ([0-9a-f]{64})")


class Bits(msgspec.Struct, frozen=True, kw_only=True):
    """A run with kills and one without. digests: of all parts of the state, the undisturbed one's first."""

    digests: tuple[str, str]
    kills: int
    steps: int
    steps_lost: int
    checkpoints_loaded: int
    survivors_lost: list[str]


class Recoveries(msgspec.Struct, frozen=True, kw_only=True):
    """Each kill of a rank. refilled: its place is taken by a warm process. shelved: its replica waits for a
    new process, and the other goes on. restarted: torchrun's.
    """

    refilled: tuple[Recovered, ...]
    shelved: tuple[Recovered, ...]
    restarted: tuple[Recovery, ...]
    survivors_lost: list[str]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one rank. peak: the most in a step. shard: its part of the parameters. sheets: how many hold
    gradients, and how much they take.
    """

    peak_bytes: int
    shard_bytes: int
    sheets: int = 0
    sheets_bytes: int = 0


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A block of each, Holdfast's and the peer's: seconds of a step, and what all ranks computed in it."""

    step_s: tuple[float, float]
    cpu_s: tuple[float, float]


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """Steps without faults. Ratios are medians over the turns; the processors' time is what a step costs a
    machine on which others compute, too.
    """

    replicas: int
    shard: int
    step_ratio: float
    cpu_ratio: float
    step_s: tuple[float, float]
    memory_ratio: float
    memory: tuple[Memory, Memory]
    turns: tuple[Turn, ...]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    hsdp: Contest
    fsdp: Contest


class ReduceScatter(msgspec.Struct, frozen=True, kw_only=True):
    """By the number of ranks: seconds of Holdfast's and of the peer's, and the ratio of a round's."""

    ratio: dict[int, float]
    seconds: dict[int, tuple[float, float]]


class Mirrors(msgspec.Struct, frozen=True, kw_only=True):
    """A lone replica with mirrors of its ranks' parts, and the same without."""

    contest: Contest


class Lone(msgspec.Struct, frozen=True, kw_only=True):
    """A lone replica whose ranks are killed and made again from their mirrors. state_s: of each, how long the
    members took to share their state, the steps that the new rank did again included.
    """

    bits: Bits
    state_s: tuple[float, ...]


Result = Bits | Recoveries | Steps | ReduceScatter | Mirrors | Lone


def members(plan: Plan, *, ranks: int = MEMBERS, shard: int = SHARD, warm: int = 0) -> tuple[str, ...]:
    """The flags of `holdfast run` for so many members on this machine."""
    nodes, each = (1, ranks) if plan.is_tiny else (ranks, 1)
    sizes = {"--nodes": nodes, "--nproc-per-node": each, "--shard": shard, "--warm": warm}
    return tuple(str(word) for pair in sizes.items() for word in pair)


def rank(plan: Plan, folder: Path, *flags: str, lanes: int, told: Mapping[str, object]) -> Launch:
    """A run of the sharded GPT."""
    words = {"--size": plan.size, "--lanes": lanes, "--members": MEMBERS, **told}
    return launch(
        folder, "sharded.py", *flags, told=tuple(str(word) for pair in words.items() for word in pair)
    )


# ---- bits ------------------------------------------------------------------------------------------------


def bits(plan: Plan) -> Bits:
    """The same training with kills of ranks and without."""
    return _struck_bits(plan, "bits", shard=SHARD, mirror_every=0)[0]


def lone(plan: Plan) -> Lone:
    """The same of one replica, each of whose ranks has a mirror."""
    found, events = _struck_bits(plan, "lone", shard=MEMBERS, mirror_every=MIRROR_EVERY)
    opened = [event for event in events if isinstance(event, GenerationOpened) and event.generation > 1]
    return Lone(bits=found, state_s=tuple((event.state_ns or 0) / 1e9 for event in opened))


def _struck_bits(plan: Plan, part: str, *, shard: int, mirror_every: int) -> tuple[Bits, list[AnyEvent]]:
    faults = kills(plan.kills)
    steps = faults[-1].step + BITS_TAIL_STEPS
    told = {"--steps": steps, "--mirror-every": mirror_every}
    calm, _, _ = _trained(plan, f"{part}-undisturbed", shard, told, ())
    struck, output, events = _trained(plan, f"{part}-kills", shard, told, faults)
    strikes = losses.planned_strikes(output)
    found = Bits(
        digests=(calm, struck),
        kills=len(strikes),
        steps=steps,
        steps_lost=losses.steps_redone(events),
        checkpoints_loaded=losses.checkpoints_loaded(events),
        survivors_lost=losses.survivors_lost(events, strikes),
    )
    return found, events


def _trained(
    plan: Plan, name: str, shard: int, told: Mapping[str, int], faults: Sequence[PlannedFault]
) -> tuple[str, str, list[AnyEvent]]:
    """The digest, what was printed, and the record of a run to its end. Raises `Failed`."""
    steps = told["--steps"]
    plan.tell(f"{name}: {steps} steps")
    with plan.folder(name) as folder:
        flags = [*members(plan, shard=shard, warm=1 if faults else 0), *NO_CHECKPOINTS]
        if faults:
            (folder / "plan.toml").write_text(toml(faults), encoding="ascii")
            flags += ["--chaos", str(folder / "plan.toml")]
        paced = {**told, "--pause-s": BITS_PAUSE_S if faults else 0.0}
        launched = rank(plan, folder, *flags, lanes=BITS_LANES, told=paced)
        output = completed(launched, folder, name, BITS_S_MAX)
        events = list(events_of(folder / "home"))
    found = _DIGEST.search(output)
    if found is None or int(found[1]) != steps:
        raise Failed(f"{name}: did not say that it completed step {steps}:\n{output}")
    return found[2], output, events


def kills(count: int) -> tuple[PlannedFault, ...]:
    """Seeded kills, one at a time, and far enough apart for a new process to start: without a copy of every
    part, the state is lost."""
    generator = random.Random(SEED)
    moments = [BITS_MOMENTS[number % len(BITS_MOMENTS)] for number in range(count)]
    generator.shuffle(moments)
    return tuple(
        PlannedFault(
            id=number + 1,
            step=BITS_FIRST_STEP
            + number * BITS_STEPS_PER_KILL
            + generator.randrange(BITS_STEPS_PER_KILL // 2),
            moment=moment,
            rank=generator.randrange(MEMBERS),
        )
        for number, moment in enumerate(moments)
    )


# ---- recovery --------------------------------------------------------------------------------------------


def recovery(plan: Plan) -> Recoveries:
    """Kills with a stopwatch: of a rank with a warm process on its node and without, and of torchrun's."""
    refilled, lost = _struck(plan, "refill", warm=1)
    shelved, more_lost = _struck(plan, "shelve", warm=0)
    return Recoveries(
        refilled=tuple(refilled),
        shelved=tuple(shelved),
        restarted=tuple(_restarted(plan)),
        survivors_lost=[*lost, *more_lost],
    )


def _struck(plan: Plan, name: str, *, warm: int) -> tuple[list[Recovered], list[str]]:
    """Kill ranks in one run, each time when all ranks are there. Raises `Failed`."""
    generator = random.Random(SEED)
    found: list[Recovered] = []
    strikes = []
    after_ns = 0
    with plan.folder(name) as folder:
        flags = (*members(plan, warm=warm), *NO_CHECKPOINTS)
        launched = rank(plan, folder, *flags, lanes=MEMBERS, told={"--steps": UNBOUNDED_STEPS})
        with Processes((launched,), folder) as processes:
            for _ in range(plan.repetitions):
                usual = settled(folder, processes, MEMBERS, after_ns=after_ns, steps=SETTLE_STEPS)
                names = member_names(folder)
                victim = generator.choice(sorted(usual[-1].processes))
                if warm:
                    await_warm(folder, processes, names[victim].partition(".")[0])
                    usual = settled(
                        folder, processes, MEMBERS, after_ns=time.monotonic_ns(), steps=SETTLE_STEPS
                    )
                strikes.append(losses.Strike(member=names[victim], fault="kill"))
                kill = Kill.of_worker(folder, processes, generator, usual[-SETTLE_STEPS:], [victim])
                resumed = kill.awaited(MEMBERS if warm else MEMBERS - SHARD)
                phases = replace_phases_s(folder, kill, resumed) if warm else shrink_phases_s(kill, resumed)
                found.append(Recovered(recovery=kill.recovery(resumed), phases_s=phases))
                after_ns = resumed.at_ns
                plan.tell(f"recovery, {name}: {found[-1].recovery.recovered_s:.2f} s")
            lost = losses.survivors_lost(events_of(folder / "home"), strikes)
    return found, lost


def _restarted(plan: Plan) -> list[Recovery]:
    """The same for torchrun, which starts all ranks again. Raises `Failed`."""
    generator = random.Random(SEED)
    found: list[Recovery] = []
    after_ns = 0
    with (
        plan.folder("torchrun") as folder,
        Processes(_hsdp(plan, folder, ranks=MEMBERS), folder) as processes,
    ):
        for _ in range(min(plan.repetitions, RESTARTS_MAX)):
            usual = settled(folder, processes, MEMBERS, after_ns=after_ns, steps=RANK_SETTLE_STEPS)
            kill = Kill.of_worker(folder, processes, generator, usual)
            resumed = kill.awaited(MEMBERS)
            after_ns = resumed.at_ns
            found.append(kill.recovery(resumed))
            plan.tell(f"recovery, torchrun: {found[-1].recovered_s:.2f} s")
    return found


def _hsdp(plan: Plan, folder: Path, *told: str, ranks: int) -> tuple[Launch, ...]:
    """The peer's ranks."""
    task = Task(python=sys.executable, folder=folder, members=ranks)
    return torchrun(task, script="sharded_hsdp.py", more=("--size", plan.size, "--shard", str(SHARD), *told))


# ---- steps -----------------------------------------------------------------------------------------------

OURS, THEIRS = "holdfast", "torchrun"


def steps(plan: Plan) -> Steps:
    """Against HSDP, and one replica against FSDP2."""
    return Steps(hsdp=_beside_torchrun(plan, REPLICAS), fsdp=_beside_torchrun(plan, 1))


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """The two sides of a contest. lanes: of each rank. block: steps of a turn."""

    names: tuple[str, str]
    replicas: int
    shard: int
    lanes: int = 1
    block: int = BLOCK_STEPS
    turns: int = TURNS

    @property
    def ranks(self) -> int:
        return self.replicas * self.shard


def _beside_torchrun(plan: Plan, replicas: int) -> Contest:
    sides = Sides(names=(OURS, THEIRS), replicas=replicas, shard=SHARD)
    with plan.folder(f"steps-{replicas}-{SHARD}") as folder:
        turns = ("--turns", THEIRS, "--block", str(sides.block))
        theirs = _hsdp(plan, folder, *turns, ranks=sides.ranks)
        return _contest(plan, folder, sides, (_in_turns(plan, folder, sides, OURS), *theirs))


def _in_turns(plan: Plan, folder: Path, sides: Sides, name: str, *, mirror_every: int = 0) -> Launch:
    """A run that makes its steps when it is its turn."""
    flags = (*members(plan, ranks=sides.ranks, shard=sides.shard), *NO_CHECKPOINTS)
    told = {"--turns": name, "--block": sides.block, "--mirror-every": mirror_every}
    return rank(
        plan,
        folder,
        *flags,
        *("--hang-after", str(HANG_S), "--run", name),
        lanes=sides.lanes * sides.ranks,
        told={**told, "--steps": UNBOUNDED_STEPS},
    )


def _contest(plan: Plan, folder: Path, sides: Sides, launches: tuple[Launch, ...]) -> Contest:
    """Both in turns, each in its own processes: one side waits while the other steps. Raises `Failed`."""
    plan.tell(f"{' and '.join(sides.names)}, {sides.replicas} x {sides.shard}: {sides.turns} turns")
    with Processes(launches, folder) as processes:
        ours, theirs = (_memory(folder, processes, name, sides.ranks) for name in sides.names)
        turns = [_turn(folder, processes, number, sides) for number in range(sides.turns)]
        _give(folder, END)
    return contest(sides, (ours, theirs), turns)


def contest(sides: Sides, memory: tuple[Memory, Memory], turns: Sequence[Turn]) -> Contest:
    ours, theirs = zip(*(turn.step_s for turn in turns), strict=True)
    return Contest(
        replicas=sides.replicas,
        shard=sides.shard,
        step_ratio=median(turn.step_s[0] / turn.step_s[1] for turn in turns),
        cpu_ratio=median(turn.cpu_s[0] / turn.cpu_s[1] for turn in turns),
        step_s=(median(ours), median(theirs)),
        memory_ratio=memory[0].peak_bytes / memory[1].peak_bytes,
        memory=memory,
        turns=tuple(turns),
    )


def _memory(folder: Path, processes: Processes, name: str, ranks: int) -> Memory:
    """Of the rank that needs most."""

    def told() -> list[Memory] | None:
        files = sorted(folder.glob(f"{name}.*.memory"))
        texts = [file.read_bytes() for file in files]
        if len(texts) < ranks or not all(text.endswith(b"}") for text in texts):
            return None
        return [msgspec.json.decode(text, type=Memory) for text in texts]

    found = awaited(processes, told, START_S_MAX, f"the first steps of {name}")
    return max(found, key=lambda memory: memory.peak_bytes)


def _turn(folder: Path, processes: Processes, number: int, sides: Sides) -> Turn:
    """A block of each; the order changes from turn to turn."""
    step_s, cpu_s = {}, {}
    ours, theirs = sides.names
    for name in (ours, theirs) if number % 2 else (theirs, ours):
        _give(folder, f"{name} {number}")

        def through(name: str = name) -> list[list[int]] | None:
            lines = [
                file.read_text(encoding="ascii").splitlines(keepends=True)
                for file in folder.glob(f"{name}.*.turns")
            ]
            done = [each[number] for each in lines if len(each) > number and each[number].endswith("\n")]
            return [list(map(int, line.split())) for line in done] if len(done) == sides.ranks else None

        spans = awaited(processes, through, TURN_S_MAX, f"turn {number} of {name}")
        begun, ended, cpu = zip(*spans, strict=True)
        step_s[name] = (max(ended) - min(begun)) / 1e9 / sides.block
        cpu_s[name] = sum(cpu) / 1e9 / sides.block
    return Turn(step_s=(step_s[ours], step_s[theirs]), cpu_s=(cpu_s[ours], cpu_s[theirs]))


def _give(folder: Path, told: str) -> None:
    unfinished = folder / "turn.unfinished"
    unfinished.write_text(told, encoding="ascii")
    unfinished.replace(folder / "turn")


# ---- reduce-scatter --------------------------------------------------------------------------------------


def reduce_scatter(plan: Plan) -> ReduceScatter:
    """run.mesh's against gloo's, or NCCL's on a GPU."""
    pairs = {ranks: _reductions(plan, ranks) for ranks in REDUCE_RANKS}
    return ReduceScatter(
        ratio={ranks: median(ours / theirs for ours, theirs in found) for ranks, found in pairs.items()},
        seconds={
            ranks: (median(ours for ours, _ in found), median(theirs for _, theirs in found))
            for ranks, found in pairs.items()
        },
    )


def _reductions(plan: Plan, ranks: int) -> list[tuple[float, float]]:
    plan.tell(f"reduce-scatter: {ranks} ranks, {REDUCE_ROUNDS} rounds")
    with plan.folder(f"reduce-scatter-{ranks}") as folder:
        flags = (*members(plan, ranks=ranks, shard=ranks), *NO_CHECKPOINTS, "--hang-after", str(HANG_S))
        launched = launch(folder, "sharded_reduce.py", *flags, told=("--rounds", str(REDUCE_ROUNDS)))
        completed(launched, folder, f"reduce-scatter, {ranks} ranks", REDUCE_S_MAX)
        return msgspec.json.decode((folder / "pairs.json").read_bytes(), type=list[tuple[float, float]])


# ---- mirrors ---------------------------------------------------------------------------------------------


def mirrors(plan: Plan) -> Mirrors:
    """One replica, whose ranks keep each other's parts, and one whose ranks do not."""
    sides = Sides(
        names=("mirrored", "unmirrored"),
        replicas=1,
        shard=MEMBERS,
        lanes=MIRROR_LANES,
        block=MIRROR_EVERY,
        turns=MIRROR_TURNS,
    )
    with plan.folder("mirrors") as folder:
        launches = tuple(
            _in_turns(plan, folder, sides, name, mirror_every=every)
            for name, every in zip(sides.names, (MIRROR_EVERY, 0), strict=True)
        )
        return Mirrors(contest=_contest(plan, folder, sides, launches))


Part = Callable[[Plan], Result]
PARTS: dict[str, Part] = {
    "bits": bits,
    "recovery": recovery,
    "steps": steps,
    "reduce-scatter": reduce_scatter,
    "mirrors": mirrors,
    "lone": lone,
}
