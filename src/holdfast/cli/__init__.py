"""The command `holdfast`: one verb a module, loaded only when it is asked for.

Data go to stdout, everything else to stderr. A user's mistake is one sentence and a hint on stderr, exit
code 2.
"""

import importlib
import os
import sys
from typing import Any

import click

from holdfast import __version__
from holdfast.record.errors import HoldfastError

_VERBS = {
    "bench": "Measure Holdfast against a peer or a physical limit.",
    "events": "Show the events of a run, filtered, and follow new ones.",
    "import": "Take in what happened: journals, schedulers' and trackers' logs, tables.",
    "mfu": "Compute model and hardware FLOPs utilisation.",
    "reference": "Show the built-in reference figures and their sources.",
    "report": "Show where every GPU-second of a run went.",
    "runs": "List the runs in the store.",
}
"""Verb to summary; the verb `x` lives in `holdfast.cli.x_` as `command`, or in `holdfast.cli.x` where that
is no keyword.
"""


class _Verbs(click.Group):
    """Loads a verb's module only when that verb is called, so that `--help` costs nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"holdfast.cli.{cmd_name}{'_' * (cmd_name == 'import')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "--version", prog_name="holdfast")
def _holdfast() -> None:
    """Keeps training runs moving, finds what slows them, and accounts for every GPU-second."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 a finding the verb was asked to signal, 2 bad input, 130
    interrupted.
    """
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        outcome: Any = _holdfast.main(args=arguments, prog_name="holdfast", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except HoldfastError as error:
        return _complain(error.sentence, error.hint)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "holdfast"
        return _complain(error.format_message(), f"See `{where} --help`.")
    except click.ClickException as error:
        return _complain(error.format_message(), "")
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader has seen enough (`holdfast events RUN | head`); keep the interpreter from complaining
        # at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(sentence: str, hint: str) -> int:
    click.echo(f"holdfast: {sentence}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)
    return 2
