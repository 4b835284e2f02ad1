"""Own or rent: break-even points, the worth of a point of goodput, and files with terms."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.economics.finance.ownership import (
    HOURS_PER_YEAR,
    MEASURED,
    POINT,
    Terms,
    compare,
    read,
    spare_share,
    template,
)
from holdfast.economics.pricing.prices import Priced
from holdfast.record.errors import InputError

RENT = Priced(value=2.5, assumed=False, source="recorded in the run")
LABOUR = Priced(value=100.0, assumed=True, source="somewhere")


def given_value(value: float) -> Priced:
    return Priced(value=value, assumed=False, source="a test")


def only(**values: float) -> Terms:
    """Terms in which only the named items cost anything."""
    free = {
        "network_share": 0.0,
        "capital_rate": 0.0,
        "power_kw_per_gpu": 0.0,
        "staff_per_1000_gpus": 0.0,
        "gpu_faults_per_year": 0.0,
        "node_faults_per_1000_days": 0.0,
    }
    return Terms(**{key: given_value(value) for key, value in {**free, **values}.items()})


def test_a_case_by_hand() -> None:
    terms = only(
        server_usd_per_gpu=35_064,
        amortisation_years=4,
        rent_usd_per_gpu_hour=2.0,
        utilisation=0.8,
        goodput=0.5,
        rent_goodput=0.5,
    )
    found = compare(terms)
    assert found.own_usd_per_gpu_year == 35_064 / 4
    assert found.own_usd_per_gpu_hour == 1.0  # 8,766 USD for 8,766 hours
    assert found.own_usd_per_useful_gpu_hour == pytest.approx(1 / (0.8 * 0.5))
    assert found.rent_usd_per_useful_gpu_hour == pytest.approx(2 / 0.5)
    assert found.cheaper == "own"
    assert found.break_even_utilisation == pytest.approx(0.5)
    assert found.break_even_goodput == pytest.approx(0.5 * 0.5 / 0.8)
    # As much rented would cost 2 x 0.8 x 8,766 USD a year, and nothing else is paid for owning.
    assert found.break_even_months == pytest.approx(12 * 35_064 / (1.6 * 8_766))


def test_spares_are_bought_once_and_paid_for_once() -> None:
    """Ten machines for eight that work: all ten are bought, and only then do they pay themselves back."""
    terms = only(
        server_usd_per_gpu=8_000,
        amortisation_years=4,
        rent_usd_per_gpu_hour=1.0,
        utilisation=1.0,
        node_faults_per_1000_days=50,
        outage_days=5,
    )
    assert spare_share(terms) == 0.25
    assert compare(terms).break_even_months == pytest.approx(12 * 10_000 / HOURS_PER_YEAR)


def test_every_part_is_what_its_inputs_say() -> None:
    terms = only(
        server_usd_per_gpu=10_000,
        network_share=0.2,
        amortisation_years=4,
        power_kw_per_gpu=1.5,
        pue=1.2,
        usd_per_kwh=0.1,
        colocation_usd_per_kw_month=100,
        staff_per_1000_gpus=4,
        staff_usd_per_year=200_000,
        gpu_faults_per_year=0.1,
        repair_usd_per_fault=2_000,
        node_faults_per_1000_days=5,
        outage_days=4,
    )
    parts = {part.key: part.usd for part in compare(terms).yearly}
    assert parts["capital"] == pytest.approx(3_000)
    assert parts["place"] == pytest.approx(1_800)
    assert parts["power"] == pytest.approx(1.5 * 1.2 * HOURS_PER_YEAR * 0.1)
    assert parts["staff"] == pytest.approx(800)
    assert parts["repair"] == pytest.approx(200)
    assert spare_share(terms) == pytest.approx(0.02)
    assert parts["spares"] == pytest.approx(0.02 * 4_800)
    assert compare(terms).own_usd_per_gpu_year == pytest.approx(sum(parts.values()))


def test_interest_pays_off_exactly_what_was_lent() -> None:
    rate, years = 0.08, 5
    terms = only(server_usd_per_gpu=1_000, capital_rate=rate, amortisation_years=years)
    payment = compare(terms).own_usd_per_gpu_year
    assert sum(payment / (1 + rate) ** year for year in range(1, years + 1)) == pytest.approx(1_000)


shares = st.floats(0.05, 1)


@given(shares, shares, shares, st.floats(0.5, 20))
def test_at_break_even_both_cost_the_same(used: float, own: float, rented: float, rent: float) -> None:
    terms = msgspec.structs.replace(
        Terms(),
        utilisation=given_value(used),
        goodput=given_value(own),
        rent_goodput=given_value(rented),
        rent_usd_per_gpu_hour=given_value(rent),
    )
    found = compare(terms)
    assert (found.break_even_utilisation < used) is (found.cheaper == "own")
    for key, value in (
        ("utilisation", found.break_even_utilisation),
        ("goodput", found.break_even_goodput),
    ):
        even = compare(msgspec.structs.replace(terms, **{key: given_value(value)}))
        assert even.own_usd_per_useful_gpu_hour == pytest.approx(found.rent_usd_per_useful_gpu_hour)


@given(shares, st.floats(0.05, 0.98))
def test_a_point_is_worth_the_hours_it_brings(used: float, goodput: float) -> None:
    terms = msgspec.structs.replace(
        Terms(),
        utilisation=given_value(used),
        goodput=given_value(goodput),
        rent_goodput=given_value(goodput),
    )
    found = compare(terms)
    hours = HOURS_PER_YEAR * used * POINT
    assert found.point_own_usd_per_gpu_year == pytest.approx(hours * found.own_usd_per_useful_gpu_hour)
    assert found.point_rent_usd_per_gpu_year == pytest.approx(hours * found.rent_usd_per_useful_gpu_hour)


@given(shares)
def test_worse_machines_make_owning_dearer_and_nothing_else(goodput: float) -> None:
    assume(goodput < 0.9)
    good, bad = compare(Terms()), compare(msgspec.structs.replace(Terms(), goodput=given_value(goodput)))
    assert bad.own_usd_per_useful_gpu_hour > good.own_usd_per_useful_gpu_hour
    assert bad.rent_usd_per_useful_gpu_hour == good.rent_usd_per_useful_gpu_hour
    assert bad.break_even_utilisation > good.break_even_utilisation


def test_machines_that_cost_more_to_run_than_to_rent_never_pay() -> None:
    found = compare(msgspec.structs.replace(Terms(), rent_usd_per_gpu_hour=given_value(0.5)))
    assert found.cheaper == "rent"
    assert found.break_even_months is None
    assert found.break_even_utilisation > 1


def test_what_is_known_completes_what_is_not_given() -> None:
    terms = read("staff_usd_per_year = 150_000").completed(rent=RENT, labour=LABOUR, goodput=0.7)
    assert terms.rent_usd_per_gpu_hour == RENT
    assert terms.staff_usd_per_year.value == 150_000
    assert terms.goodput == terms.rent_goodput == Priced(value=0.7, assumed=False, source=MEASURED)
    assert terms.pue.assumed


def test_what_is_given_is_kept() -> None:
    terms = read("goodput = 0.95\nrent_usd_per_gpu_hour = 3").completed(rent=RENT, labour=LABOUR, goodput=0.7)
    assert terms.rent_usd_per_gpu_hour.value == 3
    assert (
        terms.goodput.value == terms.rent_goodput.value == 0.95
    )  # rented ones are as good, unless said otherwise
    other = read("goodput = 0.95\nrent_goodput = 0.9").completed(rent=RENT, labour=LABOUR, goodput=None)
    assert other.rent_goodput.value == 0.9
    assert other.staff_usd_per_year == Priced(
        value=208_000, assumed=True, source="100 USD an hour, 2,080 hours"
    )


def test_the_template_names_every_term_and_changes_none() -> None:
    text = template()
    assert all(f"# {key} = " in text for key in Terms.__struct_fields__)
    assert read(text) == Terms()
    spoken = "\n".join(line.removeprefix("# ") for line in text.splitlines() if " = " in line)
    assert [getattr(read(spoken), key).value for key in Terms.__struct_fields__] == [
        pytest.approx(getattr(Terms(), key).value) for key in Terms.__struct_fields__
    ]


def test_every_default_has_a_source_and_is_assumed() -> None:
    for key in Terms.__struct_fields__:
        term: Priced = getattr(Terms(), key)
        assert term.assumed
        assert term.source


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pue = ", "are not TOML"),
        ("pew = 1.5", "have no key `pew`"),
        ("pue = '1.5'", "`pue` in the terms of owning is text, and must be a number"),
        ("pue = true", "`pue` in the terms of owning is true or false, and must be a number"),
        ("goodput = 1.5", "must be between 0.001 and 1"),
        ("utilisation = 0", "must be between 0.001 and 1"),
        ("amortisation_years = 0", "must be between 0.001 and 1,000,000,000"),
        ("usd_per_kwh = -1", "must be between 0 and 1,000,000,000"),
        ("usd_per_kwh = nan", "must be between 0 and 1,000,000,000"),
    ],
)
def test_what_is_wrong_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        read(text)
    assert sentence in refused.value.sentence
    assert refused.value.hint


def test_a_mistyped_term_is_guessed() -> None:
    with pytest.raises(InputError) as refused:
        read("utilization = 0.8")
    assert refused.value.hint == "Did you mean `utilisation`?"
