"""Pages in a browser as wide as a phone and as a desk: nothing is wider, and no text lies over other text."""

import html
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

BROWSER_S_MAX = 300
PHONE_PX = 400
DESK_PX = 1_280
ORDINARY_PX = 0.5
"""What a layout rounds away."""

AROUND = """<!doctype html><meta charset="utf-8">
<iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{page}"></iframe>
<pre></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const words = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  const boxes = [];
  for (let text = words.nextNode(); text; text = words.nextNode()) {{
    if (!text.data.trim() || text.parentElement.closest("script, style, title")) continue;
    const range = page.createRange();
    range.selectNodeContents(text);
    for (const box of range.getClientRects()) {{
      if (box.width > 1 && box.height > 1) boxes.push([box, text.data.trim()]);
    }}
  }}
  const over = [];
  boxes.forEach(([one, said], index) => {{
    for (const [other, told] of boxes.slice(index + 1)) {{
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (across > 1.5 && down > 4) over.push(said + " | " + told);
    }}
  }});
  document.querySelector("pre").textContent = JSON.stringify({{
    room: page.documentElement.clientWidth,
    width: page.documentElement.scrollWidth,
    left_min: Math.min(...boxes.map(([box]) => box.left)),
    right_max: Math.max(...boxes.map(([box]) => box.right)),
    over: over,
  }});
}};
</script>
"""


class Fitted(msgspec.Struct):
    """What there is in the browser: the room, the page's width, where text begins and ends, and texts over
    each other.
    """

    room: float
    width: float
    left_min: float
    right_max: float
    over: list[str]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The page that a command writes, of a run whose shares are estimated and of the runs of three teams."""
    folder = tmp_path_factory.mktemp("pages")
    data = Path(__file__).parents[1] / "data"

    def holdfast(home: str, *words: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            env={"HOLDFAST_HOME": str(folder / home), "PATH": ""},
            cwd=folder,
            capture_output=True,
            check=True,
        )

    holdfast(
        "one", "import", str(data / "steps.csv"), "--run", "my-run-of-a-name-that-is-long", "--gpus", "8"
    )
    holdfast("three", "import", str(data / "three-teams.csv"))
    prices = str(data / "three-teams-prices.toml")
    commands = {
        "report": ("one", "report"),
        "finance": ("three", "finance", "--prices", prices, "--own-or-rent"),
        "finance of one": ("one", "finance"),
        "simulation": ("one", "simulate", "--preset", "acme", "--days", "1", "--runs", "2"),
    }

    def write(name: str) -> str:
        home, *words = commands[name]
        holdfast(home, *words, "--html", f"{name}.html")
        return (folder / f"{name}.html").read_text(encoding="utf-8")

    return write


@pytest.mark.parametrize("width_px", [PHONE_PX, DESK_PX])
@pytest.mark.parametrize("name", ["report", "finance", "finance of one", "simulation"])
def test_nothing_is_wider_than_the_page_and_no_text_lies_over_other_text(
    browser: str, tmp_path: Path, written: Callable[[str], str], name: str, width_px: int
) -> None:
    fitted = fit(browser, tmp_path, written(name), width_px)
    assert fitted.over == []
    assert fitted.width <= fitted.room
    assert fitted.left_min >= 0
    assert fitted.right_max <= fitted.room + ORDINARY_PX


def fit(browser: str, folder: Path, page: str, width_px: int) -> Fitted:
    around = folder / "around.html"
    around.write_text(AROUND.format(width=width_px, page=html.escape(page)), encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    done = subprocess.run(
        [browser, *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom", around.as_uri()],
        capture_output=True,
        text=True,
        timeout=BROWSER_S_MAX,
        check=True,
    )
    found = re.search(r"<pre>(\{.*\})</pre>", done.stdout)
    assert found is not None, done.stderr
    return msgspec.json.decode(html.unescape(found[1]), type=Fitted)
