"""The command as a user runs it: a process of its own, with a home of its own."""

import contextlib
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from waiting import WAIT_S

WITH_TORCH = ("checkpoint",)
"""Verbs that import torch, which takes several times as long as all else they do."""
OF_TORCH = (
    "holdfast.train.joining",
    "holdfast.train.opening",
    "holdfast.train.importing",
    "holdfast.train.proving",
)
"""What they import when they need it."""


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


@pytest.fixture(scope="session")
def zygotes() -> Iterator[Callable[[str], "subprocess.Popen[bytes]"]]:
    """Processes that have imported every verb (zygote.py), of which commands are forked: one with torch, for
    the verbs that use it, and one without, of which a fork takes less time.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(*modules: str) -> "subprocess.Popen[bytes]":
            return stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("zygote.py")), *modules],
                    # Only a process without threads may be forked, and one that has not asked for GPUs.
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )

        yield lambda verb: start(*(OF_TORCH if verb in WITH_TORCH else ()))


@pytest.fixture
def holdfast(
    environment: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, zygotes: Any
) -> Callable[..., Outcome]:
    """Runs the command in a process that is forked; where a variable is one that an interpreter reads as it
    starts, in a new one.
    """
    streams = tmp_path_factory.mktemp("streams")

    def fork(words: list[str], variables: dict[str, str]) -> Outcome:
        call = {
            "arguments": words,
            "environment": variables,
            "folder": str(tmp_path),
            "out": str(streams / "out"),
            "err": str(streams / "err"),
            "limit_s": int(WAIT_S),
        }
        zygote = zygotes(words[0] if words else "")
        zygote.stdin.write(json.dumps(call).encode() + b"\n")  # not every argument is UTF-8
        zygote.stdin.flush()
        code = int(zygote.stdout.readline())
        out, err = ((streams / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return Outcome(code=code, out=out, err=err)

    def start(words: list[str], variables: dict[str, str]) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # some test has it print in another encoding
            timeout=WAIT_S,
            check=False,
        )
        return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)

    def run(*arguments: str | Path, **variables: str) -> Outcome:
        is_for_interpreter = any(name.startswith("PYTHON") for name in variables)
        return (start if is_for_interpreter else fork)(
            [str(word) for word in arguments], {**environment, **variables}
        )

    return run


_homes: dict[tuple[str, ...], Path] = {}


@pytest.fixture
def take_in(
    holdfast: Callable[..., Outcome], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., None]:
    """Fills the home with what `holdfast import` makes of these words, which a session does once for each."""

    def fill(*words: str | Path) -> None:
        key = tuple(map(str, words))
        if key not in _homes:
            home = tmp_path_factory.mktemp("imported") / "home"
            done = holdfast("import", *words, HOLDFAST_HOME=str(home))
            assert (done.code, done.err) == (0, "")
            _homes[key] = home
        shutil.copytree(_homes[key], environment["HOLDFAST_HOME"])

    return fill


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
            timeout=WAIT_S,
            check=False,
        )
        return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)

    return run
