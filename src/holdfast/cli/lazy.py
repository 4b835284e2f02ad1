"""A group of verbs that imports a verb's module only when that verb is called, so that help costs nothing."""

import importlib
import keyword
from collections.abc import Mapping

import click


class LazyGroup(click.Group):
    """Verbs by name with their summaries; the verb `x` is `command` in the module `<package>.x`.

    A verb that is a keyword of Python (`import`) lives in `x_`.
    """

    def __init__(self, package: str, summaries: Mapping[str, str], *, name: str, help: str) -> None:  # noqa: A002
        super().__init__(name, help=help, no_args_is_help=True)
        self._package = package
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._summaries:
            return None
        module = cmd_name + "_" * keyword.iskeyword(cmd_name)
        command: click.Command = importlib.import_module(f"{self._package}.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))
