"""Attacks by names: of runs, members, faults and metrics, which come from labels, logs and other people.

A name is text: not markup in a page, not SQL in a query, and not a way out in a path.
"""

import fcntl
import html
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from holdfast.dashboard.page import render
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.reporting import report
from holdfast.record.errors import InputError
from holdfast.record.events import (
    FaultObserved,
    MemberJoined,
    MemberLost,
    RunEnded,
    RunStarted,
    StepCommitted,
)
from holdfast.record.store import Selection
from holdfast.record.stores import open_store
from holdfast.run.endpoint import Endpoint, find_endpoint
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore

pytestmark = pytest.mark.slow

BROWSER_S_MAX = 300
S = 10**9

# ---- in a page, which a browser shows ---------------------------------------------------------------------

MARKUP = (
    "<script>document.title = 'owned'</script>",
    '"><img src=x onerror="document.title = \'owned\'">',
    "</script></style></svg></title><svg onload=\"document.title = 'owned'\">",
    "' onpointerover='document.title = `owned`' autofocus onfocus='document.title = `owned`' x='",
    "{{ constructor.constructor('document.title = 1')() }}",
)
POLICY = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")

AROUND = """<!doctype html><meta charset="utf-8">
{frames}
<pre></pre>
<script>
onload = () => setTimeout(() => {{
  const pages = [...document.querySelectorAll("iframe")].map((frame) => frame.contentDocument);
  for (const page of pages) {{
    for (const one of page.querySelectorAll("*")) {{
      one.dispatchEvent(new PointerEvent("pointerover", {{ bubbles: true }}));
    }}
  }}
  document.querySelector("pre").textContent = JSON.stringify(pages.map((page) => page.title));
}}, 500);
</script>
"""


def page_of(name: str) -> str:
    """The report of a run in which everything has this name."""
    ledger = Ledger()
    ledger.add(
        [
            RunStarted(id="1", occurred_ns=1 * S, run=name, gpus=2, team=name, name=name),
            MemberJoined(id="2", occurred_ns=2 * S, run=name, subject=name, node=name, gpus=1),
            StepCommitted(id="3", occurred_ns=10 * S, run=name, step=1),
            FaultObserved(id="4", occurred_ns=11 * S, run=name, subject=name, fault=name, detail=name),
            MemberLost(id="5", occurred_ns=12 * S, run=name, subject=name, reason=name),
            StepCommitted(id="6", occurred_ns=20 * S, run=name, step=2),
            RunEnded(id="7", occurred_ns=30 * S, run=name, outcome="failed", reason=name),
        ]
    )
    return render(report(name, ledger.fold))


def test_a_browser_runs_no_name(browser: str, tmp_path: Path) -> None:
    pages = [page_of(name) for name in MARKUP]
    assert all(POLICY.search(page) for page in pages)
    assert all(name in html.unescape(page) for name, page in zip(MARKUP, pages, strict=True))
    # Without their policy, so that the names themselves do nothing; and the policy holds where a name would.
    bare = [POLICY.sub("", page) for page in pages]
    unescaped = pages[0].replace("<body>", f"<body>{MARKUP[1]}{MARKUP[0]}", 1)
    unguarded = POLICY.sub("", unescaped)
    titles = shown(browser, tmp_path, [*pages, *bare, unescaped, unguarded])
    assert titles[-1] == "owned"  # so this test can tell the difference
    assert [title for title in titles[:-1] if title == "owned"] == []


def shown(browser: str, folder: Path, pages: list[str]) -> list[str]:
    """The titles of the pages in a browser, after the pointer was over everything in them."""
    frames = "\n".join(f'<iframe srcdoc="{html.escape(page)}"></iframe>' for page in pages)
    around = folder / "around.html"
    around.write_text(AROUND.format(frames=frames), encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    done = subprocess.run(
        [
            *(browser, *switches, "--disable-background-networking", "--virtual-time-budget=5000"),
            *(f"--user-data-dir={folder / 'profile'}", "--dump-dom", around.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=BROWSER_S_MAX,
        check=True,
    )
    written = re.search(r"<pre>(\[.*\])</pre>", done.stdout)
    assert written is not None, done.stderr
    return msgspec.json.decode(html.unescape(written[1]), type=list[str])


# ---- in a query -------------------------------------------------------------------------------------------

SQL = (
    "r'); DROP TABLE events; --",
    "' OR '1'='1",
    '" OR ""="',
    "r' UNION SELECT * FROM marks --",
    "%",
    "_",
    "r\\'",
    "$1",
    "?",
    "%s",
)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def test_no_name_is_sql(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = None
    if kind == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("postgres_database")
        url = make()
    events = [
        FaultObserved(id=f"{name}!", occurred_ns=1, run=name, subject=name, fault=name, source=name)
        for name in (*SQL, "r")
    ]
    with open_store(url, tmp_path) as store:
        store.ingest(events, marks=dict.fromkeys(SQL, 7))
        for name in (*SQL, "r"):
            found = [*store.select(Selection(run=name)), *store.select(Selection(subject=name))]
            assert [event.id for event in found] == [f"{name}!"] * 2
        assert list(store.select(Selection(kinds=("' OR '1'='1",)))) == []
        assert {summary.run for summary in store.runs()} == {*SQL, "r"}
        assert store.marks() == dict.fromkeys(SQL, 7)
        assert store.ingest(events).known == len(events)


def test_no_metric_label_or_directory_is_sql(tmp_path: Path) -> None:
    place = tmp_path / "it's'); DROP TABLE x; --"
    with SignalStore(place, step_s=10) as store:
        store.append(
            Reading(metric=name, labels={"instance": f"n{number}", "x": name}, at_ns=0, value=1.0)
            for number, name in enumerate(SQL)
        )
        assert store.metrics() == tuple(sorted(SQL))
        for number, name in enumerate(SQL):
            frame = store.frame(name, (0, 10 * S))
            assert frame is not None
            assert frame.subjects == (f"n{number}",)


# ---- in a path --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../outside", "..", ".", "", "a/../../outside", "a\x00b", "/", "\x1b[2J"])
def test_no_run_has_the_name_of_a_place_elsewhere(tmp_path: Path, name: str) -> None:
    """A user who could make a file that is taken for a run's would receive the operator's requests."""
    home = tmp_path / "home"
    (home / "runs" / "a").mkdir(parents=True)
    (home / "outside").mkdir()
    endpoint = msgspec.json.encode(Endpoint(host="127.0.0.1", port=1, token="t" * 16, pid=1))
    with ExitStack() as stack:
        for place in (home / "outside", home / "runs", home):
            file = stack.enter_context((place / "endpoint.json").open("w+b"))
            file.write(endpoint)
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)  # as a launcher does while its run goes on
        with pytest.raises(InputError, match="is running on this machine") as caught:
            find_endpoint(home, name)
    assert "\x1b" not in caught.value.told
