"""Holds the pages against the product: links lead somewhere, commands exist, examples print what they show.

In a block marked `console`, each line `$ holdfast ...` is run and what follows it compared with what is
printed, `...` standing for anything. The blocks of one page share one store and are run in order, from a
folder in which `tests` is the checkout's. A `holdfast` in another block of shell is not run, but its verb and
options must exist. Blocks of Python are run. The checkers are themselves tried on pages with faults.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
DECISIONS = sorted(ROOT.glob("docs/decisions/*.md"))
EXAMPLE_SECONDS_MAX = 400
EXAMPLE_STEPS = "10"
"""The first argument of Python examples: the README's takes a minute without it."""
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
"""A block: its indentation, language and text."""

SHELLS = {"", "bash", "console", "sh", "shell"}
"""The languages of blocks in which a line may be a command."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


class Example(NamedTuple):
    """A command of a `console` block and what the page says it prints."""

    command: str
    output: str


def prose(page: str) -> str:
    """The page without what stands in blocks and between backquotes, where a bracket is no link."""
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", page))


def links(page: str) -> list[str]:
    """The targets of all links and pictures, in any of the forms a page may use."""
    forms = r"\]\(([^)\s]+)[^)]*\)|^\[[^\]]+\]: *(\S+)|(?:href|src)=\"([^\"]+)\""
    return ["".join(found) for found in re.findall(forms, prose(page), re.MULTILINE)]


def anchors(page: str) -> set[str]:
    """What may follow `#` in a link to this page: its headings, in lower case, with hyphens for spaces."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Each relative link of the page whose file, or heading in it, is not there."""
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue  # another site's address; whether it answers is not ours to test
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            yield link


def commands(page: str) -> Iterator[list[str]]:
    """The arguments of each `holdfast` in the page's blocks, wherever in a line of shell it stands."""
    for _, language, block in FENCE.findall(page):
        for line in block.replace("\\\n", " ").splitlines():
            typed = line.strip()
            if language in SHELLS and (language != "console" or typed.startswith("$ ")):
                yield from _calls(typed.removeprefix("$ "))


def _calls(line: str) -> Iterator[list[str]]:
    """The arguments of each `holdfast` in one line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    call: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();<>|&"):
            if call and Path(call[0]).name == "holdfast":
                yield call[1:]
            call = []
        elif call or not re.fullmatch(r"\w+=.*", word):
            call.append(word)


def examples(page: str) -> Iterator[Example]:
    """The commands of the page's `console` blocks that begin with `holdfast`."""
    for indent, language, block in FENCE.findall(page):
        if language != "console":
            continue
        text = re.sub(rf"^{indent}", "", block, flags=re.MULTILINE).replace("\\\n", " ")
        for command, output in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            if re.match(r"holdfast\b", command):
                yield Example(command, output)


def difference(example: Example, printed: str) -> str:
    """What the page says and what was printed, where they differ; else nothing."""
    printed = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    checker = doctest.OutputChecker()
    if checker.check_output(example.output, printed, doctest.ELLIPSIS):
        return ""
    return f"$ {example.command}\n" + checker.output_difference(
        doctest.Example("", example.output), printed, doctest.ELLIPSIS
    )


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one line of shell as a reader of the page would, with stdout and stderr together."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "HOLDFAST_HOME": str(folder / "holdfast"),
        "COLUMNS": "110",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=EXAMPLE_SECONDS_MAX,
    )


def parsed(arguments: list[str]) -> object:
    """The exit code of a command that, with `--help` at its end, parses its options and then does nothing."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    return ended.value.code


@every_page
def test_every_block_is_closed(page: Path) -> None:
    # An open block would hide what follows it from the other tests.
    assert "```" not in FENCE.sub("", page.read_text(encoding="utf-8"))


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


@every_page
def test_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in commands(page.read_text(encoding="utf-8")):
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        assert parsed(own) == 0, f"holdfast {shlex.join(arguments)}\n{capsys.readouterr().err}"


@every_page
def test_examples_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for example in examples(page.read_text(encoding="utf-8")):
        assert not (wrong := difference(example, run(example.command, tmp_path).stdout)), wrong


@every_page
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    blocks = [block for _, language, block in FENCE.findall(page.read_text("utf-8")) if language == "python"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks), EXAMPLE_STEPS],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_a_decision_says_what_instead_of_what_and_what_would_reverse_it(page: Path) -> None:
    title, *sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert re.match(rf"# {int(page.name[:4])}\. \S", title)
    headings, bodies = zip(*(section.split("\n", 1) for section in sections), strict=True)
    assert headings == ("What", "Instead of what", "What would reverse it")
    assert all(body.strip() for body in bodies)


def test_decisions_are_numbered_without_gaps() -> None:
    assert [page.name[:5] for page in DECISIONS] == [
        f"{number:04}-" for number in range(1, len(DECISIONS) + 1)
    ]


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    words = glossary()
    assert words == sorted(set(words))


def test_the_glossary_has_every_word_of_the_architecture() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("\n## Words\n")[1]
    words = set(re.findall(r"\*\*([a-z ]+)\*\*", section.split("\n## ")[0].replace("\n", " ")))
    assert "lane" in words
    assert words - set(glossary()) == set()


def glossary() -> list[str]:
    return re.findall(
        r"^\| ([a-z ]+) \| \S.* \|$",
        (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )[1:]


PAGE = """
# A page: its `title`
See [this](#a-page-its-title), [that](there.md#deep) and ![a picture](gone.png "of nothing").
But `[x](no-link)`, <img src="lost.png">, [ref].

[ref]: nowhere.md
[far]: https://example.org/nothing

```sh
cd "$(mktemp -d)" && HOLDFAST_HOME=. .venv/bin/holdfast import a.jsonl --name 'of a run' # not holdfast x
cat a | holdfast import - > b; echo holdfast runs
holdfast report \\
  --json
```

```python
holdfast runs
```

1. In a list:

   ```console
   $ holdfast runs
   a run
   $ make demo
   holdfast events
   $ holdfast report | head -n 1
   ```
"""


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    (tmp_path / "there.md").write_text("# Shallow\n", encoding="utf-8")
    assert list(broken_links(page)) == ["there.md#deep", "gone.png", "lost.png", "nowhere.md"]


def test_commands_are_found() -> None:
    assert list(commands(PAGE)) == [
        ["import", "a.jsonl", "--name", "of a run"],
        ["import", "-"],
        ["report", "--json"],
        ["runs"],
        ["report"],
    ]


def test_examples_are_found() -> None:
    assert list(examples(PAGE)) == [
        Example("holdfast runs", "a run\n"),
        Example("holdfast report | head -n 1", ""),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("total 3\n", "total 3  \n", True),
        ("total ... s\n...\nend\n", "total 3 s\nand\nso on\nend\n", True),
        ("total 3\n", "total 4\n", False),
        ("total ... s\n", "total 3 h\n", False),
        ("", "holdfast: something went wrong\n", False),
        ("total 3\n", "", False),
    ],
)
def test_an_example_is_compared(shown: str, printed: str, same: bool) -> None:
    assert (difference(Example("holdfast report", shown), printed) == "") is same


def test_an_unknown_verb_or_option_is_found(tmp_path: Path) -> None:
    assert run("holdfast --version", tmp_path).returncode == 0
    assert run("holdfast treadmill --help", tmp_path).returncode == 2
    assert parsed(["runs"]) == 0
    assert parsed(["treadmill"]) == parsed(["--treadmill"]) == parsed(["runs", "--treadmill"]) == 2
