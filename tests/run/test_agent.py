"""An agent as a process of its own, under a coordinator that does only what the test says."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from waiting import WAIT_S, is_alive

from holdfast.run import wire
from holdfast.run.agent import EXIT_DISCONNECTED, EXIT_MISTAKE, Assignment
from holdfast.run.handshake import Host, endpoint_of
from holdfast.run.output import View
from holdfast.run.stacks import own_frame, read_stacks
from holdfast.run.wire import (
    Accepted,
    AgentJoined,
    AnyMessage,
    EndNode,
    Locate,
    Located,
    NodeBeat,
    Proof,
    Refused,
    ShowWorker,
    StartWorker,
    StopWorker,
    StrikeNode,
    StrikeWorker,
    WorkerExited,
    WorkerStarted,
)

pytestmark = pytest.mark.slow

TOKEN = "a token for tests"
POLL_INTERVAL_S = 0.01
EXIT_SEEN_S_MAX = 1.0
"""Typically a few milliseconds. One of several attempts must be this fast, since test machines are busy."""

Kind = TypeVar("Kind", bound=AnyMessage)


class Desk:
    """The coordinator's end of one agent's connection, and the agent's process."""

    def __init__(self) -> None:
        self.port = 0
        self.taken: set[str] = set()
        self.heard: list[AnyMessage] = []
        self.agent: asyncio.subprocess.Process
        self._came = asyncio.Condition()
        self._writer: asyncio.StreamWriter

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = Host(TOKEN, endpoint=endpoint_of(writer.get_extra_info("sockname")))
        writer.write(wire.frame(host.challenge))
        proof = await self._read(reader)
        assert isinstance(proof, Proof)
        assert host.refusal(proof) is None
        if proof.name in self.taken:
            writer.write(wire.frame(host.sealed(Refused(sentence=f"{proof.name} is there already."))))
            writer.close()
            return
        writer.write(wire.frame(host.sealed(Accepted(run="r"))))
        self._writer = writer
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                message = await self._read(reader)
                async with self._came:
                    self.heard.append(message)
                    self._came.notify_all()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> AnyMessage:
        length = wire.frame_length(await reader.readexactly(wire.LENGTH_BYTES))
        return wire.unframe(await reader.readexactly(length))

    def tell(self, message: AnyMessage) -> None:
        self._writer.write(wire.frame(message))

    def hang_up(self) -> None:
        self._writer.close()

    def start(self, member: str = "n0.0", **environment: str) -> None:
        self.tell(StartWorker(member=member, slot=0, environment=environment))

    async def next(self, kind: type[Kind], member: str = "") -> Kind:
        """The first message of its kind, even if it has already arrived; of one member, if one is named."""

        def found() -> list[Kind]:
            messages = [message for message in self.heard if isinstance(message, kind)]
            return [message for message in messages if not member or getattr(message, "member", "") == member]

        async with asyncio.timeout(WAIT_S), self._came:
            await self._came.wait_for(lambda: bool(found()))
            return found()[0]

    async def pid(self, member: str = "n0.0") -> int:
        return (await self.next(WorkerStarted, member)).pid

    async def exit_code(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.agent.wait()


@asynccontextmanager
async def desk(
    *command: str,
    taken: tuple[str, ...] = (),
    node: str = "n0",
    log_directory: str = "",
    view: View = View(),  # noqa: B008
) -> AsyncIterator[Desk]:
    """A coordinator with an agent that has joined; workers run the command."""
    here = Desk()
    here.taken.update(taken)
    server = await asyncio.start_server(here.serve, "127.0.0.1", 0)
    here.port = server.sockets[0].getsockname()[1]
    assignment = Assignment(
        launcher=os.getpid(),
        host="127.0.0.1",
        port=here.port,
        token=TOKEN,
        node=node,
        slots=2,
        command=command,
        checkpoints="/nowhere",
        log_directory=log_directory,
        view=view,
    )
    here.agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "holdfast.run.agent"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert here.agent.stdin is not None
    here.agent.stdin.write(msgspec.json.encode(assignment))
    here.agent.stdin.close()
    try:
        await here.next(AgentJoined)
        yield here
    finally:
        with suppress(ProcessLookupError):
            here.agent.kill()
        await here.agent.communicate()
        server.close()
        await server.wait_closed()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-c", code)


SLEEP = ("sleep", "600")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(_bounded(test))


async def _bounded(test: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(2 * WAIT_S):
        await test()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(POLL_INTERVAL_S)


def test_it_says_who_it_is_and_goes_on_saying_that_it_lives() -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            joined = await here.next(AgentJoined)
            assert (joined.node, joined.slots, joined.address) == ("n0", 2, "127.0.0.1")
            assert joined.port > 0
            await here.next(NodeBeat)
            here.heard.clear()
            await here.next(NodeBeat)

    run(test)


def test_it_takes_the_next_name_where_the_hosts_is_taken() -> None:
    async def test() -> None:
        name = os.uname().nodename.partition(".")[0]
        async with desk(*SLEEP, node="", taken=(name, f"{name}-2")) as here:
            assert (await here.next(AgentJoined)).node == f"{name}-3"

    run(test)


def test_a_worker_has_the_environment_it_was_given_and_the_agents() -> None:
    names = ("RANK", "HOLDFAST_TOKEN", "HOLDFAST_COORDINATOR", "HOLDFAST_CHECKPOINTS", "OMP_NUM_THREADS")
    code = f"import os; print(*(os.environ[name] for name in {names}))"

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start(RANK="3")
            ended = await here.next(WorkerExited)
            assert (ended.code, ended.signal) == (0, None)
            assert ended.tail == (f"3 {TOKEN} 127.0.0.1:{here.port} /nowhere 1",)
            assert ended.port > 0

    run(test)


def test_the_death_of_a_worker_is_told_at_once() -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            took_s = []
            for number in range(5):
                member = f"n0.0+{number}"
                here.start(member)
                os.kill(await here.pid(member), signal.SIGKILL)
                begun_s = time.monotonic()
                ended = await here.next(WorkerExited, member)
                took_s.append(time.monotonic() - begun_s)
                assert (ended.code, ended.signal) == (None, signal.SIGKILL)
            assert min(took_s) < EXIT_SEEN_S_MAX

    run(test)


def test_output_goes_to_its_streams_and_what_it_fails_with_is_held_back() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); raise ValueError('too late')"

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start()
            ended = await here.next(WorkerExited)
            assert ended.code == 1
            assert ended.complaint.startswith("Traceback (most recent call last):\n")
            assert ended.complaint.endswith("\nValueError: too late")
            here.tell(EndNode(outcome="failed", code=1))
            out, err = await here.agent.communicate()
            assert (out, err) == (b"[n0.0] out\n", b"[n0.0] err\n")

    run(test)


def test_a_worker_that_is_stopped_while_it_fails_has_failed() -> None:
    header = "Traceback (most recent call last):"
    code = f"import sys, time; print({header!r}, file=sys.stderr); print('up'); time.sleep(600)"

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start()
            assert here.agent.stdout is not None
            await here.agent.stdout.readline()
            here.tell(StopWorker(member="n0.0", grace_s=WAIT_S))
            ended = await here.next(WorkerExited)
            assert (ended.signal, ended.complaint) == (signal.SIGTERM, header)
            here.tell(EndNode(outcome="failed", code=1))
            assert await here.agent.communicate() == (b"", b"")

    run(test)


def test_a_traceback_that_is_survived_is_printed() -> None:
    code = (
        "import time, traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\ntime.sleep(600)"
    )

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start()
            assert here.agent.stderr is not None
            async with asyncio.timeout(WAIT_S):
                await here.agent.stderr.readuntil(b"[n0.0] ZeroDivisionError: division by zero\n")

    run(test)


def test_output_is_also_written_to_files(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk(*python("print('one')"), log_directory=str(tmp_path)) as here:
            here.start()
            await here.next(WorkerExited)
            here.tell(EndNode(outcome="completed", code=0))
            assert await here.exit_code() == 0

    run(test)
    assert (tmp_path / "n0.0" / "stdout.log").read_text(encoding="utf-8") == "one\n"
    assert (tmp_path / "n0.0" / "stderr.log").read_text(encoding="utf-8") == ""


def test_a_worker_that_is_let_out_before_its_agent_knows_loses_no_line(tmp_path: Path) -> None:
    """The orders to the agent and to the process come by different connections."""
    code = f"""
import os, pathlib
from holdfast.run.showing import VARIABLE, await_shown
print("hidden")
pathlib.Path({str(tmp_path)!r}, "out").touch()
await_shown(os.environ)
print("first", VARIABLE in os.environ)
"""

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.tell(StartWorker(member="n0.2", slot=2, environment={}, is_warm=True))
            await until((tmp_path / "out").exists)
            here.tell(ShowWorker(member="n0.2", slot=2))
            assert here.agent.stdout is not None
            assert await here.agent.stdout.readline() == b"[n0.2] first False\n"
            await here.next(WorkerExited)
            here.tell(EndNode(outcome="completed", code=0))
            await here.agent.communicate()

    run(test)


def test_a_warm_worker_is_shown_once_it_has_joined_as_far_as_its_seat_is(tmp_path: Path) -> None:
    code = """
import os, time
for word in "before", "joined", "seated":
    print(word)
    while not os.path.exists(word):
        time.sleep(0.01)
"""
    view = View(by_rank=(("stdout", "stderr"), ()))
    log = tmp_path / "n0.2" / "stdout.log"

    async def printed(word: str) -> None:
        await until(lambda: log.exists() and word in log.read_text(encoding="utf-8"))

    async def obeyed(here: Desk, other: str) -> None:
        """Wait until earlier orders are done: it does one thing after the other."""
        here.tell(StartWorker(member=other, slot=1, environment={}, is_warm=True))
        await here.pid(other)

    async def test() -> None:
        async with desk(
            *python(f"import os; os.chdir({str(tmp_path)!r})\n{code}"), log_directory=str(tmp_path), view=view
        ) as here:
            here.tell(StartWorker(member="n0.2", slot=2, environment={}, is_warm=True))
            await printed("before")
            here.tell(ShowWorker(member="n0.2", slot=2))
            await obeyed(here, "n0.3")
            (tmp_path / "before").touch()
            assert here.agent.stdout is not None
            assert await here.agent.stdout.readline() == b"[n0.2] joined\n"
            here.tell(ShowWorker(member="n0.2", slot=1))  # whose output is not shown
            await obeyed(here, "n0.4")
            (tmp_path / "joined").touch()
            await printed("seated")
            (tmp_path / "seated").touch()
            await here.next(WorkerExited)
            here.tell(EndNode(outcome="completed", code=0))
            assert await here.agent.communicate() == (b"", b"")

    run(test)
    assert log.read_text(encoding="utf-8") == "before\njoined\nseated\n"


def test_a_program_that_cannot_be_started_is_the_users_mistake() -> None:
    async def test() -> None:
        async with desk("/no/such/program") as here:
            here.start()
            ended = await here.next(WorkerExited)
            assert ended.code == EXIT_MISTAKE
            assert ended.complaint == "holdfast: /no/such/program cannot be used: No such file or directory."

    run(test)


def test_a_stopped_worker_may_end_by_itself() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('up'); time.sleep(600)"

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start()
            assert here.agent.stdout is not None
            await here.agent.stdout.readline()
            here.tell(StopWorker(member="n0.0", grace_s=WAIT_S))
            assert (await here.next(WorkerExited)).code == 5

    run(test)


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
def test_a_worker_that_does_not_end_is_killed_after_the_grace(grace_s: float) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start()
            assert here.agent.stdout is not None
            await here.agent.stdout.readline()
            begun_s = time.monotonic()
            here.tell(StopWorker(member="n0.0", grace_s=grace_s))
            assert (await here.next(WorkerExited)).signal == signal.SIGKILL
            assert time.monotonic() - begun_s >= grace_s

    run(test)


def test_a_pause_ends_by_itself_and_a_kill_kills() -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            here.start()
            pid = await here.pid()
            here.tell(StrikeWorker(member="n0.0", fault="pause", for_s=0.3))
            await until(lambda: state_of(pid) == "T")
            await until(lambda: state_of(pid) == "S")
            here.tell(StrikeWorker(member="n0.0", fault="kill"))
            assert (await here.next(WorkerExited)).signal == signal.SIGKILL

    run(test)


def test_a_worker_that_stops_itself_is_only_woken() -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            here.start()
            pid = await here.pid()
            here.tell(StrikeWorker(member="n0.0", fault="pause", for_s=0.5, stops_itself=True))
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: state_of(pid) == "T")
            await until(lambda: state_of(pid) == "S")

    run(test)


def test_it_tells_which_workers_are_stopped() -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            here.start()
            os.kill(await here.pid(), signal.SIGSTOP)
            await until(lambda: NodeBeat(node="n0", stopped=("n0.0",)) in here.heard)
            os.kill(await here.pid(), signal.SIGCONT)
            await until(lambda: here.heard[-1] == NodeBeat(node="n0"))

    run(test)


HOLDS_THE_INTERPRETER = """
def evaluate():
    print("here"), sum(range(10**12))

evaluate()
"""


def test_it_finds_out_where_a_worker_is_that_cannot_speak(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(HOLDS_THE_INTERPRETER)

    async def test() -> None:
        async with desk(sys.executable, "-u", str(tmp_path / "busy.py")) as here:
            here.start()
            assert here.agent.stdout is not None
            assert b"here" in await here.agent.stdout.readline()
            here.tell(Locate(member="n0.0"))
            assert (await here.next(Located)).place == "busy.py:3"

    run(test)


def test_a_worker_that_would_die_of_the_question_is_not_asked() -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            here.start()
            pid = await here.pid()
            here.tell(Locate(member="n0.0"))
            assert (await here.next(Located)).place == ""
            assert is_alive(pid)

    run(test)


def test_a_place_is_the_users_own_line() -> None:
    own, torch_, library = "/home/me/train.py", "/v/lib/site-packages/torch/nn/module.py", asyncio.__file__
    frames = [(library, 10, "wait"), (torch_, 20, "forward"), (own, 88, "main"), (own, 90, "<module>")]
    lines = [f'  File "{path}", line {line} in {name}' for path, line, name in frames]
    (stack,) = read_stacks("Stack (most recent call first):\n" + "\n".join(lines))
    assert [frame.function for frame in stack] == ["wait", "forward", "main", "<module>"]
    assert [frame.is_own for frame in stack] == [False, False, True, True]
    found = own_frame(stack)
    assert found is not None
    assert found.place == "train.py:88"
    (stack,) = read_stacks(f"Stack (most recent call first):\n{lines[0]}\n")
    found = own_frame(stack)
    assert found is not None
    assert found.place == "__init__.py:10"
    assert read_stacks("") == ()


def test_the_thread_that_was_asked_comes_first() -> None:
    def thread(head: str, line: int) -> str:
        return f'{head} 0x7f (most recent call first):\n  File "train.py", line {line} in work\n'

    stacks = read_stacks(
        thread("Thread", 3) + "\n" + thread("Current thread", 8) + "\n" + thread("Thread", 5)
    )
    assert [stack[0].line for stack in stacks] == [8, 3, 5]


def test_a_paused_worker_can_be_stopped() -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            here.start()
            here.tell(StrikeWorker(member="n0.0", fault="pause", for_s=600))
            here.tell(StopWorker(member="n0.0", grace_s=WAIT_S))
            assert (await here.next(WorkerExited)).signal == signal.SIGTERM

    run(test)


@pytest.mark.parametrize("how", ["struck", "killed"])
def test_workers_die_with_their_agent(how: str) -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            here.start("n0.0")
            here.start("n0.1")
            pids = [await here.pid("n0.0"), await here.pid("n0.1")]
            if how == "struck":
                here.tell(StrikeNode())
            else:
                here.agent.kill()
            assert await here.exit_code() == -signal.SIGKILL
            await until(lambda: not any(map(is_alive, pids)))

    run(test)


def test_the_end_takes_everything_with_it_and_gives_the_code() -> None:
    # A child that does not hear SIGTERM, in the session of its parent, which has ended.
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start("n0.0")
            left_behind = int((await here.next(WorkerExited)).tail[0])
            here.tell(EndNode(outcome="completed", code=7))
            assert await here.exit_code() == 7
            await until(lambda: not is_alive(left_behind))

    run(test)


@pytest.mark.parametrize("how", ["hung up", "asked to leave"])
def test_an_agent_that_leaves_takes_its_workers_with_it(how: str) -> None:
    async def test() -> None:
        async with desk(*SLEEP) as here:
            here.start()
            pid = await here.pid()
            if how == "hung up":
                here.hang_up()
            else:
                here.agent.terminate()
            code = EXIT_DISCONNECTED if how == "hung up" else 128 + signal.SIGTERM
            assert await here.exit_code() == code
            assert not is_alive(pid)

    run(test)


def test_an_agent_lives_on_if_its_output_is_not_read() -> None:
    lines, width = 40_000, 100
    code = f"for number in range({lines}): print(f'{{number:0{width}}}')"

    async def test() -> None:
        async with desk(*python(code)) as here:
            here.start()
            await here.pid()
            await asyncio.sleep(1)
            assert not [message for message in here.heard if isinstance(message, WorkerExited)]
            here.heard.clear()
            await here.next(NodeBeat)
            assert here.agent.stdout is not None
            for number in range(lines):
                line = await here.agent.stdout.readline()
                assert line == b"[n0.0] %0*d\n" % (width, number)
            assert (await here.next(WorkerExited)).code == 0

    run(test)
