"""Flags that are declared once: a structure makes the options, and the verb gets it filled."""

import click
import msgspec
from click.testing import CliRunner

from holdfast.cli.flags import argument, option, shared, takes, together

loud = click.option("--loud", "is_loud", is_flag=True, help="Shout.")


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...] = argument(nargs=-1)
    max_rounds: int = option("How often", "at most.", default=3)
    wait_s: float | None = option("-w", "--wait", "Seconds.", type=float)
    is_loud: bool = shared(loud)


@click.command("greet")
@takes(Flags)
@click.option("--unused", expose_value=False, help="Accepted.")
def greet(given: Flags) -> None:
    """Greet."""
    click.echo(repr(given))


def test_the_verb_gets_what_was_given_and_what_was_not() -> None:
    done = CliRunner().invoke(greet, ["a", "b", "-w", "1.5", "--loud", "--unused", "x"])
    assert done.output.strip() == repr(Flags(names=("a", "b"), max_rounds=3, wait_s=1.5, is_loud=True))
    done = CliRunner().invoke(greet, ["--max-rounds", "7"])
    assert done.output.strip() == repr(Flags(names=(), max_rounds=7, wait_s=None, is_loud=False))


def test_help_has_the_options_in_the_order_of_the_fields() -> None:
    shown = CliRunner().invoke(greet, ["--help"]).output
    places = [shown.index(words) for words in ("--max-rounds", "-w, --wait", "--loud", "--unused")]
    assert places == sorted(places)
    assert "How often at most." in shown
    assert "Greet." in shown


def test_a_value_of_another_type_is_refused_as_ever() -> None:
    done = CliRunner().invoke(greet, ["--max-rounds", "many"])
    assert done.exit_code == 2
    assert "--max-rounds" in done.output


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    low: int = option("The least.", default=1)
    high: int = option("The most.", default=9)


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    what: str = argument()
    within: range = shared(together(Bounds, "within", lambda asked: range(asked.low, asked.high + 1)))


@click.command("count")
@takes(Counting)
def count(given: Counting) -> None:
    """Count."""
    click.echo(f"{given.what} {given.within}")


@click.command("measure")
@together(Bounds, "bounds")
def measure(bounds: Bounds) -> None:
    """Measure."""
    click.echo(repr(bounds))


def test_a_group_of_options_reaches_a_verb_as_one() -> None:
    assert CliRunner().invoke(count, ["sheep", "--high", "3"]).output == "sheep range(1, 4)\n"
    assert CliRunner().invoke(measure, ["--low", "4"]).output == f"{Bounds(low=4, high=9)!r}\n"
    shown = CliRunner().invoke(count, ["--help"]).output
    assert shown.index("--low") < shown.index("--high")
