"""All verbs are asked the same questions: the same cause has the same exit code (docs/verbs.md)."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast.cli import HOLDFAST
from holdfast.record.events import KnownEvent, RunEnded, RunStarted, StepCommitted, encode
from holdfast.run.endpoint import Endpoint, reserved, run_directory
from holdfast.run.lines import LINES_FILE

MARCH_NS = 1_772_323_200 * 10**9
LIVE: dict[str, str] = {
    "attach": "attach {run}",
    "stop": "stop {run}",
    "migrate": "migrate {run} n0.1",
    "drain": "drain {run} n0",
    "restore": "restore {run} n0",
    "chaos": "chaos {run} kill",
    "drill live": "drill live {run} worker-killed",
    "drill monkey": "drill monkey {run} --list",
}
"""Verbs about a run that is running."""
RECORDED: dict[str, str] = {
    "replay": "replay {run} 1 0 script.py",
    "report": "report {run}",
    "cost": "cost {run}",
    "finance": "finance --run {run}",
    "events": "events {run}",
    "incidents": "incidents {run}",
    "runbook": "runbook {run}",
    "diagnose": "diagnose {run}",
    "plan cadence": "plan cadence --gpus 8 --run {run}",
    "plan run": "plan run --steps 100 --run {run}",
    "plan fit": "plan fit --run {run}",
    "checkpoint list": "checkpoint list {run}",
    "checkpoint verify": "checkpoint verify {run}",
    "checkpoint prove": "checkpoint prove {run} script.py",
    "checkpoint copy": "checkpoint copy {run} --to other",
    "checkpoint export": "checkpoint export {run} --to weights.pt",
    "checkpoint import": "checkpoint import weights.pt --to other --like {run}",
    "checkpoint prune": "checkpoint prune {run} --keep 2",
}
"""Verbs about a run of the record."""
NOT_ABOUT_ONE = {"watch", "run", "import"}
"""`watch` waits for a run that is not there yet; the others give a run its name."""


def verbs(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        verb = group.get_command(context, name)
        assert verb is not None
        if isinstance(verb, click.Group):
            yield from verbs(verb, *path, name)
        else:
            yield " ".join((*path, name)), verb


VERBS = dict(verbs(HOLDFAST))


def is_about_a_run(verb: click.Command) -> bool:
    named = {parameter.human_readable_name.strip("[].").partition("_")[0] for parameter in verb.params}
    return "RUN" in {name.upper().rpartition("|")[2] for name in named}


@contextmanager
def going(home: Path, run: str, *, listens: bool = False) -> Iterator[None]:
    """A run that seems to be running. Its coordinator has gone, or accepts connections and is silent."""
    with socket.socket() as unused, reserved(home, run) as reservation:
        unused.bind(("127.0.0.1", 0))
        if listens:
            unused.listen()
        host, port = unused.getsockname()
        reservation.publish(Endpoint(host=host, port=port, token="t", pid=1))
        (run_directory(home, run) / LINES_FILE).touch()
        yield


def sentence(done: Any, code: int = 2) -> str:
    assert (done.code, done.out) == (code, ""), done
    *said, told, hint = done.err.splitlines()
    assert told.startswith("holdfast: ")
    assert hint.startswith("  hint: ")
    assert not said
    return str(told.removeprefix("holdfast: "))


@pytest.fixture
def asked(holdfast: Any, tmp_path: Path) -> Any:
    """Verbs, with two runs in the record."""
    events: list[KnownEvent] = []
    for run in ("night-1", "night-2"):
        events += [
            RunStarted(id=f"{run}-a", occurred_ns=MARCH_NS, run=run, name="night", gpus=8),
            *(
                StepCommitted(id=f"{run}-{step}", occurred_ns=MARCH_NS + step * 10**10, run=run, step=step)
                for step in range(1, 11)
            ),
            RunEnded(id=f"{run}-z", occurred_ns=MARCH_NS + 11 * 10**10, run=run, outcome="completed"),
        ]
    (tmp_path / "events.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    (tmp_path / "script.py").touch()
    (tmp_path / "weights.pt").touch()
    assert holdfast("import", "events.jsonl").code == 0
    return lambda line, **words: holdfast(*line.format(**words).split())


def test_every_verb_about_a_run_is_asked() -> None:
    about = {name for name, verb in VERBS.items() if is_about_a_run(verb)}
    assert about - NOT_ABOUT_ONE <= LIVE.keys() | RECORDED.keys()
    first = {name: VERBS[name].params[0].human_readable_name for name in LIVE}
    assert first == dict.fromkeys(LIVE, "RUN")


@pytest.mark.parametrize("line", LIVE.values(), ids=LIVE)
def test_no_such_run_is_running(asked: Any, line: str) -> None:
    """Whether it is over, never was, or two that are over have that name."""
    for run in ("night-1", "nobody", "night"):
        assert sentence(asked(line, run=run)) == f"No run '{run}' is running on this machine."


@pytest.mark.parametrize("line", RECORDED.values(), ids=RECORDED)
def test_no_such_run_in_the_record(asked: Any, line: str) -> None:
    assert "'nobody'" in sentence(asked(line, run="nobody"))


@pytest.mark.parametrize("line", RECORDED.values(), ids=RECORDED)
def test_a_name_of_several_runs_of_the_record(asked: Any, line: str) -> None:
    assert sentence(asked(line, run="night")).startswith(
        "'night' is the name of 2 runs: night-1 (began 2026-03-01 00:00:00Z), night-2 (began "
    )


@pytest.mark.parametrize("line", LIVE.values(), ids=LIVE)
def test_the_beginning_of_a_name_strikes_and_ends_nothing(asked: Any, tmp_path: Path, line: str) -> None:
    with going(tmp_path / "home", "big-1"):
        assert sentence(asked(line, run="big")) == "No run 'big' is running on this machine."


@pytest.mark.parametrize("line", [line for name, line in LIVE.items() if "drill" not in name])
def test_a_run_that_does_not_answer(asked: Any, tmp_path: Path, line: str) -> None:
    with going(tmp_path / "home", "big-1"):
        done = asked(line, run="big-1")
    assert sentence(done, code=1)
    assert "big-1" in done.err


@pytest.mark.parametrize("line", [line for name, line in LIVE.items() if "drill" not in name])
def test_a_run_that_accepts_and_is_silent(asked: Any, tmp_path: Path, line: str) -> None:
    with going(tmp_path / "home", "big-1", listens=True):
        done = asked(line, run="big-1")
    assert "accepted the connection, but said nothing within 5 s" in sentence(done, code=1)
    assert "big-1" in done.err


@pytest.mark.parametrize("name", VERBS)
def test_an_unknown_flag(asked: Any, name: str) -> None:
    assert asked(f"{name} --no-such-flag").code == 2


BAD = [
    (name, max(option.opts, key=len))
    for name, verb in VERBS.items()
    for option in verb.params
    if isinstance(option, click.Option)
    and isinstance(option.type, click.Choice | click.types.IntParamType | click.types.FloatParamType)
]


@pytest.mark.parametrize("name", sorted({name for name, _ in BAD}))
def test_a_value_that_cannot_be(asked: Any, name: str) -> None:
    for flag in (flag for verb, flag in BAD if verb == name):
        assert flag in sentence(asked(f"{name} {flag} many"))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("drain n0 --run big --wait 5", "drain big n0 --wait 5"),
        ("drain --run=big n0", "drain big n0"),
        ("restore n0 --run big --json", "restore big n0 --json"),
        ("drill live worker-killed --run big", "drill live big worker-killed"),
        ("drill monkey --run big --list", "drill monkey big --list"),
    ],
)
def test_the_order_before_is_taken_with_a_line_that_says_the_new_one(
    asked: Any, before: str, now: str
) -> None:
    done, again = asked(before), asked(now)
    told, *rest = done.err.splitlines()
    assert told == f"holdfast: The run comes first now: `holdfast {now}`."
    assert (done.code, rest) == (again.code, again.err.splitlines())
    assert "No run 'big' is running" in again.err
