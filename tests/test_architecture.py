"""Checks the code's imports against the table in docs/architecture.md, and a few rules for names and words.

The table is the only source: of the rooms this module names only the one that may have torch. Imports are
read from the syntax tree, so one inside a function, under TYPE_CHECKING or spelt
`importlib.import_module("...")` counts like any other. The checkers are themselves tested on small trees that
break each rule.
"""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


TORCH_ROOM = "train"
BENCH = "bench"
"""The package of benchmarks beside `src`, which is not installed: it may import every room, and of the rooms
one module imports it, by a name.
"""
BENCH_FINDER = Path("cli", "bench.py")
BENCH_WORKERS = "workers"
"""Its training scripts, which may have torch as the room may."""
COMPUTED = "?"
"""Stands in an imported module's name for what is known only at run time."""

TABLE_HEAD = "| room | what lives there | may import |\n|---|---|---|\n"

Rules = dict[str, frozenset[str]]
"""Room to the rooms it may import besides itself, in the table's order."""


def read_table(page: str) -> Rules:
    """The rules in the page's table of rooms; what cannot be read is an error."""
    table = page.partition(TABLE_HEAD)[2].partition("\n\n")[0]
    rows = [re.fullmatch(r"\| `(\w+)` \| [^|]+ \| ([^|]+) \|", line) for line in table.splitlines()]
    cells = [(row[1], row[2]) for row in rows if row]
    if not cells or len(cells) < len(rows):
        raise ValueError("the import table is missing or has a row of another form")
    rooms = [room for room, _ in cells]
    return {
        room: frozenset(rooms) if words == "anything" else _allowed(words, frozenset(rooms[:index]))
        for index, (room, words) in enumerate(cells)
    }


def root_modules(rules: Rules) -> Rules:
    """The modules outside every room, and the rooms each may import: only a face imports for its room."""
    return {"__init__.py": frozenset(), "__main__.py": frozenset({"cli"}), "faces.py": frozenset(rules)}


def _allowed(words: str, above: frozenset[str]) -> frozenset[str]:
    """What a cell allows. Only rooms further up may be named, so the table can have no cycle."""
    if words == "-":
        return frozenset()
    rest = words.removeprefix("all of the above")
    named = frozenset(rest.removeprefix(" but ").split(", ")) - {""}
    if unknown := named - above:
        raise ValueError(f"the import table names {sorted(unknown)}, which are no rooms above that row")
    return named if rest == words else above - named


def broken_rules(package: Path, rules: Rules) -> Iterator[str]:
    """One sentence for each file that is in no room and for each import that the rules do not allow."""
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        room = relative.parts[0]
        allowed = {**root_modules(rules), **rules}.get(room)
        if allowed is None:
            yield f"{relative}: {room} has no row in the import table"
            continue
        home = ".".join(["holdfast", *relative.parent.parts])
        for line, module in imported(path, home):
            if complaint := _complaint(module, room, allowed, rules):
                yield f"{relative}:{line}: {complaint}"
            elif module.partition(".")[0] == BENCH and relative != BENCH_FINDER:
                yield f"{relative}:{line}: only {BENCH_FINDER} may import the benchmarks"


def circles(package: Path) -> list[list[str]]:
    """The modules that import each other, wherever in a file they do so: each circle, in order of names."""
    modules = {_module(path, package): path for path in package.rglob("*.py")}
    graph = {
        name: {
            found
            for _, module in imported(path, _home(name, path))
            if (found := module if module in modules else module.rpartition(".")[0]) in modules
        }
        - {name}
        for name, path in modules.items()
    }
    reached = {name: _reached(graph, name) for name in graph}
    together = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(circle) for circle in together if circle)


def _module(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _home(module: str, path: Path) -> str:
    """The package that relative imports of the module start from."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """All that the module imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        news = graph[waiting.pop()] - found
        found |= news
        waiting.extend(news)
    return found


_UNIT = re.compile(r"_?((SECOND|MINUTE|HOUR|DAY)_(NS|S)|NS_PER_S|HOURS_PER_DAY|DAY_HOURS|SECONDS_PER_\w+)")
"""What units of time are called."""
UNITS = Path("wording", "units.py")


def units_of_their_own(package: Path) -> Iterator[str]:
    """One sentence for each unit of time that a module other than the one for it defines."""
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        for node in parsed(path).body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name) and _UNIT.fullmatch(target.id) and relative != UNITS:
                    yield f"{relative}:{node.lineno}: {target.id} belongs into {UNITS}"


_SHORTEST = re.compile(r"[gGeE]$")
_SHORTEST_IN_TEXT = re.compile(r"\{[^{}\"']*:[-+ ,#0-9.]*[gGeE]\}|%\.[0-9]+[gGeE]")
"""Formats that write large and small numbers with an exponent, in an f-string and for `format` and `%`."""
FOR_PROGRAMS = {Path("cli", "collect_outlets.py"), Path("drills", "openmetrics.py")}
"""What they write is read by databases, digit by digit."""


def exponents(package: Path) -> Iterator[str]:
    """One sentence for each number that a module writes with `g` or `e`, which people read as `1.02e+03`.

    A constant of the code may have `g`: its author saw what becomes of it. `wording` has the formats for all
    others.
    """
    hint = "wording.number and wording.seconds write it without an exponent"
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        if relative in FOR_PROGRAMS or relative.parts[0] == "wording":
            continue
        nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.expr)]
        for number in sorted({node.lineno for node in nodes if _has_exponent(node)}):
            yield f"{relative}:{number}: {hint}"
    for page in sorted(package.rglob("*.html")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if _SHORTEST_IN_TEXT.search(line):
                yield f"{page.relative_to(package)}:{number}: {hint}"


def _has_exponent(node: ast.expr) -> bool:
    if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
        end = node.format_spec.values[-1:]
        is_shortest = any(isinstance(one, ast.Constant) and _SHORTEST.search(str(one.value)) for one in end)
        return is_shortest and not _is_fixed(node.value)
    return isinstance(node, ast.Constant) and bool(_SHORTEST_IN_TEXT.search(str(node.value)))


def _is_fixed(value: ast.expr) -> bool:
    """Whether a formatted value is a constant of the code, or computed from such alone."""
    names = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
    return all(name.isupper() for name in names)


def benchmarks_with_torch(folder: Path) -> Iterator[str]:
    """One sentence for each import of torch by a benchmark that is not a training script."""
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(folder)
        home = ".".join([BENCH, *relative.parent.parts])
        for line, module in imported(path, home):
            if module.partition(".")[0] == "torch" and relative.parts[0] != BENCH_WORKERS:
                yield f"{relative}:{line}: imports torch, which only {BENCH_WORKERS} may"


@cache
def parsed(path: Path) -> ast.Module:
    """Once for all that is asked of it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path, package: str) -> tuple[tuple[int, str], ...]:
    """Line and full name of all that a module in `package` imports, wherever in the file it does so."""
    return tuple(_imported(parsed(path), package))


def _imported(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                origin = resolve_name("." * level + (module or ""), package)
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=args,
                keywords=keywords,
            ):
                name = [*args, *(keyword.value for keyword in keywords)][0]
                yield node.lineno, resolve_name(_text(name), package)


def _text(name: ast.expr) -> str:
    """The constant text of a module's name, as far as it goes."""
    match name:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text + COMPUTED
    return COMPUTED


def _complaint(module: str, room: str, allowed: frozenset[str], rules: Rules) -> str | None:
    top, target, *_ = [*module.split("."), ""]
    if top == "torch" and room != TORCH_ROOM:
        return f"imports torch, which only {TORCH_ROOM} may"
    if COMPUTED in top or (top == "holdfast" and COMPUTED in target):
        return None if allowed >= rules.keys() else "imports a module that is named only at run time"
    if top == "holdfast" and target in rules and target not in {room, *allowed}:
        return f"{room} may not import {target}"
    return None


def shared_names(package: Path) -> list[str]:
    """The public classes whose name another one in the package has as well, each with the files it is in."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(package)))
    return [f"{name}: {', '.join(files)}" for name, files in sorted(found.items()) if len(files) > 1]


VAGUE = re.compile(r"(?<![a-z])(whoever|nobody|somebody)(?![a-z])", re.IGNORECASE)
"""Words that hide who does something: name the member, process, user or team, or say what is unknown."""
VAGUE_ALLOWED: frozenset[tuple[str, str]] = frozenset()
"""Places where such a word is a real name, such as the account `nobody`: the file, and the stripped line."""
_ADDRESS = re.compile(r"https?://\S+")


def vague_words(root: Path) -> Iterator[str]:
    """Each line of the product and its pages that has a vague word, outside of addresses."""
    folders = (root / name for name in ("src", "docs", "contrib"))
    pages = (root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))
    paths = [*(path for folder in folders for path in sorted(folder.rglob("*"))), *pages]
    for path in paths:
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        place = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if VAGUE.search(_ADDRESS.sub("", line)) and (place, line.strip()) not in VAGUE_ALLOWED:
                yield f"{place}:{number}: {line.strip()}"


def test_texts_say_who_does_something() -> None:
    assert list(vague_words(ROOT)) == []


def test_a_vague_word_is_found(tmp_path: Path) -> None:
    _write(
        tmp_path / "src" / "room.py", "# See https://example.org/nobody\n# Nobody waits.\nnobody_waits = 1\n"
    )
    _write(tmp_path / "docs" / "page.md", "A nobodylike word, and\nwhoever reads it.\n")
    _write(tmp_path / "contrib" / "run.sh", "echo done\n")
    _write(tmp_path / "README.md", "Fine.\n")
    _write(tmp_path / "CONTRIBUTING.md", "Fine.\n")
    _write(tmp_path / "SECURITY.md", "somebody else's port\n")
    assert list(vague_words(tmp_path)) == [
        "src/room.py:2: # Nobody waits.",
        "src/room.py:3: nobody_waits = 1",
        "docs/page.md:2: whoever reads it.",
        "SECURITY.md:1: somebody else's port",
    ]


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert shared_names(ROOT / "src" / "holdfast") == []


def test_a_shared_name_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "run" / "state.py", "class Node: ...\nclass _Inner: ...\nclass Own: ...")
    _write(tmp_path / "topology" / "graph.py", "class Node: ...\nclass _Inner: ...")
    assert shared_names(tmp_path) == ["Node: run/state.py, topology/graph.py"]


def test_the_code_keeps_to_the_import_table() -> None:
    assert list(broken_rules(ROOT / "src" / "holdfast", read_table(PAGE))) == []


def test_units_of_time_are_defined_once() -> None:
    assert list(units_of_their_own(ROOT / "src" / "holdfast")) == []


def test_a_unit_that_is_defined_again_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "wording" / "units.py", "HOUR_NS = 3_600 * 10**9")
    _write(tmp_path / "ledger" / "fold.py", "WAIT_S = 60\n_HOUR_NS = 3_600 * 10**9")
    assert list(units_of_their_own(tmp_path)) == ["ledger/fold.py:2: _HOUR_NS belongs into wording/units.py"]


def test_numbers_that_people_read_have_no_exponent() -> None:
    assert list(exponents(ROOT / "src" / "holdfast")) == []


def test_a_number_with_an_exponent_is_found(tmp_path: Path) -> None:
    fine = 'f"{WAIT_S:g} s, {a:,.1f}, {name:.40}, {at:%H}, 50 % each"'
    lines = ('f"{took_s:.3g} s"', 'f"{a:{b},g}"', '"{:,.2g}".format(a)', '"%.3g s" % a', 'f"{a:e}"', fine)
    _write(tmp_path / "run" / "hub.py", "\n".join(lines))
    _write(tmp_path / "wording" / "__init__.py", 'f"{a:g}"')
    _write(tmp_path / "dashboard" / "page.html", '<p>{{ "{:,g}".format(a) }}</p>\n<p>{{ a | number }}</p>')
    places = [told.partition(": ")[0] for told in exponents(tmp_path)]
    assert places == [*(f"run/hub.py:{line}" for line in range(1, 6)), "dashboard/page.html:1"]


def test_no_modules_import_each_other() -> None:
    assert circles(ROOT / "src" / "holdfast") == []


def test_a_circle_is_found_also_through_others_and_in_functions(tmp_path: Path) -> None:
    package = tmp_path / "holdfast"
    _write(package / "__init__.py", "")
    _write(package / "run" / "board.py", "from holdfast.run import live")
    _write(package / "run" / "live.py", "def f():\n    from holdfast.run.text import show")
    _write(package / "run" / "text.py", "from .board import Board")
    _write(package / "run" / "alone.py", "from holdfast.run.board import Board")
    assert circles(package) == [["holdfast.run.board", "holdfast.run.live", "holdfast.run.text"]]


def test_only_the_training_scripts_of_the_benchmarks_import_torch() -> None:
    assert list(benchmarks_with_torch(ROOT / BENCH)) == []


def test_a_benchmark_that_imports_torch_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "workers" / "model.py", "import torch")
    _write(tmp_path / "ledger.py", "from torch import nn")
    assert list(benchmarks_with_torch(tmp_path)) == ["ledger.py:1: imports torch, which only workers may"]


FACES = sorted(
    path.parent.name
    for path in (ROOT / "src" / "holdfast").glob("*/__init__.py")
    if "__all__" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("room", FACES)
def test_a_face_shows_what_it_names(room: str) -> None:
    face = importlib.import_module(f"holdfast.{room}")
    assert face.__all__ == [name for name in face.__all__ if hasattr(face, name)]
    assert not hasattr(face, "no_such_name")


def test_a_face_costs_nothing_until_it_is_asked() -> None:
    """But that of `train`, which is the one that imports torch."""
    rooms = [room for room in FACES if room not in (TORCH_ROOM, "wording")]
    code = f"import sys, {', '.join(f'holdfast.{room}' for room in rooms)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    expected = {"holdfast.faces", *(f"holdfast.{room}" for room in rooms)}
    assert {name for name in loaded if name.startswith("holdfast.")} == expected
    assert not loaded & {"numpy", "torch", "msgspec"}


def test_every_room_is_in_the_diagram() -> None:
    diagram = PAGE.split("```")[1]
    assert [room for room in read_table(PAGE) if not re.search(rf"\b{room}\b", diagram)] == []


TABLE = """
| room | what lives there | may import |
|---|---|---|
| `record` | events | - |
| `ledger` | accounts | record |
| `train` | workers | record |
| `twin` | a simulation | all of the above but train |
| `drills` | faults | all of the above |
| `cli` | verbs | anything |

| `another` | table | ledger |
"""
RULES: Rules = {
    "record": frozenset(),
    "ledger": frozenset({"record"}),
    "train": frozenset({"record"}),
    "twin": frozenset({"record", "ledger"}),
    "drills": frozenset({"record", "ledger", "train", "twin"}),
    "cli": frozenset({"record", "ledger", "train", "twin", "drills", "cli"}),
}


def test_the_table_is_read() -> None:
    assert read_table(TABLE) == RULES


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("| record |", "| twin |"),  # further down: a cycle could hide
        ("but train", "but treadmill"),
        ("| `train` | workers | record |", "| train | workers | record |"),
        ("| room |", "| place |"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(before: str, after: str) -> None:
    with pytest.raises(ValueError, match="import table"):
        read_table(TABLE.replace(before, after))


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("record/journal.py", "import holdfast.ledger.fold", "1: record may not import ledger"),
        ("record/journal.py", "\n\nfrom holdfast import ledger", "3: record may not import ledger"),
        ("record/journal.py", "from holdfast.ledger import fold", "1: record may not import ledger"),
        ("record/journal.py", "from ..ledger import fold", "1: record may not import ledger"),
        ("record/importers/slurm.py", "from ... import ledger", "1: record may not import ledger"),
        ("record/__init__.py", "from .. import ledger", "1: record may not import ledger"),
        (
            "record/journal.py",
            "def f():\n    from holdfast.ledger import fold",
            "2: record may not import ledger",
        ),
        (
            "record/journal.py",
            "if TYPE_CHECKING:\n    import holdfast.ledger",
            "2: record may not import ledger",
        ),
        (
            "record/journal.py",
            "importlib.import_module('holdfast.ledger')",
            "1: record may not import ledger",
        ),
        (
            "record/journal.py",
            "import_module(name='..ledger', package='x')",
            "1: record may not import ledger",
        ),
        ("record/journal.py", "__import__('holdfast.ledger')", "1: record may not import ledger"),
        ("record/journal.py", "import_module(f'holdfast.ledger.{x}')", "1: record may not import ledger"),
        (
            "record/journal.py",
            "import_module(f'holdfast.{x}')",
            "1: imports a module that is named only at run time",
        ),
        ("record/journal.py", "import_module(x)", "1: imports a module that is named only at run time"),
        ("twin/clock.py", "import holdfast.train", "1: twin may not import train"),
        ("drills/kill.py", "import holdfast.cli", "1: drills may not import cli"),
        ("cli/bench.py", "def f():\n    import torch.cuda", "2: imports torch, which only train may"),
        ("cli/run.py", "from bench import kills", f"1: only {BENCH_FINDER} may import the benchmarks"),
        (
            "ledger/fold.py",
            "def f():\n    import bench.ledger",
            f"2: only {BENCH_FINDER} may import the benchmarks",
        ),
        ("__init__.py", "from holdfast import record", "1: __init__.py may not import record"),
        ("__main__.py", "from .ledger import fold", "1: __main__.py may not import ledger"),
        ("helpers/text.py", "", " helpers has no row in the import table"),
        ("ledger.py", "", " ledger.py has no row in the import table"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    _write(tmp_path / file, source)
    assert list(broken_rules(tmp_path, RULES)) == [f"{file}:{complaint}"]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("__init__.py", "import sys"),
        ("__main__.py", "from holdfast.cli import main"),
        ("cli/__init__.py", "import holdfast.train\nimport_module(f'holdfast.{verb}')"),
        (
            "ledger/fold.py",
            "from holdfast import __version__\nfrom ..record import events\nfrom . import tally",
        ),
        (
            "record/importers/__init__.py",
            "import_module(f'holdfast.record.importers.{kind}')\nfrom .. import events",
        ),
        ("record/torchlight.py", "import torchlight"),
        ("cli/bench.py", "import_module('bench')\nfrom bench import command"),
        ("train/lanes.py", "import torch\nfrom torch import nn\nimport_module('torch.distributed')"),
        ("twin/cluster.py", "from holdfast.ledger import fold"),
    ],
)
def test_an_allowed_import_is_passed(tmp_path: Path, file: str, source: str) -> None:
    _write(tmp_path / file, source)
    assert list(broken_rules(tmp_path, RULES)) == []


def _write(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
