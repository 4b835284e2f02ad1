"""What a site allows control to do: modes, budgets, the breaker, waiting times and its own commands.

The file is TOML, and its keys are the fields of `ControlPolicy`. Missing keys have defaults. Without a file
control only announces actions (shadow mode).
"""

import re
import shlex
import tomllib
from importlib.resources import files
from typing import Annotated, Literal, Self

import msgspec

from holdfast.control.actions import ControlAction
from holdfast.control.policy_mistakes import EXAMPLE, mistake
from holdfast.diagnose.mechanisms import MECHANISMS
from holdfast.record.errors import InputError, nearest

RuleMode = Literal["act", "shadow", "off"]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Hours = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
Minutes = Annotated[float, msgspec.Meta(ge=0, le=100_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Nodes = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
NO_RULE = "unknown"
"""The rule of incidents whose cause is unknown."""
PLACEHOLDERS = ("node", "run", "reason", "job", "part")
_WORD_CHARS = re.compile(r"\{([^{}]*)\}")


class Bound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of nodes, and a percentage of those with GPUs: the lower of the two counts, but at least one
    node, unless one of them is 0.
    """

    nodes: Nodes = 4
    percent: Percent = 5.0

    def of(self, gpu_nodes: int) -> int:
        return min(self.nodes, max(1, int(gpu_nodes * self.percent / 100))) if self.percent else 0


class Budget(Bound, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For one action: the nodes that it may hold at once, and how often it may be taken in 24 hours."""

    per_day: Nodes = 20


class BreakerBound(Bound, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """If more nodes than this look bad within `within_min`, the detector is assumed to be wrong."""

    nodes: Nodes = 8
    percent: Percent = 10.0
    within_min: Minutes = 5.0


class RulePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For one mechanism. mode: None for the policy's own mode."""

    mode: RuleMode | None = None
    never: tuple[ControlAction, ...] = ()


class SiteCommands(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site's own commands, run without a shell, with {node}, {run}, {job}, {reason} and {part} filled in.
    part: of the node, that it was drained for.

    Empty means that there is no such command. timeout_s: for each, except the long check.
    """

    check: str = ""
    long_check: str = ""
    reboot: str = ""
    checkpoint: str = ""
    person: str = ""
    timeout_s: Seconds = 120.0
    long_timeout_s: Seconds = 3_600.0


class Waits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """hold_min: the least age of an incident before anything drastic is done about it. settle_min: how long
    the run may take to move lanes by itself. cool_down_min: between two actions on a node. hands_off_h: how
    long a node that others restored or drained is left alone. person_h: until a person is called again.
    """

    hold_min: Minutes = 3.0
    settle_min: Minutes = 10.0
    cool_down_min: Minutes = 15.0
    hands_off_h: Hours = 4.0
    person_h: Hours = 24.0


class Times(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The durations that prices are computed from. mend_h: until people mend a fault that control leaves
    alone; this is the horizon. out_h: how long a drained node is out of service. check_h: how long a check
    takes. restart_h: from a stop to the next step. regroup_s: how long an elastic run stands still. save_s:
    for a checkpoint. person_h: until a person who was called has acted.
    """

    mend_h: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 24.0
    out_h: Hours = 4.0
    check_h: Hours = 0.1
    restart_h: Hours = 0.25
    regroup_s: Seconds = 5.0
    save_s: Seconds = 30.0
    person_h: Hours = 1.0


class KubernetesPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """taint: that drained nodes get besides the cordon; empty for none. keep_namespaces: no pod is evicted
    from these. reboot: how nodes are rebooted if the site has no command. lease: the Lease that decides which
    process leads, as NAMESPACE/NAME; empty: the store decides.
    """

    taint: Annotated[
        str, msgspec.Meta(pattern=r"^(|[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:No(Schedule|Execute))$")
    ] = ""
    keep_namespaces: tuple[str, ...] = ("kube-system",)
    reboot: Literal["maintenance-request", "none"] = "none"
    lease: Annotated[str, msgspec.Meta(pattern=r"^(|[a-z0-9-]{1,63}/[a-z0-9][a-z0-9.-]{0,252})$")] = ""


class SlurmPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """rest: the address of slurmrestd, as http://HOST:PORT or unix:/PATH; empty: Slurm's commands are used.
    token_file: the file with its token; empty: $SLURM_JWT, or no token. user: the token's user; empty: the
    user that runs control.
    """

    rest: Annotated[str, msgspec.Meta(pattern=r"^(|https?://\S+|unix:/\S+)$")] = ""
    token_file: str = ""
    user: Annotated[str, msgspec.Meta(pattern=r"^[!-~]*\Z")] = ""


class LemonPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node that was taken out `long_check` times within `days` is checked longer; after `person` times it
    stays out until a person restores it.
    """

    days: Hours = 30.0
    long_check: Nodes = 2
    person: Nodes = 3


class ControlPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """scheduler: drains the nodes. confidence: the least for an action that is easily undone;
    confidence_drastic: for one that is not. quality: the least of the telemetry, for both. gain: going on
    must cost this many times as much as an action. out: the nodes that may be out at once by all actions
    together. gpus_per_node: if the scheduler does not report it.
    """

    mode: Literal["act", "shadow"] = "shadow"
    scheduler: Literal["slurm", "kubernetes", "none"] = "none"
    confidence: Share = 0.6
    confidence_drastic: Share = 0.8
    quality: Share = 0.5
    gain: Annotated[float, msgspec.Meta(ge=1, le=1_000)] = 1.5
    gpus_per_node: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 8
    out: Bound = Bound()
    breaker: BreakerBound = BreakerBound()
    budgets: dict[ControlAction, Budget] = {}
    rules: dict[str, RulePolicy] = {}
    waits: Waits = Waits()
    times: Times = Times()
    lemons: LemonPolicy = LemonPolicy()
    commands: SiteCommands = SiteCommands()
    slurm: SlurmPolicy = SlurmPolicy()
    kubernetes: KubernetesPolicy = KubernetesPolicy()

    @property
    def is_acting(self) -> bool:
        """Whether any rule acts, rather than announces."""
        return "act" in (self.mode, *(rule.mode for rule in self.rules.values()))

    def in_shadow(self) -> Self:
        """The same policy in shadow mode."""
        rules = {
            name: msgspec.structs.replace(rule, mode="shadow") if rule.mode == "act" else rule
            for name, rule in self.rules.items()
        }
        return msgspec.structs.replace(self, mode="shadow", rules=rules)

    def budget(self, action: ControlAction) -> Budget:
        return self.budgets.get(action, Budget())

    def rule(self, mechanism: str) -> RulePolicy:
        return self.rules.get(mechanism, RulePolicy())

    def mode_of(self, mechanism: str) -> RuleMode:
        return self.rule(mechanism).mode or self.mode


def read_policy(text: str) -> ControlPolicy:
    """Parse a policy file. Raises `InputError`."""
    try:
        policy = msgspec.convert(tomllib.loads(text), ControlPolicy)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"The policy is not TOML: {error}.", hint=EXAMPLE) from None
    except msgspec.ValidationError as error:
        raise mistake(error, ControlPolicy) from None
    known = [*(mechanism.name for mechanism in MECHANISMS), NO_RULE]
    for rule in policy.rules:
        if rule not in known:
            hint = nearest(rule, known, f"Rules are {', '.join(known)}.", quote="`")
            raise InputError(f"The policy has a rule for {rule!r}, which is not a mechanism.", hint=hint)
    for name in ("check", "long_check", "reboot", "checkpoint", "person"):
        _require_command(name, getattr(policy.commands, name))
    return policy


def example() -> str:
    """A policy file with every key at its default."""
    return files("holdfast.control").joinpath("policy.toml").read_text("utf-8")


def _require_command(name: str, command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(
            f"`commands.{name}` in the policy is not a command: {error}.", hint="Close its quotes."
        ) from None
    if command and (not words or _WORD_CHARS.search(words[0])):
        raise InputError(
            f"`commands.{name}` in the policy names no program.",
            hint="Its first word is the program, and is not filled in; leave the key out to have no command.",
        )
    if set(_WORD_CHARS.sub("", command)) & {*"{}"}:
        raise InputError(
            f"`commands.{name}` in the policy has a brace without its other half.",
            hint=f"Write {', '.join(f'{{{one}}}' for one in PLACEHOLDERS)}.",
        )
    for place in _WORD_CHARS.findall(command):
        if place not in PLACEHOLDERS:
            raise InputError(
                f"`commands.{name}` in the policy has {{{place}}}, which is not filled in.",
                hint=f"Known are {', '.join(f'{{{one}}}' for one in PLACEHOLDERS)}.",
            )
