"""The page in a real browser: it fits a phone, its script is allowed to run, and nothing is cut off.

The page stands in a frame of the wanted width, where the page around it measures it; the browser then prints
what was measured.
"""

import html
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from quantity import sampled

from holdfast.dashboard.page import render
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.report import Report
from holdfast.ledger.reporting import report
from holdfast.record.importers import Options, import_file

PUBLISHED = Path(__file__).parents[1] / "data" / "google-70b-112-nodes-events.jsonl"
BROWSER_S_MAX = 300
SMALL_PHONE_PX = 320
PHONE_PX = 390
DESK_PX = 1_280

AROUND = """<!doctype html><meta charset="utf-8">
<iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{page}"></iframe>
<pre></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const readout = page.querySelector("output");
  const before = readout.textContent;
  page.querySelector(".column").dispatchEvent(new PointerEvent("pointerover", {{ bubbles: true }}));
  const texts = [...page.querySelectorAll(".course text")].map((text) => text.getBoundingClientRect())
    .filter((box) => box.height);
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    before: before,
    after: readout.textContent,
    text_px_min: Math.min(...texts.map((box) => box.height)),
    text_right_max: Math.max(...texts.map((box) => box.right)),
  }});
}};
</script>
"""


class Measured(msgspec.Struct):
    """What the page is in the browser: its width, its readout before and after pointing, its letters."""

    width: float
    before: str
    after: str
    text_px_min: float
    text_right_max: float


@pytest.fixture(scope="module")
def published() -> Report:
    ledger = Ledger()
    with import_file(PUBLISHED, Options(reference_step_s=8)) as reading:
        ledger.add(sorted(reading, key=lambda event: (event.occurred_ns, event.id)))
    return report("google", ledger.fold)


def measure(browser: str, folder: Path, told: Report, width_px: int) -> Measured:
    around = folder / "around.html"
    around.write_text(AROUND.format(width=width_px, page=html.escape(render(told))), encoding="utf-8")
    switches = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
    ]
    done = subprocess.run(
        [browser, *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom", around.as_uri()],
        capture_output=True,
        text=True,
        timeout=BROWSER_S_MAX,
        check=True,
    )
    written = re.search(r"<pre>(\{.*\})</pre>", done.stdout)
    assert written is not None, done.stderr
    return msgspec.json.decode(html.unescape(written[1]), type=Measured)


@pytest.mark.parametrize("width_px", sampled([SMALL_PHONE_PX, PHONE_PX, DESK_PX], [SMALL_PHONE_PX, DESK_PX]))
def test_the_page_fits_and_answers(browser: str, tmp_path: Path, published: Report, width_px: int) -> None:
    measured = measure(browser, tmp_path, published, width_px)
    assert measured.width <= width_px
    assert measured.text_right_max <= width_px
    assert measured.text_px_min >= 12
    assert measured.before == "Point at the chart, or tap it, to read a moment."
    assert measured.after.startswith("2 Apr 2025, 06:08:24 to 06:15:16 UTC: starting ")


def test_names_without_a_space_fit_a_phone(browser: str, tmp_path: Path, published: Report) -> None:
    name = "x" * 500
    worst = msgspec.structs.replace(published.incidents[0], what=name, subject=name)
    told = msgspec.structs.replace(
        published, run=name, name=name, team=name, incidents=(worst,), remarks=(name,)
    )
    assert measure(browser, tmp_path, told, PHONE_PX).width <= PHONE_PX
