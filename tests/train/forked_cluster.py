"""A cluster for tests: a real coordinator, real members, real kills, quick starts.

Nodes and members are forked from a process that has imported torch (zygote.py). That takes milliseconds,
while the real agent's processes take seconds; the agent's other functions have tests of their own.
"""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.record.clock import SystemClock
from holdfast.record.events import StepCommitted
from holdfast.record.journal import read_directory
from holdfast.record.recorder import Recorder
from holdfast.run import wire
from holdfast.run.coordinator import Coordinator
from holdfast.run.happenings import Ending
from holdfast.run.mesh import MeshShape
from holdfast.run.skipped import skipped_in
from holdfast.run.state import RunPolicy
from holdfast.run.tls import Identity, make_identity

Meanwhile = Callable[[Coordinator], Awaitable[None]]
RUN_S_MAX = 300.0
END_S_MAX = 60.0
WORKERS = Path(__file__).parents[2] / "bench" / "workers"
BY_COST = -1
"""Snapshots as often as their cost allows."""
STACK_S = 1.0
"""How long a process has to write its stack."""


class Result(NamedTuple):
    """The result of a run: how it ended, the digest its members agree on, the losses of the steps of the
    members that saw the end, how many faults struck, all lines that were printed, and the folder of its
    files.
    """

    ending: Ending
    digest: str
    losses: dict[int, float]
    struck: int
    said: list[str]
    folder: Path

    @property
    def story(self) -> str:
        """All printed lines in one string, because pytest shows only strings completely."""
        return f"{self.ending.reason}\n" + "\n".join(self.said)

    @property
    def unexplained(self) -> list[str]:
        """Lines about losses that no planned fault explains."""
        struck: set[str] = set()
        found = []
        for line in self.said:
            if strike := re.match(r"planned (kill|node) strikes (\S+) ", line):
                member = strike[2]
                struck.add(member if strike[1] == "kill" else member.partition(".")[0])
            elif loss := re.match(r"(?:node )?(\S+) lost \(", line):
                if not struck.intersection({loss[1], loss[1].partition(".")[0]}):
                    found.append(line)
            elif back := re.match(r"node (\S+) (is there|joined)", line):
                struck.discard(back[1])
        return found

    @property
    def was_empty(self) -> bool:
        """Whether faults may have left no member with the state: as many losses as a generation
        had members.
        """
        present, lost = 0, 0
        for line in self.said:
            if formed := re.search(r"^generation .*?(\d+) members?\b", line):
                present, lost = int(formed[1]), 0
            elif re.match(r"(node )?\S+ lost \(", line):
                lost += 1
                if lost >= present > 0:
                    return True
        return False

    @property
    def skipped(self) -> tuple[wire.SkippedLanes, ...]:
        """The lanes that no member computed."""
        found = read_directory(self.folder / "journal")
        return skipped_in(event for event in found if isinstance(event, StepCommitted))

    @property
    def steps_lost(self) -> int:
        """Commits that were repeated, because the run went back to a checkpoint."""
        found = read_directory(self.folder / "journal")
        committed = [event.step for event in found if isinstance(event, StepCommitted)]
        return len(committed) - len(set(committed))


class Cluster:
    """Runs of small scripts, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._undisturbed: dict[tuple[Any, ...], Result] = {}
        paths = [str(WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._zygote = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Imports check for a GPU, which must not go through CUDA before a fork.
            env={
                **os.environ,
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                "PYTHONPATH": os.pathsep.join(paths),
            },
        )
        assert self._zygote.stdout is not None
        assert self._zygote.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._zygote.communicate(timeout=END_S_MAX)

    def undisturbed(self, build: str, **told: Any) -> Result:
        """One member by itself, unless arguments say otherwise; computed once for all tests."""
        key = (build, *sorted(told.items()))
        if key not in self._undisturbed:
            self._undisturbed[key] = self.train(build, **told)
        found = self._undisturbed[key]
        assert found.ending.outcome == "completed", found.story
        return found

    def train(
        self,
        build: str,
        *,
        nodes: int = 1,
        members: int = 1,
        steps: int = 12,
        lanes: int = 8,
        faults: Sequence[wire.PlannedFault] = (),
        checkpoint_every: int = 0,
        snapshot_every: int = 0,
        going_on_with: "Result | None" = None,
        stop_after: int = 0,
        trace: bool = False,
        pace_s: float = 0.0,
        hold_s: float = 0.0,
        holders: int = 0,
        tls: bool = False,
        shard: str = "",
        warm: int = 1,
        meets: bool = False,
        deaths: Sequence[tuple[str, str]] = (),
        does: str = "",
        on_shortage: str = "same bits",
        skipped: Sequence[wire.SkippedLanes] = (),
        rebalances: bool = True,
        hang_after_s: float | None = None,
        audit_rate: float = 0.0,
        run_s_max: float = RUN_S_MAX,
        meanwhile: Meanwhile | None = None,
    ) -> Result:
        """`nodes` nodes with `members` members each. meets: scripts call collectives. deaths: member and spot
        (see `Meets` in scripts.py) where it kills itself. meanwhile: what an operator does. going_on_with: a
        run whose checkpoints this one also uses. skipped: lanes that are not computed.
        """
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        arguments = {
            "build": build,
            "folder": str(folder),
            "steps": steps,
            "lanes": lanes,
            "checkpoint_every": checkpoint_every,
            "snapshot_every": snapshot_every,
            "checkpoints": str((going_on_with.folder if going_on_with else folder) / "checkpoints"),
            "stop_after": stop_after,
            "trace": trace,
            "pace_s": pace_s,
            "hold_s": hold_s,
            "holders": holders,
            "meets": meets,
            "deaths": list(deaths),
            "does": does,
            "on_shortage": on_shortage,
        }
        policy = RunPolicy(
            run=folder.name,
            slots=members,
            nodes_min=1,
            nodes_max=nodes,
            warm=warm,
            faults=tuple(faults),
            rebalances=rebalances,
            hang_after_s=hang_after_s,
            audit_rate=audit_rate,
            mesh=MeshShape.parse(shard) if shard else MeshShape(),
            skipped=tuple(skipped),
        )
        identity = make_identity() if tls else None
        running = self._run(policy, folder, json.dumps(arguments), run_s_max, meanwhile, identity)
        ending, said = asyncio.run(running)
        results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        digests = {result["digest"] for result in results}
        losses: dict[int, float] = {}
        for result in results:
            for step, loss in result["losses"].items():
                # As text: a loss may be NaN.
                assert str(losses.setdefault(int(step), loss)) == str(loss), f"two losses of step {step}"
        assert len(digests) <= 1, f"members disagree: {said}"
        struck = sum(line.startswith("planned ") and " strikes " in line for line in said)
        digest = digests.pop() if digests else ""
        return Result(ending, digest, dict(sorted(losses.items())), struck, said, folder)

    async def _run(
        self,
        policy: RunPolicy,
        folder: Path,
        arguments: str,
        run_s_max: float,
        meanwhile: Meanwhile | None,
        identity: Identity | None,
    ) -> tuple[Ending, list[str]]:
        said: list[str] = []
        with Recorder(folder / "journal", run=policy.run) as recorder:
            clock = SystemClock()
            coordinator = Coordinator(policy, "token-of-the-tests", recorder, clock, said.append, identity)
            await coordinator.start("127.0.0.1", 0)
            host, port = coordinator.endpoint
            names = ",".join(f"n{number}" for number in range(policy.nodes_max))
            self._tell(f"{names} {policy.slots} {host}:{port} token-of-the-tests {arguments}")
            try:
                async with asyncio.timeout(run_s_max):
                    if meanwhile is not None:
                        await meanwhile(coordinator)
                    return await coordinator.ended(), said
            except TimeoutError:
                story = "\n".join([*said, *self._states()])
                raise AssertionError(f"the run did not end in {run_s_max} s; it said:\n{story}") from None
            finally:
                self._tell("")
                await coordinator.close()

    def node_pids(self) -> list[int]:
        """The processes of the nodes, in the order of their names."""
        children = Path(f"/proc/{self._zygote.pid}/task/{self._zygote.pid}/children")
        return sorted(map(int, children.read_text().split()))

    def _states(self) -> list[str]:
        """The state of every process of the run; their stacks go to stderr."""
        found, parents = [], [self._zygote.pid]
        while parents:
            parent = parents.pop()
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                with suppress(OSError):  # the process has ended meanwhile
                    for pid in map(int, children.read_text().split()):
                        parents.append(pid)
                        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                        found.append(f"process {pid} of {parent}: state {state}")
                        os.kill(pid, signal.SIGUSR2)
        time.sleep(STACK_S)
        return found

    def _tell(self, line: str) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(line.encode() + b"\n")
        self._zygote.stdin.flush()
