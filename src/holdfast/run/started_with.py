"""What a run was started with: its script and arguments, kept beside its checkpoints. A later start under the
same name can so tell what has changed.

Only the script's own file and files of settings among the arguments are compared, not modules that the
script imports.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.record.files import make_private_directory, make_private_file
from holdfast.record.untrusted import UNDECODABLE
from holdfast.run.endpoint import run_directory

FILE = "started.json"
FILE_BYTES_MAX = 1 << 20
"""How much of a file counts, beside its size."""
ARGUMENT_CHARS_MAX = 200
ARGUMENTS_MAX = 500
CHANGES_SHOWN_MAX = 5
HIDDEN = "…"
"""What is kept of a secret."""

_SETTINGS = re.compile(r"(?:.*=)?(.+\.(?:ya?ml|toml|ini|cfg|py|sh))")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET = re.compile(
    r"auth|authorization|bearer|cookies?|creds?|credentials?|pwd?|webhooks?"
    r"|.*(?:passwords?|passwd|passphrase|secrets?)"
)
_MAYBE_SECRET = re.compile(r"keys?|pass|pat|sig|signature|tokens|.*(?:apikey|token)")
"""These words are also of counts, as in `--num-key-value-heads 8`: a plain number is then no secret."""
_NUMBER = re.compile(r"[-+.\de_]{1,12}|true|false|null", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[\w.~+/-]+")
_NAME_INSIDE = re.compile(r"""([\w.-]++)\\*+["']?\s*+[=:]\s*+""")
"""A name before its value within an argument: of a URL's parameter, of JSON, of a header."""
_VALUE_INSIDE = re.compile(
    r""""(?:[^"\\]|\\.)*+"|'[^']*+'|(?:[-+.\de_]{1,12}|true|false|null)(?=[\s,;&}\]]|$)|[^&]+""",
    re.IGNORECASE,
)
"""Without quotes it may go on to the argument's end, or to the next parameter of a URL."""
_LOGIN = re.compile(r"(://)[^/@\s]+@")
_BEARER = re.compile(r"(bearer\s+)\S+", re.IGNORECASE)
_TOKEN = re.compile(r"\b(hf_|sk-|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA)[\w-]{8,}")
"""The beginnings by which well-known services mark their tokens."""
_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_LONG_OPTION = re.compile(r"--[A-Za-z]")
_SETTING = re.compile(r"[A-Za-z_+~][\w.+/-]*=")

Named = dict[str, tuple[str, ...]]
"""Arguments by their option; those without one by their place."""


class StartedWith(msgspec.Struct, frozen=True, kw_only=True):
    """script: as the user named it. sha256: of the script; empty if unknown. arguments: without secrets, and
    long ones cut. settings: the hashes of files of settings among them, by name. was_complete: the run was
    complete when that start ended.
    """

    script: str = ""
    sha256: str = ""
    arguments: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    was_complete: bool = False


def started_with(script: str, file: Path | None, arguments: Sequence[str]) -> StartedWith:
    """Describe a start. file: the script's own, if it has one."""
    named = (match[1] for one in arguments[:ARGUMENTS_MAX] if (match := _SETTINGS.fullmatch(one)))
    settings = {_text(name): sha256 for name in named if (sha256 := _sha256(Path(name)))}
    return StartedWith(
        script=_text(script),
        sha256=_sha256(file) if file is not None else "",
        arguments=tuple(_kept(arguments)),
        settings=settings,
    )


def changes(before: StartedWith, now: StartedWith) -> list[str]:
    """What differs, as phrases such as "--lr is 0.1, was 0.2". The order of options does not count."""
    found = []
    if before.sha256 and now.sha256 and before.sha256 != now.sha256:
        was = (
            ""
            if Path(before.script).name == Path(now.script).name
            else f" is {now.script}, was {before.script}"
        )
        found.append(f"the script{was}" if was else f"the script {now.script} has changed")
    found += [
        f"{name} has changed"
        for name, sha256 in now.settings.items()
        if before.settings.get(name, sha256) != sha256
    ]
    was_named, is_named = _named(before.arguments), _named(now.arguments)
    for name in {**was_named, **is_named}:
        old, new = was_named.get(name), is_named.get(name)
        if old is None and new is not None:
            found.append(f"{_shown(name, new)} is new")
        elif new is None and old is not None:
            found.append(f"{_shown(name, old)} is gone")
        elif old is not None and new is not None and old != new:
            found.append(f"{name} is {_words(new)}, was {_words(old)}")
    return found


def in_words(found: Sequence[str]) -> str:
    """The first of the changes, in words."""
    more = len(found) - CHANGES_SHOWN_MAX
    return "; ".join(found[:CHANGES_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def keep(home: Path, run: str, start: StartedWith) -> None:
    """Keep it for the next start. If the home is full, the run continues anyway."""
    path = run_directory(home, run) / FILE
    with suppress(OSError):
        make_private_directory(path.parent)
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        make_private_file(part)
        part.write_bytes(msgspec.json.encode(start))
        part.replace(path)


def kept(home: Path, run: str) -> StartedWith | None:
    """What the run was last started with, if known."""
    try:
        return msgspec.json.decode((run_directory(home, run) / FILE).read_bytes(), type=StartedWith)
    except (OSError, *UNDECODABLE):
        return None


def forget(home: Path, run: str) -> None:
    path = run_directory(home, run) / FILE
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def _sha256(path: Path) -> str:
    """Of the file's size and beginning; empty if there is no such file."""
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                size = path.stat().st_size
                return hashlib.sha256(b"%d " % size + file.read(FILE_BYTES_MAX)).hexdigest()
    return ""


def _text(name: str) -> str:
    """The name as valid UTF-8, which arguments need not be."""
    return name.encode("utf-8", "backslashreplace").decode()


def _kept(arguments: Sequence[str]) -> Iterator[str]:
    option = ""
    for argument in arguments[:ARGUMENTS_MAX]:
        name, mark, value = argument.partition("=")
        if option and not _LONG_OPTION.match(argument) and _is_secret(option, argument):
            yield HIDDEN
        elif mark and _PLAIN_NAME.fullmatch(name) and _is_secret(name, value):
            yield f"{_text(name)}={HIDDEN}"
        else:
            yield _cut(_without_secrets(_text(argument)))
        option = argument if not mark and _OPTION.match(argument) else ""
    if len(arguments) > ARGUMENTS_MAX:
        rest = "\0".join(map(_text, arguments[ARGUMENTS_MAX:])).encode()
        yield f"{HIDDEN} {hashlib.sha256(rest).hexdigest()}"


def _is_secret(name: str, value: str) -> bool:
    """Whether an argument of this name hides its value: by any of the name's words."""
    words = [word.lower() for word in _WORD.findall(name)]
    if any(map(_SECRET.fullmatch, words)):
        return True
    return any(map(_MAYBE_SECRET.fullmatch, words)) and not _NUMBER.fullmatch(value)


def _without_secrets(text: str) -> str:
    text = _BEARER.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1{HIDDEN}@", text))
    return _TOKEN.sub(rf"\1{HIDDEN}", "".join(_without_secrets_inside(text)))


def _without_secrets_inside(text: str) -> Iterator[str]:
    """The text in pieces, without the values whose name within it tells that they are secret."""
    shown = 0
    for name in _NAME_INSIDE.finditer(text):
        if name.start() < shown or not _is_secret(name[1], ""):
            continue
        value = _VALUE_INSIDE.match(text, name.end())
        if value is not None and _is_secret(name[1], value[0].strip("\"'")):
            yield f"{text[shown : value.start()]}{HIDDEN}"
            shown = value.end()
    yield text[shown:]


def _cut(argument: str) -> str:
    if len(argument) <= ARGUMENT_CHARS_MAX:
        return argument
    return (
        f"{argument[:ARGUMENT_CHARS_MAX]}{HIDDEN} sha256 {hashlib.sha256(argument.encode()).hexdigest()[:16]}"
    )


def _named(arguments: Sequence[str]) -> Named:
    """The arguments by name: `--lr 0.1`, `--lr=0.1`, `lr=0.1`, and `argument 1` for others."""
    found: dict[str, list[str]] = {}
    option, places = "", 0
    for argument in arguments:
        if _OPTION.match(argument) or _SETTING.match(argument):
            name, mark, value = argument.partition("=")
            found.setdefault(name, []).extend([value] if mark else [])
            option = "" if mark else name
        elif option:
            found[option].append(argument)
        else:
            places += 1
            found[f"argument {places}"] = [argument]
    return {name: tuple(values) for name, values in found.items()}


def _words(values: Sequence[str]) -> str:
    return " ".join(values) or "without a value"


def _shown(name: str, values: Sequence[str]) -> str:
    return " ".join((name, *values))
