"""Runs a program that may hang in the kernel, and collects its output until it ends or its time is over."""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, NamedTuple

LINE_BYTES_MAX, OUTPUT_BYTES_MAX = 1 << 16, 1 << 22
END_S = 2.0
"""How long the program may take to end after it was killed."""


class ChildOutput(NamedTuple):
    """output: whole lines. note: why the output may be incomplete; empty if the program ended well."""

    output: bytes
    note: str


def written_by(command: Iterable[str], until_s: float) -> ChildOutput:
    """Run the command until it ends, or until `until_s` of the monotonic clock. A process that is stuck in
    the kernel cannot be killed and is left behind: waiting for it would hang this process, too.
    """
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=complaints, stdin=subprocess.DEVNULL
        )
        assert process.stdout is not None
        with process.stdout:
            output, is_late = _read_until(process.stdout, until_s)
        if is_late:
            process.send_signal(signal.SIGKILL)  # kernels that hang on a GPU end with their process
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(END_S)
        complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - LINE_BYTES_MAX))
        return ChildOutput(output, _note(code, complaints.read(), is_late=is_late))


def _read_until(pipe: IO[bytes], until_s: float) -> tuple[bytes, bool]:
    """Whole lines, and whether the program might have written more."""
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left_s := until_s - time.monotonic()) > 0 and len(found) < OUTPUT_BYTES_MAX:
            if not selector.select(left_s):
                break
            chunk = os.read(pipe.fileno(), LINE_BYTES_MAX)
            if not chunk:
                return found, False
            found += chunk
    return found[: found.rfind(b"\n") + 1], True


def _note(code: int | None, complaint: bytes, *, is_late: bool) -> str:
    if is_late:
        return "the probe did not end in time"
    if code:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        return f"the probe failed: {last or f'exit code {code}'}"
    return ""
