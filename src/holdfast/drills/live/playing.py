"""A drill from its hypothesis to its verdict: strike, wait for the record, undo, judge."""

import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast import wording
from holdfast.drills.live.judging import (
    DRILL,
    STEADY_STEPS,
    DrillCost,
    DrilledRun,
    LiveVerdict,
    forecast,
    judged,
    recovered_ns,
)
from holdfast.drills.live.keeping import end, is_aborted
from holdfast.drills.live.scenarios import LiveScenario, live_scenario, title_of
from holdfast.drills.live.scene import LiveScene, seen
from holdfast.drills.live.striking import (
    LiveStrike,
    StrikeOrder,
    chosen_target,
    misfit,
    require,
    require_alone,
    struck,
)
from holdfast.record import events
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError
from holdfast.record.journal import JOURNAL_DIRECTORY
from holdfast.record.recorder import Recorder
from holdfast.record.store import Selection, Store
from holdfast.run.endpoint import Endpoint, find_endpoint, run_directory
from holdfast.run.lines import LINES_FILE, LinesReader
from holdfast.wording.units import MINUTE_NS, SECOND_NS

POLL_S = 0.25
LATELY_NS = 10 * MINUTE_NS
"""The window of steps that give the usual step time."""
BACK_S_MAX = 120.0
"""The longest wait between two rounds of a fault."""
_STANDING = ("generation.opened", "member.joined", "checkpoint.saved")
_DIGEST = re.compile(rb"(?:completed|stopped).*, digest ([0-9a-f]{64})")


class DrillSetting(msgspec.Struct, frozen=True, kw_only=True):
    """wait_s: for the run to recover, once the fault is over. end_s: for its end, if bits are compared.
    take_in: takes this machine's journal into the store."""

    home: Path
    store: Store
    take_in: Callable[[], None]
    usd_per_gpu_hour: float
    wait_s: float
    end_s: float


class DrillAborted(HoldfastError):
    """`--abort` ended the drill before it could be judged."""

    exit_code = 3


class LivePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fault to make, and its expected cost."""

    scenario: LiveScenario
    scene: LiveScene
    target: str
    for_s: float
    forecast: DrillCost


class LiveDrill:
    """One drill of one run."""

    def __init__(self, setting: DrillSetting, run: str) -> None:
        self._setting = setting
        self._run = run

    def _endpoint(self) -> Endpoint:
        return find_endpoint(self._setting.home, self._run)

    def planned(self, scenario: LiveScenario, *, target: str, for_s: float | None, seed: int) -> LivePlan:
        """Plan the drill. Raises `InputError` if it is impossible, or would touch more than the scenario
        may."""
        require_alone(self._setting.home, self._run)
        scene = seen(self._run, self._endpoint(), self._before())
        found = chosen_target(scenario, scene, target, seed)
        lasts_s = scenario.for_s if for_s is None else for_s
        require(scenario, scene, found, lasts_s)
        usd = self._setting.usd_per_gpu_hour
        return LivePlan(
            scenario=scenario,
            scene=scene,
            target=found,
            for_s=lasts_s,
            forecast=forecast(scenario, scene, found, lasts_s, usd),
        )

    def misfits(self, names: Iterable[str]) -> dict[str, str]:
        """Which of these scenarios the run cannot have as it is now, and why."""
        scene = seen(self._run, self._endpoint(), self._before())
        if not scene.members:  # it starts or regroups: nothing is known yet
            return {}
        found = {name: misfit(live_scenario(name), scene) for name in names}
        return {name: why for name, why in found.items() if why}

    def played(self, plan: LivePlan, *, reference: str = "", say: Callable[[str], None]) -> LiveVerdict:
        """Strike, wait for the recovery, and judge. Raises `DrillAborted` if it is aborted meanwhile."""
        order = StrikeOrder(
            id=secrets.token_hex(8),
            home=self._setting.home,
            scenario=plan.scenario,
            scene=plan.scene,
            target=plan.target,
            for_s=plan.for_s,
            endpoint=self._endpoint,
        )
        require_alone(order.home, self._run)  # before the try, whose end would undo another drill's changes
        lines = LinesReader(run_directory(self._setting.home, self._run) / LINES_FILE)
        try:
            self._recorded(plan)
            strike = _struck(order)
            say(f"{_whom(plan)} struck; {_until(plan)}.")
            for number in range(2, plan.scenario.rounds + 1):
                self._await_back(order, strike)
                again = _struck(order)
                say(f"{plan.target} was back, and is struck again: {number} of {plan.scenario.rounds}.")
                strike = msgspec.structs.replace(
                    again, at_ns=strike.at_ns, again_ns=(*strike.again_ns, again.at_ns)
                )
            self._await_recovery(order, strike)
            digest = self._await_digest(order, strike, lines) if reference else ""
        finally:
            lines.close()
            end(self._setting.home, self._run, order.id)
        return judged(self._gathered(plan, strike, digest, reference))

    # -- the record ------------------------------------------------------------------------------------

    def _before(self) -> list[events.AnyEvent]:
        self._setting.take_in()
        since_ns = SystemClock().now_ns() - LATELY_NS
        standing = self._setting.store.select(Selection(run=self._run, kinds=_STANDING))
        lately = Selection(run=self._run, kinds=("step.committed",), since_ns=since_ns)
        return [*standing, *self._setting.store.select(lately)]

    def _since(self, strike: LiveStrike) -> Sequence[events.AnyEvent]:
        self._setting.take_in()
        return list(self._setting.store.select(Selection(run=self._run, since_ns=strike.at_ns)))

    def _recorded(self, plan: LivePlan) -> None:
        """Record the drill, so that its fault is not taken for a real one."""
        with Recorder(self._setting.home / JOURNAL_DIRECTORY, run=self._run) as recorder:
            recorder.record(
                events.ActionTaken,
                subject=plan.target,
                action=DRILL,
                reason=f"{plan.scenario.name}: {plan.scenario.title}",
            )

    def _gathered(self, plan: LivePlan, strike: LiveStrike, digest: str, reference: str) -> DrilledRun:
        since = Selection(kinds=("control.acted",), since_ns=strike.at_ns)
        acted = [one for one in self._setting.store.select(since) if isinstance(one, events.ControlActed)]
        return DrilledRun(
            scenario=plan.scenario,
            before=plan.scene,
            strike=strike,
            target=plan.target,
            forecast=plan.forecast,
            usd=self._setting.usd_per_gpu_hour,
            now_ns=SystemClock().now_ns(),
            recorded=self._since(strike),
            control=[one for one in acted if one.subject == strike.node],
            digest=digest,
            reference=reference,
        )

    # -- waiting ---------------------------------------------------------------------------------------

    def _looks(self, order: StrikeOrder, strike: LiveStrike, wait_s: float) -> Iterator[None]:
        """The moments to look at the run, until the wait is over or the drill is aborted."""
        due_s = time.monotonic() + wait_s
        while True:
            if is_aborted(order.home, self._run, order.id):
                lasted_s = (SystemClock().now_ns() - strike.at_ns) / SECOND_NS
                raise _aborted(order, f"after {wording.lasting(lasted_s)}")
            if time.monotonic() >= due_s:
                return
            yield
            time.sleep(POLL_S)

    def _await_recovery(self, order: StrikeOrder, strike: LiveStrike) -> None:
        for _ in self._looks(order, strike, self._setting.wait_s + order.for_s):
            since = self._since(strike)
            if recovered_ns(order.scenario, strike, order.scene, since) is not None or _is_over(since):
                return

    def _await_back(self, order: StrikeOrder, strike: LiveStrike) -> None:
        """Wait until the node has its members again; then it is struck once more."""
        for _ in self._looks(order, strike, BACK_S_MAX):
            opened = [one for one in self._since(strike) if isinstance(one, events.GenerationOpened)]
            lost = [one for one in self._since(strike) if isinstance(one, events.MemberLost)]
            is_full = opened and len(opened[-1].members) >= len(order.scene.members)
            if is_full and lost and opened[-1].occurred_ns > lost[-1].occurred_ns:
                return

    def _await_digest(self, order: StrikeOrder, strike: LiveStrike, lines: LinesReader) -> str:
        """The run's final digest; empty if the run does not end in time."""
        for _ in self._looks(order, strike, self._setting.end_s):
            for line in lines.new():
                if found := _DIGEST.search(line.data):
                    return found[1].decode()
        return ""


def _struck(order: StrikeOrder) -> LiveStrike:
    try:
        return struck(order)
    except HoldfastError:
        if is_aborted(order.home, order.scene.run, order.id):  # so its keeper found no note
            raise _aborted(order, "before it struck") from None
        raise
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        title = title_of(order.scenario.name, order.target)
        raise HoldfastError(
            f"{title} could not be made: {why}. Everything is put back.",
            hint="The run goes on. Try again, or another scenario.",
        ) from None


def _aborted(order: StrikeOrder, when: str) -> DrillAborted:
    return DrillAborted(
        f"{title_of(order.scenario.name, order.target)} was aborted {when}; it is not judged.",
        hint="All changes are undone, and the run goes on.",
    )


def _is_over(since: Sequence[events.AnyEvent]) -> bool:
    return any(isinstance(one, events.RunEnded) for one in since)


def _whom(plan: LivePlan) -> str:
    """The subject and its verb."""
    match plan.scenario.reach:
        case "member" | "node":
            return f"{plan.target} is"
        case "coordinator":
            return "The coordinator is"
        case "coordinator-and-member":
            return f"The coordinator and {plan.target} are"
        case "storage":
            return "The checkpoints' storage is"
    assert_never(plan.scenario.reach)


def _until(plan: LivePlan) -> str:
    """What the drill waits for: the user sees nothing else until then."""
    scenario, lasts = plan.scenario, f"{wording.number(plan.for_s)} s"
    if scenario.needs_checkpoint:
        apart = plan.scene.saves_s
        often = "" if apart is None else f" (one every {wording.lasting(apart)})"
        return f"the fault ends by itself after {lasts}, and the next checkpoint is waited for{often}"
    if scenario.is_lasting:
        return f"the fault ends by itself after {lasts}, and {STEADY_STEPS} steps are waited for"
    if scenario.rounds > 1:
        return f"it comes back after {lasts}, and is struck {scenario.rounds} times in all"
    if plan.for_s:
        return f"it comes back after {lasts}, and is waited for"
    return "the run is watched until it is as before"
