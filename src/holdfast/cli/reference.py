"""`holdfast reference`: the published figures that runs are held against, each with its source."""

from collections.abc import Sequence
from typing import TypeVar

import click
import msgspec

from holdfast.cli.values import count
from holdfast.ledger import references
from holdfast.ledger.flops import Chip, chip_named

NEAREST_ROWS_USUAL = 10
_Row = TypeVar("_Row", references.MfuReference, references.BandwidthReference)


@click.command("reference")
@click.option("--chip", help="Only this chip, such as h100 or what nvidia-smi calls it.")
@click.option("--params", type=count, help="Nearest first to this many parameters, such as 70e9 or 70b.")
@click.option("--gpus", type=count, help="Nearest first to this many GPUs.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Rows of each table; 10 if nearest first, else all."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(chip: str | None, params: int | None, gpus: int | None, limit: int | None, as_json: bool) -> None:
    """Show the published MFU and bus bandwidth that runs are held against, with their sources.

    A question mark stands for what the source does not say. Without a filter, the models that
    `holdfast mfu --model` knows by name are listed as well.
    """
    known = references.published()
    wanted = chip_named(chip) if chip else None
    mfu = _of_chip(known.mfu, wanted)
    bandwidth = _of_chip(known.bandwidth, wanted)
    mfu.sort(key=lambda row: (row.chip, row.precision, row.params, row.gpus))
    if params or gpus:
        mfu.sort(key=lambda row: row.octaves_from(params=params, gpus=gpus))
        bandwidth.sort(key=lambda row: row.octaves_from(gpus=gpus))
        limit = limit or NEAREST_ROWS_USUAL
    models = {} if chip or params or gpus else known.models
    shown = references.PublishedReferences(
        sources={}, models=models, mfu=tuple(mfu[:limit]), bandwidth=tuple(bandwidth[:limit])
    )
    shown = _with_sources(shown, known.sources)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
        return
    _show(shown)
    for line in _remarks(len(mfu), len(bandwidth), limit):
        click.echo(f"holdfast: {line}", err=True)


def _remarks(mfu_rows: int, bandwidth_rows: int, limit: int | None) -> list[str]:
    """What a reader would otherwise miss without knowing it."""
    remarks = []
    if mfu_rows == 0:
        remarks.append("No MFU on this chip; `holdfast mfu` takes the chip with the nearest peak.")
    if bandwidth_rows == 0:
        remarks.append("No bus bandwidth of this chip.")
    if limit and mfu_rows > limit:
        remarks.append(f"{limit} of {mfu_rows} rows of MFU are shown; see --limit.")
    return remarks


def _of_chip(rows: Sequence[_Row], chip: Chip | None) -> list[_Row]:
    return [row for row in rows if chip in (None, row.chip)]


def _with_sources(
    shown: references.PublishedReferences, sources: dict[str, references.PublicationSource]
) -> references.PublishedReferences:
    """The same with the sources that it names, in the order in which a reader meets them."""
    named = [row.source for row in shown.mfu]
    named += [row.source for row in shown.bandwidth]
    named += [model.source for model in shown.models.values()]
    return msgspec.structs.replace(shown, sources={name: sources[name] for name in named})


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
    """A table without lines, unless it is empty; a column whose heading starts with `>` is flush right."""
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
    size = f"{row.size_bytes / 2**30:g} GiB" if row.size_bytes else "?"
    speed = f"{row.bus_gb_per_s:.1f}"
    return (row.chip, gpus, row.reach, row.collective, size, speed, row.basis, row.how, source)


def _model_cells(name: str, model: references.KnownModel, source: str) -> tuple[str, ...]:
    transformer = model.shape.transformer()
    return (name, _size(transformer.params), _size(transformer.active_params), source)


def _source_cells(number: str, source: references.PublicationSource) -> tuple[str, str]:
    return (number, ". ".join(part for part in (source.cite(), source.note.rstrip("."), source.url) if part))


def _size(params: int) -> str:
    return f"{params / 1e9:.3g}B" if params >= 1e9 else f"{params / 1e6:.0f}M"
