"""One contract for every place where runs are simulated: this process, a pool of two, a real Ray cluster.

Ray's head runs on loopback, with a token of its own, in a directory of its own, and no other Ray is touched.
"""

import contextlib
import os
import pty
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from quantity import sampled
from waiting import free_port, until

import holdfast as package
from holdfast.cli.sweeping import sweep
from holdfast.record.errors import InputError
from holdfast.twin.policies import policy
from holdfast.twin.presets import preset
from holdfast.twin.ray_cluster import ATTEMPTS_MAX, played_by_ray
from holdfast.twin.study import Study
from holdfast.twin.sweep import Task, play
from holdfast.twin.sweeping import announcement
from holdfast.twin.workers import LAST_WORDS_S_MAX
from holdfast.wording.units import DAY_NS

pytestmark = pytest.mark.slow

START_S_MAX = 120
STOP_S_MAX = 30
STARTS_MAX = 3
END_S_MAX = 300
"""Until nothing that an interrupted command has started is left."""
CONNECT_S = 3
"""By then Ray has been loaded and tries to connect."""
HOURS_NS = 6 * 3_600 * 10**9
MANY = ("simulate", "--runs", "10000", "--processes", "2")
SHORT = ("simulate", "--preset", "rsc-1-1024", "--days", "1", "--processes", "1")
FEW = ("simulate", "--runs", "3", "--days", "1")


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A Ray cluster of one node. variables: what a process needs in its environment to be taken in."""

    head: int
    address: str
    client_address: str
    variables: dict[str, str]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    processes: int | None = None
    ray_address: str | None = None


class StartFailed(Exception):
    """Ray's head ended while it started. It gives itself 30 s, and a busy machine may take longer."""


@contextlib.contextmanager
def serving_ray(**variables: str) -> Iterator[Cluster]:
    """Start a cluster, if need be several times, and end it."""
    with contextlib.ExitStack() as stack:
        for left in reversed(range(STARTS_MAX)):
            try:
                yield stack.enter_context(_serving_ray(variables))
                return
            except StartFailed:
                if not left:
                    raise


@contextlib.contextmanager
def _serving_ray(variables: dict[str, str]) -> Iterator[Cluster]:
    """Start a cluster once, and end it by its head's process number."""
    home = Path(tempfile.mkdtemp(prefix="holdfast-ray-"))
    taken_in = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # With this Ray keeps to loopback, where it would look for another address of this machine.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    forking = {
        # Ray's proxy forks the process that serves a client. With gRPC's fork handlers that child dies or
        # hangs now and then (ray-project/ray#63202); it only calls exec, and needs none of them.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        # A busy machine takes longer than Ray's 30 s to start it.
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "80",
    }
    port, client_port = free_port(), free_port()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", f"--ray-client-server-port={client_port}", "--num-cpus=2"]
    command += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={home}"]
    command += ["--object-store-memory=80000000"]
    log = home / "head.log"
    environment = {**os.environ, **taken_in, **forking, **variables}
    with log.open("wb") as output:
        head = subprocess.Popen(
            command, env=environment, cwd=home, stdout=output, stderr=output, start_new_session=True
        )
    try:
        await_start(head, log, client_port)
        yield Cluster(
            head=head.pid,
            address=f"127.0.0.1:{port}",
            client_address=f"ray://127.0.0.1:{client_port}",
            variables=taken_in,
        )
    finally:
        head.terminate()
        try:
            head.wait(STOP_S_MAX)
        finally:
            for pid in session(head.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            head.wait()
            shutil.rmtree(home, ignore_errors=True)


def await_start(head: "subprocess.Popen[bytes]", log: Path, client_port: int) -> None:
    """Until it says so and takes in clients: its proxy for them is a process of its own, and later."""
    until(
        lambda: (
            (b"Ray runtime started" in log.read_bytes() and is_listened_to(client_port))
            or head.poll() is not None
        ),
        lambda: log.read_text(encoding="utf-8"),
    )
    if head.poll() is not None:
        raise StartFailed(log.read_text(encoding="utf-8"))


def is_listened_to(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def session(leader: int) -> dict[int, str]:
    """The processes of a session that have not ended, and what they call themselves."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, sid = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
            if int(sid) == leader and state != "Z":
                named = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = named.decode(errors="replace")
    return found


def named(leader: int, part: str) -> list[int]:
    return [pid for pid, name in session(leader).items() if part in name]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Cluster]:
    with serving_ray() as cluster:
        yield cluster


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    if "Ray" not in request.param:
        return Place(processes=1 if request.param == "one process" else 2)
    cluster: Cluster = request.getfixturevalue("ray_cluster")
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    is_inside = request.param == "Ray"
    return Place(ray_address=cluster.address if is_inside else cluster.client_address)


def short(policy_name: str, seed: int) -> Task:
    """Some hours of a published run."""
    chosen = preset("llama3-405b")
    study = Study(
        name=chosen.name,
        job=chosen.job,
        layout=chosen.layout,
        hazards=chosen.hazards,
        duration_ns=HOURS_NS,
        usd_per_gpu_hour=1.0,
    )
    chosen_policy = policy(policy_name, chosen.job.gpus, chosen.practice.spare_nodes)
    return Task(study=study, policy=chosen_policy, seed=seed)


SOAKED = [pytest.param(name, marks=pytest.mark.soak) for name in ("one process", "Ray from elsewhere")]


def swept(tasks: list[Task], place: Place) -> list[Any]:
    return list(sweep(tasks, processes=place.processes, ray_address=place.ray_address))


@pytest.fixture(scope="module")
def played() -> list[tuple[Task, Any]]:
    """Tasks, and what each comes to; so many that two processes take them in pairs, and one is left over."""
    tasks = [short(name, seed) for name, seeds in (("holdfast", 9), ("restart", 8)) for seed in range(seeds)]
    return [(one, play(one)) for one in tasks]


@pytest.fixture
def begun(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts the command as the leader of a session, so that whatever it starts can be found."""
    started = []

    def begin(*arguments: str, **variables: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            env={**environment, **variables},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        for pid in session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


WORKERS_OF_A_POOL = "spawn_main"
WORKERS_OF_RAY = "ray::play_batch"


# Tests of the Ray cluster follow one another, so that one worker has them all and starts it once.


@pytest.mark.parametrize("place", [*SOAKED, "two processes", "Ray"], indirect=True)
def test_the_figures_are_the_same_in_the_same_order_everywhere(
    place: Place, played: list[tuple[Task, Any]]
) -> None:
    tasks, figures = zip(*played, strict=True)
    assert swept(list(tasks), place) == list(figures)


@pytest.mark.soak
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_driver_leaves_no_process_here_or_on_the_cluster(
    begun: Callable[..., "subprocess.Popen[str]"], ray_cluster: Cluster, how: signal.Signals
) -> None:
    command = begun(*MANY, "--ray", ray_cluster.address, **ray_cluster.variables)
    until(lambda: len(named(ray_cluster.head, WORKERS_OF_RAY)) == 2)
    interrupt(command, how)
    until(lambda: not session(command.pid))
    until(lambda: not named(ray_cluster.head, WORKERS_OF_RAY))
    assert_ended(command, how)


@pytest.mark.parametrize(
    "place", [pytest.param("Ray", marks=pytest.mark.soak), "two processes", *SOAKED], indirect=True
)
def test_an_error_in_a_task_is_raised_as_itself(place: Place) -> None:
    tasks = [short("restart", seed) for seed in (1, 2, -1, 3, -1)]
    with pytest.raises(ValueError, match=r"^expected non-negative integer") as raised:
        swept(tasks, place)
    assert type(raised.value) is ValueError


@pytest.mark.parametrize("how", sampled([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], [signal.SIGKILL]))
def test_an_interrupted_pool_leaves_no_process(
    begun: Callable[..., "subprocess.Popen[str]"], how: signal.Signals
) -> None:
    command = begun(*MANY)
    until(lambda: len(named(command.pid, WORKERS_OF_A_POOL)) == 2)
    interrupt(command, how)
    until(lambda: not session(command.pid))
    assert_ended(command, how)


def interrupt(command: "subprocess.Popen[str]", how: signal.Signals) -> None:
    """Ctrl-C goes to all processes of a terminal; the others to the one that somebody names."""
    if how == signal.SIGINT:
        os.killpg(command.pid, how)
    else:
        command.send_signal(how)


def assert_ended(command: "subprocess.Popen[str]", how: signal.Signals) -> None:
    out, err = command.communicate(timeout=END_S_MAX)
    assert command.returncode == (130 if how == signal.SIGINT else -how), err
    assert out == ""
    if how == signal.SIGINT:  # a worker that is still starting may complain that we died
        assert "Traceback" not in err


def test_a_worker_that_was_killed_is_told_in_a_sentence(
    begun: Callable[..., "subprocess.Popen[str]"],
) -> None:
    command = begun(*MANY)
    until(lambda: len(named(command.pid, WORKERS_OF_A_POOL)) == 2)
    os.kill(named(command.pid, WORKERS_OF_A_POOL)[0], signal.SIGKILL)
    _, err = command.communicate(timeout=END_S_MAX)
    assert command.returncode == 2
    assert "A simulating process was killed" in err
    assert "fewer --processes" in err
    assert "BrokenProcessPool" not in err  # a worker that is still starting may complain that we died


@pytest.mark.soak
def test_ray_does_the_work_of_a_killed_worker_again(
    begun: Callable[..., "subprocess.Popen[str]"], ray_cluster: Cluster
) -> None:
    arguments = ("simulate", "--runs", "6", "--days", "20", "--policy", "holdfast", "--json")
    command = begun(*arguments, "--ray", ray_cluster.address, **ray_cluster.variables)
    until(lambda: bool(named(ray_cluster.head, WORKERS_OF_RAY)))
    os.kill(named(ray_cluster.head, WORKERS_OF_RAY)[0], signal.SIGKILL)
    out, err = command.communicate(timeout=START_S_MAX)
    assert command.returncode == 0, err
    assert err == ""
    here = begun(*arguments, "--processes", "2")
    assert out == here.communicate(timeout=START_S_MAX)[0]


def read_terminal(descriptor: int) -> str:
    """All that is printed there until the last one closes it; it comes in pieces of 4 KiB at most."""
    shown = b""
    with contextlib.suppress(OSError):  # that is how Linux tells the end of a terminal
        while piece := os.read(descriptor, 2**16):
            shown += piece
    return shown.decode()


@pytest.mark.parametrize("is_json", [False, True])
def test_only_a_terminal_is_shown_what_is_computed_and_progress(
    holdfast: Callable[..., Any], environment: dict[str, str], tmp_path: Path, is_json: bool
) -> None:
    words = (*SHORT, *(["--json"] if is_json else []))
    piped = holdfast(*words)
    assert (piped.code, piped.err) == (0, "")
    out, shown = on_a_terminal(words, environment, tmp_path)
    assert out == piped.out
    told = "Simulating 2 runs of 1 day on 1,024 GPUs (restart, holdfast); this takes about 1 s."
    assert (told in shown) is not is_json


def test_what_is_computed_is_told_with_the_time_that_it_takes() -> None:
    llama = preset("llama3-405b")
    study = Study(
        name=llama.name,
        job=llama.job,
        layout=llama.layout,
        hazards=llama.hazards,
        duration_ns=54 * DAY_NS,
        usd_per_gpu_hour=1.0,
    )
    tasks = [Task(study=study, policy=policy("holdfast", 16_384, 32), seed=seed) for seed in range(100)]
    told = "Simulating 100 runs of 54 days on 16,384 GPUs (holdfast)"
    alone = announcement(tasks, processes=1, ray_address=None)
    assert alone == f"{told}; this takes about 6 min 18 s."
    assert announcement(tasks, processes=4, ray_address=None) == f"{told}; this takes about 1 min 35 s."
    assert announcement(tasks, processes=None, ray_address="auto") == f"{told} on Ray."


@pytest.mark.soak
def test_progress_is_shown_to_its_end(environment: dict[str, str], tmp_path: Path) -> None:
    assert "100%" in on_a_terminal(FEW, environment, tmp_path)[1]


def on_a_terminal(words: Sequence[str], environment: dict[str, str], directory: Path) -> tuple[str, str]:
    """The command's stdout, and what it prints on stderr if that is a terminal."""
    ours, theirs = pty.openpty()
    try:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read_terminal, ours)
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "holdfast", *words],
                    env={**environment, "TERM": "xterm"},
                    cwd=directory,
                    stdout=subprocess.PIPE,
                    stderr=theirs,
                    text=True,
                    check=True,
                    timeout=START_S_MAX,
                )
            finally:
                os.close(theirs)
            shown = reading.result()
    finally:
        os.close(ours)
    return done.stdout, shown


@pytest.mark.soak
def test_ray_is_silent(holdfast: Callable[..., Any], ray_cluster: Cluster) -> None:
    shared = holdfast(*FEW, "--ray", ray_cluster.address, **ray_cluster.variables)
    assert (shared.code, shared.err) == (0, "")
    assert shared.out == holdfast(*FEW).out


@pytest.mark.parametrize(
    "address", ["local", "", "127.0.0.1", "http://127.0.0.1:6379", "127.0.0.1:99999", "[::1:6379"]
)
def test_what_is_no_address_is_refused(holdfast: Callable[..., Any], address: str) -> None:
    assert_refused(holdfast(*FEW, "--ray", address), f"{address!r} is not the address of a Ray cluster")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens_is_refused_at_once(
    holdfast: Callable[..., Any], scheme: str
) -> None:
    address = f"{scheme}127.0.0.1:{free_port()}"
    assert_refused(holdfast(*FEW, "--ray", address), f"No Ray cluster answers at {address}")


def test_the_environment_names_the_cluster_that_auto_means(holdfast: Callable[..., Any]) -> None:
    address = f"127.0.0.1:{free_port()}"
    refused = holdfast(*FEW, "--ray", "auto", RAY_ADDRESS=address)
    assert_refused(refused, f"No Ray cluster answers at {address}")


def test_a_listener_that_is_no_ray_is_refused_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(InputError) as refused:
            list(played_by_ray([short("restart", 1)], address, CONNECT_S))
        taken_s = time.monotonic() - began_s
    assert f"{address} has not answered as a Ray cluster within {CONNECT_S} s." in refused.value.sentence
    assert refused.value.hint
    assert taken_s < CONNECT_S + LAST_WORDS_S_MAX + END_S_MAX


def test_without_ray_a_sentence_tells_how_to_get_it(holdfast: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n", encoding="utf-8")
    refused = holdfast(*FEW, "--ray", "auto", PYTHONPATH=str(tmp_path))
    assert_refused(refused, "Ray is not installed here")
    assert "pip install 'ray[client]'" in refused.err


@pytest.mark.soak
def test_a_cluster_with_another_holdfast_is_refused(holdfast: Callable[..., Any], tmp_path: Path) -> None:
    other = tmp_path / "other" / "holdfast"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("__version__ = '0.0.1'\n", encoding="utf-8")
    with serving_ray(PYTHONPATH=str(other.parent)) as cluster:
        arguments = (*FEW, "--ray", cluster.address)
        refused = holdfast(*arguments, **cluster.variables)
        assert_refused(
            refused, f"The Ray cluster has Holdfast 0.0.1 and this is Holdfast {package.__version__}"
        )
        (other / "__init__.py").write_text("raise ImportError\n", encoding="utf-8")
        assert_refused(holdfast(*arguments, **cluster.variables), "The Ray cluster has no Holdfast")


@pytest.mark.soak
def test_a_head_node_that_serves_nobody_is_told_with_its_reason(holdfast: Callable[..., Any]) -> None:
    with serving_ray(RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S="0") as cluster:
        quickly = {**cluster.variables, "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "1"}
        refused = holdfast(*FEW, "--ray", cluster.client_address, **quickly)
        assert_refused(refused, f"did not serve us, {ATTEMPTS_MAX} times: RuntimeError: Proxy failed to")
        assert "/tmp/ray/session_latest/logs" in refused.err


def assert_refused(outcome: Any, sentence: str) -> None:
    """Exit code 2, one sentence and one hint."""
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    told, hint = outcome.err.splitlines()
    assert sentence in told
    assert hint.startswith("  hint: ")
