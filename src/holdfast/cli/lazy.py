"""A group of verbs that imports a verb's module only when that verb is called, so that help is quick."""

import importlib
import keyword
from collections.abc import Mapping

import click


class LazyGroup(click.Group):
    """Verbs by name with their summaries; the verb `x` is `command` in the module `<package>.x`.

    sections: the verbs, by their heading in the help. A verb that is a keyword of Python (`import`) lives in
    `x_`.
    """

    def __init__(
        self,
        package: str,
        sections: Mapping[str, Mapping[str, str]],
        *,
        name: str,
        help: str,  # noqa: A002
    ) -> None:
        super().__init__(name, help=help, no_args_is_help=True)
        self._package = package
        self._sections = sections
        self._verbs = [verb for verbs in sections.values() for verb in verbs]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._verbs

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        module = cmd_name + "_" * keyword.iskeyword(cmd_name)
        command: click.Command = importlib.import_module(f"{self._package}.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._verbs))
        for heading, summaries in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(verb.ljust(width), summary) for verb, summary in summaries.items()])
