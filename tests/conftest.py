"""The tiers of tests, what a skipped test means, and the servers that tests of several rooms use.

A server runs on loopback in a directory of its own for as long as the session does, and is ended by its
process number; workers that share the tests have servers of their own each. `make servers` installs them.
Where one is missing, its tests are skipped with the reason; with HOLDFAST_NO_SKIP=1 in the environment any
skipped test makes the session fail.

A test that asks for `need`, itself or through a fixture, is marked `server`. One marked `root` is skipped for
other users. `make quick` leaves out both, and what is marked `slow`; a test that asks for the `environment`
of a command is marked so here.
"""

import compileall
import contextlib
import gc
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from _pytest.assertion import rewrite
from hypothesis import settings
from quantity import QUICK, SOAK, USUAL, examples
from servers import INSTALL, daemon, find, need
from waiting import free_port, until

import holdfast

collect_ignore = ["gpu"]
"""For machines with a GPU, with a conftest.py that stands apart: see `make test-gpu`."""
KILL_WAIT_S = 10
STOP_WAIT_S = 30
WITHOUT_SLOW = "not (slow or"
"""How `-m` of `make quick` begins."""
SLOW_MODULE = re.compile(r"^pytestmark = \[?\s*(pytest\.mark\.\w+, )*pytest\.mark\.slow\b", re.MULTILINE)
TEST_MODULE = re.compile(r"(test_.*|conftest)\.py$")
FOR_ROOT = "only root may do this"
POSTGRES_PASSWORD = "tide / turns @ 4"
POSTGRES_USERS = ("postgres", "nobody")
"""Who runs the server where the tests are run by root. Only a package of the system makes the first one."""
SLURM_KEY_BYTES = 128
SLURM_NODES = ("127.0.0.1", "127.0.0.2")
"""Named by their addresses, so that a node's name leads to it, as it does in any cluster."""

# Durability is what the server's own tests prove; ours are quicker without it.
_POSTGRES_SETTINGS = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "autovacuum=off")

_SLURM_SETTINGS = """\
ClusterName=holdfast
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmctldPidFile={home}/slurmctld.pid
SlurmUser={user}
SlurmdUser={user}
SlurmdPidFile={home}/slurmd-%n.pid
SlurmdSpoolDir={home}/spool-%n
StateSaveLocation={home}
AuthInfo=socket={home}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
KillWait=1
PartitionName=all Nodes=ALL Default=YES
"""


# How long an example takes says how busy the machine is, and nothing about what is tested.
# A verdict must not depend on luck: examples are the same each time where it counts, and new elsewhere.
settings.register_profile(
    USUAL, deadline=None, max_examples=examples(100, USUAL), derandomize="HOLDFAST_NO_SKIP" in os.environ
)
for profile in (QUICK, SOAK):
    settings.register_profile(profile, deadline=None, max_examples=examples(100, profile))


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile(USUAL)
    # A process that was started in the background may ignore Ctrl-C, and so would all its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Where none may write bytecode, each of the hundreds of interpreters that are started would compile all.
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(holdfast.__file__).parent, quiet=1)
        if config.getoption("numprocesses", None):
            _rewrite_for_workers(config)


def _rewrite_for_workers(config: pytest.Config) -> None:
    """Rewrite the assertions of the tests once, and keep the result where pytest looks for it: each worker
    would do the same for all tests, which is a third of what it takes to collect them.
    """
    named = [config.invocation_params.dir / one.partition("::")[0] for one in config.args]
    found = {path for one in named for path in (one.rglob("*.py") if one.is_dir() else [one])}
    for path in (path for path in found if TEST_MODULE.match(path.name) and path.is_file()):
        kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, kept) is None:
            if not rewrite.try_makedirs(kept.parent):
                return  # the tests are another user's
            with contextlib.suppress(SyntaxError):  # collecting tells of it
                source_hash, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A module that is slow as a whole is not imported where slow tests are left out: torch takes seconds."""
    if config.getoption("markexpr").startswith(WITHOUT_SLOW) and collection_path.suffix == ".py":
        return bool(SLOW_MODULE.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze imported and collected objects: they never become garbage, so the collector need not scan
    them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "need" in fixtures:
            item.add_marker("server")
        if "environment" in fixtures:  # of a command that it starts
            item.add_marker("slow")
        if item.get_closest_marker("root") is not None and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason=FOR_ROOT))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    if any(FOR_ROOT in reason or INSTALL in reason for reason in reasons):
        terminalreporter.section("tests that were not run")
        if for_root := sum(FOR_ROOT in reason for reason in reasons):
            terminalreporter.write_line(f"{for_root} need root: sudo .venv/bin/python -m pytest -m root")
        if for_servers := sum(INSTALL in reason for reason in reasons):
            terminalreporter.write_line(f"{for_servers} need servers or programs: make servers installs them")
        terminalreporter.write_line("The rest alone: .venv/bin/python -m pytest -m 'not (root or server)'")
    if skipped := _skips_that_fail(terminalreporter.config):
        terminalreporter.write_line(f"HOLDFAST_NO_SKIP: {skipped} skipped, which is a failure here", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _skips_that_fail(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips_that_fail(config: pytest.Config) -> int:
    """How many; a worker, which reports to another process, leaves it to that one."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("HOLDFAST_NO_SKIP") != "1" or reporter is None:
        return 0
    return len(reporter.stats.get("skipped", ()))


@pytest.fixture(scope="session", name="need")
def give_need() -> Callable[..., None]:
    """Skips the tests of a fixture that calls it with packages of which one is missing."""
    return need


@pytest.fixture(scope="session")
def postgres_process(need: Callable[..., None]) -> Iterator["PostgresProcess"]:
    """A running PostgreSQL server, which a test may stop as long as it starts it again."""
    need("postgresql", "util-linux")
    user = _unprivileged_user() if os.geteuid() == 0 else None
    with _running_postgres(user) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(postgres_process: "PostgresProcess") -> str:
    """The URL of a running PostgreSQL server, without a database's name."""
    return postgres_process.url


@pytest.fixture(scope="session")
def browser(need: Callable[..., None]) -> str:
    """The command that starts a Chromium."""
    need("chromium")
    return "chromium"


@pytest.fixture(scope="session")
def slurm_cluster(need: Callable[..., None]) -> Iterator[Path]:
    """The slurm.conf of a running cluster of two nodes, which Slurm's commands find by $SLURM_CONF."""
    need("slurm-wlm")
    home = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
    home.chmod(0o711)  # munged wants its socket to be within everybody's reach
    try:
        with _serving_slurm(home) as settings:
            yield settings
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def slurm_of(need: Callable[..., None]) -> Callable[..., contextlib.AbstractContextManager[Path]]:
    """A cluster of nodes of these names alone, for as long as a block lasts. has_tokens: it takes JWTs."""
    need("slurm-wlm")

    @contextlib.contextmanager
    def serve(nodes: Sequence[str], *, has_tokens: bool = False) -> Iterator[Path]:
        home = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
        home.chmod(0o711)
        try:
            with _serving_slurm(home, nodes, has_tokens=has_tokens) as settings:
                yield settings
                _cancel_jobs(settings)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    return serve


@pytest.fixture
def slurm(slurm_cluster: Path) -> Iterator[Path]:
    """The same, without jobs of other tests; those of the test are cancelled after it."""
    yield slurm_cluster
    _cancel_jobs(slurm_cluster)


@pytest.fixture
def postgres_database(postgres_server: str) -> Iterator[Callable[[], str]]:
    """Makes an empty database at each call and returns its URL; all are dropped after the test."""
    psycopg = pytest.importorskip("psycopg")
    names: list[str] = []

    def administer(statement: str) -> None:
        with psycopg.connect(postgres_server + "postgres", autocommit=True) as admin:
            admin.execute(statement.encode())

    def make() -> str:
        names.append(f"store_{next(_database_numbers)}")
        administer(f"CREATE DATABASE {names[-1]}")
        return postgres_server + names[-1]

    yield make
    for name in names:
        administer(f"DROP DATABASE {name} WITH (FORCE)")


_database_numbers = count()


def _unprivileged_user() -> pwd.struct_passwd:
    for name in POSTGRES_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.skip(f"PostgreSQL refuses root, and there is no user {' or '.join(POSTGRES_USERS)}")


@contextlib.contextmanager
def _running_postgres(user: pwd.struct_passwd | None) -> Iterator["PostgresProcess"]:
    """A server in a new directory, run by `user` or by the user of the tests."""
    home = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    as_user: list[str] = []
    if user is not None:
        os.chown(home, user.pw_uid, user.pw_gid)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    try:
        _initialise_postgres([*as_user, str(find("initdb"))], home)
        server = PostgresProcess([*as_user, str(find("postgres"))], home)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _initialise_postgres(initdb: list[str], home: Path) -> None:
    password = home / "password"
    password.write_text(POSTGRES_PASSWORD, encoding="utf-8")
    password.chmod(0o644)
    options = [f"--pgdata={home}/data", "--username=holdfast", "--auth=scram-sha-256", f"--pwfile={password}"]
    options += ["--encoding=UTF8", "--locale=C", "--no-sync"]
    done = subprocess.run([*initdb, *options], cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class PostgresProcess:
    """The server in `home`, at one port however often it is stopped and started."""

    def __init__(self, command: list[str], home: Path) -> None:
        port = free_port()
        options = ["-D", f"{home}/data", "-k", str(home), "-h", "127.0.0.1", "-p", str(port)]
        options += [word for setting in _POSTGRES_SETTINGS for word in ("-c", setting)]
        self.url = f"postgresql://holdfast:{quote(POSTGRES_PASSWORD, safe='')}@127.0.0.1:{port}/"
        self._command = [*command, *options]
        self._home = home
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self._home / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(self._command, cwd=self._home, stdout=output, stderr=output)
        _await_port(self._port, self._process, log)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)  # its "fast shutdown": ends the sessions, then itself
        try:
            self._process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _serving_slurm(
    home: Path, names: Sequence[str] = SLURM_NODES, *, has_tokens: bool = False
) -> Iterator[Path]:
    key, settings = home / "munge.key", home / "slurm.conf"
    key.write_bytes(os.urandom(SLURM_KEY_BYTES))
    key.chmod(0o600)
    user = pwd.getpwuid(os.geteuid()).pw_name
    text = _SLURM_SETTINGS.format(home=home, port=free_port(), user=user)
    if has_tokens:
        (home / "jwt.key").write_bytes(os.urandom(SLURM_KEY_BYTES))
        (home / "jwt.key").chmod(0o600)
        text += f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={home}/jwt.key\n"
    for node in names:
        text += f"NodeName={node} NodeHostname=localhost Port={free_port()} CPUs=1\n"
    settings.write_text(text, encoding="utf-8")
    munge = ["munged", "--foreground", f"--key-file={key}", f"--socket={home}/munge.socket"]
    munge += [f"--pid-file={home}/munged.pid", f"--seed-file={home}/munged.seed"]
    nodes = [["slurmd", "-D", "-f", str(settings), "-N", node] for node in names]
    with contextlib.ExitStack() as stack:
        for command in (munge, ["slurmctld", "-D", "-c", "-f", str(settings)], *nodes):
            stack.enter_context(daemon(command, home))
        _await_nodes(settings, len(names))
        yield settings


@pytest.fixture
def slurmrestd(need: Callable[..., None]) -> Callable[..., contextlib.AbstractContextManager[str]]:
    """A slurmrestd of the cluster with these settings, run by a user who is not root; what a policy calls it.
    It refuses Slurm's own user as well, so only root can start it here. has_tokens: at a port, for those who
    bring one; else at a socket, for users who may open it.
    """
    need("slurmrestd", "slurm-wlm-jwt-plugin", "util-linux")

    @contextlib.contextmanager
    def serve(settings: Path, *, has_tokens: bool = False) -> Iterator[str]:
        folder = Path(tempfile.mkdtemp(prefix="rest-", dir=settings.parent))
        user = _unprivileged_user()
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        port = free_port()
        place = f"127.0.0.1:{port}" if has_tokens else f"unix:{folder}/socket"
        words = ["-s", "openapi/v0.0.38", "-a", "rest_auth/jwt" if has_tokens else "rest_auth/local", place]
        environment = ["env", f"SLURM_CONF={settings}", *(["SLURM_JWT=daemon"] if has_tokens else [])]

        def is_there() -> bool:
            with contextlib.closing(socket.socket() if has_tokens else socket.socket(socket.AF_UNIX)) as one:
                return not one.connect_ex(("127.0.0.1", port) if has_tokens else f"{folder}/socket")

        command = [*environment, *as_user, str(find("slurmrestd")), *words]
        with daemon(command, folder):
            until(is_there, lambda: (folder / "env.log").read_text(encoding="utf-8"))
            yield f"http://{place}" if has_tokens else place

    return serve


def _await_nodes(settings: Path, count: int) -> None:
    def states() -> list[str]:
        return _ask_slurm(settings, "sinfo", "--Node", "--noheader", "--format=%t").split()

    def logs() -> list[str]:
        return [path.read_text(encoding="utf-8") for path in settings.parent.glob("*.log")]

    until(lambda: states() == ["idle"] * count, lambda: "Slurm did not start:\n" + "\n".join(logs()))


def _cancel_jobs(settings: Path) -> None:
    """Return when there is none: a job's processes are not its daemons' own, and would outlive them."""

    def jobs() -> str:
        if still := _ask_slurm(settings, "squeue", "--noheader"):
            _ask_slurm(settings, "scancel", f"--user={os.geteuid()}")
        return still

    until(lambda: not jobs(), jobs)


def _ask_slurm(settings: Path, *command: str) -> str:
    """What it answers; nothing where it does not, for which its commands would wait for minutes."""
    bounded = ["timeout", str(KILL_WAIT_S), *command]
    environment = {**os.environ, "SLURM_CONF": str(settings)}
    return subprocess.run(bounded, env=environment, capture_output=True, text=True, check=False).stdout


def _await_port(port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    until(
        lambda: b"ready to accept connections" in log.read_bytes() or server.poll() is not None,
        lambda: log.read_text(encoding="utf-8"),
    )
    assert server.poll() is None, f"no PostgreSQL on port {port}:\n{log.read_text(encoding='utf-8')}"
