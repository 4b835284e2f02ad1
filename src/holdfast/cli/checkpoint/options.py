"""Options that several verbs of `holdfast checkpoint` have."""

from pathlib import Path
from typing import Any

import click

from holdfast.cli.checkpoint.remote import is_remote
from holdfast.cli.flags import Decorator
from holdfast.cli.pages import require_writable, require_writable_directory
from holdfast.record.errors import InputError


def target_option(metavar: str, told: str) -> Decorator:
    """`--to`, which must be given: where the verb writes."""
    kind: Any = click.Path(path_type=Path)
    return click.option(
        "--to", "target", type=kind, required=True, metavar=metavar, help=told, callback=_local
    )


def _local(_: click.Context, __: click.Parameter, target: Path) -> Path:
    if ":/" in str(target):  # `Path` drops a slash of s3://BUCKET
        raise InputError(
            f"--to {target} is not a path on this machine.",
            hint="Write it here; `holdfast checkpoint copy` brings checkpoints to object storage.",
        )
    require_writable(target, "checkpoint")
    return target


def _place(_: click.Context, __: click.Parameter, target: str) -> str:
    if not is_remote(target):
        require_writable_directory(Path(target), "checkpoint")
    return target


place_option = click.option(
    "--to",
    "target",
    required=True,
    metavar="DIR|URL",
    callback=_place,
    help="The --checkpoints directory of the run that will go on from it, or s3://BUCKET/PREFIX.",
)
run_option = click.option(
    "--run", "name", default="", help="The checkpoint's run, if its place does not name it."
)
step_option = click.option(
    "--step", type=click.IntRange(min=0), help="The checkpoint of this step.  [default: the newest]"
)
