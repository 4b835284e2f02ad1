"""How long a kill takes when the model is compiled: `python measure.py [KILLS]`.

For each way to run train.py: two members, and KILLS kills with SIGKILL, one after the other, each once the
warm process has had time to get ready. It prints medians: how long the survivor stood still, from one commit
to the next, and how long it took from the kill to the first step that both members commit. Then it prints
whether every loss has the bits of an undisturbed run.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

sys.path.append(str(Path(__file__).parents[2]))
from bench.commits import read_commits, whole_steps

STEPS = 100_000
"""More than a run reaches: it is stopped after its kills."""
SETTLED_S = 4.0
"""A warm process that has used no CPU for this long has loaded everything, and waits."""
IDLE_TICKS_MAX = 5
WAIT_S_MAX = 400.0
KILLS = 3
T = TypeVar("T")


class Way(NamedTuple):
    name: str
    arguments: tuple[str, ...]
    variables: dict[str, str]


NO_CACHE = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
WAYS = (
    Way("eager", ("eager",), {}),
    Way("compiled, nothing kept", ("compiled",), NO_CACHE),
    Way("compiled, on-disk cache", ("compiled",), {}),
    Way("compiled, warm=", ("compiled", "--warm"), {}),
)


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    print(f"{'':<28}{'still':>10}{'both':>10}   same bits", flush=True)
    undisturbed: dict[str, dict[str, str]] = {}
    for way in WAYS:
        if len(sys.argv) > 2 and not any(part in way.name for part in sys.argv[2:]):
            continue
        mode = way.arguments[0]
        still, both, losses = measure(way, kills)
        if len(undisturbed.get(mode, ())) < len(losses):
            undisturbed[mode] = measure(Way(mode, (mode,), {}), 0, steps=len(losses))[2]
        same = "yes" if losses.items() <= undisturbed[mode].items() else "NO"
        medians = f"{statistics.median(still):>8.2f} s{statistics.median(both):>8.2f} s"
        print(f"{way.name:<28}{medians}   {same}, of {len(losses)} steps", flush=True)


def measure(way: Way, kills: int, steps: int = STEPS) -> tuple[list[float], list[float], dict[str, str]]:
    """Seconds that the survivor stood still after each kill, and until both committed; each step's loss."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-compile-"))
    environment = {
        **os.environ,
        "HOLDFAST_HOME": str(folder / "home"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        **way.variables,
    }
    if kills:
        (folder / "paced").touch()
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2", "--run", "measured"]
    command += [str(Path(__file__).with_name("train.py")), *way.arguments, "--steps", str(steps)]
    command += ["--watched", str(folder)]
    with (folder / "output").open("wb") as output:
        run = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    still, both = [], []
    try:
        for _ in range(kills):
            at_ns, survivor = kill_one(folder, run, "--warm" in way.arguments)
            whole = awaited(lambda at_ns=at_ns: whole_steps(read_commits(folder), 2, after_ns=at_ns), run)[0]
            still.append(standstill_ns(folder, survivor, at_ns, whole.at_ns) / 1e9)
            both.append((whole.at_ns - at_ns) / 1e9)
        if kills:
            run.terminate()
        run.wait(WAIT_S_MAX)
        return still, both, losses_in(folder)
    finally:
        run.kill()
        run.wait()
        shutil.rmtree(folder, ignore_errors=True)


def losses_in(folder: Path) -> dict[str, str]:
    """Losses by step. Two members that differ produce an extra entry, which no undisturbed run has."""
    found: dict[str, str] = {}
    for file in folder.glob("*.losses"):
        for line in file.read_text().splitlines():
            step, loss = line.split()
            if found.setdefault(step, loss) != loss:
                found[f"{step}, again"] = loss
    return found


def kill_one(folder: Path, run: "subprocess.Popen[bytes]", rehearses: bool) -> tuple[int, int]:
    """Kill one member once both commit and a warm process is ready. Returns when, and which
    process is left.
    """
    both = awaited(
        lambda: whole_steps(read_commits(folder), 2, after_ns=time.monotonic_ns() - 2 * 10**9), run
    )
    members = sorted(both[-1].processes)
    used: dict[int, int] = {}
    idle_since = time.monotonic()

    def is_ready() -> bool:
        nonlocal used, idle_since
        now = {pid: ticks for pid, ticks in cpu_ticks(folder).items() if pid not in (*members, run.pid)}
        rehearsed = all((folder / f"{pid}.warm").exists() for pid in now) or not rehearses
        is_busy = any(ticks - used.get(pid, 0) > IDLE_TICKS_MAX for pid, ticks in now.items())
        if is_busy or not now or not rehearsed:
            idle_since = time.monotonic()
        used = now
        time.sleep(0.5)
        return time.monotonic() - idle_since > SETTLED_S

    awaited(is_ready, run)
    os.kill(members[-1], signal.SIGKILL)
    return time.monotonic_ns(), members[0]


def cpu_ticks(folder: Path) -> dict[int, int]:
    """The CPU time of the run's processes, by process."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            if str(folder).encode() in (status.parent / "cmdline").read_bytes():
                found[int(status.parent.name)] = sum(map(int, fields[11:15]))
        except (OSError, ValueError):  # it has ended
            continue
    return found


def standstill_ns(folder: Path, survivor: int, killed_ns: int, whole_ns: int) -> int:
    """The longest time between two of its commits, from the kill until both continue."""
    made = [commit.at_ns for commit in read_commits(folder) if commit.process == survivor]
    seen = [at_ns for at_ns in made if killed_ns < at_ns <= whole_ns]
    return max(after - before for before, after in pairwise([killed_ns, *seen, whole_ns]))


def awaited(look: Callable[[], T], run: "subprocess.Popen[bytes]") -> T:
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline and run.poll() is None:
        if found := look():
            return found
        time.sleep(0.02)
    raise SystemExit("the run ended, or nothing came of it in time")


if __name__ == "__main__":
    main()
