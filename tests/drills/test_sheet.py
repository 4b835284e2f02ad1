"""The sheet of a tabletop: every role has its own cards, and nothing on them gives the truth away."""

import html

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.drill.sheet import command
from holdfast.dashboard.sheet_page import render
from holdfast.drills.scenarios import TABLETOP, Played, play
from holdfast.drills.sheet import ROLES, TabletopSheet, sheet

LAYOUT = msgspec.structs.replace(TABLETOP, gpus=256)


@pytest.fixture(scope="module")
def played() -> Played:
    return play("cooling-pump", 3, layout=LAYOUT)


def made(played: Played, *, reveal: bool = False) -> TabletopSheet:
    return sheet(played, usd_per_gpu_hour=4.0, reveal=reveal)


def test_every_role_gets_something_and_in_order(played: Played) -> None:
    found = made(played)
    assert [role.name for role in found.roles] == ["facilities", "network", "storage", "ml", "finance"]
    assert all(found.of(role.name) for role in ROLES)
    minutes = [one.minute for one in found.injects]
    assert minutes == sorted(minutes)
    assert "1,024 USD an hour" in " ".join(one.text for one in found.of("finance"))


def test_each_sees_only_its_own_monitoring(played: Played) -> None:
    found = made(played)
    facilities = " ".join(one.text for one in found.of("facilities"))
    assert "Lowest coolant flow" in facilities
    others = " ".join(one.text for one in found.injects if one.role != "facilities")
    assert "coolant" not in others
    assert "nothing unusual" in " ".join(one.text for one in found.of("storage"))


def test_the_truth_is_on_the_facilitators_copy_alone(played: Played) -> None:
    truth = played.truth
    page, told = render(made(played)), render(made(played, reveal=True))
    assert truth.decides not in html.unescape(page)
    assert truth.cause.mechanism not in page
    assert truth.decides in html.unescape(told)
    assert "Score sheet" in page
    assert all(line.question in page for line in made(played).scores)


def test_a_quiet_half_hour_gives_every_team_a_card() -> None:
    found = sheet(play("quiet", 1, layout=LAYOUT), usd_per_gpu_hour=4.0, reveal=False)
    assert all(found.of(role.name) for role in ROLES)


def test_a_sheet_needs_a_place() -> None:
    asked = CliRunner().invoke(command, ["quiet", "--gpus", "256"])
    assert "No output is named for the page" in str(asked.exception)
    data = CliRunner().invoke(command, ["quiet", "--gpus", "256", "--json"])
    assert data.exit_code == 0
    assert msgspec.json.decode(data.output)["truth"] is None
