"""A runbook on a terminal: text at any width, with commands that can be copied."""

from pathlib import Path

import click
import msgspec
import pytest

from holdfast.cli.markdown_text import CODE_INDENT, text_lines
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.runbooks import names, runbook, seam_runbook

MARKDOWN = """\
# Too **hot**

| | |
|---|---|
| incident | `big/s1`, open and open and open |
| cause | heat |

Some words that are longer than the line of the terminal is.

1. First, and
   more of it:

   ```bash
   ssh n1 "a command that is longer than the line of the terminal is"
     indented
   ```

   Below the first.
2. Second

- a point
"""


def test_every_kind_of_block() -> None:
    lines = [click.unstyle(line) for line in text_lines(MARKDOWN, 30)]
    assert lines == [
        "Too **hot**",
        "",
        "incident  `big/s1`, open and",
        "          open and open",
        "cause     heat",
        "",
        "Some words that are longer",
        "than the line of the terminal",
        "is.",
        "",
        "1. First, and more of it:",
        "",
        '    ssh n1 "a command that is longer than the line of the terminal is"',
        "      indented",
        "",
        "   Below the first.",
        "2. Second",
        "",
        "- a point",
        "",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_runbook_fits_and_is_no_markdown(data: Path, columns: int) -> None:
    one = msgspec.json.decode((data / "incident.json").read_bytes(), type=Incident)
    for name in names():
        across = seam_runbook(msgspec.structs.replace(one, seam=name), now_ns=one.noticed_ns)
        told = across or runbook(msgspec.structs.replace(one, runbook=name), now_ns=one.noticed_ns)
        lines = [click.unstyle(line) for line in text_lines(told.text, columns)]
        for line in lines:
            assert not line.startswith(("#", "|", "```")), line
            is_one_word = not line.strip().partition(" ")[2]
            assert len(line) <= columns or line.startswith(CODE_INDENT) or is_one_word, line
        words = " ".join(lines).replace("*", "").split()
        for word in told.text.replace("*", "").split():
            if not set(word) <= set("#|-`") and not word.startswith("```"):
                assert word in words, word
