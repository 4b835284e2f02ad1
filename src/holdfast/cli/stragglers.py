"""`holdfast stragglers`: find what holds a training step back, from a trace of its operations."""

from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.pages import html_option, require_one_output, write_page
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.stragglers.meta import Meta, read_meta
from holdfast.stragglers.reading import FORMATS, Format, read_trace
from holdfast.stragglers.report import StragglerReport, report_on


@click.command("stragglers")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--meta",
    "meta_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="META",
    help="The job's name and sizes, in YAML.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="table: operations in Parquet or CSV; profiler: PyTorch's JSON, a file or a directory of one for "
    "each rank; members: the parts of a run's steps in CSV or JSONL.  [default: told by the name]",
)
@html_option
@json_option
def command(
    trace: Path, meta_path: Path | None, form: Format | None, html_path: Path | None, as_json: bool
) -> None:
    """Find out from a TRACE of operations what holds a step back.

    The step is simulated again with ideal durations, for all operations, and for all but those of one worker,
    stage or type: the difference shows how much of the slowdown each explains.
    """
    require_one_output(html_path, as_json)
    meta = Meta() if meta_path is None else read_meta(meta_path)
    report = report_on(read_trace(trace, form), meta, title=meta.trial_name or trace.name)
    for sentence in report.gaps:
        click.echo(f"holdfast: {printable(sentence)}", err=True)
    if html_path is not None:
        from holdfast.dashboard.stragglers_page import render

        write_page(render(report), html_path)
    if as_json:
        print_json(_as_json(report))
    elif html_path is None:
        from holdfast.cli.stragglers_text import show

        show(report)


def _as_json(report: StragglerReport) -> dict[str, Any]:
    """The result as JSON: the figures on top, the verdict as a sentence, and its parts as `cause`."""
    verdict = msgspec.to_builtins(report.verdict)
    return {
        "name": report.title,
        "verdict": verdict.pop("sentence"),
        "cause": verdict,
        **msgspec.to_builtins(report.analysis),
    }
