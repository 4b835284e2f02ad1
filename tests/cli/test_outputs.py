"""A verb that cannot write its output says so before it begins."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast.cli import HOLDFAST

FILES: dict[tuple[str, str], str] = {
    ("report", "--html"): "report",
    ("finance", "--html"): "finance",
    ("finance", "--csv"): "finance",
    ("simulate", "--html"): "simulate",
    ("simulate", "--record"): "simulate",
    ("stragglers", "--html"): "stragglers trace.json",
    ("drill sheet", "--html"): "drill sheet cooling-pump",
    ("drill live", "--html"): "drill live big worker-killed",
    ("check", "--write-reference"): "check",
    ("doctor", "--write"): "doctor",
    ("checkpoint export", "--to"): "checkpoint export big --format torch",
}
"""Options that name a file to write, and the verb as it is asked. None of these verbs has what it needs here:
it must not come so far as to notice."""
DIRECTORIES: dict[tuple[str, str], str] = {
    ("drill play", "--out"): "drill play cooling-pump",
    ("drill reveal", "--out"): "drill reveal cooling-pump",
    ("checkpoint copy", "--to"): "checkpoint copy big",
    ("checkpoint import", "--to"): "checkpoint import weights.pt",
    ("run", "--log-dir"): "run {} script.py",
    ("run", "--checkpoints"): "run {} script.py",
}
READ = {
    *("--checkpoints", "--directory", "--flight-recorder", "--kubernetes", "--meta", "--own", "--policy"),
    *("--prices", "--rates", "--reference", "--signals", "--size", "--token-file", "--topology", "--domains"),
    *("--xid-policy", "--redfish-ca", "--kernel-log", "--step-log", "--infiniband"),
}
"""Options that name what a verb reads; `--signals` of `collect` is made at once."""


def options(group: click.Group, *path: str) -> Iterator[tuple[str, click.Option]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        verb = group.get_command(context, name)
        assert verb is not None
        if isinstance(verb, click.Group):
            yield from options(verb, *path, name)
            continue
        for one in verb.params:
            if isinstance(one, click.Option):
                yield " ".join((*path, name)), one


def test_every_option_that_names_a_file_is_here() -> None:
    """A new one is written, and asked below, or read."""
    named = {
        (verb, max(one.opts, key=len))
        for verb, one in options(HOLDFAST)
        if isinstance(one.type, click.Path) or {"OUT", "DIR", "FILE", "PATH"} & {*str(one.metavar).split("|")}
    }
    assert {one for one in named if one[1] not in READ} <= {*FILES, *DIRECTORIES}
    assert {*FILES, *DIRECTORIES} <= named


@pytest.fixture
def sentence(holdfast: Any, tmp_path: Path) -> Any:
    for name in ("script.py", "trace.json", "weights.pt"):
        (tmp_path / name).touch()

    def asked(line: str, *words: str) -> str:
        before, _, behind = line.partition(" {}")
        done = holdfast(*before.split(), *words, *behind.split())
        assert (done.code, done.out) == (2, ""), done
        told, hint = done.err.splitlines()
        assert told.startswith("holdfast: ")
        assert hint.startswith("  hint: Name a")
        assert not (tmp_path / "home" / "record.sqlite").exists()  # nothing was done
        return str(told.removeprefix("holdfast: "))

    return asked


@pytest.mark.parametrize(("line", "flag"), [(line, one[1]) for one, line in FILES.items()])
def test_a_file_in_a_missing_directory(sentence: Any, line: str, flag: str) -> None:
    assert sentence(line, flag, "gone/out").endswith(
        " cannot be written to gone/out: there is no directory gone."
    )


@pytest.mark.parametrize(("line", "flag"), [(line, one[1]) for one, line in (FILES | DIRECTORIES).items()])
def test_a_place_below_a_file(sentence: Any, line: str, flag: str) -> None:
    assert "script.py" in sentence(line, flag, "script.py/out")


@pytest.mark.parametrize("flag", ["--html", "--csv"])
def test_what_may_not_be_written(sentence: Any, tmp_path: Path, flag: str) -> None:
    """Root may write everything, but not to a device that takes nothing: /proc refuses a new file."""
    place = "/proc/out" if os.geteuid() == 0 else str(tmp_path / "shut" / "out")
    (tmp_path / "shut").mkdir(mode=0o500)
    assert "cannot be written to" in sentence("finance", flag, place)


def test_stdout_and_devices_can_be_written(holdfast: Any) -> None:
    assert "<html" in holdfast("drill", "sheet", "quiet", "--html", "-").out
    assert holdfast("drill", "sheet", "quiet", "--html", "/dev/null").code == 0


@pytest.mark.parametrize("verb", ["play", "reveal", "sheet"])
@pytest.mark.parametrize("gpus", ["7", "100", "248"])
def test_a_cluster_that_is_too_small_for_a_scenario(
    holdfast: Any, tmp_path: Path, verb: str, gpus: str
) -> None:
    flag = "--html" if verb == "sheet" else "--out"
    done = holdfast("drill", verb, "cooling-pump", "--gpus", gpus, flag, "out")
    assert done.code == 2
    assert "Give a multiple of 8 GPUs, 256 or more." in done.err
    assert not (tmp_path / "out").exists()


def test_trying_an_output_makes_and_removes_nothing(holdfast: Any, tmp_path: Path) -> None:
    """A link to a file that is still to be made stays, and so does what others write there meanwhile."""
    (tmp_path / "latest.html").symlink_to(tmp_path / "page-of-today.html")
    (tmp_path / "old.html").write_text("old")
    for name in ("latest.html", "new.html", "old.html"):
        assert holdfast("report", "nobody", "--html", tmp_path / name).code == 2
    assert (tmp_path / "latest.html").is_symlink()
    assert not (tmp_path / "page-of-today.html").exists()
    assert not (tmp_path / "new.html").exists()
    assert (tmp_path / "old.html").read_text() == "old"
