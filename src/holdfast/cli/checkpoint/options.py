"""Options that several verbs of `holdfast checkpoint` have."""

from pathlib import Path
from typing import Any

import click

from holdfast.cli.flags import Decorator


def target_option(metavar: str, told: str) -> Decorator:
    """`--to`, which must be given: where the verb writes."""
    kind: Any = click.Path(path_type=Path)
    return click.option("--to", "target", type=kind, required=True, metavar=metavar, help=told)


directory_option = target_option(
    "DIR", "Where to: the --checkpoints directory of a run that is to go on from it."
)
step_option = click.option(
    "--step", type=click.IntRange(min=0), help="Of the checkpoints kept; if not given, the newest."
)
