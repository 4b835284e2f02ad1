"""`holdfast check`: test this node before it is given work again."""

import tempfile
import time
from pathlib import Path

import click
import msgspec
from rich.console import Console

from holdfast import wording
from holdfast.check.answering import FabricAnswerer
from holdfast.check.checking import CheckPlan, NodeCheck, check_node, require_known
from holdfast.check.fabric import place_named, read_token
from holdfast.check.figures import CheckedFigure, read_reference, reference_text
from holdfast.cli.flags import FiniteRange, option, shared, takes
from holdfast.cli.pages import writable, write_file
from holdfast.cli.record import json_option
from holdfast.cli.tables import table
from holdfast.cli.terminal import print_json, printable
from holdfast.detect.suspects import PARTS, SuspectPart
from holdfast.record.errors import InputError
from holdfast.wording.parsing import some_seconds

MOST_S = 50.0
"""Slurm kills its HealthCheckProgram after 60 s."""
MOST_S_LEAST, MOST_S_MOST = 5.0, 3_600.0
EXIT_NOT_GOOD = 1


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    gpus: int | None = option(
        "How many GPUs must be present.  [default: as many as are plugged in]",
        type=click.IntRange(0, 64),
        metavar="N",
    )
    directory: Path | None = option("On the disk to try.  [default: the temporary directory]", metavar="DIR")
    reference: Path | None = option("Compare with the figures of a good node, from --write-reference.")
    write_reference: Path | None = option(
        "This node is good: write its figures to this file.", callback=writable("reference", is_new=True)
    )
    skip: tuple[str, ...] = option(
        "Skip the checks whose names begin with this, such as clock or gpu0. May be repeated.", metavar="NAME"
    )
    part: SuspectPart | None = option(
        "--for",
        "The part that the node was drained for: it is tried longer, and must be proven good.",
        type=click.Choice(PARTS),
    )
    peer: tuple[str, ...] = option(
        "Try the fabric to this good node. May be repeated: the first that answers is used.",
        metavar="HOST:PORT",
    )
    answer: str | None = option(
        "Be that node: answer other nodes' checks at this address until --timeout.", metavar="HOST:PORT"
    )
    token_file: Path | None = option("The shared token for --peer and --answer.")
    since_s: float = option(
        "--since",
        "How far back the kernel log counts.",
        type=some_seconds,
        default="1h",
        show_default=True,
        metavar="TIME",
    )
    most_s: float = option(
        "--timeout",
        "Time limit of the whole check.",
        type=FiniteRange(MOST_S_LEAST, MOST_S_MOST),
        default=MOST_S,
        show_default=True,
        metavar="S",
    )
    as_json: bool = shared(json_option)


@click.command("check")
@takes(_Flags)
def command(given: _Flags) -> int:
    """Test this node: GPUs, fabric, disk, memory, clock, kernel log. Exit with 1 if anything is not good.

    Figures are compared with published ones of the GPU or, better, with those of a good node of the same
    kind. The check uses all GPUs for some seconds: nothing else may use them meanwhile.
    """
    if given.answer is not None:
        _answer(given, given.answer)
        return 0
    token = read_token(given.token_file) if given.peer else ""
    known = {} if given.reference is None else read_reference(given.reference)
    require_known(given.skip, given.part)
    plan = CheckPlan(
        gpus=given.gpus,
        folder=given.directory or Path(tempfile.gettempdir()),
        most_s=given.most_s,
        since_s=given.since_s,
        skipped=given.skip,
        part=given.part,
        peers=tuple(place_named(one) for one in given.peer),
        token=token,
    )
    found = check_node(plan, known)
    if not found.checks:
        raise InputError("Every check is skipped.", hint="Give --skip fewer times.")
    if given.write_reference is not None:
        if found.ok:
            write_file(reference_text(found.checks).encode(), given.write_reference, "reference")
        else:
            click.echo("holdfast: no reference is written: not all checks are good", err=True)
    if given.as_json:
        print_json(found)
    else:
        _show(found)
    return 0 if found.ok else EXIT_NOT_GOOD


def _answer(given: _Flags, place: str) -> None:
    """Answer other nodes' checks. The line on stderr tells callers that it listens now."""
    if given.peer or given.part or given.reference or given.write_reference:
        raise InputError(
            "--answer tries nothing: --peer, --for and references do not go with it.",
            hint="Give it only --token-file and --timeout.",
        )
    answerer = FabricAnswerer(place_named(place), read_token(given.token_file))
    click.echo(f"holdfast: answering at {place} for {given.most_s:,.0f} s", err=True)
    answerer.serve(time.monotonic() + given.most_s)


def _show(found: NodeCheck) -> None:
    rows = [
        (
            one.name,
            "-" if one.value is None else f"{wording.number(one.value, 4)} {one.unit}".rstrip(),
            _wanted(one),
            _verdict(one),
            printable(one.note),
        )
        for one in found.checks
    ]
    console = Console(highlight=False, markup=False)
    console.print(table("check", "found", "wanted", "", "", rows=rows))
    bad = sum(not one.ok for one in found.checks)
    untold = sum(one.ok and one.value is None for one in found.checks)
    if bad:
        said = f"{bad} of {len(rows)} checks are not good"
    elif untold:
        said = f"{len(rows) - untold} of {len(rows)} checks are good, {untold} could not be measured"
    else:
        said = f"all {len(rows)} checks are good"
    console.print(f"{said}; {found.took_s:.0f} s")


def _verdict(one: CheckedFigure) -> str:
    if not one.ok:
        return "NOT GOOD"
    return "good" if one.value is not None else "not known"


def _wanted(one: CheckedFigure) -> str:
    if one.reference is None:
        return "-"
    return f"{'at least' if one.sense == 'at-least' else 'at most'} {wording.number(one.reference, 4)}"
