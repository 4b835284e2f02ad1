"""Small training scripts for members in tests. Each writes the result of its run into a folder.

`<member>.json`: the digest of everything protected, the loss of every step that the member took part in and
its rank in that step, and the last scale of a GradScaler, if one is protected.
Models and data are on the member's device: the same scripts serve for a CPU and for a GPU.
"""

import ctypes
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from pipeline_models import PIPED, Piped
from sharded_models import SHARDED, whole_digest
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

import holdfast.train as hf

WIDTH = 24
ROWS = 6
WIDE = {"cpu": 128, "cuda": 2048}
LANE_S = 0.008
"""In `lopsided`: the time of a lane on a member that is not slow."""
SLEPT_S = 0.04
"""The time of a lane in a script with a slow member: see `dawdling`."""
LATE_POLLS, LATE_POLL_INTERVAL_S = 3000, 0.02
WIDE_ROWS = 256
"""For `wide`: on a GPU its gradients are several buckets."""
AUTOCAST = {"plain": torch.bfloat16, "scaled_half": torch.float16, "autocast": torch.bfloat16}
FIRST_SCALE = 2.0**30
"""For `scaled_half`: too large for float16, so its first steps are skipped."""
LEAVES_AFTER = 5
"""The step after which a script that is told to leaves its loop."""
TRACED = range(6, 11)
"""The steps in a trace."""
Built = tuple[nn.Module, list[object], dict[str, Any]]
"""A model, the other protected things, and further arguments of protect()."""


def data(step: int, lane: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step * 1009 + lane)
    return torch.randn(ROWS, WIDTH, generator=generator)


def device_type() -> str:
    """The type of the device on which models are being built."""
    return torch.get_default_device().type


def plain() -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.Tanh(), nn.Dropout(0.2), nn.Linear(48, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    return model, [optimizer, scheduler], {"clip_norm": 0.5}


def heavy() -> Built:
    """Large enough for three members to share the writing of its state."""
    model = nn.Sequential(nn.Linear(WIDTH, 90_000), nn.Tanh(), nn.Linear(90_000, WIDTH))
    return model, [torch.optim.AdamW(model.parameters(), lr=0.001)], {}


def lr_by_hand() -> Built:
    """The loop sets its learning rate, step by step."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
    return model, [torch.optim.AdamW(model.parameters(), lr=0.0)], {"clip_norm": math.inf}


def set_lr(optimizer: Any, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.02 / step


def batch_norm() -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH))
    return model, [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)], {}


class Gated(nn.Module):
    """Uses one of two branches, by lane, and one never; its head is tied to its stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.stem.weight
        self.left, self.right, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.branch = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.left if self.branch else self.right
        result: torch.Tensor = self.head(torch.tanh(branch(self.stem(x))))
        return result


def tied_and_unused() -> Built:
    model = Gated()
    groups: list[dict[str, Any]] = [
        {"params": [model.stem.weight], "lr": 0.02, "weight_decay": 0.1},
        {"params": [*model.left.parameters(), *model.right.parameters(), *model.never.parameters()]},
    ]
    return model, [torch.optim.AdamW(groups, lr=0.01, weight_decay=0.3)], {}


def accumulating() -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    return model, [optimizer, scheduler], {"accumulate": 2}


def double_and_scaled() -> Built:
    """float64 with a GradScaler, and an average of the weights that is updated at every commit."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)).double()
    average = torch.optim.swa_utils.AveragedModel(model)
    for parameter in average.parameters():
        parameter.requires_grad_(False)
    scaler = torch.amp.GradScaler(device_type(), init_scale=1024.0, growth_interval=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, [optimizer, scaler, average], {"on_commit": lambda: average.update_parameters(model)}


def half() -> Built:
    """Parameters in bfloat16, one frozen."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)).bfloat16()
    next(model.parameters()).requires_grad_(False)
    return model, [torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=0.01)], {}


def noisy_milestones() -> Built:
    """Draws random numbers when it commits, and has a scheduler whose state holds a Counter."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 8])

    def shake() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)

    return model, [optimizer, scheduler], {"on_commit": shake}


class Tracking(nn.Module):
    """Assigns its own statistics anew, beside BatchNorm's, and keeps a cache that is not part
    of the state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.register_buffer("seen", torch.ones(WIDTH))
        self.register_buffer("cache", torch.zeros(ROWS), persistent=False)
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = 0.9 * self.seen + 0.1 * x.abs().mean(0)
        self.cache = torch.zeros(len(x), device=x.device)
        result: torch.Tensor = self.inner(x) * self.seen
        return result


def averaged_norm() -> Built:
    """An average of a model whose buffers move; the average's own buffers move at each commit."""
    model = Tracking()
    # Not torch's own mean, which fails on a GPU if a buffer is an integer.
    average = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda mean, value, count: mean + (value - mean) / (count + 1), use_buffers=True
    )
    for parameter in average.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    told = {"moving": ["0.seen"], "on_commit": lambda: average.update_parameters(model)}
    return model, [optimizer, average], told


def keeping_best() -> Built:
    """The best weights by a measure that goes up and down; tied weights, because a copy must be tied, too."""
    model, (optimizer,), told = tied_and_unused()
    assert isinstance(model, Gated)
    best = hf.Best(model)
    scheduler = torch.optim.lr_scheduler.StepLR(cast(torch.optim.Optimizer, optimizer), 7, 0.9)

    def measure() -> None:
        step, model.branch = scheduler.last_epoch, 0
        with torch.no_grad():
            best.offer(float(model(data(step, 0).to(model.stem.weight.device)).square().mean()), step=step)

    return model, [optimizer, scheduler, best], {**told, "on_commit": measure}


class Overflowing(nn.Module):
    """In some lanes of some steps its loss is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) * (math.inf if x[0, 0] > 1.5 else 1.0)
        return result


def overflowing() -> Built:
    model = Overflowing()
    scaler = torch.amp.GradScaler(device_type(), init_scale=1024.0, growth_interval=2)
    return model, [torch.optim.Adam(model.parameters(), lr=0.01), scaler], {"clip_norm": 1.0}


class Odd(nn.Module):
    """Parameters that are complex, double, empty, a single number, or not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.turn = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.linear.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.view(len(x), 3, 2, 4)).reshape(len(x), WIDTH)
        x = (self.turn * self.linear(x)).real * self.scale.float()
        return x + self.shift + self.empty.sum()


def odd() -> Built:
    model = Odd()
    return model, [torch.optim.AdamW(model.parameters(), lr=0.01)], {"clip_norm": 1.0}


def different() -> Built:
    """A model that every process builds differently."""
    last = nn.Linear(8, WIDTH)
    with torch.no_grad():
        last.weight[0, 0] = os.getpid()
    model = nn.Sequential(nn.Linear(WIDTH, 8), last)
    return model, [torch.optim.SGD(model.parameters(), lr=0.1)], {}


# ---- what users switch on ------------------------------------------------------------------------------


class Blocks(nn.Module):
    """Two blocks with dropout on a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self.block(), self.block()

    def block(self) -> nn.Module:
        layers = nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH)
        return nn.Sequential(nn.LayerNorm(WIDTH), *layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.run_block(self.first, x)
        return x + self.run_block(self.second, x)

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = block(x)
        return result


class Checkpointed(Blocks):
    """Computes its blocks twice."""

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(block, x, use_reentrant=False)
        return result


class Images(nn.Module):
    """Convolutions over images whose channels come last in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1)
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = x.view(len(x), 3, 2, 4).contiguous(memory_format=torch.channels_last)
        result: torch.Tensor = self.layers(images).reshape(len(x), WIDTH)
        return result


def with_adamw(model: nn.Module, *, fused: bool | None = None, foreach: bool | None = None) -> Built:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused, foreach=foreach)
    return model, [optimizer], {"clip_norm": 1.0}


def compiled(module: nn.Module, mode: str | None = None) -> nn.Module:
    """Compile; on a CPU without the part that needs a C compiler."""
    told: dict[str, Any] = {"mode": mode} if device_type() == "cuda" else {"backend": "aot_eager"}
    result: Any = torch.compile(module, **told)
    return cast(nn.Module, result)


def compiled_model() -> Built:
    return with_adamw(compiled(Blocks()))


def rehearsed() -> Built:
    """The same; its warm processes compile before they are needed."""
    return compiled_model()


def rehearsal(folder: Path) -> Callable[[torch.device], None]:
    """Compiles like `rehearsed`, and leaves what a careless script would; a file names the
    member that did.
    """

    def rehearse(device: torch.device) -> None:
        with device:
            model, _, _ = rehearsed()
            model(torch.zeros(ROWS, WIDTH)).square().mean().backward()
        torch.manual_seed(os.getpid())
        (folder / f"{os.environ['HOLDFAST_MEMBER']}.warm").touch()

    return rehearse


def compiled_block() -> Built:
    model = Blocks()
    model.second = compiled(model.second)
    return with_adamw(model)


def compiled_to_graphs() -> Built:
    return with_adamw(compiled(Blocks(), "reduce-overhead"))


def graphed() -> Built:
    """Recorded once as CUDA graphs, and replayed from then on."""
    model: nn.Module = Blocks()
    if device_type() == "cuda":
        sample = torch.randn(ROWS, WIDTH)
        model = torch.cuda.make_graphed_callables(model, (sample,))  # type: ignore[assignment]
    return with_adamw(model)


def autocast() -> Built:
    return with_adamw(Blocks())


def scaled_half() -> Built:
    """float16 with a GradScaler, whose first steps overflow."""
    model, others, told = with_adamw(Blocks())
    scaler = torch.amp.GradScaler(device_type(), init_scale=FIRST_SCALE, growth_interval=4)
    return model, [*others, scaler], told


def fused() -> Built:
    return with_adamw(Blocks(), fused=True)


def foreach() -> Built:
    return with_adamw(Blocks(), foreach=True)


def checkpointed() -> Built:
    return with_adamw(Checkpointed())


def channels_last() -> Built:
    return with_adamw(Images())


def channels_last_fused() -> Built:
    """Uses a kernel that goes through parameters and their state in the order of memory."""
    return with_adamw(Images(), fused=True)


class Summing(Blocks):
    """Sums in an order that a GPU does not guarantee."""

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = block(x.cumsum(1) / WIDTH)
        return result


def not_deterministic() -> Built:
    model, others, told = with_adamw(Summing())
    return model, others, {**told, "deterministic": False}


class Wide(nn.Module):
    """Large enough that a bucket is sent while others are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.width = width = WIDE[device_type()]
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


def wide() -> Built:
    return with_adamw(Wide(), fused=True)


class Lopsided(nn.Module):
    """Takes ten times as long on one member as on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.lane_s = LANE_S * (10 if os.environ.get("HOLDFAST_MEMBER") == "n0.1" else 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.lane_s)
        result: torch.Tensor = self.inner(x)
        return result


def lopsided() -> Built:
    return with_adamw(Lopsided())


SAME_BITS: dict[str, Callable[[], Built]] = {
    builder.__name__: builder
    for builder in (
        plain,
        batch_norm,
        tied_and_unused,
        accumulating,
        double_and_scaled,
        half,
        noisy_milestones,
        averaged_norm,
        keeping_best,
        overflowing,
        odd,
        channels_last_fused,
    )
}
"""Scripts that must give the same bits for every number of members, on every device."""
OPTIONS: dict[str, Callable[[], Built]] = {
    builder.__name__: builder
    for builder in (
        compiled_model,
        compiled_block,
        compiled_to_graphs,
        graphed,
        autocast,
        scaled_half,
        fused,
        foreach,
        checkpointed,
        channels_last,
    )
}
"""Options that users switch on, above all on a GPU."""
BUILDERS = {
    **SAME_BITS,
    **OPTIONS,
    "rehearsed": rehearsed,
    "different": different,
    "not_deterministic": not_deterministic,
    "wide": wide,
    "lopsided": lopsided,
    "heavy": heavy,
    "lr_by_hand": lr_by_hand,
}


class Trace:
    """A profile of some steps of this member, in the form that browsers show: `<member>.trace`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        if number == TRACED.start:
            self._profile.start()
        with record_function(f"step {number}"):
            yield
        if number == TRACED[-1]:
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._path.with_suffix(".part")))
            self._path.with_suffix(".part").rename(self._path)


class Meets:
    """Calls every collective, beginning with another one each time, and notes the results.

    deaths: member and spot where it kills itself; `<where> <collective>` is after the collective, and
    `<where> item <n>` in the middle of shared work.
    """

    def __init__(self, run: hf.Run, model: nn.Module, deaths: list[tuple[str, str]]) -> None:
        self.met: dict[str, dict[str, Any]] = {}
        self._run = run
        self._model = model
        self._deaths = {spot for member, spot in deaths if member == run.member}

    def die_at(self, spot: str) -> None:
        if spot in self._deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    def meet(self, where: str, first: int) -> None:
        run = self._run
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("share", lambda: run.share(range(7), lambda item: self._evaluate(where, item))),
            ("broadcast", lambda: run.broadcast(lambda: run.member)),
            ("gather", lambda: run.gather((run.member, {"n": [1, None]}))),
            ("reduce", lambda: run.reduce(torch.tensor([1.0, run.rank]), "max").tolist()),
            ("barrier", run.barrier),
        ]
        found = self.met.setdefault(where, {})
        for name, call in calls[first % 5 :] + calls[: first % 5]:
            found[name] = call()
            self.die_at(f"{where} {name}")

    def _evaluate(self, where: str, item: int) -> float:
        self.die_at(f"{where} item {item}")
        self._model.eval()
        with torch.no_grad():
            x = data(1000, item) + torch.randn(ROWS, WIDTH)  # the item's own numbers, on every member
            loss = self._model(x).square().mean().item()
        self._model.train()
        return float(loss)


def batch(model: nn.Module, step: int, lane: int, device: torch.device) -> torch.Tensor:
    if isinstance(model, Wide):
        return torch.randn(WIDE_ROWS, model.width, device=device)  # made there: the host waits for no copy
    return data(step, lane).to(device, next(model.parameters()).dtype)


def train(
    build: str,
    folder: str,
    steps: int,
    lanes: int,
    checkpoint_every: int,
    snapshot_every: int,
    checkpoints: str,
    stop_after: int,
    trace: bool,
    pace_s: float,
    hold_s: float,
    holders: int,
    meets: bool,
    deaths: list[tuple[str, str]],
    does: str,
    on_shortage: Any,
) -> None:
    """Train, and write the result. stop_after: the step after which the script stops early. pace_s: the least
    time of every step. hold_s: for this long the first `holders` members keep the interpreter after step 4,
    so that no other thread of theirs runs. meets, deaths: see `Meets`; the steps are then in two loops. does:
    further behaviour; see `tarry`, `leave`, `dawdling` and `spoilt`.
    """
    if checkpoint_every:
        os.environ["HOLDFAST_CHECKPOINTS"] = checkpoints
        os.environ["HOLDFAST_CHECKPOINT_EVERY"] = str(checkpoint_every)
    if snapshot_every > 0:
        os.environ["HOLDFAST_SNAPSHOT_EVERY"] = str(snapshot_every)
    losses: dict[int, float] = {}
    ranks: dict[int, int] = {}
    path = Path(folder) / f"{os.environ['HOLDFAST_MEMBER']}.json"
    traced = Trace(path.with_suffix(".trace")) if trace else None
    warm = rehearsal(Path(folder)) if build == "rehearsed" else None
    tarry(does, os.environ["HOLDFAST_MEMBER"], Path(folder))
    with hf.join(warm=warm) as run:
        with run.device:
            meshed = SHARDED.get(build) or PIPED.get(build)
            model, others, told = meshed(run) if meshed else BUILDERS[build]()
        if isinstance(model, Piped):
            model.deaths = {spot for member, spot in deaths if member == run.member}
        state = run.protect(model, *others, lanes=lanes, seed=1, on_shortage=on_shortage, **told)
        meeting = Meets(run, model, deaths) if meets else None
        log = run.log(Path(folder) / "log.jsonl") if meets else None
        if meeting:
            meeting.meet("before", 0)
        for total in (steps // 2, steps) if meets else (steps,):
            kept = state.steps(total) if does == "break kept" else None
            for step in kept or state.steps(total):  # kept in a variable, or dropped with the loop
                shown: AbstractContextManager[None] = traced.step(step.number) if traced else nullcontext()
                if build == "lr_by_hand":
                    set_lr(others[0], step.number)
                with shown:
                    for lane in step.lanes:
                        with dawdling(does, run.member, step.number):
                            strike(does, run.member, lane, Path(folder))
                            with spoilt(does, model, lane):
                                compute(build, model, lane, run.device, told.get("accumulate", 1))
                    time.sleep(pace_s)
                    step.commit()
                losses[step.number] = step.loss
                if step.number == 4 and run.rank < holders:
                    ctypes.PyDLL(None).usleep(round(hold_s * 1e6))
                ranks[step.number] = run.rank
                if meeting and log:
                    meeting.die_at(f"{step.number} committed")
                    if step.number % 2:
                        meeting.meet(str(step.number), step.number)
                    log(step, loss=step.loss, lr=step.lr, norm=step.grad_norm)
                    meeting.die_at(f"{step.number} logged")
                if step.number == stop_after or (step.number == LEAVES_AFTER and leave(does, run.rank)):
                    break
            if meeting:
                meeting.meet(f"after {total}", 3)
        if does.startswith("fail at the end"):
            if run.rank == 0:
                raise ValueError("the weights cannot be saved")
            time.sleep(1.0 if does.endswith("first") else 0.0)
        scales = [other.get_scale() for other in others if isinstance(other, torch.amp.GradScaler)]
        scale = scales[0] if scales else None
        met = meeting.met if meeting else {}
        digest = whole_digest(model, others) if build in SHARDED else state.digest()
        if isinstance(model, Piped):
            digest = model.digest(others[0])
        text = json.dumps({"digest": digest, "losses": losses, "scale": scale, "ranks": ranks, "met": met})
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)


def tarry(does: str, member: str, folder: Path) -> None:
    """`late n0.3 3`: when that member begins anew, it does not join before three steps are logged."""
    if does.startswith("late "):
        import stuck  # of bench/workers, which only the members of a cluster have on their path

        late, lines = does.split()[1:]
        log = folder / "log.jsonl"
        if member != late or stuck.is_first(folder, member):
            return
        for _ in range(LATE_POLLS):
            if log.exists() and len(log.read_text().splitlines()) >= int(lines):
                return
            time.sleep(LATE_POLL_INTERVAL_S)


@contextmanager
def dawdling(does: str, member: str, step: int) -> Iterator[None]:
    """`slow n0.1 2 20 60`: a lane takes that member twice as long as the others, from step 20 up to 60. All
    sleep for the rest of a fixed time, so that the same member is slow on a busy machine, too.
    """
    begun_s = time.monotonic()
    yield
    if does.startswith("slow "):
        slow, times, since, until = does.split()[1:]
        is_slow = member == slow and int(since) <= step < int(until)
        took_s = time.monotonic() - begun_s
        time.sleep(max(SLEPT_S, took_s) * (float(times) if is_slow else 1.0) - took_s)


def strike(does: str, member: str, lane: Any, folder: Path) -> None:
    """`stuck loop n0.1 8`: that member, or each of `n0.1,n0.2`, gets stuck like this in step 8, once."""
    if does.startswith("stuck "):
        import stuck  # of bench/workers, which only the members of a cluster have on their path

        act, members, step = does.split()[1:]
        if member in members.split(",") and lane.step == int(step) and stuck.is_first(folder, member):
            stuck.ACTS[act](stuck.Scene(folder=folder, member=member, lane=lane))


@contextmanager
def spoilt(does: str, model: nn.Module, lane: Any) -> Iterator[None]:
    """`noise`: a lane's result differs each time. `nan 5 3`: it is NaN in that step and lane."""
    factor = 1.0
    if does == "noise":
        factor += random.SystemRandom().random()
    elif does.startswith("nan ") and [lane.step, lane.index] == [int(one) for one in does.split()[1:]]:
        factor = math.nan
    if factor == 1.0:
        yield
        return
    handle = model.register_forward_hook(lambda module, inputs, output: output * factor)
    yield
    handle.remove()


def leave(does: str, rank: int) -> bool:
    """Whether the script leaves its loop here; it may also exit."""
    if does == "exit" or (does == "exit alone" and rank == 0):
        sys.exit(0)
    return does in ("break alone", "break kept") and rank == 0


def compute(build: str, model: nn.Module, lane: Any, device: torch.device, accumulate: int) -> None:
    if isinstance(model, Gated):
        model.branch = (lane.index + lane.step) % 3 == 0
    x = batch(model, lane.step, lane.index, device)
    if isinstance(model, Piped):
        model.compute(lane, torch.cat([x, batch(model, lane.step, lane.index + lane.of, device)]))
        return
    with torch.autocast(device.type, AUTOCAST.get(build, torch.bfloat16), enabled=build in AUTOCAST):
        for part in x.chunk(accumulate):
            loss = (model(part) - part).float().square().mean() / accumulate
            lane.backward(loss)
