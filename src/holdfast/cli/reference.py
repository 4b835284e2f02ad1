"""`holdfast reference`: show the published figures that runs are compared with, each with its source."""

from collections.abc import Sequence

import click

from holdfast import wording
from holdfast.cli.terminal import print_json, say
from holdfast.ledger import references
from holdfast.ledger.flops import chip_named
from holdfast.wording.parsing import count

NEAREST_ROWS_USUAL = 10


@click.command("reference")
@click.option("--chip", help="Only this chip, such as h100 or the name in nvidia-smi.")
@click.option("--params", type=count, help="Sort by nearness to this many parameters, such as 70e9 or 70b.")
@click.option("--gpus", type=count, help="Sort by nearness to this many GPUs.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Rows of each table; 10 if sorted by nearness, else all."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(chip: str | None, params: int | None, gpus: int | None, limit: int | None, as_json: bool) -> None:
    """Show the published MFU and bus bandwidth that runs are compared with, with their sources.

    A question mark stands for a value that the source does not give. Without a filter, the models that
    `holdfast mfu --model` knows by name are listed as well.
    """
    known = references.published().chosen(chip_named(chip) if chip else None, params, gpus)
    if params or gpus:
        limit = limit or NEAREST_ROWS_USUAL
    shown = known.first(limit)
    if as_json:
        print_json(shown)
        return
    _show(shown)
    for line in _remarks(len(known.mfu), len(known.bandwidth), limit):
        say(line)


def _remarks(mfu_rows: int, bandwidth_rows: int, limit: int | None) -> list[str]:
    """Notes on rows that are not shown."""
    remarks = []
    if mfu_rows == 0:
        remarks.append("No MFU on this chip; `holdfast mfu` takes the chip with the nearest peak.")
    if bandwidth_rows == 0:
        remarks.append("No bus bandwidth is published for this chip.")
    if limit and mfu_rows > limit:
        remarks.append(f"{limit} of {mfu_rows} rows of MFU are shown; see --limit.")
    return remarks


def _show(shown: references.PublishedReferences) -> None:
    numbers = {name: f"[{number}]" for number, name in enumerate(shown.sources, start=1)}
    mfu = [_mfu_cells(row, numbers[row.source]) for row in shown.mfu]
    bandwidth = [_bandwidth_cells(row, numbers[row.source]) for row in shown.bandwidth]
    models = [_model_cells(name, model, numbers[model.source]) for name, model in shown.models.items()]
    sources = [_source_cells(number, shown.sources[name]) for name, number in numbers.items()]
    _print_table("MFU", "model|>params|chip|>GPUs|prec|>sequence|>MFU|attention|", mfu)
    _print_table("Bus bandwidth", "chip|>GPUs|reach|collective|>size|>GB/s|basis|how|", bandwidth)
    _print_table("Models by name", "name|>params|>per token|", models)
    _print_table("Sources", "|", sources)


def _print_table(title: str, columns: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table without lines, unless it is empty; a heading that starts with `>` is flush right."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.show_header = columns != "|"
    for column in columns.split("|"):
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print()


def _mfu_cells(row: references.MfuReference, source: str) -> tuple[str, ...]:
    sequence = f"{row.sequence_tokens:,}" if row.sequence_tokens else "?"
    mfu = f"{row.mfu_percent:.1f} %"
    gpus = f"{row.gpus:,}"
    return (row.model, _size(row.params), row.chip, gpus, row.precision, sequence, mfu, row.attention, source)


def _bandwidth_cells(row: references.BandwidthReference, source: str) -> tuple[str, ...]:
    gpus = f"{row.gpus:,}" if row.gpus else "?"
    size = f"{wording.number(row.size_bytes / 2**30)} GiB" if row.size_bytes else "?"
    speed = f"{row.bus_gb_per_s:.1f}"
    return (row.chip, gpus, row.reach, row.collective, size, speed, row.basis, row.how, source)


def _model_cells(name: str, model: references.KnownModel, source: str) -> tuple[str, ...]:
    transformer = model.shape.transformer()
    return (name, _size(transformer.params), _size(transformer.active_params), source)


def _source_cells(number: str, source: references.PublicationSource) -> tuple[str, str]:
    return (number, ". ".join(part for part in (source.cite(), source.note.rstrip("."), source.url) if part))


def _size(params: int) -> str:
    return f"{wording.number(params / 1e9, 3)}B" if params >= 1e9 else f"{params / 1e6:.0f}M"
