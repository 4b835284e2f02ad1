"""Where the coordinator of a run on this machine is, for its operator: a file that only its owner can read.

The file is locked for as long as the run goes, so one that was left behind by killed processes is known as
such, and no two runs of one name go at the same time.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.files import make_private_directory
from holdfast.record.spool import boot_id, is_this_machine
from holdfast.record.untrusted import UNDECODABLE
from holdfast.run.lines import LINES_FILE
from holdfast.run.seeking import Address
from holdfast.wording import stamp

RUNS_DIRECTORY = "runs"
FILE = "endpoint.json"
LINE_FILE = "heirs.json"
"""Where a run may have gone from here: the places of its coordinator and heirs, as long as it is not over."""
FILE_BYTES = 1024
"""An endpoint, filled up with blanks."""
OPEN_ATTEMPTS_MAX = 10
"""The file may be removed, by the run that ends, between opening and locking it."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a coordinator. pid: of its process; launcher: of the one that the run was started by;
    successor: of the one that would take its place at this moment, 0: none. node_name, boot: of the machine
    that they run on, whose locks alone count: other machines may have the same home.
    """

    host: str
    port: int
    token: str
    pid: int
    launcher: int = 0
    successor: int = 0
    node_name: str = msgspec.field(default_factory=lambda: os.uname().nodename)
    boot: str = msgspec.field(default_factory=boot_id)


class LostRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose coordinator was killed, and has no successor. seen_ns: its last sign of life, as far as its
    files show.
    """

    run: str
    seen_ns: int


def run_directory(home: Path, run: str) -> Path:
    return home / RUNS_DIRECTORY / run


def is_run_name(run: str) -> bool:
    """And not the way to another directory."""
    return Path(run).name == run and run not in ("", "..")


class Reservation:
    """A run's name, for as long as its coordinator, or the successor, has the file's descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.descriptor = descriptor
        self._path = path

    @property
    def name(self) -> str:
        return self._path.parent.name

    def publish(self, endpoint: Endpoint) -> None:
        """Tell operators on this machine where the coordinator is. In one piece, as long as any before."""
        try:
            body = msgspec.json.encode(endpoint).ljust(FILE_BYTES)
            os.pwrite(self.descriptor, body, 0)
            os.ftruncate(self.descriptor, len(body))
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def give_sign_of_life(self) -> None:
        """So that it can be told later until when the run went, if it ends without a word."""
        with suppress(OSError):
            os.utime(self.descriptor)


@contextmanager
def reserved(home: Path, run: str) -> Iterator[Reservation]:
    """Have the name for one run while the block lasts.

    `InputError` where a run of this name goes on already.
    """
    directory = run_directory(home, run)
    path = directory / FILE
    try:
        make_private_directory(directory)
        descriptor = _open_locked(path)
    except BlockingIOError:
        raise InputError(
            f"A run {run!r} is going on already.", hint="Give this one another name with --run."
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    os.ftruncate(descriptor, 0)
    (directory / LINES_FILE).unlink(missing_ok=True)  # of one that was killed
    with inherited(home, run, descriptor) as reservation:
        yield reservation


@contextmanager
def inherited(home: Path, run: str, descriptor: int) -> Iterator[Reservation]:
    """Have the name that a predecessor had, by its own descriptor."""
    directory = run_directory(home, run)
    try:
        yield Reservation(directory / FILE, descriptor)
    finally:
        (directory / LINES_FILE).unlink(missing_ok=True)
        (directory / FILE).unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):  # there are checkpoints in it
            directory.rmdir()


def keep_line(home: Path, run: str, places: Sequence[Address]) -> None:
    """So that the run is found if it is started here once more while another machine coordinates it. None: it
    is over, or cannot go anywhere.
    """
    path = run_directory(home, run) / LINE_FILE
    with suppress(OSError):  # the home is full: the run goes on
        path.unlink(missing_ok=True)
        if places:
            path.write_bytes(msgspec.json.encode(places))
        else:
            path.parent.rmdir()


def kept_line(home: Path, run: str) -> tuple[Address, ...]:
    """Where a run of this name may go on that was not over when this machine last knew of it."""
    try:
        data = (run_directory(home, run) / LINE_FILE).read_bytes()
        return msgspec.json.decode(data, type=tuple[Address, ...])
    except (OSError, *UNDECODABLE):
        return ()


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"Cannot write {path}: {error.strerror}.",
        hint="Set HOLDFAST_HOME to a directory of yours, on a disk with room.",
    )


def _open_locked(path: Path) -> int:
    for _ in range(OPEN_ATTEMPTS_MAX):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise BlockingIOError


def find_endpoint(home: Path, run: str) -> Endpoint:
    """Of a run that goes on this machine; `InputError` where none does under this name."""
    is_name = is_run_name(run)
    path = run_directory(home, run) / FILE
    endpoint = _read(path) if is_name else None
    if endpoint is None and is_name and (lost := _lost(path)) is not None:
        raise InputError(
            f"No run {run!r} is going on on this machine: it was lost with its coordinator, whose last sign "
            f"of life was at {stamp(lost.seen_ns)}.",
            hint="Start it again under its name: it goes on from its newest checkpoint, if it has one.",
        )
    if endpoint is None:
        going = [name for name in going_runs(home) if name != run]
        hint = f"Going on are: {', '.join(going)}." if going else "No run is going on here."
        raise InputError(f"No run {run!r} is going on on this machine.", hint=hint)
    return endpoint


def going_runs(home: Path) -> list[str]:
    paths = sorted((home / RUNS_DIRECTORY).glob(f"*/{FILE}"))
    return [path.parent.name for path in paths if _read(path) is not None]


def lost_runs(home: Path) -> list[LostRun]:
    paths = sorted((home / RUNS_DIRECTORY).glob(f"*/{FILE}"))
    return [lost for path in paths if (lost := _lost(path)) is not None]


def is_lost(home: Path, run: str) -> bool:
    """Whether its coordinator on this machine was killed, and has no successor."""
    return _lost(run_directory(home, run) / FILE) is not None


def _lost(path: Path) -> LostRun | None:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            endpoint = msgspec.json.decode(file.read(), type=Endpoint)
            seen_ns = os.fstat(file.fileno()).st_mtime_ns
    except (OSError, *UNDECODABLE):  # its coordinator holds it, or there never was one
        return None
    if not is_this_machine(endpoint.node_name, endpoint.boot):
        return None  # that machine's to judge
    if _is_holdfasts(endpoint.launcher):
        return None  # it has not noticed yet
    if (path.parent / LINE_FILE).exists():
        return None  # another machine may have taken over
    with suppress(OSError):
        seen_ns = max(seen_ns, (path.parent / LINES_FILE).stat().st_mtime_ns)
    return LostRun(run=path.parent.name, seen_ns=seen_ns)


def _is_holdfasts(process: int) -> bool:
    """Whether it lives, and is not another one that has its number now."""
    with suppress(OSError):
        return b"holdfast" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def _read(path: Path) -> Endpoint | None:
    """None where no launcher holds the file."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=Endpoint)
    except (OSError, *UNDECODABLE):
        return None
    return None
