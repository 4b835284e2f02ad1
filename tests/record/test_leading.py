"""One process leads on a store; another takes its place when it ends, however it ends."""

import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from waiting import until

from holdfast.record.stores import open_lead
from holdfast.record.terms import PostgresTerms

pytestmark = pytest.mark.slow

HOLDER = """
import sys, time
from pathlib import Path
from holdfast.record.stores import open_lead
lead = open_lead(sys.argv[1], Path("."))
print(lead.is_ours(), flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "record.sqlite")
    make: Callable[[], str] = request.getfixturevalue("postgres_database")
    return make()


@pytest.fixture
def holder(url: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that leads."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_waits_until_the_first_is_killed(
    url: str, holder: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    lead = open_lead(url, tmp_path)
    assert not lead.is_ours()
    assert not lead.is_ours()
    os.kill(holder.pid, signal.SIGKILL)
    until(lead.is_ours, lambda: "the lead is not free")
    assert lead.is_ours()
    other = open_lead(url, tmp_path)
    assert not other.is_ours()
    lead.close()
    until(other.is_ours, lambda: "the lead is not free")
    other.close()


@pytest.mark.server
def test_who_loses_the_server_has_lost_the_lead(
    postgres_process: object, postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    lead = open_lead(postgres_database(), tmp_path)
    assert lead.is_ours()
    postgres_process.stop()  # type: ignore[attr-defined]
    assert not lead.is_ours()
    postgres_process.start()  # type: ignore[attr-defined]
    assert lead.is_ours()
    lead.close()


@pytest.mark.server
def test_a_connection_that_cannot_ask_for_the_lead_is_closed(
    postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    url = postgres_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA trap")
        made = "FUNCTION trap.pg_try_advisory_lock(int) RETURNS int AS 'SELECT 1/0' LANGUAGE sql"
        admin.execute(f"CREATE {made}")
    lead = open_lead(f"{url}?options=-csearch_path%3Dtrap,pg_catalog", tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not lead.is_ours()
        gc.collect()
    assert not [one for one in told if "was deleted while still open" in str(one.message)]  # says psycopg


@pytest.mark.server
def test_the_arbiter_can_prepare_a_database_on_which_a_process_leads(
    postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    # Both use advisory locks of one database, the lead for as long as its connection lasts.
    url = postgres_database()
    lead = open_lead(url, tmp_path)
    assert lead.is_ours()
    PostgresTerms(url, "night-7").prepare()
    lead.close()
