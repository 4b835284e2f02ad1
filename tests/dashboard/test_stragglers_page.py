"""The stragglers page: what it says is what was found, for few workers and for many, and in a browser."""

import html
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from holdfast.dashboard.stragglers_page import COLUMNS_MAX, bar, render
from holdfast.stragglers.meta import read_meta
from holdfast.stragglers.report import StragglerReport, report_on
from holdfast.stragglers.trace import read_table

DATA = Path(__file__).parents[1] / "data" / "straggler"
PAGE_BYTES_MAX = 100_000
BROWSER_S_MAX = 300
EVIL = "<script>alert(1)</script>"

AROUND = """<!doctype html><meta charset="utf-8">
{frames}
<pre></pre>
<script>
const measured = (page) => {{
  const seen = (selector) => [...page.querySelectorAll(selector)].map((one) => one.getBoundingClientRect());
  const texts = seen("svg text").filter((box) => box.width);
  const cells = seen("th, td, p, .heat rect").filter((box) => box.width);
  const numbers = seen(".heat g text").filter((box) => box.width);
  const rects = seen(".heat g rect").filter((box) => box.width);
  return {{
    width: page.documentElement.scrollWidth,
    right_max: Math.max(...[...texts, ...cells].map((box) => box.right)),
    left_min: Math.min(...[...texts, ...cells].map((box) => box.left)),
    text_px_min: Math.min(...texts.map((box) => box.height)),
    number_width_max: Math.max(0, ...numbers.map((box) => box.width)),
    cell_width_min: Math.min(...rects.map((box) => box.width)),
  }};
}};
onload = () => {{
  const pages = [...document.querySelectorAll("iframe")].map((frame) => frame.contentDocument);
  document.querySelector("pre").textContent = JSON.stringify(pages.map(measured));
}};
</script>
"""
FRAME = '<iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{page}"></iframe>'
WIDTHS_PX = (320, 390, 1_280)


class Measured(msgspec.Struct):
    """Of the page as a browser lays it out, in pixels."""

    width: float
    right_max: float
    left_min: float
    text_px_min: float
    number_width_max: float
    cell_width_min: float


class Page(HTMLParser):
    """The page's words, without those of its head."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(page.partition("<body>")[2])
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def report() -> StragglerReport:
    return report_on(read_table(DATA / "trace-ST.parquet"), read_meta(DATA / "meta-ST.yaml"), title="ST")


def crowded(report: StragglerReport, dp_ranks: int, stages: int = 8) -> StragglerReport:
    """The same with so many places, one of them hot."""
    heat = [[1.0 + 0.3 * (row == 3 and stage == 2) for stage in range(stages)] for row in range(dp_ranks)]
    return msgspec.structs.replace(
        report,
        dp_ranks=tuple(f"dp {row}" for row in range(dp_ranks)),
        stages=tuple(range(stages)),
        heat=tuple(tuple(row) for row in heat),
    )


def test_the_verdict_comes_first(report: StragglerReport) -> None:
    text = Page(render(report)).text
    assert text.startswith("What holds the step back ST 8 workers 2 data-parallel ranks, 4 stages 32 steps")
    assert "1.18 × as long as with everything at its ideal The last stage (3) holds the step back" in text
    assert f"Next {report.verdict.advice}" in text
    assert "By the last stage (M_S) 121.9 %" in text


def test_every_place_has_its_heat(report: StragglerReport) -> None:
    page = render(report)
    for row, name in enumerate(report.dp_ranks):
        for column, stage in enumerate(report.stages):
            score = report.heat[row][column]
            assert f"<title>{name}, stage {stage}: {score:.3f}</title>" in page
    opacities = [float(found) for found in re.findall(r'fill-opacity="([\d.]+)"', page)]
    assert max(opacities) == 1.0
    assert sum(opacity > 0.9 for opacity in opacities) == 2
    assert sum(opacity == 0 for opacity in opacities) == 6


def test_a_place_without_a_worker_is_empty(report: StragglerReport) -> None:
    heat = ((None, *report.heat[0][1:]), report.heat[1])
    page = render(msgspec.structs.replace(report, heat=heat))
    assert page.count('class="cold"') == 7


def test_workers_and_operations_in_numbers(report: StragglerReport) -> None:
    text = Page(render(report)).text
    worst = report.analysis.workers[0]
    assert f"rank 7 data-parallel rank 1, stage 3 {worst.slowdown:.3f} 3.1 %" in text
    for one in report.analysis.operations:
        assert one.type in text
    assert "embedding-grads-all-reduce communication" in text


def test_many_ranks_share_columns(report: StragglerReport) -> None:
    page = render(crowded(report, 10 * COLUMNS_MAX))
    assert page.count('class="hot"') < 9 * COLUMNS_MAX
    assert "A column stands for 10 data-parallel ranks" in page
    assert "<title>dp 0 to dp 9, stage 2: 1.300</title>" in page


def test_gaps_are_told(report: StragglerReport) -> None:
    page = Page(render(msgspec.structs.replace(report, gaps=("The job has 9 stages and the trace 4.",))))
    assert "The job has 9 stages and the trace 4." in page.text


def test_names_are_text_and_never_markup(report: StragglerReport) -> None:
    worker = msgspec.structs.replace(report.analysis.workers[0], name=EVIL)
    operation = msgspec.structs.replace(report.analysis.operations[0], type=EVIL)
    analysis = msgspec.structs.replace(report.analysis, workers=(worker,), operations=(operation,))
    page = render(msgspec.structs.replace(report, title=EVIL, dp_ranks=(EVIL, EVIL), analysis=analysis))
    assert EVIL not in page
    assert "script" not in Page(page).tags


@pytest.mark.parametrize(("share", "width"), [(None, 0), (-0.2, 0), (0.5, 50), (1.2, 100)])
def test_bars_stay_within_their_rail(share: float | None, width: float) -> None:
    assert f'<rect class="hot" width="{width:.2f}%"' in bar(share)


def test_the_page_needs_nothing_else(report: StragglerReport) -> None:
    page = render(crowded(report, 16))
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:href|src)="', page)
    assert "script" not in Page(page).tags
    assert len(page.encode()) < PAGE_BYTES_MAX


def test_the_page_fits(browser: str, tmp_path: Path, report: StragglerReport) -> None:
    named = {f"{ranks} ranks": render(crowded(report, ranks)) for ranks in (2, 5, 12, 100)}
    named["a name without a space"] = render(unbroken(report, "x" * 500))
    sizes = [(name, width_px) for name in named for width_px in WIDTHS_PX]
    found = measure(browser, tmp_path, [(named[name], width_px) for name, width_px in sizes])
    for (name, width_px), measured in zip(sizes, found, strict=True):
        where = f"{name} at {width_px} px: {measured}"
        assert measured.width <= width_px, where
        assert measured.left_min >= 0, where
        assert measured.right_max <= width_px + 0.5, where
        assert measured.text_px_min >= 12, where
        assert measured.number_width_max <= measured.cell_width_min, where


def unbroken(report: StragglerReport, name: str) -> StragglerReport:
    worker = msgspec.structs.replace(report.analysis.workers[0], name=name)
    analysis = msgspec.structs.replace(report.analysis, workers=(worker,))
    return msgspec.structs.replace(report, title=name, dp_ranks=(name, name), analysis=analysis)


def measure(browser: str, folder: Path, pages: list[tuple[str, int]]) -> list[Measured]:
    around = folder / "around.html"
    frames = "\n".join(FRAME.format(width=width_px, page=html.escape(page)) for page, width_px in pages)
    around.write_text(AROUND.format(frames=frames), encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    done = subprocess.run(
        [browser, *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom", around.as_uri()],
        capture_output=True,
        text=True,
        timeout=BROWSER_S_MAX,
        check=True,
    )
    written = re.search(r"<pre>(\[.*\])</pre>", done.stdout)
    assert written is not None, done.stderr
    return msgspec.json.decode(html.unescape(written[1]), type=list[Measured])
