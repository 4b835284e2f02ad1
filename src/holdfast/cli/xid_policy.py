"""What a site thinks of XIDs, where that differs from what is published: a named file, or the one at home."""

from functools import cache
from pathlib import Path

from holdfast.cli.record import home
from holdfast.detect.xids import NO_OVERRIDES, Overrides, parse_overrides
from holdfast.record.files import is_there, parsed

XIDS_FILE = "xids.toml"


def load_xids(path: Path | None = None) -> Overrides:
    """Those of this file; without one, of `xids.toml` at home; else none."""
    if path is None:
        path = home() / XIDS_FILE
        if not is_there(path):
            return NO_OVERRIDES
    return _read(path)


@cache
def _read(path: Path) -> Overrides:
    """Once a process: a watch looks every few seconds."""
    return parsed(path, parse_overrides, what="XID policy", hint="docs/collectors.md shows one.")
