"""A mistake on the command line as one sentence, for every kind of parameter."""

import click
import pytest

from holdfast.cli.flags import FiniteRange
from holdfast.cli.usage import sentence


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (click.INT, "x", "--count x is not a whole number."),
        (click.FLOAT, "x", "--count x is not a number."),
        (click.INT, "two words", "--count 'two words' is not a whole number."),
        (click.INT, "", "--count '' is not a whole number."),
        (click.INT, "is not", "--count 'is not' is not a whole number."),
        (click.IntRange(max=9), "10", "--count 10 is not a whole number of at most 9."),
        (click.IntRange(min=0), "-1", "--count -1 is not a whole number of at least 0."),
        (click.IntRange(1, 10**7), "0", "--count 0 is not a whole number from 1 to 10,000,000."),
        (FiniteRange(0, 1, max_open=True), "1", "--count 1 is not a number of at least 0 and below 1."),
        (FiniteRange(0, 1, min_open=True), "1.5", "--count 1.5 is not a number above 0 and of at most 1."),
        (
            FiniteRange(1e-9, 1e18),
            "0",
            "--count 0 is not a number from 0.000000001 to 1,000,000,000,000,000,000.",
        ),
        (FiniteRange(min=0), "inf", "--count inf is not a finite number of at least 0."),
        (click.Choice(["a", "b"]), "c", "--count 'c' is not one of 'a', 'b'."),
        (click.Path(exists=True), "gone", "--count: Path 'gone' does not exist."),
    ],
)
def test_a_value_is_told_with_its_flag(kind: click.ParamType[object], given: str, told: str) -> None:
    command = click.Command("verb", params=[click.Option(["-c", "--count"], type=kind)])
    with pytest.raises(click.BadParameter) as refused:
        command.make_context("verb", ["--count", given])
    assert sentence(refused.value) == told


def test_an_argument_is_told_by_its_name() -> None:
    command = click.Command("verb", params=[click.Argument(["steps"], type=click.IntRange(min=1))])
    with pytest.raises(click.BadParameter) as refused:
        command.make_context("verb", ["0"])
    assert sentence(refused.value) == "STEPS 0 is not a whole number of at least 1."


def test_a_missing_choice_is_one_line() -> None:
    kind = click.Choice(["a", "b"])
    for parameter, told in (
        (click.Argument(["fault"], type=kind), "Missing argument 'FAULT': one of a, b."),
        (click.Option(["--kind"], type=kind, required=True), "Missing option '--kind': one of a, b."),
    ):
        with pytest.raises(click.MissingParameter) as refused:
            click.Command("verb", params=[parameter]).make_context("verb", [])
        assert sentence(refused.value) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "Missing option '--count'."),
        (["--other"], "No such option '--other'."),
        (["--count"], "requires an"),
    ],
)
def test_what_is_not_about_a_value_is_told_as_click_tells_it(words: list[str], told: str) -> None:
    command = click.Command("verb", params=[click.Option(["--count"], type=int, required=True)])
    with pytest.raises(click.UsageError) as refused:
        command.make_context("verb", words)
    assert told in sentence(refused.value)
    assert sentence(click.BadParameter("Wrong.")) == "Invalid value: Wrong."
