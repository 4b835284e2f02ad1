"""torchrun's flags as `holdfast run` reads them: their values, and their environment variables.

tests/cli/test_torchrun.py runs every flag of the installed torchrun through both parsers.
"""

import re
import signal
from collections.abc import Mapping
from typing import Any

import click

from holdfast.cli import flags
from holdfast.cli.flags import Decorator
from holdfast.record.errors import InputError
from holdfast.run.output import STREAMS, Stream, View

MASTER_PORT = 29500
"""torchrun's default port for `--master-addr`."""
_BITS: dict[Stream, int] = {"stdout": 1, "stderr": 2}
_JOIN_TIMEOUTS = ("join_timeout", "timeout")
"""The keys of `--rdzv-conf` for the longest wait for nodes, with the backends c10d and static."""


def option(*words: str, by: str = "", **settings: Any) -> Any:
    """A flag that torchrun has, too. by: its name there, if it differs from the field's.

    As with torchrun, the variable PET_NAME replaces a flag that is not given. Kubernetes' training operator
    sets these variables.
    """
    others = settings.pop("variables", ())
    return lambda field: flags.option(
        *words, envvar=_variables(by or flags.flag_of(field.name), *others), **settings
    )(field)


def _variables(name: str, *others: str) -> tuple[str, ...]:
    return "PET_" + name.removeprefix("--").replace("-", "_").upper(), *others


def accepted(name: str, told: str, **settings: Any) -> Decorator:
    """A flag without effect. told: its help."""
    return click.option(name, expose_value=False, help=told, envvar=_variables(name), **settings)


def without_effect(name: str, why: str, **settings: Any) -> Decorator:
    """A flag that asks for the normal behaviour."""
    return accepted(name, f"Accepted, without effect: {why}", **settings)


def refused(name: str, why: str, hint: str) -> Decorator:
    """A flag that is refused, because Holdfast cannot do what it asks for."""

    def refuse(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise InputError(f"{name} {value} is not supported: {why}.", hint=hint)

    return click.option(
        name, expose_value=False, callback=refuse, metavar="VALUE", help=f"Refused: {why}. {hint}"
    )


def view(
    slots: int, *, redirects: Mapping[int, int], tee: Mapping[int, int], ranks: frozenset[int] | None
) -> View:
    """The streams of each local rank that are shown: those of `ranks`, except redirected ones that are not
    teed. The default `View` if all are.
    """
    by_rank = tuple(
        tuple(
            stream
            for stream, bit in _BITS.items()
            if (ranks is None or rank in ranks) and not redirects[rank] & ~tee[rank] & bit
        )
        for rank in range(slots)
    )
    return View() if all(len(shown) == len(STREAMS) for shown in by_rank) else View(by_rank=by_rank)


def streams_of(flag: str, text: str, slots: int) -> dict[int, int]:
    """Parse the streams of each local rank: `3`, or `0:3,1:2`. 1 is stdout, 2 stderr, 3 both."""
    if re.fullmatch(r"[0-3]", text):
        return dict.fromkeys(range(slots), int(text))
    if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        raise InputError(
            f"{flag} {text} does not name streams.",
            hint="Write 1 for stdout, 2 for stderr, 3 for both; 0:3,1:2 for local ranks 0 and 1.",
        )
    given = {int(rank): int(streams) for rank, streams in (pair.split(":") for pair in text.split(","))}
    return {rank: given.get(rank, 0) for rank in range(slots)}


def ranks_of(text: str) -> frozenset[int] | None:
    """Parse local ranks such as `0,2`; None for all of them."""
    if not text:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InputError(
            f"--local-ranks-filter {text} is not a list of local ranks.", hint="Write 0, or 0,2."
        )
    return frozenset(map(int, text.split(",")))


def filters_of(text: str | None) -> tuple[str, ...]:
    """Parse words such as `apple,orange`; two commas stand for a comma in a word."""
    return () if not text else tuple(word.replace("\0", ",") for word in text.replace(",,", "\0").split(","))


def wait_s_of(conf: str) -> float | None:
    """The longest wait for nodes in `--rdzv-conf`; None if it has none. Its other keys have no effect."""
    pairs = [part.partition("=") for part in conf.split(",")] if conf.strip() else []
    given = {key.strip(): value.strip() for key, _, value in pairs}
    hint = "Write key=value,key2=value2; join_timeout is the longest to wait for nodes, in seconds."
    if not all(given) or not all(given.values()):
        raise InputError(f"--rdzv-conf {conf} is not a list of keys and values.", hint=hint)
    for key in _JOIN_TIMEOUTS:
        if key in given:
            if not given[key].isdecimal():
                raise InputError(f"--rdzv-conf {key}={given[key]} is not a number of seconds.", hint=hint)
            return float(given[key])
    return None


def signals_of(text: str) -> tuple[signal.Signals, ...]:
    """Parse signals such as `SIGTERM,SIGUSR1`."""
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in signal.Signals.__members__]
    if unknown:
        raise InputError(
            f"--signals-to-handle {text}: there is no signal {unknown[0] or 'without a name'}.",
            hint="Write SIGTERM,SIGUSR1.",
        )
    deaf = [name for name in names if name in ("SIGKILL", "SIGSTOP")]
    if deaf:
        raise InputError(
            f"--signals-to-handle {text}: no process can handle {deaf[0]}.", hint="Leave it out."
        )
    return tuple(dict.fromkeys(signal.Signals[name] for name in names))
