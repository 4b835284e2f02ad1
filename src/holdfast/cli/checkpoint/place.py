"""Finds checkpoints by a path, in a run's own directory, or where the run's record says they were saved."""

import os
from pathlib import Path

from holdfast.cli.record import home, open_record
from holdfast.record.errors import InputError
from holdfast.record.files import is_there
from holdfast.record.runs import known_run
from holdfast.run.endpoint import is_run_name, run_directory
from holdfast.run.launcher import CHECKPOINTS_DIRECTORY

PLACE_HINT = "Name the run, its --checkpoints directory, or a file in it."


def located(run_or_path: str) -> Path:
    """A path is taken before a run of the same name."""
    path = Path(run_or_path)
    if is_there(path):
        return path
    if (directory := _own(run_or_path)) is not None:
        return directory
    if is_run_name(run_or_path):
        from holdfast.train.kept import saved_directory

        with open_record(os.environ.get("HOLDFAST_STORE")) as store:
            run = known_run(store, run_or_path) or run_or_path
            if (known := _own(run) or saved_directory(store, run)) is not None:
                return known
    sentence = f"{run_or_path!r} is neither a path nor a run with checkpoints in {home()}."
    raise InputError(sentence, hint=PLACE_HINT)


def _own(run: str) -> Path | None:
    """The directory of the run's checkpoints in the home, if there is one."""
    directory = run_directory(home(), run) / CHECKPOINTS_DIRECTORY
    return directory if is_there(directory) else None


def run_of(path: Path) -> str:
    """The run that the path belongs to; empty if it is outside the home's runs."""
    for parent in (path, *path.parents):
        run = parent.parent
        if parent == run_directory(run.parent.parent, run.name) / CHECKPOINTS_DIRECTORY:
            return run.name
    return ""
