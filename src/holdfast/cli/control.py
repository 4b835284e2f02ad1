"""`holdfast control`: decide what to do about incidents, and do it if the policy allows it."""

import os
import secrets
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import click
import msgspec

from holdfast import wording
from holdfast.cli.ending import StopRequest, on_signal
from holdfast.cli.flags import option, shared, takes
from holdfast.cli.prices import load_prices, prices_option
from holdfast.cli.pulse import Pulse
from holdfast.cli.record import home, home_journal, json_option, open_record, store_option
from holdfast.cli.terminal import print_json, printable, say, tell
from holdfast.cli.topology_sources import TOPOLOGY_FILE, load_topology, topology_option
from holdfast.control.actions import said
from holdfast.control.controlling import Controlling, ControlSetting, reset_breaker
from holdfast.control.decision import ControlDecision
from holdfast.control.planned import PlannedWindows
from holdfast.control.policy import ControlPolicy, example, read_policy
from holdfast.diagnose.watching import go_on
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.record.files import is_there, parsed
from holdfast.record.leading import Lead
from holdfast.record.store import Store
from holdfast.record.stores import open_lead, open_store
from holdfast.schedulers.choosing import leading, reached
from holdfast.schedulers.live_runs import LiveRuns
from holdfast.wording.parsing import some_seconds

POLICY_FILE = "control.toml"
EXIT_NOT_DONE = 1
TOKEN_BYTES = 8


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    once: bool = option("Decide once, wait until the actions are done, and end.")
    shadow: bool = option("Only announce actions, whatever the policy says.")
    every_s: float = option("--every", type=some_seconds, default="10s", show_default=True, metavar="TIME")
    policy_path: Path | None = option(
        "--policy",
        "What control may do, as TOML.  [default: $HOLDFAST_CONTROL, or control.toml in $HOLDFAST_HOME; "
        "without a policy, actions are only announced]",
        envvar="HOLDFAST_CONTROL",
    )
    reset_breaker: str | None = option(
        "Let control act again after its breaker has tripped; WHY is recorded.", metavar="WHY"
    )
    example_policy: bool = option("Print a policy with every key, and end.")
    topology_path: Path | None = shared(topology_option)
    prices_path: Path | None = shared(prices_option)
    store_url: str | None = shared(store_option)
    as_json: bool = shared(json_option)


@click.command("control")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Decide what to do about the incidents that `holdfast watch` has found, and do what the policy allows.

    One process acts for a cluster; others on the same store wait to take its place. Exit code 1 with --once:
    nothing could be decided, or another process leads.
    """
    if given.example_policy:
        click.echo(example(), nl=False)
        return 0
    if given.reset_breaker is not None:
        return _reset(given, given.reset_breaker)
    policy = load_policy(given.policy_path)
    if given.shadow:
        policy = policy.in_shadow()
    with ExitStack() as stack:
        store = stack.enter_context(open_store(given.store_url, home()))
        by_store = partial(open_lead, given.store_url, home())
        lead = stack.enter_context(closing(leading(policy, by_store, _token())))
        controlling = stack.enter_context(closing(_controlling(given, store, lead, policy)))
        if given.once:
            return _decide_once(controlling, lead, as_json=given.as_json)
        _go_on(controlling, lead, given)
    return 0


def load_policy(path: Path | None) -> ControlPolicy:
    """The policy in this file, or in the home's; without a file, one that only announces."""
    if path is None:
        path = home() / POLICY_FILE
        if not is_there(path):
            return ControlPolicy()
    hint = "`holdfast control --example-policy > control.toml` makes one to begin with."
    return parsed(path, read_policy, what="policy", hint=hint)


def _controlling(given: _Flags, store: Store, lead: Lead, policy: ControlPolicy) -> Controlling:
    return Controlling(
        ControlSetting(
            store=store,
            machines=reached(policy, LiveRuns(home()), lead.is_ours, say),
            policy=policy,
            prices=load_prices(given.prices_path),
            token=_token(),
            is_leading=lead.is_ours,
            take_in=home_journal(store).take_in,
            say=say,
            maintenance=PlannedWindows(
                given.topology_path or home() / TOPOLOGY_FILE,
                load_topology,
                is_named=given.topology_path is not None,
            ),
        )
    )


def _decide_once(controlling: Controlling, lead: Lead, *, as_json: bool) -> int:
    clock = SystemClock()
    if not lead.is_ours():
        say("Another process leads; nothing was decided.")
        return EXIT_NOT_DONE
    try:
        found = controlling.turn(clock.now_ns())
    except InputError:
        raise
    except HoldfastError as error:
        tell(error.sentence, error.hint)
        return EXIT_NOT_DONE
    controlling.wait(clock.now_ns())
    if as_json:
        tripped = controlling.history.tripped_ns is not None
        print_json({"decisions": msgspec.to_builtins(found), "breaker_tripped": tripped})
    else:
        for decision in found:
            click.echo(_line(decision))
        if not found:
            click.echo("Control knows of nothing that is wrong.", err=True)
    return 0


def _go_on(controlling: Controlling, lead: Lead, given: _Flags) -> None:
    ending, clock = StopRequest(), SystemClock()
    pulse = Pulse("Deciding about", given.every_s)
    turn = _Turns(controlling, lead, pulse, as_json=given.as_json)
    with on_signal(ending, lambda: None), pulse.shown():
        go_on(lambda: turn(clock.now_ns()), given.every_s, ending.asked)


class _Turns:
    """Prints what each turn changed. A failure is reported once, and tried again."""

    def __init__(self, controlling: Controlling, lead: Lead, pulse: Pulse, *, as_json: bool) -> None:
        self._controlling = controlling
        self._pulse = pulse
        self._lead = lead
        self._as_json = as_json
        self._told: dict[str, tuple[str, str]] = {}
        self._trouble = ""

    def __call__(self, now_ns: int) -> None:
        self._pulse.clear()
        try:
            if not self._lead.is_ours():
                self._tell("Another process leads; this one waits to take its place.")
                return
            found = self._controlling.turn(now_ns)
        except HoldfastError as error:
            self._tell(f"{error.sentence} Nothing is done; it is tried again.")
            return
        self._tell("")
        for decision in found:
            self._show(decision)
        self._told = {one.target: (one.action, one.mode) for one in found}
        self._pulse.beat(self._controlling.standing, now_ns)

    def _show(self, decision: ControlDecision) -> None:
        if self._told.get(decision.target) != (decision.action, decision.mode):
            click.echo(msgspec.json.encode(decision).decode() if self._as_json else _line(decision))

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            say(trouble)
        elif self._trouble and not trouble:
            say("Control goes on.")
        self._trouble = trouble


def _line(decision: ControlDecision) -> str:
    shadow = " (shadow)" if decision.mode == "shadow" and decision.action != "watch" else ""
    what = wording.opening(said(decision.action, decision.target))
    return printable(f"{decision.target}{shadow}: {what}. {wording.opening(decision.reason)}.")


def _reset(given: _Flags, why: str) -> int:
    if not why.strip():
        raise InputError(
            "The breaker is reset only with a reason.", hint='Write one: --reset-breaker "a bad exporter".'
        )
    user = os.environ.get("USER") or str(os.getuid())
    with open_record(given.store_url) as store:
        was_tripped = reset_breaker(store, SystemClock().now_ns(), _token(), f"{why} ({user})")
    say("The breaker is reset." if was_tripped else "The breaker had not tripped.")
    return 0


def _token() -> str:
    return f"control-{secrets.token_hex(TOKEN_BYTES)}"
