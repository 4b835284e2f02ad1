"""A site's own commands: filled in, run without a shell and within a time limit, and their output read."""

import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

import msgspec

from holdfast import wording
from holdfast.record.errors import HoldfastError
from holdfast.record.untrusted import UNDECODABLE, printable

OUTPUT_BYTES_MAX = 1 << 20
BLOCK_BYTES = 1 << 16
SAID_CHARS_MAX = 400
END_S = 5.0
"""How long a command may take to end after it was killed."""
FIGURES_SHOWN_MAX = 6
BEGINNINGS_MAX = 20
"""Lines that are tried as the first of a check's JSON."""
_BEGINNING = re.compile(r"^\{", re.MULTILINE)
_JSON = json.JSONDecoder()


class SiteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. code: None if it took too long and was killed."""

    code: int | None
    output: bytes


class _Figure(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float | None = None
    unit: str = ""
    reference: float | None = None
    ok: bool = True
    note: str = ""
    untried: bool = False


class _Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `holdfast check --json`."""

    ok: bool
    checks: tuple[_Figure, ...] = ()


def filled(template: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command. A value that is filled in stays one word, whatever it contains."""
    words = shlex.split(template)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def run_command(words: list[str], timeout_s: float) -> SiteAnswer:
    """Run the command in a session of its own, so that all its processes can be killed when its time is up. A
    process that is stuck in the kernel cannot be killed and is left behind.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise HoldfastError(
            f"{words[0]} cannot be run: {error.strerror}.", hint="See [commands] in the policy."
        ) from None
    assert process.stdout is not None
    with process.stdout:
        until_s = time.monotonic() + timeout_s
        try:
            output = _heard(process, until_s)
            process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            return SiteAnswer(code=None, output=b"")
    return SiteAnswer(code=process.returncode, output=output)


def _heard(process: "subprocess.Popen[bytes]", until_s: float) -> bytes:
    """The end of the output; at most twice the bound is kept in memory. Raises `TimeoutExpired`."""
    assert process.stdout is not None
    kept, file = bytearray(), process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        while (left_s := until_s - time.monotonic()) > 0:
            if not selector.select(left_s):
                continue
            if not (block := os.read(file, BLOCK_BYTES)):
                return bytes(kept[-OUTPUT_BYTES_MAX:])
            kept += block
            if len(kept) > 2 * OUTPUT_BYTES_MAX:
                del kept[:-OUTPUT_BYTES_MAX]
    raise subprocess.TimeoutExpired(process.args, until_s)


def _document(output: bytes) -> _Checked | None:
    """The JSON of a check, whatever ssh or a library printed before or after it: errors come by the same
    pipe.
    """
    text = output.decode("utf-8", "replace")
    for begin in islice(_BEGINNING.finditer(text), BEGINNINGS_MAX):
        with suppress(*UNDECODABLE):
            return msgspec.convert(_JSON.raw_decode(text, begin.start())[0], _Checked)
    return None


def told(answer: SiteAnswer) -> str:
    """A command's output in one line: a check's figures that are not good, or the last line."""
    if answer.code is None:
        return "it took too long and was killed"
    checked = _document(answer.output)
    if checked is None:
        last = answer.output.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return printable(f"exit code {answer.code}" + (f": {last[:SAID_CHARS_MAX]}" if last else ""))
    bad = [one for one in checked.checks if not one.ok]
    if not bad:
        return f"all {len(checked.checks)} checks are good"
    shown = "; ".join(_shown(one) for one in bad[:FIGURES_SHOWN_MAX])
    return printable(f"{len(bad)} of {len(checked.checks)} checks are not good: {shown}")


class CheckTold(msgspec.Struct, frozen=True, kw_only=True):
    """A check's findings. is_good: by name, whether the figure was measured and is good. is_untried: no
    figure is bad, but some could not be measured there.
    """

    is_good: dict[str, bool]
    is_untried: bool


def checked(answer: SiteAnswer) -> CheckTold:
    """The findings of a check; empty if it printed no figures."""
    document = _document(answer.output)
    found = () if document is None else document.checks
    return CheckTold(
        is_good={one.name: one.ok and one.value is not None for one in found},
        is_untried=any(one.untried for one in found) and all(one.ok or one.untried for one in found),
    )


def _shown(one: _Figure) -> str:
    value = one.note or "not measured"
    if one.value is not None:
        value = f"{wording.number(one.value, 4)} {one.unit}".rstrip()
    wanted = "" if one.reference is None else f", wanted {wording.number(one.reference, 4)}"
    return f"{one.name} {value}{wanted}"
