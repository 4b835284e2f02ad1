"""Writes web pages for the verbs: as one self-contained file, or to stdout."""

import os
from pathlib import Path

import click

from holdfast.cli.terminal import printable
from holdfast.record.errors import InputError

STDOUT = Path("-")
WRITABLE_HINT = "Name a file in a directory that exists and that you may write to."

html_option = click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="OUT",
    help="Write it as one self-contained web page; to stdout if OUT is `-`.",
)


def require_one_output(html_path: Path | None, as_json: bool) -> None:
    if html_path == STDOUT and as_json:
        raise InputError("`--html -` and `--json` would both print to stdout.", hint="Leave one of them out.")


def require_writable(path: Path | None, what: str = "page") -> None:
    """Raise `InputError` if the file cannot be written, before a verb starts its work."""
    if path is None or path == STDOUT:
        return
    if not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"The {what} cannot be written to {path}.", hint=WRITABLE_HINT)


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
