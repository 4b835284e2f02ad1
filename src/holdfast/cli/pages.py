"""Writes files for the verbs, and web pages, which may go to stdout.

Whether a file can be written is known before a verb begins: `writable` is the callback of every option that
names one.
"""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import click

from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError
from holdfast.record.files import is_directory, is_there

Callback = Callable[[click.Context, click.Parameter, Path | None], Path | None]

STDOUT = Path("-")
WRITABLE_HINT = "Name a file in a directory that exists and that you may write to."


def require_one_output(html_path: Path | None, as_json: bool) -> None:
    if html_path == STDOUT and as_json:
        raise InputError("`--html -` and `--json` would both print to stdout.", hint="Leave one of them out.")


def require_writable(path: Path, what: str) -> None:
    """Raise `InputError` if the file cannot be written, which is tried. It is left as it is."""
    if path == STDOUT:
        return
    why = "" if is_directory(path.parent) else f"there is no directory {path.parent}"
    if not why and (not is_there(path) or path.is_file()):
        why = _tried(path)
    if why:
        raise InputError(f"The {what} cannot be written to {path}: {why}.", hint=WRITABLE_HINT)


def _tried(path: Path) -> str:
    """Why the file cannot be opened for writing; empty if it can. A new one is not made for that: another
    process may be about to write it, and a link may point to it.
    """
    try:
        target = path.resolve()
        if is_there(target):
            target.open("ab").close()
        else:
            TemporaryFile(dir=target.parent).close()
    except OSError as error:
        return str(error.strerror)
    return ""


def require_writable_directory(path: Path, what: str) -> None:
    """Raise `InputError` if files cannot be written there. Missing directories are made later."""
    place = next(one for one in (path, *path.absolute().parents) if is_there(one))
    if is_directory(place) and os.access(place, os.W_OK):
        return
    why = f"this user may not write to {place}" if is_directory(place) else f"{place} is a file"
    hint = "Name a directory that you may write to, or a new one."
    raise InputError(f"The {what} cannot be written to {path}: {why}.", hint=hint)


def writable(what: str, *, is_new: bool = False) -> Callback:
    """The callback of an option that names a file to write. is_new: one that exists is not written over."""

    def check(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and is_new and is_there(path):
            raise InputError(f"{path} exists already.", hint="Name another file, or move it away.")
        if path is not None:
            require_writable(path, what)
        return path

    return check


def writable_directory(what: str) -> Callback:
    """The callback of an option that names a directory to write files in."""

    def check(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
        if path is not None:
            require_writable_directory(path, what)
        return path

    return check


html_option = click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="OUT",
    callback=writable("page"),
    help="Write it as one self-contained web page; to stdout if OUT is `-`.",
)


def write_page(page: str, path: Path, what: str = "page") -> None:
    """Write the page, or another text, to the file or stdout, and name the file on stderr."""
    if path == STDOUT:
        click.echo(page.encode(), nl=False)
        return
    write_file(page.encode(), path, what)
    click.echo(f"The {what} is in {printable(str(path))}", err=True)


def write_file(content: bytes, path: Path, what: str) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(
            f"The {what} cannot be written to {path}: {error.strerror}.", hint=WRITABLE_HINT
        ) from None
