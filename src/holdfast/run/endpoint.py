"""How operators find the coordinator of a run on this machine: a file that only its owner can read.

The file is locked while the run lasts. So a file left behind by killed processes can be recognized, and two
runs of one name cannot run at the same time.
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
"""The addresses of the coordinator and heirs of a run that is not over: it may have moved to one of them."""
FILE_BYTES = 1024
"""The size of the file: an endpoint, padded with blanks."""
OPEN_ATTEMPTS_MAX = 10
"""A run that ends may remove the file between opening and locking it."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a coordinator. pid: of its process. launcher: the pid of the process that started the run.
    successor: the pid of the process that would take over now, 0 if there is none. node_name, boot: of their
    machine; only locks of that machine count, because other machines may share the home.
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
    """A run whose coordinator was killed without a successor. seen_ns: its last sign of life in its files."""

    run: str
    seen_ns: int


def run_directory(home: Path, run: str) -> Path:
    return home / RUNS_DIRECTORY / run


def is_run_name(run: str) -> bool:
    """Whether this is a valid name, and not a path to another directory."""
    return Path(run).name == run and run not in ("", "..")


class Reservation:
    """A run's name, held as long as its coordinator or successor has the file's descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.descriptor = descriptor
        self._path = path

    @property
    def name(self) -> str:
        return self._path.parent.name

    def publish(self, endpoint: Endpoint) -> None:
        """Tell operators on this machine where the coordinator is. A single write of a fixed size, so that
        readers never see half of it.
        """
        try:
            body = msgspec.json.encode(endpoint).ljust(FILE_BYTES)
            os.pwrite(self.descriptor, body, 0)
            os.ftruncate(self.descriptor, len(body))
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def give_sign_of_life(self) -> None:
        """Touch the file, so that it shows later when a run was last alive, if it ends without a word."""
        with suppress(OSError):
            os.utime(self.descriptor)


@contextmanager
def reserved(home: Path, run: str) -> Iterator[Reservation]:
    """Hold the name for one run while the block lasts.

    Raise `InputError` if a run of this name is already running.
    """
    directory = run_directory(home, run)
    path = directory / FILE
    try:
        make_private_directory(directory)
        descriptor = _open_locked(path)
    except BlockingIOError:
        raise InputError(
            f"A run {run!r} is already running.", hint="Give this one another name with --run."
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    os.ftruncate(descriptor, 0)
    (directory / LINES_FILE).unlink(missing_ok=True)  # left by a run that was killed
    with inherited(home, run, descriptor) as reservation:
        yield reservation


@contextmanager
def inherited(home: Path, run: str, descriptor: int) -> Iterator[Reservation]:
    """Hold a predecessor's name through the predecessor's own descriptor."""
    directory = run_directory(home, run)
    try:
        yield Reservation(directory / FILE, descriptor)
    finally:
        (directory / LINES_FILE).unlink(missing_ok=True)
        (directory / FILE).unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):  # it contains checkpoints
            directory.rmdir()


def keep_line(home: Path, run: str, places: Sequence[Address]) -> None:
    """Remember these addresses, to find the run if it is started here again while another machine coordinates
    it. Empty if the run is over or has no heirs.
    """
    path = run_directory(home, run) / LINE_FILE
    with suppress(OSError):  # if the home is full, the run continues anyway
        path.unlink(missing_ok=True)
        if places:
            path.write_bytes(msgspec.json.encode(places))
        else:
            path.parent.rmdir()


def kept_line(home: Path, run: str) -> tuple[Address, ...]:
    """Where a run of this name may continue, if it was not over when this machine last knew of it."""
    try:
        data = (run_directory(home, run) / LINE_FILE).read_bytes()
        return msgspec.json.decode(data, type=tuple[Address, ...])
    except (OSError, *UNDECODABLE):
        return ()


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"Cannot write {path}: {error.strerror}.",
        hint="Set HOLDFAST_HOME to a directory that you own, on a disk with free space.",
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
    """The endpoint of a run on this machine. Raise `InputError` if no run of this name is running."""
    is_name = is_run_name(run)
    path = run_directory(home, run) / FILE
    endpoint = _read(path) if is_name else None
    if endpoint is None and is_name and (lost := _lost(path)) is not None:
        raise InputError(
            f"No run {run!r} is running on this machine: it was lost with its coordinator, whose last sign "
            f"of life was at {stamp(lost.seen_ns)}.",
            hint="Start it again under its name: it continues from its newest checkpoint, if it has one.",
        )
    if endpoint is None:
        going = [name for name in going_runs(home) if name != run]
        hint = f"Running here: {', '.join(going)}." if going else "`holdfast runs` lists the runs that ended."
        raise InputError(f"No run {run!r} is running on this machine.", hint=hint)
    return endpoint


def going_runs(home: Path) -> list[str]:
    paths = sorted((home / RUNS_DIRECTORY).glob(f"*/{FILE}"))
    return [path.parent.name for path in paths if _read(path) is not None]


def lost_runs(home: Path) -> list[LostRun]:
    paths = sorted((home / RUNS_DIRECTORY).glob(f"*/{FILE}"))
    return [lost for path in paths if (lost := _lost(path)) is not None]


def is_lost(home: Path, run: str) -> bool:
    """Whether its coordinator on this machine was killed without a successor."""
    return _lost(run_directory(home, run) / FILE) is not None


def _lost(path: Path) -> LostRun | None:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            endpoint = msgspec.json.decode(file.read(), type=Endpoint)
            seen_ns = os.fstat(file.fileno()).st_mtime_ns
    except (OSError, *UNDECODABLE):  # a coordinator holds the lock, or there never was one
        return None
    if not is_this_machine(endpoint.node_name, endpoint.boot):
        return None  # only that machine can tell
    if _is_holdfasts(endpoint.launcher):
        return None  # the launcher has not noticed yet
    if (path.parent / LINE_FILE).exists():
        return None  # another machine may have taken over
    with suppress(OSError):
        seen_ns = max(seen_ns, (path.parent / LINES_FILE).stat().st_mtime_ns)
    return LostRun(run=path.parent.name, seen_ns=seen_ns)


def _is_holdfasts(process: int) -> bool:
    """Whether the process lives and is not an unrelated one that got its pid."""
    with suppress(OSError):
        return b"holdfast" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def _read(path: Path) -> Endpoint | None:
    """The endpoint in the file; None if no process holds its lock."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=Endpoint)
    except (OSError, *UNDECODABLE):
        return None
    return None
