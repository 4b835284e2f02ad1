"""`holdfast bench`: runs the benchmarks, which come with the source and not with the package."""

import importlib
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

import holdfast
from holdfast.record.errors import InputError

FOLDER = "bench"


class _Bench(click.Command):
    """Stands for the benchmarks of a checkout, which are only looked for when the command is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        root = checkout(Path(holdfast.__file__), Path.cwd())
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        signal.signal(signal.SIGTERM, _leave)  # what a benchmark has started ends with it
        found: click.Command = importlib.import_module("bench").command
        return found.make_context(info_name, args, parent, **extra)


def checkout(package: Path, folder: Path) -> Path:
    """The checkout whose `src` has the package, or else the folder if it is the top of one."""
    for root in (package.parents[2], folder):
        if (root / "src" / "holdfast").is_dir() and (root / FOLDER / "__init__.py").is_file():
            return root
    raise InputError(
        "The installed package does not include the benchmarks; they come with the source.",
        hint="Clone the repository and run this command in its top folder.",
    )


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


command = _Bench("bench", help="Measure Holdfast against a peer or a physical limit.")
