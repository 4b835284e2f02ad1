"""Prove a run's newest checkpoint at intervals during the run, with `holdfast checkpoint prove` in a process
of the lowest priority. That process writes the result into the record; this module tells it to the run.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import IO

import msgspec

from holdfast.run import wire
from holdfast.run.kin import be_dispensable, die_with, signal_group

PROOF_S_MAX = 6 * 3600.0
"""The most time that a proof may take."""
TRIES_MAX, TRY_AGAIN_S = 3, 30.0
"""How often a proof is tried if it cannot be made, for example before the first checkpoint, and the pause
between tries."""
NICE = 19


class ProofOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to prove. every_s: from the end of one proof to the start of the next. run: its name in the
    record. checkpoints: the first directory. words: the script and its arguments.
    """

    every_s: float
    run: str
    checkpoints: str
    words: tuple[str, ...]


class Prover:
    """Proves checkpoints at intervals. told: called with each result."""

    def __init__(self, order: ProofOrder, told: Callable[[wire.Proven], None]) -> None:
        self._order = order
        self._told = told
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> frozenset[int]:
        """The pid of the running proof, which other code must not reap."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    async def keep(self) -> None:
        """Prove for as long as this task lasts."""
        try:
            while True:
                await asyncio.sleep(self._order.every_s)
                await self._prove()
        finally:
            self._end()

    async def _prove(self) -> None:
        for number in range(1, TRIES_MAX + 1):
            try:
                found = await self._tried()
            except OSError as error:  # no room for another process or its output
                found = wire.Proven(step=0, verdict="untried", reason=error.strerror or str(error))
            if found.verdict != "untried" or number == TRIES_MAX:
                break
            await asyncio.sleep(min(TRY_AGAIN_S, self._order.every_s))
        self._told(found)

    async def _tried(self) -> wire.Proven:
        order = self._order
        verb = ("-m", "holdfast", "checkpoint", "prove", "--json", "--steps-max", "1", "--run", order.run)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._process = subprocess.Popen(
                (sys.executable, *verb, order.checkpoints, *order.words),
                env={"OMP_NUM_THREADS": "1", **os.environ},  # as members have it
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=partial(_begin, os.getpid()),  # takes no lock
            )
            try:
                code = await asyncio.to_thread(self._process.wait, PROOF_S_MAX)
            except subprocess.TimeoutExpired:
                return wire.Proven(step=0, verdict="untried", reason=f"it took more than {PROOF_S_MAX:.0f} s")
            finally:
                self._end()
            return verdict_of(code, _text(out), _text(err))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            signal_group(process.pid, signal.SIGKILL)
            process.poll()


def _begin(parent: int) -> None:
    os.nice(NICE)
    be_dispensable()
    die_with(parent)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def verdict_of(code: int, out: str, err: str) -> wire.Proven:
    """The verb's result, from its exit code and its output."""
    if code in (0, 1):
        try:
            found = json.loads(out)
            return wire.Proven(
                step=int(found["step"]),
                verdict="proven" if found["is_proven"] else "refuted",
                reason=str(found["reason"]),
            )
        except (ValueError, KeyError, TypeError):
            pass  # it was killed, or failed before that
    told = [line.removeprefix("holdfast: ") for line in err.splitlines() if line.startswith("holdfast: ")]
    reason = told[-1].removesuffix(".") if told else f"the proof ended with exit code {code}"
    return wire.Proven(step=0, verdict="untried", reason=reason)
