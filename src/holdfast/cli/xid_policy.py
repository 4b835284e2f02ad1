"""Loads a site's own severities of XIDs from the named file, or from the one at home."""

from functools import cache
from pathlib import Path

from holdfast.cli.record import home
from holdfast.detect.xids import NO_OVERRIDES, Overrides, parse_overrides
from holdfast.record.files import is_there, parsed

XIDS_FILE = "xids.toml"


def load_xids(path: Path | None = None) -> Overrides:
    """The severities in this file, else in `xids.toml` at home, else none."""
    if path is None:
        path = home() / XIDS_FILE
        if not is_there(path):
            return NO_OVERRIDES
    return _read(path)


@cache
def _read(path: Path) -> Overrides:
    """Read the file once per process: a watch looks every few seconds."""
    return parsed(path, parse_overrides, what="XID policy", hint="docs/collectors.md shows one.")
