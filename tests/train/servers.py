"""The servers and programs that tests need: how to install, require and run them.

As a script (`make servers`) it installs missing packages with apt-get, and prints what it installs for which
tests. It needs root or sudo, and only Python's standard library. A fixture requires packages with `need`: if
one is missing, its tests are skipped, and the reason says what to do.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

INSTALL_WAIT_S = 900
KILL_WAIT_S = 10
STOP_WAIT_S = 30
TIMED_OUT = (124, 137)
"""Exit codes of `timeout` when it had to end its command, by SIGTERM or by SIGKILL."""
INSTALL = "`make servers` installs it (needs root or sudo)"


class Package(NamedTuple):
    """A package of Debian or Ubuntu: the commands, or the file below /usr/lib, that show that it is
    installed, and the tests that use it.
    """

    commands: tuple[str, ...]
    used_by: str
    file: str = ""


PACKAGES: Mapping[str, Package] = {
    "postgresql": Package(("initdb", "postgres"), "the store in PostgreSQL"),
    "chromium": Package(("chromium",), "the pages, in a browser"),
    "slurm-wlm": Package(("munged", "slurmctld", "slurmd", "srun"), "runs under Slurm"),
    "slurmrestd": Package(("slurmrestd",), "control through slurmrestd"),
    "slurm-wlm-jwt-plugin": Package((), "control through slurmrestd", "*/slurm*/auth_jwt.so"),
    "prometheus": Package(("prometheus", "promtool"), "signals, drills and diagnose"),
    "prometheus-node-exporter": Package(("prometheus-node-exporter",), "signals, doctor and the testbed"),
    "prometheus-alertmanager": Package(("prometheus-alertmanager",), "alerts"),
    "victoria-metrics": Package(("victoria-metrics",), "signals"),
    "iproute2": Package(("ip",), "the testbed"),
    "util-linux": Package(("nsenter", "setpriv"), "the testbed and the tests with two users"),
    "e2fsprogs": Package(("mkfs.ext4",), "the testbed"),
}


class InstallFailed(Exception):
    """A package could not be installed; the message says why."""


def find(command: str) -> Path | None:
    """The path of a command. A user's $PATH may lack daemons, and Debian's lacks all of PostgreSQL."""
    beside = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parts[4]))
    places = [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin", *map(str, reversed(beside))]
    found = shutil.which(command, path=":".join(places))
    return None if found is None else Path(found)


def missing(names: Iterable[str] = PACKAGES) -> list[str]:
    """The packages that are not completely installed."""
    return [name for name in names if not _is_here(PACKAGES[name])]


def _is_here(package: Package) -> bool:
    is_filed = not package.file or any(Path("/usr/lib").glob(package.file))
    return is_filed and all(map(find, package.commands))


def need(*names: str) -> None:
    """Skip the calling test if one of these packages is missing, and say what to do about it."""
    if absent := missing(names):
        import pytest

        pytest.skip(f"not installed: {', '.join(absent)}; {INSTALL}")


@contextlib.contextmanager
def daemon(command: list[str], home: Path) -> Iterator[None]:
    """A process that runs in the foreground, with its log in `home`; it ends with the block."""
    with (home / f"{command[0]}.log").open("ab") as output:
        process = subprocess.Popen(
            [find(command[0]) or command[0], *command[1:]], stdout=output, stderr=output
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def install(names: list[str], *, wait_s: float = INSTALL_WAIT_S) -> None:
    """Install these packages, or raise `InstallFailed`."""
    if not shutil.which("apt-get"):
        raise InstallFailed("this system has no apt-get: install them by its own means")
    if os.geteuid() != 0 and not shutil.which("sudo"):
        raise InstallFailed("it needs root or sudo, and this user has neither")
    words = ["install", "-y", "--no-install-recommends", *names]
    if _apt(words, wait_s).returncode == 0:
        return
    _apt(["update"], wait_s)
    done = _apt(words, wait_s)
    if done.returncode != 0:
        raise InstallFailed(f"`apt-get {' '.join(words)}` failed: {done.stdout.strip()[-500:]}")


def _apt(words: list[str], wait_s: float) -> "subprocess.CompletedProcess[str]":
    # A process that sudo has started is not ours to end, but `timeout` can end it and its children.
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    bounded = ["timeout", f"--kill-after={KILL_WAIT_S}", str(wait_s)]
    done = subprocess.run(
        [*as_root, *bounded, "apt-get", *words],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode in TIMED_OUT:
        raise InstallFailed(f"`apt-get {' '.join(words)}` took longer than {wait_s:g} s")
    return done


def main() -> str | None:
    """Install what is missing. Returns the sentence to fail with, if any."""
    absent = missing()
    for name, package in PACKAGES.items():
        print(f"{name:26}{'to be installed' if name in absent else 'here':17}for {package.used_by}")
    if not absent:
        print("Everything that the tests need is installed.")
        return None
    print(f"Installing {', '.join(absent)} with apt-get.", flush=True)
    try:
        install(absent)
    except InstallFailed as reason:
        return f"Cannot install {', '.join(absent)}: {reason}. Tests that need none of them: make quick"
    return f"Installed, but commands are missing of: {', '.join(left)}" if (left := missing()) else None


if __name__ == "__main__":
    sys.exit(main())
