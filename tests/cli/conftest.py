"""The command as a user runs it: a process of its own, with a home of its own."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

RUN_WAIT_S = 120


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


@pytest.fixture
def data() -> Path:
    return Path(__file__).parents[1] / "data"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    return {**kept, "HOLDFAST_HOME": str(tmp_path / "home"), "COLUMNS": "100", "NO_COLOR": "1"}


@pytest.fixture
def holdfast(environment: dict[str, str], tmp_path: Path) -> Callable[..., Outcome]:
    def run(*arguments: str | Path, **variables: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *map(str, arguments)],
            env={**environment, **variables},
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # some test has it print in another encoding
            timeout=RUN_WAIT_S,
            check=False,
        )
        return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Callable[..., Outcome]:
    """The command in a line of bash, for what only a shell can do to it."""

    def run(line: str, **variables: str) -> Outcome:
        function = f'holdfast() {{ {shlex.quote(sys.executable)} -m holdfast "$@"; }}'
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{function}; {line}"],
            env={**environment, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=RUN_WAIT_S,
            check=False,
        )
        return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)

    return run
