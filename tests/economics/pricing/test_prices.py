"""The prices file: valid values, defaults for missing ones, and errors."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.economics.pricing.prices import DEFAULTS, PRICE_MAX, Priced, Prices, list_price, read, template
from holdfast.record.errors import HoldfastError, InputError

_FIELDS = Prices.__struct_fields__
NUMBERS = list(_FIELDS[: _FIELDS.index("team_targets")])


def test_an_empty_file_assumes_everything() -> None:
    assert read("") == DEFAULTS
    priced = [getattr(DEFAULTS, name) for name in NUMBERS if name != "usd_per_day_of_delay"]
    assert all(one.assumed and one.source for one in priced)
    assert DEFAULTS.usd_per_day_of_delay is None


def test_what_is_given_is_not_assumed() -> None:
    prices = read("usd_per_gpu_hour = 2\nusd_per_day_of_delay = 1e6\n[team_targets]\nvision = 0.8")
    assert prices.usd_per_gpu_hour == Priced(value=2.0, assumed=False, source="the prices file")
    assert prices.day_of_delay(gpus=8) == Priced(value=1e6, assumed=False, source="the prices file")
    assert prices.team_targets == {"vision": Priced(value=0.8, assumed=False, source="the prices file")}
    assert prices.responders == DEFAULTS.responders


def test_the_template_has_every_key_and_assumes_what_it_shows() -> None:
    assert read(template()) == DEFAULTS
    lines = [line.removeprefix("# ") for line in template().splitlines()]
    wanted = [line for line in lines if " = " in line or line.startswith("[")]
    uncommented = read("\n".join(wanted))
    for name in NUMBERS:
        told, default = getattr(uncommented, name), getattr(DEFAULTS, name)
        assert not told.assumed
        assert default is None or told.value == default.value
    assert list(uncommented.team_targets) == ["pretraining"]


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("respondrs = 2", "no key `respondrs`", "Did you mean `responders`?"),
        ("gpu_hour_usd = 2", "no key `gpu_hour_usd`", "`usd_per_gpu_hour`"),
        ("colour = 2", "no key `colour`", "Known are usd_per_gpu_hour, "),
        ('responders = "two"', "`responders` in the prices is text, and must be a number", "without quotes"),
        ("responders = true", "`responders` in the prices is true or false", "without quotes"),
        ("responders = [2]", "`responders` in the prices is a list", "without quotes"),
        ("responders = 2026-08-01", "`responders` in the prices is a date or time", "without quotes"),
        ("responders = -1", "`responders` in the prices is -1, and must be between 0 and", "Leave it out"),
        ("responders = nan", "`responders` in the prices is nan", "Leave it out"),
        ("responders = inf", "`responders` in the prices is inf", "Leave it out"),
        (f"responders = 1{'0' * 400}", "`responders` in the prices is 1000", "Leave it out"),
        ("opportunity_multiplier = 0.9", "must be between 1 and", "Leave it out"),
        ("team_targets = 0.9", "`team_targets` in the prices is not a table", "[team_targets]"),
        ("[team_targets]\nvision = 80", "`team_targets.vision` in the prices is 80", "`vision = 0.8`"),
        ("responders = ", "not TOML: Invalid value", "--example-prices"),
        (f"responders = 1{'0' * 9_000}", "not TOML: ", "--example-prices"),
        ("a = " + "[" * 100_000, "not TOML: ", "--example-prices"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_hint(text: str, sentence: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        read(text)
    assert sentence in raised.value.sentence
    assert hint in raised.value.hint
    assert len(raised.value.sentence) < 400


@given(st.sampled_from(NUMBERS), st.floats(1, PRICE_MAX) | st.integers(1, int(PRICE_MAX)))
def test_any_price_that_may_be_is_read_as_it_is(name: str, value: float) -> None:
    assert getattr(read(f"{name} = {value!r}"), name).value == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(HoldfastError):
        assert isinstance(read(text), Prices)


@pytest.mark.parametrize(
    ("chip", "usd", "named"),
    [
        ("NVIDIA H100 80GB HBM3", 3.99, "H100, Lambda"),
        ("a100", 2.79, "A100"),
        ("H200", 4.50, "H200"),
        ("b200", 6.69, "B200"),
        ("gb300", 6.69, "no known list price for the GB300; B200"),
        ("H100 PCIe", 3.99, "no known list price for H100 PCIe"),
        ("TPU v5p", 3.99, "no known list price for TPU v5p"),
    ],
)
def test_the_list_price_goes_by_the_chip(chip: str, usd: float, named: str) -> None:
    price = list_price(chip)
    assert (price.value, price.assumed) == (usd, True)
    assert price.source.startswith(named)


def test_a_price_that_is_given_holds_for_any_chip() -> None:
    assert DEFAULTS.for_chip("b200").usd_per_gpu_hour.value == 6.69
    assert DEFAULTS.for_chip(None) == DEFAULTS
    given = read("usd_per_gpu_hour = 2.5")
    assert given.for_chip("b200") == given


def test_a_price_that_was_recorded_is_not_assumed() -> None:
    recorded = DEFAULTS.at(1.75)
    expected = Priced(value=1.75, assumed=False, source="recorded in the run")
    assert recorded == msgspec.structs.replace(DEFAULTS, usd_per_gpu_hour=expected)


def test_a_day_of_delay_is_at_least_a_day_of_the_gpus() -> None:
    day = DEFAULTS.at(2.0).day_of_delay(gpus=1_024)
    assert (day.value, day.assumed) == (24 * 1_024 * 2.0, True)
