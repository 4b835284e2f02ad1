"""Read traces of any form; names and columns tell the forms apart."""

from pathlib import Path
from typing import Literal, get_args

from holdfast.stragglers.kineto import read_profiles
from holdfast.stragglers.members import read_members
from holdfast.stragglers.trace import Trace, read_table

Format = Literal["table", "profiler", "members"]
FORMATS: tuple[Format, ...] = get_args(Format)


def read_trace(path: Path, form: Format | None = None) -> Trace:
    """The trace in this file or directory; without a form, its name decides."""
    match form or _form(path):
        case "table":
            return read_table(path)
        case "profiler":
            return read_profiles(path)
        case "members":
            return read_members(path)


def _form(path: Path) -> Format:
    if path.is_dir() or path.name.endswith((".json", ".json.gz")):
        return "profiler"
    if path.suffix == ".jsonl":
        return "members"
    return "members" if path.suffix == ".csv" and _heads_members(path) else "table"


def _heads_members(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.readline(10_000).split(b",")[0].strip(b'" \r\n\xef\xbb\xbf') == b"member"
    except OSError:
        return False
