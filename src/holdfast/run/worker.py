"""One process of the script, which its agent starts, reads from, strikes, stops, and sees exit.

Everything happens in the agent's event loop. The process gets a session of its own. Other processes in that
session get a moment to clean up when it ends, and are then ended, too.
"""

import asyncio
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast.run import kernel_view, showing, whereabouts
from holdfast.run.kin import die_with, signal_group, signal_process
from holdfast.run.lines import KeptLines
from holdfast.run.output import STREAMS, LastWords, MemberOutput, Printer, Stream, View
from holdfast.run.stacks import Stack, own_frame, read_stacks
from holdfast.run.startup import sitecustomize
from holdfast.run.wire import Located, StrikeWorker

READ_BYTES = 64 << 10
DRAIN_BYTES_MAX = 1 << 20
"""The most that an ended process can leave in a pipe, by Linux's limit (pipe-max-size)."""
GROUP_GRACE_S = 1.0
"""How long a worker's own processes may outlive it, so that shared memory trackers can clean up."""
GROUP_POLL_INTERVAL_S = 0.02
LOCATE_POLL_INTERVAL_S = 0.02
LOCATE_POLLS_MAX = 50
"""How often to look for the answer. A handler runs within microseconds if its process gets a core."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker runs, and where its lines are written besides being printed.

    slot: its local rank. is_muted: its lines are not printed until it is shown. view: which lines are
    printed. copies: descriptors to which some of the printed lines also go. kept: the file for all printed
    lines. held: descriptors of memory that outlives it.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    slot: int = 0
    is_muted: bool = False
    view: View = View()
    copies: Mapping[Stream, int] = {}
    kept: KeptLines | None = None
    log_directory: Path | None = None
    held: tuple[int, ...] = ()


class Worker:
    """A process from its start until nothing of it is left, which `gone` waits for.

    on_exit is called once, with subprocess's return code (negative for a signal) and the last words.
    """

    def __init__(
        self, member: str, program: Program, printer: Printer, on_exit: Callable[[int, LastWords], None]
    ) -> None:
        """Raise `OSError` if it cannot be started."""
        self._loop = asyncio.get_running_loop()
        self._member = member
        self._printer = printer
        self._on_exit = on_exit
        self._program = program
        self._slot = program.slot
        self._is_muted = program.is_muted
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_stopped = False
        self._has_printed = False
        self._waits: int | None = None
        self._reading: threading.Thread | None = None
        self._is_gone = asyncio.Event()
        self._logs = _open_logs(program.log_directory / member) if program.log_directory else {}
        self._output = MemberOutput(member, self._print, self._log)
        self._stack = whereabouts.stack_file()
        shown: int | None = None
        self._hidden: int | None = None
        """Our end of a pipe that ends once its output is shown."""
        if self._is_muted:
            shown, self._hidden = os.pipe()
        try:
            self._process, self._pipes = _started(program, self._stack, shown)
        except OSError:
            os.close(self._stack)
            self._end_hiding()
            self._close_logs()
            raise
        finally:
            if shown is not None:
                os.close(shown)
        self._watched = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._watched, self._exited)
        self.resume()

    @property
    def pid(self) -> int:
        return self._process.pid

    def resume(self) -> None:
        """Read again, after there was too much to print."""
        for stream, pipe in self._pipes.items():
            self._loop.add_reader(pipe, self._read, stream)

    def show(self, slot: int) -> None:
        """Print its output from now on, as that of this slot; not the output that is already in the pipes."""
        if self._is_muted:
            for stream in tuple(self._pipes):
                self._drain(stream)
        self._slot, self._is_muted = slot, False
        self._end_hiding()

    def _end_hiding(self) -> None:
        """Let the process know that its output is shown."""
        if self._hidden is not None:
            os.close(self._hidden)
            self._hidden = None

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM and, if it is still there after `grace_s`, SIGKILL. 0 for SIGKILL at once."""
        self._is_stopped = True
        if grace_s <= 0:
            self._signal(signal.SIGKILL)
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused one would not hear it
        self._later("kill", grace_s, partial(self._signal, signal.SIGKILL))

    def strike(self, order: StrikeWorker) -> None:
        """Inflict a fault."""
        match order.fault:
            case "kill":
                self._signal(signal.SIGKILL)
            case "pause":
                if not order.stops_itself:
                    self._signal(signal.SIGSTOP)
                self._later("continue", order.for_s, partial(self._signal, signal.SIGCONT))
            case _:
                assert_never(order.fault)

    def is_stopped(self) -> bool:
        """Whether the kernel shows the process as stopped."""
        return self._process.returncode is None and whereabouts.is_stopped(self.pid)

    def has_printed(self) -> bool:
        """Whether it has printed anything since the last call."""
        has_printed, self._has_printed = self._has_printed, False
        return has_printed

    async def locate(self, *, is_gentle: bool = False) -> Located:
        """Where in its script the process is, and the kernel's view of it. A stopped process cannot answer
        and is not asked. is_gentle: see `Locate`.
        """
        pid = self._interpreter()
        seen = kernel_view.view(pid)  # first, because asking interrupts its wait for a moment
        before, waits = self._waits, kernel_view.waits(pid)
        text, is_new_sleep = "", seen.waits_for == "sleep" and waits != before
        if seen.state not in ("", whereabouts.STOPPED) and not (is_gentle and is_new_sleep):
            text = await self._stacks(pid, all_threads=not seen.runs_threads)
            await self._settled(pid, seen.state)
        self._waits = kernel_view.waits(pid)  # asking added one wait
        stacks = await self._read_stacks(text)
        frame = own_frame(stacks[0]) if stacks else None
        place = frame.place if frame is not None else ""
        was_woken = before is not None and waits > before
        return Located(member=self._member, place=place, stacks=stacks, seen=seen, was_woken=was_woken)

    def _interpreter(self) -> int:
        """The process that runs the script; a shell or numactl may have started it."""
        if whereabouts.listens(self.pid):
            return self.pid
        return next(filter(whereabouts.listens, kernel_view.descendants(self.pid)), self.pid)

    async def _settled(self, pid: int, state: str) -> None:
        """Wait until a process that was asleep is asleep again."""
        for _ in range(LOCATE_POLLS_MAX):
            if state != "S" or kernel_view.state_of(f"/proc/{pid}/task/{pid}") in ("S", ""):
                return
            await asyncio.sleep(LOCATE_POLL_INTERVAL_S)

    async def _read_stacks(self, text: str) -> tuple[Stack, ...]:
        """The stacks with the script's source lines, unless its storage hangs, which must not hold up the
        agent.
        """
        if self._reading is None or not self._reading.is_alive():
            found: queue.SimpleQueue[tuple[Stack, ...]] = queue.SimpleQueue()
            self._reading = threading.Thread(target=lambda: found.put(read_stacks(text)), daemon=True)
            self._reading.start()
            for _ in range(LOCATE_POLLS_MAX):
                if not found.empty():
                    return found.get()
                await asyncio.sleep(LOCATE_POLL_INTERVAL_S)
        return read_stacks(text, with_source=False)

    async def _stacks(self, pid: int, *, all_threads: bool) -> str:
        """The stacks as the process writes them; empty if it does not."""
        if not whereabouts.ask(pid, self._stack, all_threads=all_threads):
            return ""
        text = ""
        for _ in range(LOCATE_POLLS_MAX):
            await asyncio.sleep(LOCATE_POLL_INTERVAL_S)
            if self._process.returncode is not None:
                return ""
            before, text = text, whereabouts.answer(self._stack)
            if text and text == before:  # it is complete
                break
        return text

    async def gone(self) -> None:
        """Wait until the process has ended, and everything in its session."""
        await self._is_gone.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            signal_process(self.pid, number)

    def _later(self, what: str, delay_s: float, call: Callable[[], None]) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()
        self._timers[what] = self._loop.call_later(delay_s, call)

    def _print(self, stream: Stream, line: bytes) -> None:
        view = self._program.view
        if self._is_muted or not view.shows(self._slot, stream):
            return
        self._printer.put(STREAMS[stream], line)
        if self._program.kept is not None:
            self._program.kept.keep(stream, line)
        if view.copies(stream, line):
            self._printer.put(self._program.copies[stream], line)

    def _log(self, stream: Stream, line: bytes) -> None:
        if self._logs:
            self._printer.put(self._logs[stream], line)

    def _close_logs(self) -> None:
        for log in self._logs.values():
            self._printer.put_end(log)

    def _read(self, stream: Stream) -> None:
        if not self._take(stream):
            self._close_pipe(stream)
        elif self._printer.is_full():
            # The pipes fill up, and the script waits until its output is read.
            for pipe in self._pipes.values():
                self._loop.remove_reader(pipe)

    def _take(self, stream: Stream) -> int:
        """Read once; returns the number of bytes. Raises `BlockingIOError` if there are none."""
        data = os.read(self._pipes[stream], READ_BYTES)
        self._has_printed = True
        self._output.feed(stream, data, self._loop.time())
        if self._output.due_s is not None:
            self._later("release", self._output.due_s - self._loop.time(), self._output.release)
        return len(data)

    def _close_pipe(self, stream: Stream) -> None:
        pipe = self._pipes.pop(stream)
        self._loop.remove_reader(pipe)
        os.close(pipe)

    def _exited(self) -> None:
        """Handle the end of the process, which the kernel reports."""
        self._loop.remove_reader(self._watched)
        os.close(self._watched)
        returncode = self._process.wait()
        os.close(self._stack)
        self._end_hiding()
        for stream in tuple(self._pipes):
            self._drain(stream)
            self._close_pipe(stream)
        for timer in self._timers.values():
            timer.cancel()
        # A process that is stopped while it fails, because another failed first, has failed, too.
        failed = returncode > 0 or (returncode < 0 and self._is_stopped)
        words = self._output.end(self._loop.time(), failed=failed)
        self._close_logs()
        self._on_exit(returncode, words)
        self._end_group(self._loop.time() + GROUP_GRACE_S)

    def _drain(self, stream: Stream) -> None:
        """Read the remaining output, but do not wait for the end: other processes may hold the pipe open."""
        left_bytes = DRAIN_BYTES_MAX
        try:
            while left_bytes > 0 and (size_bytes := self._take(stream)):
                left_bytes -= size_bytes
        except BlockingIOError:
            pass

    def _end_group(self, due_s: float) -> None:
        if not signal_group(self.pid, 0):
            self._is_gone.set()
        elif self._loop.time() < due_s:
            self._loop.call_later(GROUP_POLL_INTERVAL_S, self._end_group, due_s)
        else:
            signal_group(self.pid, signal.SIGKILL)
            self._is_gone.set()


def _started(
    program: Program, stack: int, shown: int | None
) -> tuple[subprocess.Popen[bytes], dict[Stream, int]]:
    """Start the process. Return it and non-blocking pipes with its output. stack: the file for its stacks.
    shown: the pipe whose end tells that its output is shown; None if it is from the start.
    """
    pipes = {stream: os.pipe() for stream in STREAMS}
    try:
        process = subprocess.Popen(
            program.command,
            env={
                **program.environment,
                sitecustomize.PATH: sitecustomize.added(program.environment),
                sitecustomize.VARIABLE: str(stack),
                **({} if shown is None else {showing.VARIABLE: str(shown)}),
            },
            pass_fds=(stack, *program.held, *(() if shown is None else (shown,))),
            stdin=subprocess.DEVNULL,
            stdout=pipes["stdout"][1],
            stderr=pipes["stderr"][1],
            start_new_session=True,
            # Runs after the fork. The printer's thread may have held a lock then, but this takes none.
            preexec_fn=partial(die_with, os.getpid()),
        )
    except OSError:
        for ours, _theirs in pipes.values():
            os.close(ours)
        raise
    finally:
        for _ours, theirs in pipes.values():
            os.close(theirs)
    for ours, _theirs in pipes.values():
        os.set_blocking(ours, False)
    return process, {stream: ours for stream, (ours, _theirs) in pipes.items()}


def _open_logs(directory: Path) -> dict[Stream, int]:
    directory.mkdir(parents=True, exist_ok=True)
    return {stream: open_log(directory / f"{stream}.log") for stream in STREAMS}


def open_log(path: Path) -> int:
    """Open a file for appending lines; several processes may append."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
